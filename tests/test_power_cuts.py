"""The power goes while a table is made, enabled, changed, tagged or copied."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pytest
from support import native
from support.power_loss import END, Crash, Recorder, survive
from support.tables import SCHEMA, generations, rows, state

import memwal
from memwal.errors import CorruptDataError, TableSetupError
from memwal.maintenance.garbage import collect_garbage
from memwal.maintenance.verify import verify
from memwal.storage.location import TableLocation
from memwal.table_index.read_tags import ReadTag, parse_read_tag_key, place, torn_tags

Check = Callable[[Path, Crash[None]], None]

SPEC = memwal.RegionSpec.unsharded()
ROWS = {1: 1, 2: 2}
UNSAFE = {"table-torn", "table-file-missing", "table-file-damaged"}
"""What verify finds of a version that Lance did not sync."""


Cut = Callable[..., None]


@pytest.fixture
def cut(tmp_path: Path, most_disks: int | None) -> Cut:
    """Return what cuts the power while somebody does something to ``disk/table``."""

    def cut(
        live: Callable[[Path], object],
        check: Check,
        prepare: Callable[[Path], object] = lambda path: None,
    ) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        prepare(disk / "table")
        recorder: Recorder[None] = Recorder(disk, lambda: None)
        with recorder.watch():
            live(disk / "table")
        survive(recorder.crashes(), tmp_path, check, most=most_disks)

    return cut


def use(table: memwal.Table, expected: dict[int, int]) -> None:
    """Everything is there, and everybody can go on."""
    with table.writer() as writer:
        writer.upsert(rows({99: 99}))
    native.everything(table)
    table.merge()
    assert state(table) == {**expected, 99: 99}
    assert verify(table.location).clean


def test_create(cut: Cut) -> None:
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

    cut(live, check)


def test_enable(cut: Cut) -> None:
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

    cut(live, check, prepare)


def test_a_direct_commit_while_versions_are_collected(cut: Cut) -> None:
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
        while {finding.code for finding in verify(location).findings} & UNSAFE:
            # The direct commit was not safe, and its version goes by hand.
            min((path / "table" / "_versions").glob("*.manifest")).unlink()
        assert state(memwal.open(location.uri)) == ROWS

    cut(live, check, prepare)


def test_tags(cut: Cut) -> None:
    """Nothing that a tag needs goes before the tag is safe."""

    def prepare(path: Path) -> None:
        table = memwal.create(str(path), SCHEMA, primary_key=["id"], region_spec=SPEC)
        with table.writer() as writer:
            writer.upsert(rows(ROWS))
        table.merge()
        with table.writer() as writer:
            writer.upsert(rows({3: 3}))

    def live(path: Path) -> None:
        base = memwal.open(str(path)).base()
        place(base, ReadTag(3600, base.version, "reader"))
        base.dataset.tags.create("kept", base.version)
        table = memwal.open(str(path))
        table.merge()
        native.collect_all(table)

    def check(path: Path, crash: Crash[None]) -> None:
        table = memwal.open(str(path / "table"))
        assert state(table) == {**ROWS, 3: 3}
        for key in torn_tags(table.location):
            if parse_read_tag_key(key) is None:
                # What somebody tagged goes by hand.
                with pytest.raises(CorruptDataError, match=r"kept\.json"):
                    table.collect_garbage(dry_run=False)
                table.location.store.delete(key)
        native.collect_all(table)
        tags = table.base().dataset.tags.list()
        assert len(tags) == 2 or crash.when != END
        for tag in tags:
            assert state(table.at(tag)) == ROWS
            assert len(generations(table)) == 1
        use(table, {**ROWS, 3: 3})

    cut(live, check, prepare)


def test_copy(cut: Cut) -> None:
    """A copy is there as a whole, or not at all."""

    def prepare(path: Path) -> None:
        table = memwal.create(str(path), SCHEMA, primary_key=["id"], region_spec=SPEC)
        writer = table.writer()
        writer.upsert(rows(ROWS))
        writer.flush()
        writer.upsert(rows({3: 3}))
        writer.abort()

    def live(path: Path) -> None:
        memwal.open(str(path)).copy_to(str(path.with_name("copy")))

    def check(path: Path, crash: Crash[None]) -> None:
        try:
            table = memwal.open(str(path / "copy"))
        except TableSetupError:
            assert crash.when != END
        else:
            use(table, {**ROWS, 3: 3})
        use(memwal.open(str(path / "table")), {**ROWS, 3: 3})

    cut(live, check, prepare)
