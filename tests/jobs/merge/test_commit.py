"""Small merges that find the rows to replace by few pages of an index on the key."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import FragmentMetadata, write_fragments
from support.data.copied import copied_table
from support.data.tables import Rows, flush, rows
from support.faults.deaths import die_at_commit
from support.stores.faulty_store import TABLE_MANIFEST, FaultyStores, Killed

import memwal
from memwal.errors import MemWalError
from memwal.jobs.merge import commit

ROWS = 80_000
"""Twenty pages of the index: keys at one end of the table are in one of them."""


def numbered(start: int, count: int) -> pa.Table:
    return rows(dict.fromkeys(range(start, start + count), 0))


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """A table whose index does not cover the last of its rows, some of which are deleted."""

    def make(uri: str) -> None:
        lance.write_dataset(numbered(0, ROWS), uri, max_rows_per_file=20_000)
        lance.dataset(uri).create_scalar_index("id", "BTREE")
        lance.write_dataset(numbered(ROWS, 10), uri, mode="append")
        lance.dataset(uri).delete("id in (79990, 79991, 80005)")
        memwal.enable(uri, primary_key=["id"], region_spec="bucket:id:2")

    return copied_table("indexed but for the last rows", tmp_path / "indexed", make)


WRITTEN: Rows = dict.fromkeys((79_989, 79_990, 79_995, 80_003, 80_005, 80_100), 1)
DELETED = [79_991, 79_994, 80_004, 90_000]
EXPECTED: Rows = {
    **{key: 0 for key in range(79_980, 80_010) if key not in (79_990, 79_991, 80_005)},
    **WRITTEN,
}
for deleted in DELETED:
    EXPECTED.pop(deleted, None)


def check(table: memwal.Table, expected: Rows = EXPECTED) -> None:
    """The base table has these rows at its end, once, and nothing is pending."""
    dataset = lance.dataset(table.uri)
    last = dataset.to_table(filter="id >= 79980", columns=["id", "n"]).to_pydict()
    assert sorted(last["id"]) == sorted(expected)
    assert dict(zip(last["id"], last["n"], strict=True)) == expected
    assert dataset.count_rows() == 79_980 + len(expected)
    assert table.status().backlog_generations == 0
    assert not table.verify().errors


def test_replaces_deletes_and_adds_rows_in_one_commit(table: memwal.Table) -> None:
    flush(table, WRITTEN, DELETED)
    version = table.base().version

    result = table.merge()

    check(table)
    assert table.base().version == version + 1
    assert (result.commits, result.metrics["generations"]) == (1, 4)
    assert (result.metrics["rows_upserted"], result.metrics["rows_deleted"]) == (6, 2)
    # A page has 4,096 keys and rows, of 8 bytes each.
    assert 0 < result.metrics["bytes_read"] < 2 * 4_096 * 16
    assert result.metrics["bytes_written"] > 0


@pytest.mark.parametrize("why", ["keys all over the table", "index of few rows", "damaged"])
def test_leaves_to_lance_what_takes_many_pages(table: memwal.Table, why: str) -> None:
    flush(table, WRITTEN, DELETED)
    expected = dict(EXPECTED)
    gone = 0
    if why == "keys all over the table":
        flush(table, {}, list(range(0, 79_000, 1_000)))
        gone = 79
    elif why == "index of few rows":
        lance.write_dataset(numbered(100_000, 12_000), table.uri, mode="append")
        expected |= dict.fromkeys(range(100_000, 112_000), 0)
    else:
        for path in Path(table.uri).glob("_indices/*/page_data.lance"):
            path.write_bytes(path.read_bytes()[:-40])

    assert table.merge().commits == 2

    dataset = lance.dataset(table.uri)
    assert dataset.count_rows() == 79_980 - gone + len(expected)
    last = dataset.to_table(columns=["id", "n"]).filter(pa.compute.field("id") >= 79_980)
    assert dict(zip(*last.to_pydict().values(), strict=True)) == expected


@pytest.mark.parametrize("landed", [True, False])
def test_a_death_at_the_commit_leaves_rows_and_progress_or_neither(
    faults: FaultyStores, table: memwal.Table, landed: bool
) -> None:
    flush(table, WRITTEN, DELETED)
    die_at_commit(faults.of(table.location), after=landed)
    with pytest.raises((Killed, MemWalError)):
        table.merge()
    faults.of(table.location).clear()
    assert table.status().backlog_generations == (0 if landed else 4)

    assert table.merge().metrics["generations"] == (0 if landed else 4)
    check(table)


def append(table: memwal.Table) -> None:
    """Another client writes a key that is merged."""
    lance.write_dataset(numbered(80_100, 1), table.uri, mode="append")


def delete(table: memwal.Table) -> None:
    lance.dataset(table.uri).delete("id in (79989, 80003)")


def clean_up(table: memwal.Table) -> None:
    delete(table)
    lance.dataset(table.uri).cleanup_old_versions(timedelta(0))


def compact(table: memwal.Table) -> None:
    lance.dataset(table.uri).optimize.compact_files()


def merge(table: memwal.Table) -> None:
    """Another merger merges the same, and what comes later."""
    table.merge()
    flush(table, {79_989: 5}, [79_990])
    table.merge()


@pytest.mark.parametrize("act", [append, delete, clean_up, compact, merge])
def test_what_another_client_commits_before_it_is_matched_again(
    faults: FaultyStores, table: memwal.Table, act: Callable[[memwal.Table], None]
) -> None:
    flush(table, WRITTEN, DELETED)
    with ThreadPoolExecutor(1) as others:
        faults.of(table.location).act(
            "create", lambda: others.submit(act, table).result(), key=TABLE_MANIFEST
        )
        table.merge()

    later = {79_989: 5} if act is merge else {}
    expected = {**EXPECTED, **later}
    if act is merge:
        del expected[79_990]
    check(table, expected)


def test_a_version_that_is_cleaned_up_while_it_pauses_starts_it_over(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(table, WRITTEN, DELETED)

    def pause(*arguments: Any, **options: Any) -> list[FragmentMetadata]:
        monkeypatch.undo()
        lance.dataset(table.uri).delete("id in (79985, 79989)")
        lance.dataset(table.uri).cleanup_old_versions(timedelta(0))
        return write_fragments(*arguments, **options)

    monkeypatch.setattr(commit, "write_fragments", pause)
    table.merge()

    check(table, {key: n for key, n in EXPECTED.items() if key != 79_985})


@pytest.mark.parametrize("key", [79_990, 80_100])
def test_a_direct_insert_that_was_prepared_before_doubles_no_key(
    table: memwal.Table, key: int
) -> None:
    flush(table, WRITTEN, DELETED)
    insert = lance.dataset(table.uri).merge_insert("id").when_matched_update_all()
    insert.when_not_matched_insert_all().use_index(False)
    assert table.merge().commits == 1

    insert.execute(rows({key: 7}))
    check(table, {**EXPECTED, key: 7})
