"""Region ids must equal the folder names of a real LanceDB table."""

from __future__ import annotations

import uuid
from pathlib import Path

import lancedb
import pyarrow as pa
import pytest
from lancedb import LsmWriteSpec

from memwal.errors import InvalidInputError
from memwal.region.router import UNSHARDED_ID, bucket_region_id, identity_region_id

NAMESPACE = uuid.UUID("4c534d57-5249-5445-5f53-484152443031")


def folders_after_upserts(
    path: Path, spec: LsmWriteSpec, data_type: pa.DataType, values: list[object]
) -> set[uuid.UUID]:
    """Upsert each value by itself through LanceDB, and return the regions it made."""
    schema = pa.schema([pa.field("id", data_type, nullable=False), pa.field("x", pa.int32())])
    table = lancedb.connect(path).create_table("t", schema=schema)
    table.set_unenforced_primary_key("id")
    table.set_lsm_write_spec(spec)
    for value in values:
        rows = pa.table([pa.array([value], data_type), pa.array([1], pa.int32())], schema=schema)
        upsert = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        upsert.execute(rows)
        table.close_lsm_writers()
    return {uuid.UUID(folder.name) for folder in (path / "t.lance" / "_mem_wal").iterdir()}


def test_buckets_of_a_lancedb_table(tmp_path: Path) -> None:
    folders = folders_after_upserts(
        tmp_path, LsmWriteSpec.bucket("id", 4), pa.int64(), list(range(16))
    )
    assert folders == {bucket_region_id(number) for number in range(4)}


def test_the_only_region_of_a_lancedb_table(tmp_path: Path) -> None:
    folders = folders_after_upserts(tmp_path, LsmWriteSpec.unsharded(), pa.int64(), [1, 2, 3])
    assert folders == {UNSHARDED_ID}


@pytest.mark.parametrize(
    ("data_type", "values", "encoded"),
    [
        (pa.int32(), [0, -5, 2**31 - 1], [bytes(4), b"\xfb\xff\xff\xff", b"\xff\xff\xff\x7f"]),
        (pa.int64(), [258, -1], [b"\x02\x01" + bytes(6), b"\xff" * 8]),
        (pa.string(), ["", "a", "é1", "日本"], [b"", b"a", "é1".encode(), "日本".encode()]),
        (pa.large_string(), ["tenant"], [b"tenant"]),
    ],
    ids=str,
)
def test_identity_values_of_a_lancedb_table(
    tmp_path: Path, data_type: pa.DataType, values: list[object], encoded: list[bytes]
) -> None:
    folders = folders_after_upserts(tmp_path, LsmWriteSpec.identity("id"), data_type, values)
    assert folders == {identity_region_id(value) for value in encoded}


def test_ids_are_version_5_uuids_of_names_in_the_namespace() -> None:
    assert uuid.uuid5(NAMESPACE, "unsharded") == UNSHARDED_ID
    for number in (0, 9, 10, 1023):
        assert bucket_region_id(number) == uuid.uuid5(NAMESPACE, f"bucket-{number}")
    assert identity_region_id("é".encode()) == uuid.uuid5(NAMESPACE, "identity-é")
    not_text = identity_region_id(b"\xff\xfe")
    assert not_text.version == 5
    assert not_text.variant == uuid.RFC_4122


def test_ids_are_pinned() -> None:
    assert str(UNSHARDED_ID) == "aa48498d-ac91-59e2-8452-69f46010ace2"
    assert str(bucket_region_id(0)) == "4a388480-a25b-59a8-b058-24217f980256"
    assert str(identity_region_id(b"")) == "3faaecb2-2ed3-5f84-b276-f84487228724"


def test_a_negative_bucket_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        bucket_region_id(-1)
