"""The power goes at any moment of a writer's life: what was acknowledged is there afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from support.data.sampled import drawn
from support.data.tables import SCHEMA, base_state, generations, keys, rows, state
from support.faults.power_loss import END, Crash, Recorder, since, survive, survive_not
from support.oracles import native
from support.oracles.model import Change, Model
from support.systems import BARE, WHOLE, take_away

import memwal
from memwal.errors import CorruptDataError
from memwal.jobs.verify import verify
from memwal.reading_writer import Writer

Numbers = Model[int]

TABLE = "table"
HARMLESS = {"log-tip-torn", "hint-missing", "hint-late"}
"""What verify finds that the next claim puts right."""


class Life:
    """A table on a disk that is watched, and what was acknowledged so far."""

    def __init__(self, folder: Path, *, most: int | None) -> None:
        self.folder = folder
        self.most = most
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.uri = str(self.disk / TABLE)
        self.model: Numbers = Model()
        self.recorder: Recorder[Numbers] = Recorder(self.disk, lambda: self.model.copy())

    def create(self) -> memwal.Table:
        return memwal.create(
            self.uri,
            SCHEMA,
            primary_key=["id"],
            region_spec="unsharded",
            maintained_indexes=["id_idx"],
        )

    def write(self, writer: Writer, change: Change[int]) -> None:
        upserts = {key: n for key, n in change.items() if n is not None}
        self.model.begin(change)
        self.recorder.note("before a write")
        if upserts:
            writer.upsert(rows(upserts))
        else:
            writer.delete(keys(*change))
        self.model.acknowledge()
        self.recorder.note("after a write")


@pytest.fixture(params=[WHOLE, pytest.param(BARE, marks=pytest.mark.slow)])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the system lacks."""
    take_away(monkeypatch, request.param)
    return str(request.param)


@pytest.fixture
def life(most_disks: int | None, tmp_path: Path, system: str) -> Life:
    return Life(tmp_path, most=most_disks)


def crashes(life: Life, live: Callable[[], object]) -> list[Crash[Numbers]]:
    """Live, watched: every disk that the power could have left."""
    with life.recorder.watch():
        live()
    return life.recorder.crashes()


def check_recovery(uri: str, crash: Crash[Numbers], *, by_lance: bool) -> None:
    """The next writer has everything, goes on, and everybody sees the same."""
    table = memwal.open(uri)
    unexpected = {finding.code for finding in verify(table.location).findings} - HARMLESS
    assert not unexpected, f"verify found {unexpected}"
    if by_lance:
        with native.writer(table) as shard:
            native.put(shard, table, rows({99: 99}))
    else:
        with table.writer() as writer:
            writer.upsert(rows({99: 99}))
            assert state(writer)[99] == 99
    found = state(table)
    assert found.pop(99) == 99
    crash.known.copy().settle(found)
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


def check_all(life: Life, live: Callable[[], object]) -> int:
    found = crashes(life, live)
    check_each(life, found)
    return len(found)


def check_each(life: Life, found: list[Crash[Numbers]]) -> None:
    survive(found, life.folder, checking(), most=life.most)


def checking() -> Callable[[Path, Crash[Numbers]], None]:
    """Whether the next writer recovers: by turns Lance's and ours."""
    numbers = itertools.count()

    def check(path: Path, crash: Crash[Numbers]) -> None:
        check_recovery(str(path / TABLE), crash, by_lance=next(numbers) % 3 == 2)

    return check


def writes(life: Life) -> None:
    writer = memwal.open(life.uri).writer()
    life.write(writer, {1: 1, 2: 2})
    life.write(writer, {2: 20})
    life.write(writer, {1: None})
    writer.abort()


def flushes(life: Life) -> None:
    table = memwal.open(life.uri)
    with table.writer() as writer:
        life.write(writer, {1: 1, 2: 2})
        writer.flush()
        life.write(writer, {2: 20})
    with table.writer() as writer:
        life.write(writer, {1: None})


def takes_over_from_lance(life: Life) -> None:
    table = memwal.open(life.uri)
    writer = table.writer()
    shard = native.writer(table)
    life.model.begin({1: 1})
    life.recorder.note("before a write by Lance")
    native.put(shard, table, rows({1: 1}))
    life.write(writer, {2: 2})
    writer.abort()


def takes_generations_from_lance(life: Life) -> None:
    """Lance syncs neither a generation nor the manifest that names it, on which a claim relies."""
    table = memwal.open(life.uri)
    life.model.begin({1: 1})
    life.recorder.note("before a write by Lance")
    with native.writer(table) as shard:
        native.put(shard, table, rows({1: 1}))
    assert len(generations(table)) == 1
    writer = table.writer()
    life.write(writer, {2: 2})
    writer.abort()


def test_writes(life: Life) -> None:
    life.create()

    assert check_all(life, lambda: writes(life)) > 10


def test_flushes_and_closes(life: Life) -> None:
    life.create()

    assert check_all(life, lambda: flushes(life)) > 50


@pytest.mark.parametrize("takes", [takes_over_from_lance, takes_generations_from_lance])
def test_a_takeover_from_lance(life: Life, takes: Callable[[Life], None]) -> None:
    """Lance syncs neither log nor generations; our entries behind them are safe all the same."""
    life.create()

    # Before that the region is as Lance left it.
    check_each(life, since(crashes(life, lambda: takes(life)), "after a write"))


@pytest.mark.parametrize(
    ("live", "missing"),
    drawn(
        8,
        [
            (writes, r"/wal/[.#]"),
            (writes, r"/wal$"),
            (writes, r"_mem_wal$"),
            (writes, r"table$"),
            (flushes, r"/manifest/[.#]"),
            (flushes, r"/manifest$"),
            (flushes, r"_gen_1/data/.*lance$"),
            (flushes, r"_gen_1/data$"),
            (flushes, r"_gen_1/_versions/"),
            (flushes, r"_gen_1/_versions$"),
            (flushes, r"_gen_1/_pk_index/"),
            (flushes, r"_gen_1/_pk_index$"),
            (flushes, r"_gen_1/(bloom|\.[0-9a-f]+\.tmp)"),
            (flushes, r"_gen_1$"),
            (takes_over_from_lance, r"^syncfs"),
        ],
        seed="a sync",
        ids=lambda value: getattr(value, "__name__", str(value)),
    ),
)
def test_a_missing_sync_is_noticed(
    tmp_path: Path, live: Callable[[Life], None], missing: str
) -> None:
    check_noticed(tmp_path, live, missing)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("live", "missing"),
    [
        (writes, r"/wal/[.#]"),
        (writes, r"/wal$"),
        (flushes, r"_gen_1/data/.*lance$"),
        (takes_over_from_lance, r"/wal/[01]+\.arrow$"),
        (takes_over_from_lance, r"/wal$"),
        (takes_generations_from_lance, r"_gen_1/data/"),
        (takes_generations_from_lance, r"_gen_1$"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_missing_sync_is_noticed_where_the_system_has_less(
    tmp_path: Path,
    live: Callable[[Life], None],
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_away(monkeypatch, BARE)
    check_noticed(tmp_path, live, missing)


def check_noticed(tmp_path: Path, live: Callable[[Life], None], missing: str) -> None:
    life = Life(tmp_path, most=None)
    life.create()
    with life.recorder.watch():
        live(life)
    survive_not(life.recorder, missing, tmp_path, checking(), after="after a write")


def test_takeovers(life: Life) -> None:
    table = life.create()

    def live() -> None:
        first = table.writer()
        life.write(first, {1: 1})
        second = table.writer()
        second.claim()
        life.write(second, {2: 2})
        first.abort()
        second.abort()
        table.writer().claim()

    assert check_all(life, live) > 30


def test_a_new_table(life: Life) -> None:
    """A table that was created is there."""

    def live() -> None:
        table = life.create()
        life.recorder.note("after the creation")
        writer = table.writer()
        life.write(writer, {1: 1})
        writer.abort()

    check_each(life, since(crashes(life, live), "after the creation"))


def test_a_new_column(life: Life) -> None:
    """A column that was written to is there, though Lance does not sync the table it is in."""
    table = life.create()

    def live() -> None:
        native.dataset(table).add_columns(pa.field("new", pa.int64()))
        writer = table.writer()
        writer.upsert(rows({1: 1}).append_column("new", pa.array([1000])))
        life.recorder.note("after a write")
        writer.abort()

    def check(path: Path, crash: Crash[Numbers]) -> None:
        with memwal.open(str(path / TABLE)).writer() as writer:
            writer.claim()
            assert writer.scan().to_table().column("new").to_pylist() == [1000]

    survive(since(crashes(life, live), "after a write"), life.folder, check, most=life.most)


@pytest.mark.few(1)
@pytest.mark.parametrize("durable", [True, False], ids=["one-by-one", "buffered"])
def test_without_fsync(life: Life, durable: bool) -> None:
    """What was acknowledged may be lost, but is never mixed up: else there is an error."""
    table = life.create()
    options = memwal.WriterOptions(fsync=False, durable=durable)

    def live() -> None:
        with table.writer(options=options) as writer:
            for n in range(3):
                life.write(writer, {1: n, 2 + n: n})
            writer.flush()
            for n in range(10, 14):
                life.write(writer, {1: n, 2: n})

    lost = damaged = 0

    def check(path: Path, crash: Crash[Numbers]) -> None:
        nonlocal lost, damaged
        table = memwal.open(str(path / TABLE))
        try:
            with table.writer() as writer:
                writer.claim()
        except CorruptDataError:
            damaged += 1
            return
        recovered = state(table)
        lost += recovered != crash.known.values
        check_plausible(recovered)
        with table.writer() as writer:
            writer.upsert(rows({99: 99}))
        write_on(table, recovered)
        native.everything(table)

    found = crashes(life, live)
    survive(found, life.folder, check, most=life.most)
    # Which disks were drawn depends on the number of calls, which threads change. One disk of the
    # end has nothing that was not synced.
    survive(since(found, END), life.folder, check)
    assert lost, "no acknowledged write was ever lost: then why fsync?"
    assert damaged < len(found)


def check_plausible(found: dict[int, int | None]) -> None:
    """Whether rows are those of the life above, and the two of one write are together."""
    assert set(found.values()) <= {None, 0, 1, 2, *range(10, 14)}
    newest = found.get(1)
    if newest is not None and newest >= 10:
        assert found[2] == newest
    for n in range(3):
        assert found.get(2 + n) in (None, n) or n == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("deletes", [False, True], ids=["upserts", "deletes"])
def test_merges(life: Life, deletes: bool) -> None:
    table = generations_of(life, {1: 1, 2: 2}, {2: None} if deletes else {2: 20})

    check_all(life, table.merge)


def merges_by_lance_and_collects(life: Life) -> None:
    table = memwal.open(life.uri)
    native.merge(table)
    for _ in range(2):
        table.collect_garbage(
            dry_run=False, grace_seconds=0, retention_seconds=0, foreign_claim_seconds=0
        )
        life.recorder.note("after a collection")
    with table.writer() as writer:
        life.write(writer, {3: 3})


def test_collections(life: Life, system: str) -> None:
    """Nothing is deleted before what replaced it is safe, though Lance does not sync a merge."""
    generations_of(life, {1: 1, 2: 2}, {2: None})

    found = crashes(life, lambda: merges_by_lance_and_collects(life))
    if system == BARE:
        # Nothing tells which sync ended the first barrier.
        check_each(life, since(found, "after a collection"))
        return
    barrier = next(n for n, crash in enumerate(found) if crash.when.startswith("syncfs"))
    check_each(life, [crash for crash in found[barrier:] if not crash.when.startswith("syncfs")])


@pytest.mark.slow
def test_a_missing_sync_of_a_collection_is_noticed(tmp_path: Path) -> None:
    life = Life(tmp_path, most=None)
    generations_of(life, {1: 1, 2: 2}, {2: None})
    with life.recorder.watch():
        merges_by_lance_and_collects(life)
    survive_not(life.recorder, "^syncfs", tmp_path, checking(), after="after a collection")


def generations_of(life: Life, *changes: Change[int]) -> memwal.Table:
    """A table with a flushed generation for each change, none of them merged."""
    table = life.create()
    with table.writer() as writer:
        for change in changes:
            life.write(writer, change)
            writer.flush()
    return table
