"""A merge with a quarantine that is killed, disturbed or overtaken at each of its steps."""

import os
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from lance.dataset import MergeInsertBuilder
from support.data.merging import DIVIDED
from support.data.quarantined import quarantine, rules, waiting
from support.data.tables import SCHEMA, base_state, flush, folder, merged, state
from support.stores.faulty_store import FaultyStore, FaultyStores, Killed, skip_waits

import memwal
from memwal.base_table.commit import create_durably
from memwal.errors import MemWalError
from memwal.jobs.merge.job import merge
from memwal.jobs.options import MergeOptions
from memwal.quality import quarantine as quarantining
from memwal.quality.quarantine import origins_of
from memwal.quarantine_review import discard
from memwal.storage.location import TableLocation

EXPECTED = {1: 1, 2: 22, 3: 3, 4: 44}
KEPT_OUT = {(2, 1, -1), (4, 9, -9)}
REPLACED = {(2, 4, -4)}
"""Fails, and is replaced by a later row: kept out only by a merge that does not see that one."""

Job = Callable[[TableLocation], object]


def at_once(location: TableLocation) -> object:
    return merge(location, MergeOptions(quality=rules("quarantine")))


def by_generation(location: TableLocation) -> object:
    return merge(location, MergeOptions(quality=rules("quarantine"), commit_bytes=1))


def divided(location: TableLocation) -> object:
    return merge(location, MergeOptions(quality=rules("quarantine"), **DIVIDED))


JOBS: dict[str, Job] = {
    "at once": at_once,
    "by generation": by_generation,
    "divided": divided,
}


Step = tuple[int, int]
"""Which of the stores, and the number of the call."""


@dataclass(frozen=True)
class Prepared:
    """A table with failing rows, which nobody changes, and the steps of the jobs on its copies."""

    table: memwal.Table
    steps: dict[Job, list[Step]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Return a table that is copied."""
    table = memwal.create(
        tmp_path_factory.mktemp("prepared") / "table.lance", SCHEMA, primary_key="id"
    )
    flush(table, {1: 1, 2: 2, 9: 9})
    table.merge()
    flush(table, {1: -1, 3: 3, 4: -4}, [9], {9: -9, 2: 22}, {4: 44})
    return Prepared(table)


class Play:
    """Copies of a table with failing rows, and who works on them."""

    def __init__(self, root: Path, stores: FaultyStores, prepared: Prepared) -> None:
        self._root, self._stores, self._number = root, stores, 0
        self._prepared = prepared

    def copy(self) -> memwal.Table:
        self._number += 1
        path = self._root / str(self._number) / "table.lance"
        shutil.copytree(folder(self._prepared.table), path, copy_function=os.link)
        return memwal.open(str(path))

    def actor(self, table: memwal.Table) -> tuple[TableLocation, list[FaultyStore]]:
        """Somebody who is to suffer: the stores of the table, and of its quarantine."""
        self._number += 1
        location = TableLocation(table.uri, {"actor": str(self._number)})
        beside = quarantining.Quarantine.of(location).location
        return location, [self._stores.of(location), self._stores.of(beside)]

    def steps(self, job: Job) -> list[Step]:
        """Every call of either store."""
        if job in self._prepared.steps:
            return self._prepared.steps[job]
        location, stores = self.actor(self.copy())
        job(location)
        assert all(store.calls for store in stores)
        steps = [(which, n) for which, store in enumerate(stores) for n in range(len(store.calls))]
        return self._prepared.steps.setdefault(job, steps)


@pytest.fixture
def play(
    tmp_path: Path,
    quick_faults: FaultyStores,
    monkeypatch: pytest.MonkeyPatch,
    prepared: Prepared,
) -> Play:
    """Return what makes tables, and who suffers."""
    skip_waits(monkeypatch)
    return Play(tmp_path, quick_faults, prepared)


def check(table: memwal.Table, *, exactly: bool) -> None:
    assert base_state(table) == EXPECTED
    assert state(table) == EXPECTED
    assert merged(table) == 5
    found = waiting(table)
    assert found >= KEPT_OUT
    assert found <= KEPT_OUT | REPLACED
    if exactly:
        assert found == KEPT_OUT


def never_lost(table: memwal.Table) -> None:
    """Whatever is merged and failed is in the quarantine already."""
    done = merged(table)
    assert {row for row in KEPT_OUT if row[0] <= done} <= waiting(table)


def some(steps: list[Step], count: int, seed: str) -> list[Step]:
    return sorted(random.Random(seed).sample(steps, min(count, len(steps))))


COUNTS = [
    2,
    pytest.param(12, marks=pytest.mark.slow),
    pytest.param(None, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)]),
]


@pytest.mark.few(3)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("fault", ["killed before", "killed after", "error before", "error after"])
@pytest.mark.parametrize("name", JOBS)
def test_a_fault_at_a_step(play: Play, name: str, fault: str, count: int | None) -> None:
    job, steps = JOBS[name], play.steps(JOBS[name])
    for which, number in some(steps, count or len(steps), name + fault):
        table = play.copy()
        location, stores = play.actor(table)
        harm = stores[which].kill if fault.startswith("killed") else stores[which].fail
        harm("*", skip=number, after=fault.endswith("after"))
        try:
            job(location)
        except (Killed, MemWalError):
            pass
        except (OSError, RuntimeError, ValueError):
            # What Lance makes of the end of the process, when it is the one that makes the call.
            assert fault.startswith("killed"), (which, number)
        for store in stores:
            store.clear()
        never_lost(table)
        # Whoever comes next may take other generations together.
        at_once(table.location)
        check(table, exactly=name != "by generation" and not fault.endswith("after"))
        by_generation(table.location)
        check(table, exactly=False)


@pytest.mark.few(2)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("other", JOBS)
@pytest.mark.parametrize("name", JOBS)
def test_somebody_else_merges_meanwhile(
    play: Play, name: str, other: str, count: int | None
) -> None:
    job, steps = JOBS[name], play.steps(JOBS[name])
    for which, number in some(steps, count or len(steps), name + other):
        table = play.copy()
        location, stores = play.actor(table)
        pause = stores[which].pause("*", "*", skip=number)
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(job, location)
            try:
                if pause.wait_until_reached(slow):
                    JOBS[other](table.location)
                    check(table, exactly=False)
            finally:
                pause.release()
            slow.result()
        check(table, exactly=False)


def test_two_mergers_at_once_keep_each_row_once(play: Play) -> None:
    for _ in range(2):
        table = play.copy()
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(job, table.location) for job in (*JOBS.values(),) * 2]:
                done.result()
        check(table, exactly=False)


def test_a_row_that_was_judged_otherwise_leaves_the_quarantine(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge that dies decided on generations 2 to 4; the next one sees 5 as well."""
    table = play.copy()

    def die(*arguments: object) -> int:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(MergeInsertBuilder, "mark_sstables_as_compacted", die)
        by_generation(table.location)
    assert waiting(table) == {(2, 1, -1), (2, 4, -4)}

    at_once(table.location)

    check(table, exactly=True)


def test_the_quarantine_grows_with_the_table(play: Play) -> None:
    table = play.copy()
    at_once(table.location)
    table.base().dataset.add_columns(pa.schema([("more", pa.int64())]))
    table.upsert(
        pa.table({"id": [7], "n": [-7], "text": ["7=-7"], "more": [1]}, schema=table.schema)
    )
    at_once(table.location)
    rows = quarantine(table).read().to_pylist()
    assert [row["more"] for row in rows] == [None, None, 1]


@pytest.mark.parametrize("moment", ["before it asks", "after it asked", "after it made the table"])
def test_who_wakes_when_all_is_merged_adds_nothing(
    play: Play, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """One that takes generation 2 alone keeps out what another one saw replaced."""
    table = play.copy()
    real, woken = quarantining.Quarantine.write, [False]

    def meanwhile() -> None:
        if not woken[0]:
            woken[0] = True
            at_once(table.location)

    def late(
        self: quarantining.Quarantine, rows: pa.Table, *, still_pending: Callable[[], bool]
    ) -> bool:
        def ask() -> bool:
            found = still_pending()
            if moment == "after it asked":
                meanwhile()
            return found

        if moment == "before it asks":
            meanwhile()
        elif moment == "after it made the table" and not woken[0]:
            create_durably(self.location, rows.schema.empty_table())
            meanwhile()
        return real(self, rows, still_pending=ask)

    monkeypatch.setattr(quarantining.Quarantine, "write", late)
    by_generation(table.location)

    check(table, exactly=True)


def test_one_that_kept_nothing_out_refuses_late_rows_as_well(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(table, {4: -4}, {4: 44})
    real, woken = quarantining.Quarantine.write, [False]

    def late(
        self: quarantining.Quarantine, rows: pa.Table, *, still_pending: Callable[[], bool]
    ) -> bool:
        def ask() -> bool:
            found = still_pending()
            if not woken[0]:
                woken[0] = True
                at_once(table.location)
            return found

        return real(self, rows, still_pending=ask)

    monkeypatch.setattr(quarantining.Quarantine, "write", late)
    by_generation(table.location)

    assert base_state(table) == {4: 44}
    assert waiting(table) == set()


def test_a_purged_row_does_not_come_back(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    table = play.copy()
    real, woken = quarantining.Quarantine.write, [False]

    def late(
        self: quarantining.Quarantine, rows: pa.Table, *, still_pending: Callable[[], bool]
    ) -> bool:
        if not woken[0]:
            woken[0] = True
            at_once(table.location)
            there = quarantine(table)
            discard(there, origins_of(there.read()))
            there.purge(before=datetime.now(UTC) + timedelta(days=1), stored=())
        return real(self, rows, still_pending=still_pending)

    monkeypatch.setattr(quarantining.Quarantine, "write", late)
    at_once(table.location)

    assert quarantine(table).read(state=None).num_rows == 0
    assert base_state(table) == EXPECTED
