"""Blobs of version 2 as log entries have them."""

from pathlib import Path
from uuid import UUID

import lance
import pyarrow as pa
import pytest

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.paths import blob_key
from memwal.format.wal_layout import TARGET_FILE, new_blob_target
from memwal.lsm.logged_blobs import blob_reader, from_logged, no_file, to_logged
from memwal.storage.open import open_store

REGION = UUID(int=7)
KIND = to_logged(
    pa.record_batch([lance.blob_array([])], schema=pa.schema([lance.blob_field("b")]))
).schema.field(0)


def entry(**parts: object) -> pa.RecordBatch:
    """One logged blob."""
    return pa.record_batch([pa.array([parts], KIND.type)], schema=pa.schema([KIND]))


def test_blobs_are_the_same_again() -> None:
    values = [
        lance.Blob.from_bytes(b"bytes"),
        None,
        lance.Blob.empty(),
        lance.Blob.from_uri("file:///a"),
        lance.Blob.from_uri("file:///a", position=0, size=1 << 63),
    ]
    schema = pa.schema([lance.blob_field("b", inline_size_threshold=5)])
    rows = pa.record_batch([lance.blob_array(values)], schema=schema)
    for part in (rows, rows.slice(1, 3), rows.slice(5)):
        logged = to_logged(part)
        assert pa.types.is_struct(logged.schema.field("b").type)
        assert from_logged(logged, no_file).equals(part, check_metadata=True)


@pytest.mark.parametrize(("number", "start", "size"), [(1, 0, 10), (6, 3, 4), (2**32 - 1, 0, 0)])
def test_a_blob_is_read_from_its_file(tmp_path: Path, number: int, start: int, size: int) -> None:
    store = open_store(tmp_path, durable=False)
    target = new_blob_target(4, epoch=2)
    folder = target[b"mem_wal_target_generation_dir"].decode()
    file = target[TARGET_FILE].decode().removesuffix(".lance")
    store.create(blob_key(REGION, folder, file, number), b"0123456789")
    rows = entry(kind=1, blob_id=number, position=start, blob_size=size)
    found = from_logged(rows, blob_reader(store, REGION, target)).column(0)
    assert found.storage.field("data").to_pylist() == [b"0123456789"[start:][:size]]


@pytest.mark.parametrize("size", [11, 1 << 40, (1 << 64) - 1])
def test_a_size_that_no_file_has_is_refused(tmp_path: Path, size: int) -> None:
    store = open_store(tmp_path, durable=False)
    target = new_blob_target(4, epoch=2)
    folder = target[b"mem_wal_target_generation_dir"].decode()
    file = target[TARGET_FILE].decode().removesuffix(".lance")
    store.create(blob_key(REGION, folder, file, 1), b"0123456789")
    rows = entry(kind=2, blob_id=1, blob_size=size)
    for metadata in (target, {**target, TARGET_FILE: b"../x.lance"}, {}):
        with pytest.raises(CorruptDataError):
            from_logged(rows, blob_reader(store, REGION, metadata))
    with pytest.raises(CorruptDataError):
        from_logged(
            rows, blob_reader(open_store(tmp_path / "empty", durable=False), REGION, target)
        )


def test_a_blob_without_its_parts_is_refused() -> None:
    field = pa.field("b", pa.struct([("data", pa.large_binary())]), metadata=KIND.metadata)
    rows = pa.record_batch([pa.array([{"data": b"a"}], field.type)], schema=pa.schema([field]))
    with pytest.raises(InvalidInputError):
        from_logged(rows, no_file)
