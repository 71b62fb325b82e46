"""Log entries that somebody who may write into a store could put there."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fuzz.arrow_changes import parse, serialize
from fuzz.samples import foreign_entry
from support.data.entries import encode_entry
from support.data.tables import REGION, folder, listing, manifest, rows, state

import memwal
from memwal.errors import CorruptDataError
from memwal.format import wal_entry
from memwal.format.wal_entry import TornEntryError, decode_entry
from memwal.lsm.wal.log import fence

# Memory


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_decompression_bomb_does_not_go_off(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = foreign_entry(pa.table({"id": np.zeros(4 << 20, np.int64)}), compression=codec)
    assert len(bomb) < 1 << 20
    assert sum(batch.nbytes for batch in decode_entry(bomb, name="here").batches) == 32 << 20
    monkeypatch.setattr(wal_entry, "MAX_UNPACKED_BYTES", 16 << 20)
    before = pa.total_allocated_bytes(), pa.default_memory_pool().max_memory()
    with pytest.raises(CorruptDataError) as caught:
        decode_entry(bomb, name="here")
    assert before == (pa.total_allocated_bytes(), pa.default_memory_pool().max_memory())
    # At the tip of a log nobody may put anything in its place.
    assert not isinstance(caught.value, TornEntryError)


@pytest.mark.parametrize("claim", [(1 << 30) + 1, 1 << 43, (1 << 63) - 1])
def test_a_claimed_size_is_not_believed(claim: int) -> None:
    schema, batch = parse(foreign_entry(pa.table({"id": list(range(1_000))}), compression="zstd"))
    at = batch.body.index(struct.pack("<q", 8_000))
    batch.body = batch.body[:at] + struct.pack("<q", claim) + batch.body[at + 8 :]
    before = pa.default_memory_pool().max_memory()
    entry = serialize([schema, batch])
    with pytest.raises(CorruptDataError, match="here"):
        decode_entry(entry, name="here")
    assert pa.default_memory_pool().max_memory() == before


def test_rows_without_a_bit_each_are_refused() -> None:
    """A batch may say that it has any number of rows where no column takes memory."""
    schema, batch = parse(foreign_entry(pa.table({"id": pa.nulls(12_345)})))
    few, many = struct.pack("<q", 12_345), struct.pack("<q", 1 << 40)
    assert few in batch.metadata
    batch.metadata = batch.metadata.replace(few, many)
    with pytest.raises(CorruptDataError, match=str(1 << 40)):
        decode_entry(serialize([schema, batch]), name="here")


def test_a_machine_without_memory_does_not_make_an_entry_torn(
    monkeypatch: pytest.MonkeyPatch, table: memwal.Table
) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        newest = manifest(table)

        def no_memory(*_given: Any) -> None:
            raise pa.ArrowMemoryError("malloc of size 64 failed")

        monkeypatch.setattr(pa.ipc, "read_record_batch", no_memory)
        before = listing(folder(table))
        with pytest.raises(MemoryError):
            # Torn entries at the tip are replaced by the fence: acknowledged rows would be gone.
            fence(
                table.location.store,
                REGION,
                epoch=newest.writer_epoch + 1,
                writer_id="w",
                after=newest.replay_after,
                hint=0,
            )
        assert listing(folder(table)) == before
        monkeypatch.undo()
    assert state(table) == {1: 1}


# Code


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._path,)


@pytest.mark.parametrize("signed", [True, False])
def test_no_code_comes_from_an_extension_type(signed: bool, tmp_path: Path) -> None:
    made = tmp_path / "made"
    data = pickle.dumps(Payload(str(made)))
    extension = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": data,
    }
    schema = pa.schema([pa.field("id", pa.int64(), metadata=extension)])
    table = pa.table({"id": [1]}, schema=schema)
    entry = (
        encode_entry(table.to_batches(), schema=schema, writer_epoch=1, generation=1, writer_id="w")
        if signed
        else foreign_entry(table)
    )
    found = decode_entry(entry, name="here")
    assert found.batches[0].column("id").to_pylist() == [1]
    assert not made.exists()


class _Picky(pa.ExtensionType):
    """One that some library registered, whose reader raises what it likes."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.picky")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"{}"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, data: bytes) -> _Picky:
        return {b"{}": cls()}[data]


@pytest.fixture
def picky() -> Iterator[pa.ExtensionType]:
    pa.register_extension_type(_Picky())
    yield _Picky()
    pa.unregister_extension_type("tests.picky")


def test_what_an_extension_type_raises_is_told(picky: pa.ExtensionType) -> None:
    column = pa.ExtensionArray.from_storage(picky, pa.array([1]))
    entry = foreign_entry(pa.table({"id": column}))
    decode_entry(entry, name="here")
    # As long as before, so that nothing else changes.
    with pytest.raises(TornEntryError):
        decode_entry(entry.replace(b"{}", b"xx"), name="here")
