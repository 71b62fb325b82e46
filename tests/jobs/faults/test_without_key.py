"""A table without a primary key, every job and its writer with faults at their steps.

No key hides a row that is there twice: after each fault, and after the next run, every row that
was acknowledged is read exactly once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import lance
import pyarrow as pa
import pytest
from support.data.sampled import drawn
from support.faults.fault_schedule import FAULTS, Actors, Job, KnownSteps, chosen, telling
from support.faults.jobs import JOBS
from support.oracles.auditor import Auditor, look_verified
from support.oracles.native import collect_all
from support.stores.faulty_store import FaultyStores, skip_waits

import memwal
from memwal.storage.location import TableLocation

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def rows(*numbers: int) -> pa.Table:
    """Rows with these numbers."""
    return pa.table({"n": numbers, "text": [f"row {n}" for n in numbers]}, SCHEMA)


def shown(queries: memwal.Queries) -> Counter[int]:
    """How often each number is read."""
    return Counter(queries.scan(columns=["n"]).to_table().column("n").to_pylist())


@dataclass
class Counts:
    """How often each number must be read.

    ``logged`` were acknowledged by a writer that died, and ``doubtful`` were written by one that
    failed: these may be there, once.
    """

    flushed: Counter[int] = field(default_factory=Counter)
    logged: Counter[int] = field(default_factory=Counter)
    doubtful: Counter[int] = field(default_factory=Counter)

    def copy(self) -> Counts:
        """The counts of a copy of the table."""
        return Counts(Counter(self.flushed), Counter(self.logged), Counter(self.doubtful))

    def look(self, table: memwal.Table, *, verified: bool = False) -> None:
        """Ask the readers."""
        fresh = shown(table.fresh())
        most = self.flushed + self.logged
        assert not most - fresh, f"lost: {most - fresh}"
        assert not fresh - most - self.doubtful, f"twice: {fresh - most}"
        now = shown(table)
        assert not self.flushed - now, f"lost: {self.flushed - now}"
        assert not now - fresh, f"not in the logs: {now - fresh}"
        assert table.fresh().count_rows() == fresh.total()
        assert table.count_rows(filter="n >= 0") == now.total()
        if verified:
            look_verified(table)


def prepare(path: Path) -> tuple[memwal.Table, Counts]:
    """Make a table with generations that are merged, or not, and a log of a writer that died."""
    table = memwal.create(
        path, SCHEMA, primary_key=None, region_spec="bucket:n:2", maintained_indexes=["n_idx"]
    )
    counts = Counts()

    def append(*numbers: int) -> None:
        with table.writer() as writer:
            writer.append(rows(*numbers))
        counts.flushed.update(numbers)

    lance.write_dataset(rows(1, 2, 1), table.uri, mode="append")
    counts.flushed.update([1, 2, 1])
    append(*range(8), 3, 3)
    table.merge()
    append(*range(6))
    table.checkpoint()
    append(*range(4, 10))
    table.merge()
    append(*range(10, 14), *range(10, 14))
    append(*range(12, 18))
    writer = table.writer()
    for number in range(100, 110):
        writer.append(rows(number, number + 1))
        counts.logged.update([number, number + 1])
    writer.abort()
    counts.look(table, verified=True)
    return table, counts


def append_more(location: TableLocation) -> None:
    """Append some rows, each number once, and close the writer."""
    with memwal.open(location.uri, storage_options=location.storage_options).writer() as writer:
        writer.append(rows(*range(200, 204)))
        writer.append(rows(*range(204, 206)))


TRIED: dict[str, Job] = {**JOBS, "append": append_more}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[memwal.Table, Counts]:
    return prepare(tmp_path_factory.mktemp("without-key") / "table.lance")


@pytest.fixture(scope="module")
def known_steps() -> KnownSteps:
    return {}


@pytest.fixture
def actors(
    prepared: tuple[memwal.Table, Counts],
    known_steps: KnownSteps,
    quick_faults: FaultyStores,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Actors:
    skip_waits(monkeypatch)
    table, counts = prepared
    counts = counts.copy()
    counts.doubtful.update(range(200, 206))
    return Actors(table, cast("Auditor", counts), quick_faults, tmp_path, known_steps)


def attempt(actors: Actors, name: str, fault_name: str, *, every: bool) -> None:
    """Try one fault at steps of one job, of each kind of step one, and run the job again."""
    job, fault = TRIED[name], FAULTS[fault_name]
    for step in chosen(actors.steps(job), fault, every=every):
        with telling(name, fault_name, step):
            table, counts = actors.copy()
            actors.suffer(table, job, fault, step)
            counts.look(table)
            if name != "append":
                job(table.location)
                counts.look(table, verified=True)
            _finish(table, cast("Counts", counts))
            actors.drop(table)


def _finish(table: memwal.Table, counts: Counts) -> None:
    """Take over what is in the logs, merge, index and collect it: the base table has every row."""
    before = shown(table.fresh())
    with table.writer() as writer:
        writer.append(rows(300, 301))
    before.update([300, 301])
    table.checkpoint()
    collect_all(table)
    assert shown(table) == shown(table.at(table.version)) == before
    look_verified(table)


MERGES = ("merge", "merge in parts", "checkpoint", "append")


@pytest.mark.few(2)
@pytest.mark.parametrize(("job", "fault"), [*itertools.product(MERGES, FAULTS)])
def test_a_fault_at_each_kind_of_step(actors: Actors, job: str, fault: str) -> None:
    attempt(actors, job, fault, every=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "fault"),
    drawn(24, itertools.product(sorted(set(TRIED) - set(MERGES)), FAULTS), seed="without key"),
)
def test_a_fault_of_another_job(actors: Actors, job: str, fault: str) -> None:
    attempt(actors, job, fault, every=False)


@pytest.mark.few(1)
@pytest.mark.parametrize("job", ["merge", "merge in parts"])
def test_two_mergers_add_each_row_once(actors: Actors, job: str) -> None:
    """One stands still before each of its steps, and the other merges meanwhile."""
    merge = TRIED[job]
    for step in actors.steps(merge):
        if not step.changes:
            continue
        with telling(job, "paused", step):
            table, counts = actors.copy()
            actors.pause(table, merge, step, table.merge)
            counts.look(table, verified=True)
            _finish(table, cast("Counts", counts))
            actors.drop(table)
