"""Opening the base table together with what its MemWAL index says."""

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support.data.tables import REGION, folder, rows

import memwal
from memwal.base_table.snapshot import open_base, open_dataset, table_manifest_key
from memwal.errors import (
    CorruptDataError,
    MemWalError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal.storage.location import TableLocation


def test_rows_and_progress_are_of_one_version(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        writer.flush()
        writer.upsert(rows({2: 2}))
    table.merge(commit_bytes=1)
    seen = []
    for version in range(1, table.base().version + 1):
        base = open_base(table.location, version=version)
        assert base.version == version
        assert base.dataset.count_rows() == base.details.merged.get(REGION, 0)
        seen.append(base.dataset.count_rows())
    assert seen[-1] == 2
    assert open_base(table.location, version=1).index is None


def test_tells_the_key_in_key_order(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("n", pa.int64()),
            pa.field("b", pa.string(), nullable=False),
        ]
    )
    table = memwal.create(
        str(tmp_path / "table"), schema, primary_key=["b", "a"], region_spec="bucket:a:2"
    )

    base = table.base()

    assert base.primary_key == ("b", "a")
    assert base.field_ids() == {"a": 0, "n": 1, "b": 2}


def test_without_a_table_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "empty"):
        with pytest.raises(TableSetupError, match=name):
            open_base(TableLocation(str(tmp_path / name)))


def test_every_call_of_a_table_that_was_deleted_raises_the_same_error(tmp_path: Path) -> None:
    lance.write_dataset(rows({1: 1}), str(tmp_path / "table"))
    table = memwal.open(str(tmp_path / "table"))
    shutil.rmtree(tmp_path / "table")
    calls = (table.status, table.compact, table.build_indexes, table.verify, table.head)
    for call in (*calls, table.collect_garbage, table.scan().to_table):
        with pytest.raises(StoreUnavailableError):
            call()


def test_without_the_version_says_so(table: memwal.Table) -> None:
    with pytest.raises(TableSetupError, match="99"):
        open_base(table.location, version=99)
    with pytest.raises(TableSetupError):
        table_manifest_key(table.location, 99)


def test_a_plain_table_has_neither_key_nor_index(tmp_path: Path) -> None:
    lance.write_dataset(rows({1: 1}), str(tmp_path / "plain"))
    base = open_base(TableLocation(str(tmp_path / "plain")))
    assert base.primary_key == ()
    assert base.index is None
    with pytest.raises(TableSetupError, match="--primary-key"):
        base.require_mem_wal()


def test_a_damaged_manifest_is_an_error_of_ours(table: memwal.Table) -> None:
    for path in (folder(table) / "_versions").glob("*.manifest"):
        path.write_bytes(path.read_bytes()[:-10])

    with pytest.raises(MemWalError):
        table.base()


def test_a_type_that_nobody_knows_is_damage(table: memwal.Table) -> None:
    """Lance panics at it, though not when it opens the table."""
    for path in (folder(table) / "_versions").glob("*.manifest"):
        assert b"int64" in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(b"int64", b"3nt64"))

    with pytest.raises(CorruptDataError):
        table.base()


def test_a_folder_inside_that_is_not_there(table: memwal.Table) -> None:
    with pytest.raises(ObjectNotFoundError):
        open_dataset(table.location, "_mem_wal/nothing")
