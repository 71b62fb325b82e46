"""What a newer state of a table has left behind does not stay in memory."""

import gc
import shutil
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.data.searched import Searched
from support.data.tables import MakeTable, collect_now, rows, state
from support.oracles.read_sources import collect_sources
from support.oracles.reading import read_all_kinds

import memwal
from memwal.reader.sources import cache, snapshot
from memwal.reader.sources.cache import (
    CacheTag,
    GenerationTag,
    LruCache,
    SegmentTag,
    VersionTag,
    all_caches,
    tags_in,
    version_key,
)
from memwal.reader.sources.snapshot import open_version


@pytest.fixture(autouse=True)
def _only_what_is_new_is_collected() -> Iterator[None]:
    """Looking through all that the run made before takes longer than what is tested."""
    gc.freeze()
    yield
    gc.unfreeze()


def names(table: memwal.Table) -> set[CacheTag]:
    """What is kept of a table."""
    return {name for kept in all_caches() for name in kept.tags() if name.uri == table.uri}


def datasets(table: memwal.Table) -> list[weakref.ref[Any]]:
    """The data sets of the state of now, not held."""
    sources = collect_sources(table.location)
    opened = [sources.base.dataset, *(source.dataset for source in sources.generations)]
    return [weakref.ref(dataset) for dataset in opened]


def alive(references: list[weakref.ref[Any]]) -> int:
    """How many of them are still in memory."""
    gc.collect()
    return sum(reference() is not None for reference in references)


def flush(searched: Searched, *parts: range) -> None:
    """Write each part as a generation of its own."""
    with searched.table.writer() as writer:
        for part in parts:
            writer.upsert(searched.rows(part))
            writer.flush()
            read_all_kinds(searched.table)


def test_nothing_stays_of_what_is_merged_and_indexed(tmp_path: Path) -> None:
    searched = Searched(tmp_path)
    table = searched.table
    read_all_kinds(table)
    seen = datasets(table)
    flush(searched, range(100, 130), range(120, 160))
    assert any(isinstance(name, GenerationTag) for name in names(table))
    seen += datasets(table)
    assert alive(seen) == len(seen)
    table.merge()
    read_all_kinds(table)
    seen += datasets(table)
    # A compaction withdraws what indexes recorded of their catch-up.
    table.compact()
    table.build_indexes()
    collect_now(table)
    read_all_kinds(table)
    base = table.base()
    living = {
        segment.uuid for index in base.dataset.describe_indices() for segment in index.segments
    }
    kept = names(table)
    assert [name for name in kept if isinstance(name, GenerationTag)] == []
    assert [name for name in kept if isinstance(name, VersionTag)] == [version_key(base)]
    assert {name.uuid for name in kept if isinstance(name, SegmentTag)} <= living
    assert alive(seen) == 0


def test_nothing_stays_where_reads_may_be_stale(tmp_path: Path) -> None:
    searched = Searched(tmp_path)
    table = searched.table
    flush(searched, range(100, 130))
    table.build_snapshot()
    table.at_most(timedelta(hours=1)).scan().to_table()
    table.checkpoint()
    table.at_most(timedelta(hours=1)).scan().to_table()
    assert [name for name in names(table) if isinstance(name, GenerationTag)] == []


def test_what_answers_for_an_index_that_lags_stays(tmp_path: Path) -> None:
    """Generations that are merged find their rows until the index has them."""
    searched = Searched(tmp_path)
    flush(searched, range(100, 130))
    before = {name for name in names(searched.table) if isinstance(name, GenerationTag)}
    searched.table.merge()
    read_all_kinds(searched.table)
    assert before <= names(searched.table)
    searched.table.build_indexes()
    read_all_kinds(searched.table)
    assert not before & names(searched.table)


def test_a_version_that_is_asked_for_stays(tmp_path: Path) -> None:
    searched = Searched(tmp_path)
    table = searched.table
    version = table.base().version
    read_all_kinds(table.at(version))
    of_it = {name for name in names(table) if isinstance(name, VersionTag | SegmentTag)}
    flush(searched, range(100, 130))
    table.checkpoint()
    read_all_kinds(table)
    assert of_it <= names(table)
    read_all_kinds(table.at(version))


def test_what_was_freed_is_given_back_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(cache, "release_free_memory", lambda: given_back.append(len(given_back)))
    searched = Searched(tmp_path)
    flush(searched, range(100, 130))
    assert given_back == []
    searched.table.checkpoint()
    read_all_kinds(searched.table)
    read_all_kinds(searched.table)
    assert given_back == [0]


def test_the_same_version_is_looked_through_once(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of more tables than stay open."""
    looked_through: list[str] = []
    monkeypatch.setattr(
        snapshot,
        "invalidate_stale",
        lambda newest, others: looked_through.append(newest.location.uri),
    )
    tables = [make_table() for _ in range(6)]
    for table in tables * 3:
        assert table.scan().count_rows() == 0
    assert looked_through == [table.uri for table in tables]


@pytest.mark.few(1)
@pytest.mark.parametrize("own", [True, False])
def test_a_version_that_is_gone_stops_nobody(
    tmp_path: Path, make_table: MakeTable, *, own: bool
) -> None:
    """Nobody has asked for its indexes yet."""
    searched = Searched(tmp_path)
    table = searched.table
    read_all_kinds(table)
    past = table if own else make_table()
    past.upsert(searched.rows(range(100, 130)) if own else rows({1: 1}))
    past.merge()
    open_version(past.location, past.base().version)
    table.upsert(searched.rows(range(120, 150)))
    table.checkpoint()
    if not own:
        shutil.rmtree(past.uri)
    collect_now(table, version_retention_seconds=0)
    read_all_kinds(table)
    assert any(isinstance(name, SegmentTag) for name in names(table))


def test_a_scan_under_way_goes_on(make_table: MakeTable) -> None:
    table = make_table()
    with table.writer() as writer:
        for start in (0, 10, 20):
            writer.upsert(rows({key: key for key in range(start, start + 10)}))
            writer.flush()
    batches = table.scan().to_batches()
    first = next(batches)
    table.merge()
    assert table.scan().count_rows() == 30
    assert not any(isinstance(name, GenerationTag) for name in names(table))
    assert state(pa.Table.from_batches([first, *batches])) == {key: key for key in range(30)}


def test_other_tables_keep_theirs(make_table: MakeTable, tmp_path: Path) -> None:
    searched = Searched(tmp_path)
    flush(searched, range(100, 130))
    kept = names(searched.table)
    other = make_table()
    other.upsert(rows({1: 1}))
    other.merge()
    assert state(other) == {1: 1}
    assert names(searched.table) == kept


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("a/_indices/some/part_0", SegmentTag("a", "some")),
        ("a/_mem_wal/nobody/0123abcd_gen_5", None),
        ("a/_mem_wal/00000000-0000-0000-0000-000000000000/manifest", None),
        ("a/data", None),
    ],
)
def test_addresses_name_what_they_belong_to(address: str, found: CacheTag | None) -> None:
    assert tags_in((1, (address, "other"))) == ({found} if found else frozenset())


def test_what_is_forgotten_weighs_nothing() -> None:
    recent: LruCache[str] = LruCache(6, len)
    gone = SegmentTag("a", "x")
    recent.get(("a/_indices/x", 1), lambda: "111")
    recent.get(("a/_indices/x", 2), lambda: "22")
    recent.get("b", lambda: "3")
    assert recent.tags() == {gone}
    recent.invalidate([gone])
    assert recent.tags() == frozenset()
    recent.get("c", lambda: "44444")
    assert recent.values() == ["3", "44444"]
