"""One table with something to do for every job, and somebody who knows what is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from support.auditor import Auditor, Values, tag
from support.fault_schedule import Actors
from support.faulty_store import FaultyStores, skip_waits
from support.tables import SCHEMA, keys, later, rows

import memwal
from memwal.maintenance import snapshot_build
from memwal.maintenance.garbage import collect_garbage

DAY = 86_400.0
DIRECT = 1_000
"""First of the keys that are only written directly."""


def flush(table: memwal.Table, auditor: Auditor, values: Values, gone: Iterable[int] = ()) -> None:
    """Upsert and delete with our writer, as a generation of each region that is concerned."""
    gone = list(gone)
    with table.writer() as writer:
        writer.upsert(rows(values))
        if gone:
            writer.delete(keys(*gone))
    auditor.wrote(values, gone)


def collect(table: memwal.Table, days: float) -> Any:
    """Collect as of so many days from now, for good."""
    return collect_garbage(
        table.location, dry_run=False, retention=timedelta(0), clock=later(days * DAY)
    )


def prepare(path: Path) -> tuple[memwal.Table, Auditor]:
    """Make a table with something to do for every job.

    Its regions have, from old to new: generations that the manifests no longer name, one that is
    merged and indexed, a tag, one that is merged and not indexed, and two that are not merged, with
    deletes of keys of any age.
    """
    table = memwal.create(
        str(path),
        SCHEMA,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        maintained_indexes=["id_idx", "n_idx"],
    )
    auditor = Auditor()
    direct: Values = dict.fromkeys(range(DIRECT, DIRECT + 6), 0)
    lance.write_dataset(rows(direct), table.uri, mode="append")
    auditor.wrote(direct, logged=False)
    flush(table, auditor, dict.fromkeys(range(8), 1))
    flush(table, auditor, dict.fromkeys(range(2, 10), 2), [3, 4])
    table.merge()
    table.build_indexes()
    auditor.snapshot_begins()
    table.build_snapshot()
    collect(table, 1)
    flush(table, auditor, dict.fromkeys(range(4, 12), 3), [0])
    table.merge()
    table.build_indexes()
    tag(table, auditor, "kept")
    flush(table, auditor, dict.fromkeys(range(3, 7), 4), [10])
    table.merge()
    flush(table, auditor, dict.fromkeys((0, 5, 6, 12, 13), 5), [1, 2])
    flush(table, auditor, dict.fromkeys((1, 5, 14, 15), 6), [7, 12, 13])
    auditor.look(table, verified=True)
    return table, auditor


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[memwal.Table, Auditor]:
    """Return the table that is copied, and its auditor. Nobody may change it."""
    return prepare(tmp_path_factory.mktemp("prepared") / "table.lance")


@pytest.fixture
def actors(
    prepared: tuple[memwal.Table, Auditor],
    quick_faults: FaultyStores,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Actors:
    """Return what copies the table and runs jobs with faults."""
    skip_waits(monkeypatch)
    # Hints are moved whenever they could be, which is one more step that can go wrong.
    monkeypatch.setattr(snapshot_build, "_HINT_LAG", 1)
    return Actors(*prepared, quick_faults, tmp_path)


Finish = Callable[[memwal.Table, Auditor], None]


@pytest.fixture
def finish() -> Finish:
    """Return what brings a table to its end: all merged, indexed and collected, nothing lost."""

    def finish(table: memwal.Table, auditor: Auditor) -> None:
        table.checkpoint()
        auditor.look_at_base(table)
        auditor.snapshot_begins()
        table.build_snapshot()
        auditor.look(table, verified=True)
        for day in (2, 4):
            collect(table, day)
        auditor.look(table, verified=True)
        auditor.look_at_base(table)

    return finish
