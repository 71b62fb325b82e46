"""A writer's whole life with a failure at each single request: every request times every kind.

Whatever fails, an acknowledged write is there afterwards, a write without an answer is there as a
whole or not at all, no row is there twice, and the caller hears of it in an error of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.data.sampled import every
from support.data.tables import SCHEMA, MakeTable, base_state, keys, log, rows, state
from support.oracles import native
from support.oracles.model import Change, Model
from support.stores.faulty_store import FaultyStore, FaultyStores, skip_waits
from support.stores.s3_emulator import running_emulator

import memwal
from memwal.errors import (
    MemWalError,
    OutcomeUnknownError,
    PartialWriteError,
    RegionFailure,
    RegionFencedError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
    WriterClosedError,
)
from memwal.reading_writer import Writer
from memwal.region.router import Router

WRITES = ("create", "put", "replace", "delete")
READS = ("get", "get_range", "head", "list", "list_folders", "sync")

REFUSED = StoreAccessError("the store said 403")
FULL = StoreFullError("the store said 507")


@dataclass(frozen=True)
class Kind:
    """A kind of failure: at which requests, what it does, and what the caller may be told.

    One that may be told of nothing is settled by the writer, unnoticed. ``inject`` gets the store,
    a pattern of operations, and how many calls of them go by first. The pattern is ``*`` for a
    failure that lasts, and the operation of one request for any other: where regions are claimed
    and flushed side by side, their requests come in another order each time, and a failure of
    writes must not hit a read.
    """

    operations: tuple[str, ...]
    inject: Callable[[FaultyStore, str, int], object]
    told: tuple[type[MemWalError], ...] = ()
    lasts: bool = False


ANY = "*"
AMBIGUOUS = (StoreUnavailableError, OutcomeUnknownError)
KINDS = {
    "error before the effect": Kind(
        (*WRITES, *READS), lambda s, op, at: s.fail(op, skip=at), AMBIGUOUS
    ),
    "error after the effect": Kind(WRITES, lambda s, op, at: s.fail(op, skip=at, after=True)),
    "timeout, and the request arrives later": Kind(
        WRITES, lambda s, op, at: s.deliver_late(op, skip=at, by=3)
    ),
    "timeout, and the request arrives at the end": Kind(
        WRITES, lambda s, op, at: s.deliver_late(op, skip=at, by=1 << 30)
    ),
    "delivered twice": Kind(WRITES, lambda s, op, at: s.deliver_twice(op, skip=at)),
    "access refused": Kind(
        (*WRITES, *READS),
        lambda s, op, at: s.fail(op, error=REFUSED, skip=at),
        (StoreAccessError, OutcomeUnknownError),
    ),
    "no space": Kind(
        ("create", "put", "replace"),
        lambda s, op, at: s.fail(op, error=FULL, skip=at),
        (StoreFullError, OutcomeUnknownError),
    ),
    "an outage from here on": Kind(
        (*WRITES, *READS),
        lambda s, op, at: s.fail(op, skip=at, times=1 << 30),
        AMBIGUOUS,
        lasts=True,
    ),
    "access refused from here on": Kind(
        (*WRITES, *READS),
        lambda s, op, at: s.fail(op, error=REFUSED, skip=at, times=1 << 30),
        (StoreAccessError, OutcomeUnknownError),
        lasts=True,
    ),
}

# What the life of a writer consists of.
LIFE: tuple[tuple[str, Change[int]], ...] = (
    ("claim", {}),
    ("write", {0: 10, 1: 11, 2: 12}),
    ("write", {0: None, 3: None}),
    ("flush", {}),
    ("write", {0: 20, 1: 21}),
    ("write", {2: None}),
    ("close", {}),
    ("open", {}),
    ("write", {1: 31, 4: 34}),
    ("abort", {}),
    ("open", {}),
    ("write", {1: None}),
    ("close", {}),
)
OPTIONS = memwal.WriterOptions(flush_attempts=3, backpressure_timeout=0.5)


class Life:
    """Lives through :data:`LIFE`; when a writer is finished, another one goes on."""

    def __init__(self, table: memwal.Table) -> None:
        self.table = table
        self.errors: list[MemWalError] = []
        _, spec = table.region_spec()
        parts = Router(spec, table.schema).route(rows(dict.fromkeys(range(8), 0)).to_batches()[0])
        regions = {k: a.region_id for a, batch in parts for k in batch.column("id").to_pylist()}
        self.model: Model[int] = Model(regions.__getitem__)
        self._writer: Writer | None = None

    def live(self) -> None:
        for step, change in LIFE:
            self.step(step, change)

    def step(self, step: str, change: Change[int]) -> None:
        self.model.begin(change)
        try:
            self._act(step, change)
        except PartialWriteError as error:
            self._written_in_part(change, error.failures)
        except FINISHED as error:
            self.errors.append(error)
            self.give_up()
        except MemWalError as error:
            self.errors.append(error)
        else:
            self.model.acknowledge()

    def _written_in_part(self, change: Change[int], failures: Sequence[RegionFailure]) -> None:
        """Rows that the error does not speak of are durable."""
        keys = list(change)
        failed = {keys[row] for failure in failures for row in failure.rows.to_pylist()}
        assert failed, "no row failed"
        self.model.refuse()
        self.model.begin({key: n for key, n in change.items() if key not in failed})
        self.model.acknowledge()
        self.model.begin({key: n for key, n in change.items() if key in failed})
        self.errors += [failure.error for failure in failures]
        if any(isinstance(failure.error, FINISHED) for failure in failures):
            self.give_up()

    def _act(self, step: str, change: Change[int]) -> None:
        match step:
            case "open":
                self.give_up()
                self._current().claim()
            case "claim" | "flush" | "close" | "abort":
                getattr(self._current(), step)()
            case _:
                upserts = {key: n for key, n in change.items() if n is not None}
                if upserts:
                    self._current().upsert(rows(upserts))
                else:
                    self._current().delete(keys(*change))

    def _current(self) -> Writer:
        if self._writer is None:
            self._writer = self.table.writer(options=OPTIONS)
        return self._writer

    def give_up(self) -> None:
        if self._writer is not None:
            self._writer.abort()
            self._writer = None

    def recovered(self) -> dict[int, int | None]:
        """What the next writer brings back, and what then everybody sees."""
        self.give_up()
        with self.table.writer() as writer:
            writer.claim()
            found = state(writer)
        assert state(self.table) == found
        return found


FINISHED = (OutcomeUnknownError, RegionFencedError, WriterClosedError)


def requests(stores: FaultyStores, make_table: MakeTable, buckets: int | None) -> list[str]:
    """The operations of a life in which nothing fails."""
    life = Life(make_table(buckets=buckets))
    store = stores.of(life.table.location)
    store.clear()
    life.live()
    assert not life.errors
    made = [operation for operation, _ in store.calls]
    life.model.settle(life.recovered())
    assert life.model.values == {0: 20, 4: 34}
    return made


def check(
    stores: FaultyStores,
    make_table: MakeTable,
    buckets: int | None,
    kind: Kind,
    operation: str,
    at: int,
) -> str:
    """Live with a failure at one request; returns what there was to tell."""
    life = Life(make_table(buckets=buckets))
    store = stores.of(life.table.location)
    store.clear()
    kind.inject(store, operation, at)
    life.live()
    store.clear()
    for error in life.errors:
        assert isinstance(error, (*kind.told, *FINISHED)), f"a wrong error: {error!r}"
    told = ", ".join(type(error).__name__ for error in life.errors)
    found = life.recovered()
    life.model.settle(found)
    # Requests that were still on their way arrive when others have gone on.
    store.arrive()
    assert life.recovered() == found, "a late request changed what was there"
    assert native.ordered(native.scan(life.table)) == native.ordered(life.table.scan().to_table())
    life.table.merge()
    assert base_state(life.table) == state(life.table) == found
    return told


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", every(4, KINDS, ids=lambda name: name.replace(" ", "-")))
def test_a_failure_at_some_requests(
    quick_faults: FaultyStores,
    make_table: MakeTable,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """At every sixth, which are others for each kind."""
    go_through(quick_faults, make_table, monkeypatch, kind, buckets=None, step=6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda name: name.replace(" ", "-"))
def test_a_failure_at_every_fourth_request(
    quick_faults: FaultyStores,
    make_table: MakeTable,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    go_through(quick_faults, make_table, monkeypatch, kind, buckets=None, step=4)


def test_a_slow_store(
    quick_faults: FaultyStores, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_waits(monkeypatch)
    slow = Kind((), lambda s, op, at: s.slow(op, seconds=0.003, times=1 << 30))

    assert not check(quick_faults, make_table, 2, slow, ANY, 0)


@pytest.mark.slow
def test_a_log_of_more_than_a_page_of_a_listing(tmp_path: Path) -> None:
    """S3 lists 1,000 objects a request; none of the others may be missed."""
    count = 1_100
    with running_emulator(tmp_path) as s3:
        table = memwal.create(
            f"s3://{s3.create_bucket()}/table",
            SCHEMA,
            primary_key=["id"],
            region_spec=memwal.RegionSpec.unsharded(),
            storage_options=s3.storage_options,
        )
        writer = table.writer()
        for n in range(count):
            writer.upsert(rows({n: n}))
        writer.abort()

        assert len(log(table)) == count
        with table.writer() as writer:
            writer.claim()
            assert state(writer) == {n: n for n in range(count)}
        assert state(table) == {n: n for n in range(count)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda name: name.replace(" ", "-"))
def test_a_failure_at_some_requests_of_two_regions(
    quick_faults: FaultyStores,
    make_table: MakeTable,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    go_through(quick_faults, make_table, monkeypatch, kind, buckets=2, step=8)


def go_through(
    stores: FaultyStores,
    make_table: MakeTable,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    *,
    buckets: int | None,
    step: int = 1,
) -> None:
    skip_waits(monkeypatch)
    kind = KINDS[name]
    made = requests(stores, make_table, buckets)
    possible = [at for at, operation in enumerate(made) if operation in kind.operations]
    problems = []
    for at in possible[list(KINDS).index(name) % step :: step]:
        operation = made[at]
        which = (ANY, at) if kind.lasts else (operation, made[:at].count(operation))
        try:
            told = check(stores, make_table, buckets, kind, *which)
        except (AssertionError, MemWalError) as error:
            problems.append(f"request {at} ({operation}): {error!r}")
        else:
            if not kind.told:
                assert not told, f"request {at} ({operation}) told of {told}"
    assert not problems, f"{name}:\n" + "\n".join(problems)
