"""A writer lives until the power goes: what was acknowledged is there afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from power_cuts.scenes import DONE, WRITTEN, Crashes, Known, Scene, Stage
from support.data.tables import SCHEMA, base_state, collect_now, generations, keys, rows, state
from support.faults.power_loss import Crash, since
from support.oracles import native
from support.oracles.truth import Change

import memwal
from memwal.jobs.verify import verify

COLLECTED = "after a collection"
HARMLESS = {"log-tip-torn", "hint-missing", "hint-late"}
"""What verify finds that the next claim puts right."""


def create(stage: Stage) -> memwal.Table:
    return memwal.create(stage.path, SCHEMA, primary_key="id", maintained_indexes=["id_idx"])


def check_recovery(uri: str, crash: Crash[Known], *, by_lance: bool) -> None:
    """The next writer has everything, goes on, and everybody sees the same."""
    table = memwal.open(uri)
    unexpected = {finding.code for finding in verify(table.location).findings} - HARMLESS
    assert not unexpected, f"verify found {unexpected}"
    if by_lance:
        native.upsert(table, rows({99: 99}))
    else:
        with table.writer() as writer:
            writer.upsert(rows({99: 99}))
            assert state(writer)[99] == 99
    found = state(table)
    assert found.pop(99) == 99
    copy.deepcopy(crash.known.truth).settle(found)
    # Nothing that was lost comes back over what is written now.
    found |= write_on(table, found)
    native.everything(table)
    assert state(table.lookup(keys(*found)).to_table()) == found
    table.merge()
    assert base_state(table) == {**found, 99: 99}


def write_on(table: memwal.Table, found: dict[int, int | None]) -> dict[int, int | None]:
    """Write what earlier entries of the log may have had too, and then further entries."""
    new = {1: 100, **{n: n for n in range(200, 205)}}
    with table.writer() as writer:
        for key, n in new.items():
            writer.upsert(rows({key: n}))
        assert state(writer) == {**found, 99: 99, **new}
    return new


def recovers(path: Path, crash: Crash[Known]) -> None:
    """The next writer recovers: by turns Lance's and ours."""
    number = int(path.name.rpartition("-")[2])
    check_recovery(str(path / "table"), crash, by_lance=number % 3 == 2)


def writes(stage: Stage) -> None:
    writer = memwal.open(str(stage.path)).writer()
    stage.write(writer, {1: 1, 2: 2})
    stage.write(writer, {2: 20})
    stage.write(writer, {1: None})
    writer.abort()


def flushes(stage: Stage) -> None:
    table = memwal.open(str(stage.path))
    with table.writer() as writer:
        stage.write(writer, {1: 1, 2: 2})
        writer.flush()
        stage.write(writer, {2: 20})
    with table.writer() as writer:
        stage.write(writer, {1: None})


def takes_over_from_lance(stage: Stage) -> None:
    table = memwal.open(str(stage.path))
    writer = table.writer()
    shard = native.writer(table)
    stage.truth.begin({1: 1})
    stage.recorder.note("before a write by Lance")
    native.put(shard, table, rows({1: 1}))
    stage.write(writer, {2: 2})
    writer.abort()


def takes_generations_from_lance(stage: Stage) -> None:
    """Lance syncs neither a generation nor the manifest that names it, on which a claim relies."""
    table = memwal.open(str(stage.path))
    stage.truth.begin({1: 1})
    stage.recorder.note("before a write by Lance")
    native.upsert(table, rows({1: 1}))
    assert len(generations(table)) == 1
    writer = table.writer()
    stage.write(writer, {2: 2})
    writer.abort()


def takes_over(stage: Stage) -> None:
    table = memwal.open(str(stage.path))
    first = table.writer()
    stage.write(first, {1: 1})
    second = table.writer()
    second.claim()
    stage.write(second, {2: 2})
    first.abort()
    second.abort()
    table.writer().claim()


def creates(stage: Stage) -> None:
    """A table that was created is there."""
    table = create(stage)
    stage.done()
    writer = table.writer()
    stage.write(writer, {1: 1})
    writer.abort()


def adds_a_column(stage: Stage) -> None:
    table = memwal.open(str(stage.path))
    native.dataset(table).add_columns(pa.field("new", pa.int64()))
    writer = table.writer()
    writer.upsert(rows({1: 1}).append_column("new", pa.array([1000])))
    stage.recorder.note(WRITTEN)
    writer.abort()


def has_the_column(path: Path, crash: Crash[Known]) -> None:
    """A column that was written to is there, though Lance does not sync the table it is in."""
    with memwal.open(str(path / "table")).writer() as writer:
        writer.claim()
        assert writer.scan().to_table().column("new").to_pylist() == [1000]


def create_generations(*changes: Change[int]) -> Callable[[Stage], None]:
    """A table with a flushed generation for each change, none of them merged."""

    def prepare(stage: Stage) -> None:
        with create(stage).writer() as writer:
            for change in changes:
                stage.write(writer, change)
                writer.flush()

    return prepare


def merges(stage: Stage) -> None:
    memwal.open(str(stage.path)).merge()


def merges_by_lance_and_collects(stage: Stage) -> None:
    """Nothing is deleted before what replaced it is safe, though Lance does not sync a merge."""
    table = memwal.open(str(stage.path))
    native.merge(table)
    for _ in range(2):
        collect_now(table, foreign_claim_seconds=0)
        stage.recorder.note(COLLECTED)
    with table.writer() as writer:
        stage.write(writer, {3: 3})


def behind_the_first_barrier(found: Crashes) -> Crashes:
    barriers = [n for n, crash in enumerate(found) if crash.when.startswith("syncfs")]
    if not barriers:
        # Nothing tells which sync ended the first barrier.
        return since(found, COLLECTED)
    return [crash for crash in found[barriers[0] :] if not crash.when.startswith("syncfs")]


written = partial(since, what=WRITTEN)

SCENES = {
    "writes": Scene(writes, recovers, create),
    "flushes": Scene(flushes, recovers, create),
    # Lance syncs no entry of a log; ours behind them are safe all the same. Before that the region
    # is as Lance left it.
    "takeover from Lance": Scene(takes_over_from_lance, recovers, create, written),
    "generation of Lance": Scene(takes_generations_from_lance, recovers, create, written),
    "takeovers": Scene(takes_over, recovers, create),
    "new table": Scene(creates, recovers, promised=partial(since, what=DONE)),
    "new column": Scene(adds_a_column, has_the_column, create, written),
    "merged upserts": Scene(merges, recovers, create_generations({1: 1, 2: 2}, {2: 20})),
    "merged deletes": Scene(merges, recovers, create_generations({1: 1, 2: 2}, {2: None})),
    "collections": Scene(
        merges_by_lance_and_collects,
        recovers,
        create_generations({1: 1, 2: 2}, {2: None}),
        behind_the_first_barrier,
    ),
}
