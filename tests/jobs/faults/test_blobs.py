"""A table with blobs, its merges and its writer with faults at their steps.

After each fault, and after the next run, every blob that was acknowledged is read as it was given,
wherever its bytes are: in the log, in a data file, beside one with others, or alone.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from support.data.blobs import MARKED, V2, VALUES, VERSIONS, read, rows, schema, stored
from support.faults.fault_schedule import FAULTS, Actors, Job, KnownSteps, chosen, telling
from support.faults.jobs import JOBS
from support.oracles.auditor import Auditor, look_verified
from support.oracles.native import collect_all
from support.stores.faulty_store import FaultyStores, skip_waits

import memwal
from memwal.storage.location import TableLocation

KINDS = (MARKED, V2)
_MORE = {50: b"m" * 5, 51: b"o" * 2_000, 52: b"r" * 9_000, 53: b"e"}


@dataclass
class Blobs:
    """The blob of each key.

    ``logged`` are in the log of a writer that died; ``doubtful`` may be there.
    """

    flushed: dict[int, bytes | None] = field(default_factory=dict)
    logged: dict[int, bytes | None] = field(default_factory=dict)
    doubtful: dict[int, bytes | None] = field(default_factory=dict)

    def copy(self) -> Blobs:
        """The blobs of a copy of the table."""
        return Blobs(dict(self.flushed), dict(self.logged), dict(self.doubtful))

    def look(self, table: memwal.Table, *, verified: bool = False) -> None:
        """Ask the readers."""
        everything = self.flushed | self.logged
        for queries, least in ((table.fresh(), everything), (table, self.flushed)):
            found = shown(queries)
            assert found.items() <= (everything | self.doubtful).items()
            assert least.items() <= found.items()
        keys = list(everything)
        assert read(table.fresh().take_blobs(keys, "image")) == list(everything.values())
        if verified:
            look_verified(table)


def shown(queries: memwal.Queries) -> dict[int, bytes | None]:
    """The blob of each key that is read."""
    found = queries.scan(columns=["id", "image"], blob_handling="all_binary").to_table()
    return dict(zip(found.column("id").to_pylist(), found.column("image").to_pylist(), strict=True))


def prepare(kind: str, path: Path) -> tuple[memwal.Table, Blobs]:
    """Make a table with merged and pending generations, and a log of a writer that died."""
    table = memwal.create(
        path,
        schema(kind, key=False),
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        data_storage_version=VERSIONS[kind],
    )
    blobs = Blobs()

    def upsert(first: int, *, merged: bool) -> None:
        given = dict(zip(range(first, first + len(VALUES)), VALUES, strict=True))
        with table.writer() as writer:
            writer.upsert(rows(kind, given, list(given.values()), key=False))
        blobs.flushed.update(given)
        if merged:
            table.merge()

    upsert(0, merged=True)
    upsert(3, merged=True)
    upsert(1, merged=False)
    upsert(7, merged=False)
    writer = table.writer()
    blobs.logged = {30: b"l" * 20_000, 31: b"o" * 2_000}
    writer.upsert(rows(kind, blobs.logged, list(blobs.logged.values()), key=False))
    writer.abort()
    return table, blobs


def upsert_more(location: TableLocation) -> None:
    """Upsert some rows, and close the writer."""
    table = memwal.open(location.uri, storage_options=location.storage_options)
    kind = MARKED if table.schema.field("image").type == pa.large_binary() else V2
    with table.writer() as writer:
        for key, value in _MORE.items():
            writer.upsert(rows(kind, [key], [value], key=False))


TRIED: dict[str, Job] = {**JOBS, "upsert": upsert_more}
MERGES = ("merge", "merge in parts", "checkpoint", "upsert")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[memwal.Table, Blobs]]:
    folder = tmp_path_factory.mktemp("blobs")
    return {kind: prepare(kind, folder / f"{kind}.lance") for kind in KINDS}


@pytest.fixture(scope="module")
def known_steps() -> dict[str, KnownSteps]:
    return {kind: {} for kind in KINDS}


@pytest.fixture
def actors(
    prepared: dict[str, tuple[memwal.Table, Blobs]],
    known_steps: dict[str, KnownSteps],
    quick_faults: FaultyStores,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
) -> Actors:
    skip_waits(monkeypatch)
    table, blobs = prepared[kind]
    blobs = blobs.copy()
    blobs.doubtful |= _MORE
    return Actors(table, cast("Auditor", blobs), quick_faults, tmp_path, known_steps[kind])


@pytest.mark.few(2)
@pytest.mark.parametrize(("kind", "job", "fault"), [*itertools.product(KINDS, MERGES, FAULTS)])
def test_a_fault_at_each_kind_of_step(actors: Actors, job: str, fault: str) -> None:
    run, tried = TRIED[job], FAULTS[fault]
    for step in chosen(actors.steps(run), tried, every=False):
        with telling(job, fault, step):
            table, blobs = actors.copy()
            actors.suffer(table, run, tried, step)
            blobs.look(table)
            run(table.location)
            blobs.look(table, verified=True)
            with table.writer() as writer:
                writer.delete([0])
            # A checkpoint recovers logs that are old enough, which those of a slow machine are.
            table.recover(min_age_seconds=0)
            expected = shown(table)
            table.checkpoint()
            collect_all(table)
            assert shown(table) == stored(table.uri) == expected
            look_verified(table)
            actors.drop(table)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_two_mergers_keep_every_blob(actors: Actors) -> None:
    """One stands still before each of its steps, and the other merges meanwhile."""
    merge = TRIED["merge"]
    for step in actors.steps(merge):
        if not step.changes:
            continue
        with telling("merge", "paused", step):
            table, blobs = actors.copy()
            actors.pause(table, merge, step, table.merge)
            blobs.look(table, verified=True)
            actors.drop(table)
