"""Races that have lost rows somewhere, each by its name."""

import random
from functools import partial

import lance
import pytest
from support.data.sampled import every
from support.data.tables import keys, rows, state
from support.faults.fault_schedule import Actors
from support.faults.jobs import JOBS
from support.faults.others import (
    Other,
    append,
    compactor,
    indexer,
    merger,
    native_merger,
    oldest_merger,
    our_writer,
    snapshots,
    update,
)
from support.faults.prepared import finish
from support.oracles.auditor import Auditor, has_folders
from support.oracles.native import collect_all
from support.oracles.native import merge as merge_natively
from support.oracles.read_sources import collect_sources
from support.stores.faulty_store import TABLE_MANIFEST

import memwal
from memwal.jobs.merge import merge_insert
from memwal.jobs.merge.job import merge
from memwal.lsm.indexes.catchup import caught_up

Play = tuple[memwal.Table, Auditor]


@pytest.fixture
def play(actors: Actors) -> Play:
    """Return a table with something to do for every job, and its auditor."""
    return actors.copy()


def write(table: memwal.Table, auditor: Auditor, values: dict[int, int | None]) -> None:
    table.upsert(rows(values))
    auditor.wrote(values)


def remove(table: memwal.Table, auditor: Auditor, *gone: int) -> None:
    table.delete(keys(*gone))
    auditor.wrote({}, gone)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "job", ["snapshot build", pytest.param("snapshot build in a file", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "first",
    every(2, [merger, native_merger, indexer, our_writer], lambda one: one.__name__),
)
@pytest.mark.parametrize("operation", ["head", "create"], ids=["when it was read", "at its end"])
def test_the_details_commit_that_takes_back_progress(
    actors: Actors, play: Play, job: str, first: Other, operation: str
) -> None:
    table, auditor = play
    before = dict(table.base().details.merged)

    def meanwhile() -> None:
        first(table, auditor)
        auditor.look(table)

    actors.pause_at(table, JOBS[job], operation, TABLE_MANIFEST, meanwhile)

    auditor.look(table)
    if first in (merger, native_merger):
        assert all(table.base().details.merged[region] > before[region] for region in before)
    finish(table, auditor)


def test_the_covering_of_nothing_that_takes_back_progress(actors: Actors, play: Play) -> None:
    """An index over an empty table is caught up by a commit of the details alone."""
    table, auditor = play
    merger(table, auditor)
    # Its claims replay what is in the logs.
    table.delete(keys(*range(1000)))
    auditor.replayed()
    lance.dataset(table.uri).delete("id >= 1000")
    auditor.wrote({}, list(auditor.truth.expected()))
    merger(table, auditor)
    assert table.base().dataset.count_rows() == 0

    def meanwhile() -> None:
        write(table, auditor, {1: 1, 2: 2, 3: 3})
        merger(table, auditor)

    actors.pause_at(table, JOBS["index build"], "create", TABLE_MANIFEST, meanwhile)

    auditor.look(table)


@pytest.mark.few(1)
@pytest.mark.parametrize("skip", [0, 1], ids=["delete pass", "marked commit"])
def test_the_delete_pass_that_wakes_late(actors: Actors, play: Play, skip: int) -> None:
    """The keys that it wants to delete are back by then."""
    table, auditor = play

    def meanwhile() -> None:
        merger(table, auditor)
        write(table, auditor, {1: 901, 2: 902, 7: 907, 12: 912, 13: 913})
        merger(table, auditor)
        auditor.look(table)

    actors.pause_at(table, merge, "create", TABLE_MANIFEST, meanwhile, skip=skip)

    auditor.look(table)
    finish(table, auditor)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "other", every(2, [oldest_merger, merger, native_merger], lambda one: one.__name__)
)
def test_the_merge_that_inserts_the_same_new_key_twice(
    actors: Actors, play: Play, other: Other
) -> None:
    table, auditor = play
    merger(table, auditor)
    write(table, auditor, {50: 1, 51: 1, 52: 1, 53: 1})
    write(table, auditor, {50: 2, 54: 2, 55: 2, 56: 2})

    def meanwhile() -> None:
        other(table, auditor)

    actors.pause_at(table, merge, "create", TABLE_MANIFEST, meanwhile)

    auditor.look(table)
    finish(table, auditor)


@pytest.mark.parametrize("many", [False, True], ids=["looked up in the index", "joined"])
def test_the_merge_that_inserts_a_new_key_that_was_written_directly(
    actors: Actors, play: Play, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lance compares inserted keys only of merges that join: an index on the key hides them."""
    table, auditor = play
    merger(table, auditor)
    indexer(table, auditor)
    if many:
        monkeypatch.setattr(merge_insert, "_JOIN_FROM_ROWS", 0)
    write(table, auditor, {50: 1, 51: 1, 52: 1})

    def meanwhile() -> None:
        upsert = lance.dataset(table.uri).merge_insert("id").when_not_matched_insert_all()
        upsert.execute(rows({50: 7, 52: 7, 53: 7}))
        # What the log has is newer than what is written directly.
        auditor.wrote({53: 7}, logged=False)
        auditor.logged -= {50, 52}

    actors.pause_at(table, merge, "create", TABLE_MANIFEST, meanwhile)

    auditor.look(table)
    table.checkpoint()
    auditor.look_at_base(table)


@pytest.mark.few(1)
@pytest.mark.parametrize("native", every(2, [False, True], {False: "ours", True: "Lance's"}.get))
@pytest.mark.parametrize("skip", [0, 1], ids=["delete pass", "marked commit"])
def test_a_key_that_one_generation_brings_and_the_next_deletes(
    actors: Actors, play: Play, skip: int, native: bool
) -> None:
    """The other merger brings the first of several, after the deletes of all were made."""
    table, auditor = play
    merger(table, auditor)
    # Nothing that both commits change: Lance alone would see no conflict.
    write(table, auditor, dict.fromkeys(range(60, 70), 1))
    remove(table, auditor, *range(60, 70))
    write(table, auditor, dict.fromkeys(range(70, 80), 3))
    remove(table, auditor, *range(20))

    def meanwhile() -> None:
        if native:
            merge_natively(table, generations=1)
        else:
            oldest_merger(table, auditor)
        auditor.look(table)

    actors.pause_at(table, merge, "create", TABLE_MANIFEST, meanwhile, skip=skip)

    auditor.look(table)
    finish(table, auditor)


def test_the_collector_that_meets_an_older_reader(play: Play) -> None:
    """What a reader opened it can read to the end, within the grace; a new one sees all."""
    table, auditor = play
    older = collect_sources(table.location)
    scan = table.scan()
    merger(table, auditor)
    indexer(table, auditor)
    table.collect_garbage(dry_run=False)

    shown = {
        row["id"]: row["n"]
        for source in sorted(older.generations, key=lambda source: source.generation)
        for row in source.dataset.to_table().to_pylist()
    }
    assert shown
    auditor.truth.check(state(scan.to_table()), "the older scan")
    collect_all(table)
    auditor.look(table)


def test_the_collector_that_meets_an_older_snapshot(play: Play) -> None:
    """A stale read finds generations that are gone: they are in the base table by then."""
    table, auditor = play
    snapshots(table, auditor)
    merger(table, auditor)
    indexer(table, auditor)
    untag(table, auditor)
    collect_all(table)
    auditor.look(table)


def untag(table: memwal.Table, auditor: Auditor) -> None:
    """Let no tag hold anything any more."""
    tags = lance.dataset(table.uri).tags
    for name in list(auditor.tags):
        tags.delete(name)
        del auditor.tags[name]


def test_the_collector_that_is_ahead_of_an_index_build(actors: Actors, play: Play) -> None:
    """What is merged stays until the index that is being built has it too."""
    table, auditor = play
    untag(table, auditor)
    merger(table, auditor)

    def meanwhile() -> None:
        collect_all(table)
        auditor.look(table)

    actors.pause_at(table, JOBS["index build"], "create", TABLE_MANIFEST, meanwhile)

    auditor.look(table)
    finish(table, auditor)
    assert not has_folders(table)


@pytest.mark.few(1)
@pytest.mark.parametrize("skip", [0, 1], ids=["reservation", "commit"])
@pytest.mark.parametrize(
    "first", every(3, [merger, update, append, compactor, native_merger], lambda one: one.__name__)
)
def test_compaction_and_merge(actors: Actors, play: Play, skip: int, first: Other) -> None:
    """The rewrite sleeps while its fragments change."""
    table, auditor = play

    def meanwhile() -> None:
        first(table, auditor)
        auditor.look(table)

    actors.pause_at(table, JOBS["compaction"], "create", TABLE_MANIFEST, meanwhile, skip=skip)

    auditor.look(table)
    finish(table, auditor)


@pytest.mark.few(1)
@pytest.mark.parametrize("skip", [0, 1], ids=["delete pass", "marked commit"])
def test_merge_and_compaction(actors: Actors, play: Play, skip: int) -> None:
    """The merge sleeps while the fragments that it changes are rewritten."""
    table, auditor = play
    actors.pause_at(
        table,
        merge,
        "create",
        TABLE_MANIFEST,
        partial(compactor, table, auditor),
        skip=skip,
    )
    auditor.look(table)
    finish(table, auditor)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("skip", "staged"),
    [
        pytest.param(0, False, id="first index-before it is written"),
        pytest.param(0, True, id="first index-when it is staged", marks=pytest.mark.slow),
        pytest.param(1, False, id="second index-before it is written", marks=pytest.mark.slow),
        pytest.param(1, True, id="second index-when it is staged"),
    ],
)
def test_an_index_never_covers_what_was_merged_meanwhile(
    actors: Actors, play: Play, skip: int, staged: bool
) -> None:
    table, auditor = play
    operation, key = ("create", TABLE_MANIFEST) if staged else ("get", TABLE_MANIFEST)
    seen: list[dict[str, int]] = []

    def meanwhile() -> None:
        merger(table, auditor)
        base = table.base()
        seen.append({name: sum(caught_up(base, name).values()) for name in ("id_idx", "n_idx")})

    actors.pause_at(table, JOBS["index build"], operation, key, meanwhile, skip=skip)

    auditor.look(table)
    assert seen
    finish(table, auditor)


@pytest.mark.few(1)
@pytest.mark.parametrize("job", ["snapshot build", "snapshot build in a file"])
def test_a_snapshot_that_sleeps_never_replaces_a_newer_one(
    actors: Actors, play: Play, job: str
) -> None:
    table, auditor = play

    def meanwhile() -> None:
        our_writer(table, auditor)
        snapshots(table, auditor)

    actors.pause_at(table, JOBS[job], "create", TABLE_MANIFEST, meanwhile)

    auditor.look(table)
    finish(table, auditor)


@pytest.mark.slow
def test_deletes_of_several_mergers_in_any_order(actors: Actors, play: Play) -> None:
    """Regions of different depth, of which three mergers take different numbers."""
    table, auditor = play
    dice = random.Random(7)
    for turn in range(4):
        write(table, auditor, dict.fromkeys(dice.sample(range(30), 9), turn))
        remove(table, auditor, *dice.sample(range(30), 9))

    def third() -> None:
        oldest_merger(table, auditor)
        auditor.look(table)

    def second() -> None:
        actors.pause_at(table, merge, "create", TABLE_MANIFEST, third, skip=1)
        auditor.look(table)

    actors.pause_at(table, merge, "create", TABLE_MANIFEST, second, skip=1)
    auditor.look(table)
    finish(table, auditor)
