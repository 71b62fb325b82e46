"""Copying a table: what was acknowledged before is in the copy, whatever goes on meanwhile."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pytest
from support.data import indexed
from support.data.merging import elsewhere
from support.data.tables import (
    SCHEMA,
    MakeTable,
    base_state,
    collect_now,
    folder,
    keys,
    log,
    manifest,
    rows,
    state,
)
from support.oracles import native
from support.stores.faulty_store import FaultyStore, FaultyStores, Killed
from support.stores.s3_emulator import S3Emulator

import memwal
from memwal.base_table.refs import list_read_tags
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    TableSetupError,
)
from memwal.format.paths import CHANGE_TRACE_KEY, wal_key
from memwal.jobs.table import copy as table_copy
from memwal.jobs.table.copy import copy_table
from memwal.region.manifest_store import read_manifests
from memwal.storage.location import TableLocation
from memwal.util.retry import LostWriteError

VALUES: dict[int, int | None] = {1: 3, 2: 1, 4: 1, 5: 4, 6: 5}


def fill(table: memwal.Table) -> memwal.Writer:
    """Rows that are merged, merged and dropped, flushed, deleted, and only in the log."""
    writer = table.writer()
    writer.upsert(rows({1: 1, 2: 1, 3: 1, 4: 1}))
    writer.flush()
    table.merge()
    collect_now(table)
    writer.upsert(rows({1: 2}))
    writer.flush()
    table.merge()
    writer.upsert(rows({1: 3, 5: 4}))
    writer.delete(keys(3))
    writer.flush()
    writer.upsert(rows({6: 5}))
    return writer


def everything(uri: Path | str) -> dict[int, int | None]:
    """What a copy shows when its regions are claimed; a healthy copy it must be."""
    table = memwal.open(str(uri))
    report = table.verify()
    assert report.clean, report.findings
    with table.writer() as writer:
        writer.claim()
        shown = state(writer)
    table.checkpoint()
    assert base_state(table) == shown
    assert table.verify().clean
    return shown


@pytest.mark.few(1)
@pytest.mark.parametrize("buckets", [None, 3])
def test_a_copy_has_all_that_was_acknowledged(
    make_table: MakeTable, tmp_path: Path, buckets: int | None
) -> None:
    table = make_table(buckets=buckets, maintained_indexes=["id_idx"])
    writer = fill(table)

    result = table.copy_to(str(tmp_path / "copy"))

    assert everything(tmp_path / "copy") == VALUES
    assert result.version == table.base().version
    assert result.metrics["regions"] == len(read_manifests(table.location.store))
    assert result.metrics["bytes"] > 0
    assert list_read_tags(table.location) == {}
    # The source is as it was, and its writer goes on.
    writer.upsert(rows({7: 7}))
    writer.close()
    assert state(table) == {**VALUES, 7: 7}


def test_merged_generations_stay_behind(table: memwal.Table, tmp_path: Path) -> None:
    fill(table).abort()
    assert [flushed.generation for flushed in manifest(table).flushed] == [2, 3]

    result = table.copy_to(str(tmp_path / "copy"))

    copy = memwal.open(str(tmp_path / "copy"))
    assert [flushed.generation for flushed in manifest(copy).flushed] == [3]
    assert result.metrics["generations"] == 1
    assert result.metrics["log_entries"] == len(log(copy)) == 1


def test_the_log_of_a_copy_ends_where_its_own_ends(table: memwal.Table, tmp_path: Path) -> None:
    writer = fill(table)
    writer.close()

    table.copy_to(str(tmp_path / "copy"))

    copy = memwal.open(str(tmp_path / "copy"))
    assert max(log(copy)) == max(log(table)) == manifest(table).replay_after
    # Lance finds the tip by a listing: with an empty log its rows would be skipped by every replay.
    native.upsert(copy, rows({9: 9}))
    assert everything(tmp_path / "copy") == {**VALUES, 9: 9}


@pytest.mark.parametrize("flushes", [(), ("step",), ("step", "write"), ("write",)])
@pytest.mark.parametrize("collects", [False, True])
def test_a_copy_has_the_steps_of_its_rows(
    make_table: MakeTable, tmp_path: Path, flushes: Sequence[str], collects: bool
) -> None:
    table = make_table()
    writer = table.writer()
    writer.apply(upserts=rows({1: 1}), source="q", version=1)
    writer.apply(upserts=rows({1: 10}), source="q", version=7)
    if "step" in flushes:
        writer.flush()
    writer.upsert(rows({1: 20}))
    if "write" in flushes:
        writer.flush()
    table.merge()
    if collects:
        collect_now(table)
    writer.abort()

    table.copy_to(str(tmp_path / "copy"))

    copy = memwal.open(str(tmp_path / "copy"))
    assert copy.verify().clean
    for source in (table, copy):
        assert set(source.applied("q").values()) == {7}
        with source.writer() as writer:
            assert not writer.apply(upserts=rows({1: 10}), source="q", version=7).written
            assert writer.apply(upserts=rows({2: 2}), source="q", version=8).written
        assert state(source) == {1: 20, 2: 2}


def test_a_copy_knows_no_steps_that_the_table_has_lost(table: memwal.Table, tmp_path: Path) -> None:
    with table.writer() as writer:
        writer.apply(upserts=rows({1: 1}), source="q", version=1)
    lost = max(log(table))
    table.upsert(rows({1: 20}))
    table.merge()
    table.location.store.delete(wal_key(manifest(table).region_id, lost))

    table.copy_to(str(tmp_path / "copy"))

    for source in (table, memwal.open(str(tmp_path / "copy"))):
        with source.writer() as writer, pytest.raises(CorruptDataError):
            writer.apply(upserts=rows({1: 1}), source="q", version=1)
        assert state(source) == {1: 20}


@pytest.mark.parametrize("flushed", [False, True])
def test_a_copy_has_the_first_step_of_a_region_with_its_rows(
    make_table: MakeTable, quick_faults: FaultyStores, tmp_path: Path, flushed: bool
) -> None:
    """A region gets its first step right before one look of the copy at its log."""
    seen = set()
    for before in range(10**9):
        table = make_table()
        writer = table.writer()
        writer.upsert(rows({0: 0}))
        if flushed:
            writer.flush()

        def meanwhile(writer: memwal.Writer = writer) -> None:
            for _ in range(5):
                writer.upsert(rows({0: 0}))
            writer.apply(upserts=rows({1: 10}), source="q", version=7)
            writer.upsert(rows({1: 20}))

        store = quick_faults.of(table.location)
        rule = store.act("*", meanwhile, key="_mem_wal/*", skip=before)
        table.copy_to(str(tmp_path / f"copy-{before}"))
        store.clear()
        writer.abort()
        if not rule.hits:
            break
        copy = memwal.open(str(tmp_path / f"copy-{before}"))
        assert copy.verify().clean
        with copy.writer() as writer:
            writer.claim()
            has_step = 1 in state(writer)
            seen.add(has_step)
            repeated = writer.apply(upserts=rows({1: 10}), source="q", version=7)
            assert bool(repeated.written) == (not has_step)
        with copy.writer() as writer:
            assert not writer.apply(upserts=rows({1: 30}), source="q", version=7).written
        assert state(copy) == {0: 0, 1: 20 if has_step else 10}
    assert seen == {False, True}


def disturbed(
    table: memwal.Table, store: FaultyStore, target: Path, *, before: int, collects: bool
) -> tuple[bool, bool]:
    """Copy a table, with all that could be in the way right before one call of the copy.

    Returns
    -------
    (bool, bool)
        Whether the copy has so many calls, and whether there is a copy.
    """
    writer = fill(table)
    calls = 0

    def meanwhile() -> None:
        nonlocal calls
        calls += 1
        if calls == before:
            store.clear()
            writer.upsert(rows({10: 10}))
            writer.flush()
            table.merge()
            table.build_indexes()
            for _ in range(2 if collects else 0):
                collect_now(table, version_retention_seconds=0)
            writer.upsert(rows({11: 11}))

    store.clear()
    store.act("*", meanwhile, times=10**9)
    try:
        table.copy_to(str(target))
    except MemWalError:
        return True, False
    finally:
        store.clear()
        writer.abort()
    return calls >= before, True


@pytest.mark.parametrize(
    ("stride", "collects"),
    [
        (20, True),
        pytest.param(1, True, marks=pytest.mark.slow),
        pytest.param(1, False, marks=pytest.mark.soak),
    ],
)
def test_whatever_happens_between_two_steps(
    make_table: MakeTable,
    quick_faults: FaultyStores,
    tmp_path: Path,
    stride: int,
    collects: bool,
) -> None:
    step, refused, goes_on = 0, 0, True
    while goes_on:
        step += stride
        table = make_table(maintained_indexes=["id_idx"])
        target = tmp_path / f"copy-{step}"
        store = quick_faults.of(table.location)
        goes_on, copied = disturbed(table, store, target, before=step, collects=collects)
        if not copied:
            # The version was cleaned up, without any retention, between two requests of a look.
            refused += 1
            with pytest.raises(MemWalError):
                memwal.open(str(target))
            continue
        shown = everything(target)
        assert {key: n for key, n in shown.items() if key < 10} == VALUES
        assert {key: n for key, n in shown.items() if key >= 10} in (
            {},
            {10: 10},
            {10: 10, 11: 11},
        )
    assert step > 20
    assert refused * stride < step / 2


def test_a_copy_that_dies_is_no_table_and_keeps_nothing_for_long(
    table: memwal.Table, quick_faults: FaultyStores, tmp_path: Path
) -> None:
    writer = fill(table)
    writer.apply(upserts=rows({7: 7}), source="q", version=1)
    writer.abort()
    target = TableLocation(str(tmp_path / "copy"))
    store = quick_faults.of(target)
    steps = 0
    while True:
        store.clear()
        store.kill("[cp]*", skip=steps)
        try:
            copy_table(table.location, target)
            break
        except Killed:
            pass
        with pytest.raises(MemWalError):
            memwal.open(target.uri)
        store.clear()
        if next(iter(store.list("")), None) is not None:
            with pytest.raises(TableSetupError):
                copy_table(table.location, target)
        for info in list(store.list("")):
            store.delete(info.key)
        steps += 1
    store.clear()
    assert steps > 5
    with memwal.open(target.uri).writer() as writer:
        assert not writer.apply(upserts=rows({7: 8}), source="q", version=1).written
    assert everything(target.uri) == {**VALUES, 7: 7}


def test_a_tag_that_is_taken_away_ends_the_copy(
    table: memwal.Table, quick_faults: FaultyStores, tmp_path: Path
) -> None:
    fill(table).abort()
    target = TableLocation(str(tmp_path / "copy"))

    def take() -> None:
        for tag in list_read_tags(table.location):
            table.location.store.delete(tag.key)

    quick_faults.of(target).act("put", take, times=1)

    with pytest.raises(ConflictError):
        copy_table(table.location, target)
    with pytest.raises(MemWalError):
        memwal.open(target.uri)


def test_tasks_that_run_twice_and_after_the_copy_change_nothing(
    table: memwal.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that Spark took for dead may go on while the copy has clients of its own."""
    monkeypatch.setattr(table_copy, "_TASK_BYTES", 1)
    fill(table).abort()
    # As a machine that lost power leaves the end of a log.
    region = manifest(table).region_id
    torn = wal_key(region, max(log(table)) + 1)
    table.location.store.put(torn, b"torn")
    late: list[Callable[[], object]] = []

    def run(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        late.extend(partial(function, task) for task in tasks)
        elsewhere(tasks, function)
        return elsewhere(tasks, function)

    result = table.copy_to(tmp_path / "copy", max_tasks=3, run=run)

    assert result.tasks == 3
    copy = memwal.open(tmp_path / "copy")
    with copy.writer() as writer:
        writer.upsert(rows({7: 7}))
        names = [wal_key(region, position) for position in log(copy)]
        entries = {name: copy.location.store.get(name) for name in names}
        for task in late:
            with suppress(MemWalError):
                task()
    assert torn in entries
    assert {key: copy.location.store.get(key) for key in entries} == entries
    assert everything(copy.uri) == {**VALUES, 7: 7}


def test_a_late_trace_of_a_table_that_was_deleted_is_in_the_way_of_no_copy(
    table: memwal.Table, tmp_path: Path
) -> None:
    late = tmp_path / "gone" / CHANGE_TRACE_KEY
    late.parent.mkdir(parents=True)
    late.touch()
    assert table.copy_to(tmp_path / "gone").job == "copy"


def test_nothing_is_copied_over(table: memwal.Table, make_table: MakeTable) -> None:
    other = make_table()
    with pytest.raises(TableSetupError):
        table.copy_to(other.uri)
    for inside in (table.uri, f"{table.uri}/copy"):
        with pytest.raises(InvalidInputError):
            table.copy_to(inside)


def test_a_log_with_a_gap_is_not_taken_for_whole(table: memwal.Table, tmp_path: Path) -> None:
    writer = table.writer()
    for number in range(3):
        writer.upsert(rows({number: number}))
    writer.abort()
    table.location.store.delete(wal_key(manifest(table).region_id, max(log(table)) - 1))

    with pytest.raises(CorruptDataError):
        table.copy_to(str(tmp_path / "copy"))


@pytest.mark.parametrize("pattern", ["data/*", "_mem_wal/*/*_gen_*/_pk_index/page_lookup.lance"])
def test_a_damaged_file_is_not_copied(table: memwal.Table, tmp_path: Path, pattern: str) -> None:
    fill(table).close()
    damaged = list(folder(table).glob(pattern))
    assert damaged
    for path in damaged:
        os.truncate(path, 0)

    with pytest.raises(CorruptDataError):
        table.copy_to(str(tmp_path / "copy"))
    with pytest.raises(TableSetupError):
        memwal.open(str(tmp_path / "copy"))


def test_a_copy_that_lost_its_end_is_not_named(
    table: memwal.Table, tmp_path: Path, faults: FaultyStores
) -> None:
    fill(table).close()
    target = TableLocation(str(tmp_path / "copy"))

    def cut() -> None:
        for path in Path(target.uri).glob("data/*.lance"):
            os.truncate(path, 100)

    faults.of(target).act("put", cut, after=True, key="data/*", times=1_000)
    with pytest.raises(LostWriteError):
        table.copy_to(target.uri)
    with pytest.raises(TableSetupError):
        memwal.open(target.uri)


def test_files_larger_than_a_chunk(
    table: memwal.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_copy, "CHUNK_BYTES", 100)
    fill(table).abort()

    table.copy_to(str(tmp_path / "copy"))

    assert everything(tmp_path / "copy") == VALUES


def test_an_index_that_was_behind_catches_up(tmp_path: Path) -> None:
    table = indexed.indexed_table(tmp_path, "IVF_PQ")
    indexed.merge_rows(table, indexed.rows(5000, 200, seed=1))
    before = indexed.answers(table, "IVF_PQ")

    table.copy_to(str(tmp_path / "copy"))

    copy = memwal.open(str(tmp_path / "copy"))
    assert all(not found.flushed for found in read_manifests(copy.location.store).values())
    assert indexed.recall(copy, indexed.answers(copy, "IVF_PQ")) >= indexed.recall(table, before)
    assert copy.build_indexes().warnings == ()
    assert copy.verify().clean
    assert lance.dataset(copy.uri).count_rows() == lance.dataset(table.uri).count_rows()


@pytest.mark.slow
def test_from_a_bucket_to_a_disk_and_back(emulator: S3Emulator, tmp_path: Path) -> None:
    bucket, options = emulator.create_bucket(), emulator.storage_options
    table = memwal.create(
        f"s3://{bucket}/table",
        SCHEMA,
        primary_key=["id"],
        region_spec="bucket:id:2",
        maintained_indexes=["id_idx"],
        storage_options=options,
    )
    writer = fill(table)
    table.copy_to(str(tmp_path / "here"))
    writer.abort()
    assert everything(tmp_path / "here") == VALUES

    memwal.open(str(tmp_path / "here")).copy_to(f"s3://{bucket}/back", storage_options=options)
    back = memwal.open(f"s3://{bucket}/back", storage_options=options)
    assert base_state(back) == VALUES
    assert back.verify().clean
    assert list_read_tags(table.location) == {}
