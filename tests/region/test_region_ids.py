"""Region ids must equal the folder names of a real LanceDB table."""

import uuid
from pathlib import Path

import lancedb
import pyarrow as pa
import pytest
from lancedb import LsmWriteSpec

from memwal.errors import InvalidInputError
from memwal.region.router import UNSHARDED_ID, bucket_region_id, identity_region_id

NAMESPACE = uuid.UUID("4c534d57-5249-5445-5f53-484152443031")


def test_the_only_region_of_a_lancedb_table(tmp_path: Path) -> None:
    """Those of divided tables: ``test_router.py``."""
    rows = pa.table({"id": pa.array([1])}, pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    table = lancedb.connect(tmp_path).create_table("t", schema=rows.schema)
    table.set_unenforced_primary_key("id")
    table.set_lsm_write_spec(LsmWriteSpec.unsharded())
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)
    table.close_lsm_writers()
    (folder,) = (tmp_path / "t.lance" / "_mem_wal").iterdir()
    assert folder.name == str(UNSHARDED_ID)


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
