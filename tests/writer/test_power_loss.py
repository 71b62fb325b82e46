"""The power goes at any moment of a writer's life: what was acknowledged is there afterwards.

The disk is what :mod:`support.power_loss` makes of the calls that were made: what was not fsynced
is absent, empty, torn, zeroed or whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support import native
from support.faulty_store import FaultyStores
from support.model import Change, Model
from support.power_loss import Crash, Recorder
from support.tables import SCHEMA, base_state, keys, rows, state

import memwal
from memwal.errors import CorruptDataError, MemWalError
from memwal.table import Writer

Numbers = Model[int]

TABLE = "table"


class Life:
    """A table on a disk that is watched, and what was acknowledged so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.model: Numbers = Model()
        self.recorder: Recorder[Numbers] = Recorder(self.disk, lambda: self.model.copy())

    def create(self) -> memwal.Table:
        return memwal.create(
            str(self.disk / TABLE),
            SCHEMA,
            primary_key=["id"],
            region_spec=memwal.RegionSpec.unsharded(),
            maintained_indexes=["id_idx"],
        )

    def watch(self, patches: pytest.MonkeyPatch) -> None:
        self.recorder.sync()
        self.recorder.watch(patches)

    def write(self, writer: Writer, change: Change[int]) -> None:
        upserts = {key: n for key, n in change.items() if n is not None}
        self.model.begin(change)
        if upserts:
            writer.upsert(rows(upserts))
        else:
            writer.delete(keys(*change))
        self.model.acknowledge()
        self.recorder.lose_power("after a write")


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def crashes(life: Life, live: Callable[[], object]) -> Iterator[Crash[Numbers]]:
    """Live, watched, and then go through every disk that the power could have left."""
    with pytest.MonkeyPatch.context() as patches:
        life.watch(patches)
        live()
        life.recorder.lose_power("at the end")
    yield from life.recorder.crashes


def restored(life: Life, crash: Crash[Numbers], number: int) -> str:
    folder = life.folder / f"crash-{number}"
    crash.restore(folder)
    return str(folder / TABLE)


def check_recovery(uri: str, crash: Crash[Numbers], *, by_lance: bool) -> None:
    """The next writer has everything, goes on, and everybody sees the same."""
    table = memwal.open(uri)
    if by_lance:
        with native.writer(table) as shard:
            native.put(shard, table, rows({99: 99}))
    else:
        with table.writer() as writer:
            writer.upsert(rows({99: 99}))
            assert state(writer)[99] == 99
    found = state(table)
    assert found.pop(99) == 99
    crash.known.settle(found)
    # Nothing that was lost comes back over what is written now.
    with table.writer() as writer:
        for n in range(100, 104):
            writer.upsert(rows({1: n}))
            assert state(writer) == {**found, 99: 99, 1: n}
    found[1] = 103
    native.everything(table)
    table.merge()
    assert base_state(table) == {**found, 99: 99}


def check_all(life: Life, live: Callable[[], object]) -> int:
    found = list(crashes(life, live))
    check_each(life, found)
    return len(found)


def check_each(life: Life, found: list[Crash[Numbers]]) -> None:
    problems = []
    with pytest.MonkeyPatch.context() as patches:
        # What is restored need not survive another crash.
        FaultyStores(patches, durable=False)
        for number, crash in enumerate(found):
            try:
                uri = restored(life, crash, number)
                check_recovery(uri, crash, by_lance=number % 3 == 2)
            except (AssertionError, MemWalError, OSError, ValueError) as error:
                problems.append(f"before {crash.when}, {crash.how}: {error!r}"[:400])
    assert not problems, f"{len(problems)} of {len(found)}:\n" + "\n".join(problems)


def test_writes(life: Life) -> None:
    table = life.create()

    def live() -> None:
        writer = table.writer()
        life.write(writer, {1: 1, 2: 2})
        life.write(writer, {2: 20})
        life.write(writer, {1: None})
        writer.abort()

    assert check_all(life, live) > 20


def test_flushes_and_closes(life: Life) -> None:
    table = life.create()

    def live() -> None:
        with table.writer() as writer:
            life.write(writer, {1: 1, 2: 2})
            writer.flush()
            life.write(writer, {2: 20})
        with table.writer() as writer:
            life.write(writer, {1: None})

    assert check_all(life, live) > 50


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


def test_the_first_write_of_a_new_table(life: Life) -> None:
    """The table itself is there when a write into it was acknowledged."""

    def live() -> None:
        table = life.create()
        writer = table.writer()
        life.write(writer, {1: 1})
        writer.abort()

    found = [crash for crash in crashes(life, live) if crash.known.values]
    check_each(life, found)


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

    lost = 0
    damaged = 0
    found = list(crashes(life, live))
    with pytest.MonkeyPatch.context() as patches:
        FaultyStores(patches, durable=False)
        for number, crash in enumerate(found):
            table = memwal.open(restored(life, crash, number))
            try:
                with table.writer() as writer:
                    writer.claim()
            except CorruptDataError:
                damaged += 1
                continue
            recovered = state(table)
            lost += recovered != crash.known.values
            check_plausible(recovered)
            with table.writer() as writer:
                for n in range(100, 108):
                    writer.upsert(rows({1: n}))
                    assert state(writer) == {**recovered, 1: n}, f"before {crash.when}"
            native.everything(table)
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


def test_merges_and_collections(life: Life) -> None:
    table = life.create()

    def live() -> None:
        with table.writer() as writer:
            life.write(writer, {1: 1, 2: 2})
            writer.flush()
            life.write(writer, {2: None})
        table.merge()
        life.recorder.lose_power("after the merge")
        for _ in range(2):
            table.collect_garbage(
                dry_run=False, grace=timedelta(0), retention=timedelta(0)
            )
            life.recorder.lose_power("after a collection")
        with table.writer() as writer:
            life.write(writer, {3: 3})

    check_all(life, live)
