"""Tables without a primary key and tables with blobs: jobs and a writer with faults at their steps.

After each fault, and after the next run, every row that was acknowledged is read exactly once, with
the bytes of its blob. No key hides a row that is there twice. Blobs are in the log, in a data file,
in a file with others, or in a file of their own.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data import blobs
from support.data.sampled import drawn
from support.faults.fault_schedule import FAULTS, Actors, Job, KnownSteps, Step, chosen
from support.faults.jobs import JOBS
from support.oracles.auditor import look_verified
from support.oracles.native import collect_all
from support.stores.faulty_store import FaultyStores, skip_waits

import memwal
from memwal.queries import Queries
from memwal.storage.location import TableLocation

Rows = Counter[Any]
"""How often each row is there: its number, or its id and the bytes of its blob."""

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def numbered(*numbers: int) -> pa.Table:
    """Return rows without a key."""
    return pa.table({"n": numbers, "text": [f"row {n}" for n in numbers]}, SCHEMA)


@dataclass
class Counts:
    """How often each row must be read.

    ``logged`` were acknowledged by a writer that died, and ``doubtful`` were written by one that
    failed: these may be there, once.
    """

    flushed: Rows = field(default_factory=Counter)
    logged: Rows = field(default_factory=Counter)
    doubtful: Rows = field(default_factory=Counter)

    def look(self, table: memwal.Table, *, verified: bool = False) -> None:
        """Ask the readers."""
        fresh = self.shown(table.fresh())
        most = self.flushed + self.logged
        assert not most - fresh, f"lost: {most - fresh}"
        assert not fresh - most - self.doubtful, f"twice: {fresh - most}"
        now = self.shown(table)
        assert not self.flushed - now, f"lost: {self.flushed - now}"
        assert not now - fresh, f"not in the logs: {now - fresh}"
        assert table.fresh().count_rows() == fresh.total()
        if verified:
            look_verified(table)

    @staticmethod
    def shown(queries: Queries) -> Rows:
        """Return the rows that are read."""
        return Counter(queries.scan(columns=["n"]).to_table().column("n").to_pylist())

    @staticmethod
    def stored(uri: str) -> Rows:
        """Return the rows of the base table, as Lance reads them."""
        return Counter(lance.dataset(uri).to_table().column("n").to_pylist())


class BlobCounts(Counts):
    """The same of rows with blobs."""

    def look(self, table: memwal.Table, *, verified: bool = False) -> None:
        super().look(table, verified=verified)
        ids, values = zip(*(self.flushed + self.logged), strict=True)
        assert blobs.read(table.fresh().take_blobs(list(ids), "image")) == list(values)

    @staticmethod
    def shown(queries: Queries) -> Rows:
        found = queries.scan(columns=["id", "image"], blob_handling="all_binary").to_table()
        return Counter(zip(*(column.to_pylist() for column in found.columns), strict=True))

    @staticmethod
    def stored(uri: str) -> Rows:
        return Counter(blobs.stored(uri).items())


def without_key(path: Path) -> tuple[memwal.Table, Counts]:
    """Make a table with generations that are merged, or not, and a log of a writer that died."""
    table = memwal.create(
        path, SCHEMA, primary_key=None, region_spec="bucket:n:2", maintained_indexes=["n_idx"]
    )
    counts = Counts(doubtful=Counter(range(200, 206)))

    def append(*numbers: int) -> None:
        with table.writer() as writer:
            writer.append(numbered(*numbers))
        counts.flushed.update(numbers)

    lance.write_dataset(numbered(1, 2, 1), table.uri, mode="append")
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
        writer.append(numbered(number, number + 1))
        counts.logged.update([number, number + 1])
    writer.abort()
    counts.look(table, verified=True)
    return table, counts


def append_more(writer: memwal.Writer) -> None:
    """Append some rows, each number once."""
    writer.append(numbered(*range(200, 204)))
    writer.append(numbered(*range(204, 206)))


def append_last(writer: memwal.Writer, rows: Rows) -> None:
    """Append to both regions."""
    writer.append(numbered(300, 301))
    rows.update([300, 301])


MORE_BLOBS = {50: b"m" * 5, 51: b"o" * 2_000, 52: b"r" * 9_000, 53: b"e"}


def with_blobs(kind: str, path: Path) -> tuple[memwal.Table, Counts]:
    """Make a table with merged and pending generations, and a log of a writer that died."""
    table = memwal.create(
        path,
        blobs.schema(kind, key=False),
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        data_storage_version=blobs.VERSIONS[kind],
    )
    flushed: dict[int, bytes | None] = {}
    for first, merged in ((0, True), (3, True), (1, False), (7, False)):
        given = dict(zip(range(first, first + len(blobs.VALUES)), blobs.VALUES, strict=True))
        table.upsert(blobs.rows(kind, given, list(given.values()), key=False))
        flushed |= given
        if merged:
            table.merge()
    writer = table.writer()
    logged = {30: b"l" * 20_000, 31: b"o" * 2_000}
    writer.upsert(blobs.rows(kind, logged, list(logged.values()), key=False))
    writer.abort()
    return table, BlobCounts(*(Counter(rows.items()) for rows in (flushed, logged, MORE_BLOBS)))


def upsert_more(kind: str, writer: memwal.Writer) -> None:
    """Upsert some rows, one by one."""
    for key, value in MORE_BLOBS.items():
        writer.upsert(blobs.rows(kind, [key], [value], key=False))


def delete_first(writer: memwal.Writer, rows: Rows) -> None:
    """Delete a row."""
    writer.delete([0])
    for row in [row for row in rows if row[0] == 0]:
        del rows[row]


@dataclass
class Kind:
    """A kind of table.

    Attributes
    ----------
    make : callable
        Makes a table in a folder, with something to do for the jobs.
    write : callable
        Writes the doubtful rows.
    write_last : callable
        Writes something else, and changes the rows that must be read accordingly.
    """

    make: Callable[[Path], tuple[memwal.Table, Counts]]
    write: Callable[[memwal.Writer], None]
    write_last: Callable[[memwal.Writer, Rows], None]

    def __post_init__(self) -> None:
        self.jobs: dict[str, Job] = {**JOBS, "write": self._write_and_close}

    def _write_and_close(self, location: TableLocation) -> None:
        table = memwal.open(location.uri, storage_options=location.storage_options)
        with table.writer() as writer:
            self.write(writer)


WITHOUT_KEY = "without key"
KINDS = {
    WITHOUT_KEY: Kind(without_key, append_more, append_last),
    **{
        name: Kind(
            lambda path, name=name: with_blobs(name, path),  # type: ignore[misc]
            lambda writer, name=name: upsert_more(name, writer),  # type: ignore[misc]
            delete_first,
        )
        for name in (blobs.MARKED, blobs.V2)
    },
}
MERGES = ("merge", "merge in parts")
TRIED = (*MERGES, "checkpoint", "write")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[memwal.Table, Counts]]:
    folder = tmp_path_factory.mktemp("kinds")
    return {name: kind.make(folder / f"{name}.lance") for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def known_steps() -> dict[str, KnownSteps]:
    return {name: {} for name in KINDS}


@pytest.fixture
def actors(
    prepared: dict[str, tuple[memwal.Table, Counts]],
    known_steps: dict[str, KnownSteps],
    quick_faults: FaultyStores,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
) -> Actors[Counts]:
    skip_waits(monkeypatch)
    return Actors(*prepared[kind], quick_faults, tmp_path, known_steps[kind])


def finish(kind: Kind, table: memwal.Table, counts: Counts) -> None:
    """Go on, take over what is in the logs, merge, index and collect it."""
    expected = counts.shown(table.fresh())
    with table.writer() as writer:
        kind.write_last(writer, expected)
    # A checkpoint recovers logs that are old enough, which those of a slow machine are.
    table.recover(min_age_seconds=0)
    table.checkpoint()
    collect_all(table)
    assert counts.shown(table) == counts.stored(table.uri) == expected
    look_verified(table)


def attempt(
    actors: Actors[Counts], name: str, job: str, fault_name: str, *, most: int | None = None
) -> None:
    """Try one fault at steps of one job, of each kind of step one, and run the job again.

    ``most`` is the number of these steps; None for all.
    """
    kind, fault = KINDS[name], FAULTS[fault_name]
    run = kind.jobs[job]
    for step in some(chosen(actors.steps(run), fault, every=False), most, name, job, fault_name):
        with actors.trying(job, fault_name, step) as (table, counts):
            actors.suffer(table, run, fault, step)
            counts.look(table)
            # Rows of a table without a key would be there twice.
            if (name, job) != (WITHOUT_KEY, "write"):
                run(table.location)
                counts.look(table, verified=True)
            finish(kind, table, counts)


def some(steps: list[Step], most: int | None, *seed: str) -> list[Step]:
    """Return at most so many of the steps, drawn by a seed."""
    if most is None or len(steps) <= most:
        return steps
    return random.Random(" ".join(seed)).sample(steps, most)


# The kinds of tables, the jobs and some faults.
TRIED_BY_DEFAULT = [
    (WITHOUT_KEY, "merge", "killed before"),
    (blobs.MARKED, "checkpoint", "error before"),
    (blobs.V2, "write", "delivered late"),
    (blobs.V2, "merge in parts", "killed after"),
]


@pytest.mark.parametrize(("kind", "job", "fault"), TRIED_BY_DEFAULT)
def test_a_fault(actors: Actors[Counts], kind: str, job: str, fault: str) -> None:
    attempt(actors, kind, job, fault, most=2)


@pytest.mark.parametrize(
    ("kind", "job", "fault"),
    drawn(48, itertools.product(KINDS, TRIED, FAULTS), seed="each kind of step"),
)
def test_a_fault_at_each_kind_of_step(
    actors: Actors[Counts], kind: str, job: str, fault: str
) -> None:
    attempt(actors, kind, job, fault)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [WITHOUT_KEY])
@pytest.mark.parametrize(
    ("job", "fault"),
    drawn(24, itertools.product(sorted(set(JOBS) - set(TRIED)), FAULTS), seed="without key"),
)
def test_a_fault_of_another_job(actors: Actors[Counts], kind: str, job: str, fault: str) -> None:
    attempt(actors, kind, job, fault)


def sleep(actors: Actors[Counts], kind: str, job: str, *, most: int | None = None) -> None:
    """Let a merger stand still before some of its steps while another one merges; None for all."""
    merge = KINDS[kind].jobs[job]
    changes = [step for step in actors.steps(merge) if step.changes]
    for step in some(changes, most, kind, job):
        with actors.trying(job, "paused", step) as (table, counts):
            actors.pause(table, merge, step, table.merge)
            counts.look(table, verified=True)
            finish(KINDS[kind], table, counts)


@pytest.mark.parametrize(
    ("kind", "job"),
    [(WITHOUT_KEY, "merge in parts"), (blobs.MARKED, "merge in parts"), (blobs.V2, "merge")],
)
def test_two_mergers_add_each_row_once(actors: Actors[Counts], kind: str, job: str) -> None:
    sleep(actors, kind, job, most=2)


@pytest.mark.slow
@pytest.mark.parametrize("job", MERGES)
@pytest.mark.parametrize("kind", KINDS)
def test_two_mergers_at_each_step_add_each_row_once(
    actors: Actors[Counts], kind: str, job: str
) -> None:
    sleep(actors, kind, job)
