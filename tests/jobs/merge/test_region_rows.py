"""Rows of a region, read in shares: each key once, with its newest row."""

import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from support.data.tables import REGION, MakeTable, folder, keys, rows

import memwal
from memwal.jobs.job import SkippedRegion
from memwal.jobs.merge.job import plan_merge
from memwal.jobs.merge.picker import RegionSelection, Share
from memwal.jobs.merge.region_rows import RegionReader, open_region
from memwal.jobs.options import MergeOptions
from memwal.util.retry import LostRaceError

KEYS = 12_000
SHARES = [1, 2, 7, 50]


def write_generation(
    table: memwal.Table, numbers: Sequence[int], n: int, gone: Sequence[int] = ()
) -> None:
    """Flush rows with these keys, and deletes of others, in one generation."""
    with table.writer() as writer:
        writer.upsert(rows(dict.fromkeys(numbers, n)))
        if gone:
            writer.delete(keys(*gone))


@pytest.fixture
def table(make_table: MakeTable) -> memwal.Table:
    """A region of generations of many sizes, with keys that come again and are deleted."""
    table = make_table()
    random = np.random.default_rng(5)
    for number, count in enumerate((9_000, 3, 6_000, 1, 7_500), start=1):
        drawn = random.permutation(KEYS)[: count + count // 10].tolist()
        write_generation(table, drawn[:count], number, drawn[count:])
    return table


@pytest.fixture
def expected(table: memwal.Table) -> dict[int, int | None]:
    """The newest number of each key of the backlog; None if it is deleted."""
    found: dict[int, int | None] = dict.fromkeys(range(KEYS))
    scanned = table.scan(columns=["id", "n"]).to_table()
    found.update(zip(scanned["id"].to_pylist(), scanned["n"].to_pylist(), strict=True))
    return found


def region_of(table: memwal.Table) -> RegionSelection:
    (region,) = plan_merge(table.location, MergeOptions(divide_bytes=0, max_tasks=2)).selections
    return region


def read_shares(
    table: memwal.Table, region: RegionSelection, of: int, entering: np.ndarray | None = None
) -> list[RegionReader]:
    skipped: dict[UUID, SkippedRegion] = {}
    readers = [
        open_region(table.base(), region, Share(number, of), skipped, entering=entering)
        for number in range(of)
    ]
    assert not skipped
    return [reader for reader in readers if reader is not None]


def contents(readers: Sequence[RegionReader]) -> list[tuple[int, int | None]]:
    """Each key that enters, with its number; None for one that is deleted."""
    found: list[tuple[int, int | None]] = []
    for reader in readers:
        batches = list(reader.storable(reader.upserted))
        if batches:
            stored = pa.Table.from_batches(batches)
            found += zip(stored["id"].to_pylist(), stored["n"].to_pylist(), strict=True)
        found += [(key, None) for key in reader.deletes()["id"].to_pylist()]
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("of", SHARES)
def test_shares_have_each_key_once(
    table: memwal.Table, expected: dict[int, int | None], of: int
) -> None:
    region = region_of(table)

    found = contents(read_shares(table, region, of))

    written = {key: expected[key] for key, _ in found}
    assert sorted(found, key=str) == sorted(written.items(), key=str)
    assert written.keys() == {key for key, _ in contents(read_shares(table, region, 1))}
    assert {key for key, n in expected.items() if n} <= written.keys()


def test_rows_that_are_read_at_once_are_those_of_a_share(table: memwal.Table) -> None:
    region = region_of(table)

    whole = open_region(table.base(), region, Share(), {}, whole=True)

    assert whole is not None
    assert contents([whole]) == contents(read_shares(table, region, 1))


@pytest.mark.few(1)
@pytest.mark.parametrize("of", SHARES)
def test_shares_have_the_rows_that_a_gate_lets_in(table: memwal.Table, of: int) -> None:
    region = region_of(table)
    (whole,) = read_shares(table, region, 1)
    entering = whole.newest & (np.arange(len(whole.newest)) % 3 > 0)

    found = read_shares(table, region, of, entering)

    assert np.concatenate([reader.newest for reader in found]).tolist() == entering.tolist()
    assert len(contents(found)) == np.count_nonzero(entering)


def test_shares_are_of_about_the_same_size(table: memwal.Table) -> None:
    readers = read_shares(table, region_of(table), 7)
    sizes = [len(reader.newest) for reader in readers]
    assert max(sizes) < 1.5 * min(sizes)


@pytest.mark.parametrize("number", [0, 1])
def test_a_generation_whose_keys_cannot_be_read_ends_each_share_that_needs_them(
    make_table: MakeTable, number: int
) -> None:
    """The other generations are divided without it."""
    table = make_table()
    for n in (1, 2, 3):
        write_generation(table, range(100), n)
    region = region_of(table)
    (path,) = folder(table).glob(f"_mem_wal/{REGION}/*_gen_2/data/*")
    path.write_bytes(path.read_bytes()[:-40])
    skipped: dict[UUID, SkippedRegion] = {}

    reader = open_region(table.base(), region, Share(number, 2), skipped)

    assert reader is not None
    assert [generation.number for generation in reader.selection.generations] == [1]
    assert [region.generation for region in skipped.values()] == [2]
    assert 40 < len(reader.newest) < 60


@pytest.mark.parametrize("merged_by_another", [True, False])
def test_a_generation_that_is_gone_starts_the_merge_over_if_another_merged_it(
    make_table: MakeTable, merged_by_another: bool
) -> None:
    table = make_table()
    write_generation(table, range(10), 1)
    base, region = table.base(), region_of(table)
    if merged_by_another:
        table.merge()
    for path in folder(table).glob(f"_mem_wal/{REGION}/*_gen_1"):
        shutil.rmtree(path)
    skipped: dict[UUID, SkippedRegion] = {}

    with pytest.raises(LostRaceError) if merged_by_another else nullcontext():
        assert open_region(base, region, Share(), skipped) is None

    assert [it.generation for it in skipped.values()] == ([] if merged_by_another else [1])
