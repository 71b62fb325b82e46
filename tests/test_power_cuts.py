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
from memwal.errors import MemWalError
from memwal.maintenance.verify import verify

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
    def live(path: Path) -> None:
        memwal.create(str(path), SCHEMA, primary_key=["id"], region_spec=SPEC, maintained_indexes=["id_idx"])

    def check(path: Path, crash: Crash[None]) -> None:
        try:
            table = memwal.open(str(path / "table"))
        except MemWalError as e:
            print(crash.when, crash.how, repr(e)[:200])
            assert crash.when != END
            try:
                live(path / "table")
            except MemWalError as e:
                print("   CREATE:", crash.when, crash.how, repr(e)[:300])
                return
            table = memwal.open(str(path / "table"))
        use(table, {})

    cut(tmp_path, live, check)


def test_enable(tmp_path: Path) -> None:
    def prepare(path: Path) -> None:
        lance.write_dataset(rows(ROWS), str(path))

    def live(path: Path) -> None:
        memwal.enable(str(path), primary_key=["id"], region_spec=SPEC)

    def check(path: Path, crash: Crash[None]) -> None:
        assert state(lance.dataset(str(path / "table")).to_table()) == ROWS
        try:
            table = memwal.open(str(path / "table"))
        except MemWalError as e:
            assert crash.when != END
            live(path / "table")
            table = memwal.open(str(path / "table"))
        use(table, ROWS)

    cut(tmp_path, live, check, prepare)
