"""One table with something to do for every job, and somebody who knows what is in it."""

import functools
from collections.abc import Iterable
from pathlib import Path

import lance
import pytest
from support.data.copied import lasting_folder
from support.data.tables import SCHEMA, age, folder, keys, rows
from support.faults.jobs import JOBS
from support.faults.others import DIRECT
from support.oracles.auditor import Auditor, Values, tag
from support.oracles.native import collect_all
from support.stores.faulty_store import FaultyStores

import memwal
from memwal.format.paths import generation_dir
from memwal.storage.location import TableLocation

UNFLUSHED = 500
"""First of the keys that a writer acknowledged and did not flush."""


def flush(table: memwal.Table, auditor: Auditor, values: Values, gone: Iterable[int] = ()) -> None:
    """Upsert and delete with our writer, as a generation of each region that is concerned."""
    gone = list(gone)
    with table.writer() as writer:
        writer.upsert(rows(values))
        if gone:
            writer.delete(keys(*gone))
    auditor.wrote(values, gone)


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
    # Dropped, and not deleted yet.
    JOBS["collection"](table.location)
    flush(table, auditor, dict.fromkeys(range(4, 12), 3), [0])
    table.merge()
    table.build_indexes()
    tag(table, auditor, "kept")
    flush(table, auditor, dict.fromkeys(range(3, 7), 4), [10])
    table.merge()
    flush(table, auditor, dict.fromkeys((0, 5, 6, 12, 13), 5), [1, 2])
    flush(table, auditor, dict.fromkeys((1, 5, 14, 15), 6), [7, 12, 13])
    _die_with_a_log(table, auditor)
    _leave_an_orphan(table)
    auditor.look(table, verified=True)
    return table, auditor


def _die_with_a_log(table: memwal.Table, auditor: Auditor) -> None:
    """A writer acknowledges rows of both regions, a few at a time, and is seen no more."""
    with pytest.MonkeyPatch.context() as patch:
        location = TableLocation(table.uri, {"actor": "writer"})
        store = FaultyStores(patch, durable=False).of(location)
        writer = memwal.open(table.uri, storage_options=location.storage_options).writer()
        for start in range(UNFLUSHED, UNFLUSHED + 20, 4):
            values: Values = dict.fromkeys(range(start, start + 4), start)
            writer.upsert(rows(values))
            auditor.logged_only(values)
        store.kill("*", times=1 << 30)
        with pytest.raises(BaseException):  # noqa: B017
            writer.close()


def _leave_an_orphan(table: memwal.Table) -> None:
    """What a flush leaves that died two days ago."""
    orphan = folder(table) / generation_dir(table.region_ids()[0], "0badf00d_gen_2") / "data"
    orphan.mkdir(parents=True)
    (orphan / "rows.lance").write_bytes(b"half of it")
    age(table, 2 * 86_400, pattern=str(orphan.relative_to(folder(table)) / "*"))


@functools.cache
def prepared() -> tuple[memwal.Table, Auditor]:
    """Return the table that is copied, and its auditor. Nobody may change it."""
    return prepare(lasting_folder() / "table.lance")


def finish(table: memwal.Table, auditor: Auditor) -> None:
    """Bring a table to its end: all merged, indexed and collected, nothing lost."""
    # Of each region: the claims bring back what a dead writer left in the logs.
    flush(table, auditor, dict.fromkeys(range(UNFLUSHED + 50, UNFLUSHED + 60), 1))
    auditor.replayed()
    table.checkpoint()
    auditor.snapshot_begins()
    table.build_snapshot()
    collect_all(table)
    # What any of these would lose is not there at the end either.
    auditor.look(table, verified=True)
    auditor.look_at_base(table)
