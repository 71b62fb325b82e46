"""The power goes while a table is made, enabled, changed, tagged or copied."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support import native
from support.faulty_store import FaultyStores
from support.power_loss import END, Crash, Recorder, problems
from support.tables import SCHEMA, rows, state

import memwal
from memwal.errors import TableSetupError
from memwal.maintenance.garbage import collect_garbage
from memwal.maintenance.verify import verify
from memwal.storage.location import TableLocation

Check = Callable[[Path, Crash[None]], None]

SPEC = memwal.RegionSpec.unsharded()
ROWS = {1: 1, 2: 2}


def cut(folder: Path, live: Callable[[Path], object], check: Check, prepare: Callable[[Path], object] = lambda path: None) -> None:
    disk = folder / "disk"
    disk.mkdir()
    prepare(disk / "table")
    recorder: Recorder[None] = Recorder(disk, lambda: None)
    with recorder.watch():
        live(disk / "table")
    found = recorder.crashes()
    print(len(recorder.syncs()), len(found))
    with pytest.MonkeyPatch.context() as patch:
        FaultyStores(patch, durable=False)
        wrong = list(problems(found, folder, check))
    assert not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong)


def use(table: memwal.Table, expected) -> None:
    with table.writer() as writer:
        writer.upsert(rows({99: 99}))
    native.everything(table)
    table.merge()
    assert state(table) == {**expected, 99: 99}
    assert verify(table.location).clean


def test_create(tmp_path: Path) -> None:
    """The table is there, or not, or lacks MemWAL and says so."""

    def live(path: Path) -> None:
        memwal.create(
            str(path),
            SCHEMA,
            primary_key=["id"],
            region_spec=SPEC,
            maintained_indexes=["id_idx"],
        )

    def check(path: Path, crash: Crash[None]) -> None:
        uri = str(path / "table")
        try:
            table = memwal.open(uri)
        except TableSetupError as error:
            assert crash.when != END
            if "not enabled" in str(error):
                table = memwal.enable(uri, region_spec=SPEC)
            else:
                live(path / "table")
                table = memwal.open(uri)
        use(table, {})

    cut(tmp_path, live, check)


def test_enable(tmp_path: Path) -> None:
    """A Lance table that was safe before is so whatever becomes of MemWAL."""

    def prepare(path: Path) -> None:
        lance.write_dataset(rows(ROWS), str(path))

    def live(path: Path) -> None:
        memwal.enable(str(path), primary_key=["id"], region_spec=SPEC)

    def check(path: Path, crash: Crash[None]) -> None:
        try:
            table = memwal.open(str(path / "table"))
        except TableSetupError:
            assert crash.when != END
            live(path / "table")
            table = memwal.open(str(path / "table"))
        use(table, ROWS)

    cut(tmp_path, live, check, prepare)


def test_a_direct_commit_while_versions_are_collected(tmp_path: Path) -> None:
    """Lance syncs no commit: the version before it goes only when it is safe."""

    def prepare(path: Path) -> None:
        table = memwal.create(str(path), SCHEMA, primary_key=["id"], region_spec=SPEC)
        with table.writer() as writer:
            writer.upsert(rows(ROWS))
        table.merge()

    def live(path: Path) -> None:
        def commit() -> None:
            dataset = lance.dataset(str(path))
            dataset.update({"text": "text"}, where="id = 1")

        collect_garbage(
            TableLocation(str(path)),
            dry_run=False,
            grace=timedelta(0),
            retention=timedelta(0),
            base_versions=True,
            guard=commit,
        )

    def check(path: Path, crash: Crash[None]) -> None:
        location = TableLocation(str(path / "table"))
        for finding in verify(location).findings:
            # The direct commit was not safe, and its version goes by hand.
            assert finding.code == "table-torn"
            location.store.delete(finding.object)
        assert state(memwal.open(location.uri)) == ROWS

    cut(tmp_path, live, check, prepare)
