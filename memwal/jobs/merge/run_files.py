"""Files of one run of a divided merge: keys of its tasks, and decisions of the quality gate.

A run has a folder of its own, ``_memwal/merges/{run id}``. It is deleted when the run ends; a run
that dies leaves it, and the garbage collection deletes it by age.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa

from memwal.errors import CorruptDataError
from memwal.format.paths import TOMBSTONE
from memwal.region.rows import key_column
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore
from memwal.util.arrays import Mask

MERGES_DIR = "_memwal/merges"
# Of a stream of Arrow.
_END = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Keys that one rewrite task wrote anew or deleted, each once."""

    path: str
    number: int  # of the task
    rows: int
    bytes: int  # in memory


def run_dir(run_id: UUID) -> str:
    """Return the key of the folder of a run."""
    return f"{MERGES_DIR}/{run_id}"


def write_keys(
    location: TableLocation, run_id: UUID, number: int, keys: pa.Table, deleted: Mask
) -> KeyFile:
    """Store key columns of a task, with a mask of the keys that are deleted.

    A repetition of the task, which may have read less, stores another file: the driver may have
    taken the first one.
    """
    path = f"{run_dir(run_id)}/{number}-{uuid4()}.arrow"
    write_stored(location, path, keys.append_column(TOMBSTONE, pa.array(deleted)))
    return KeyFile(path, number, keys.num_rows, keys.nbytes)


def read_keys(
    store: ObjectStore, file: KeyFile, primary_key: tuple[str, ...]
) -> tuple[pa.Array, Mask]:
    """Return the keys of a file, one comparable value each, and the mask of deleted keys."""
    table = read_stored(store, file.path)
    deleted = table.column(TOMBSTONE).to_numpy().astype(np.bool_)
    return key_column(table, primary_key), deleted


def write_decision(location: TableLocation, run_id: UUID, name: UUID, entering: Mask) -> str:
    """Store which rows of a region enter the base table, of all its rows; return the key."""
    path = f"{run_dir(run_id)}/{name}.arrow"
    write_stored(location, path, pa.table({"entering": pa.array(entering)}))
    return path


def read_decision(store: ObjectStore, path: str) -> Mask:
    """Return which rows of a region enter."""
    entering: Mask = read_stored(store, path).column("entering").to_numpy().astype(np.bool_)
    return entering


def write_stored(location: TableLocation, path: str, rows: pa.Table) -> None:
    """Store rows, in place of a file that is there.

    On a local disk they are not synced: if the machine crashes, the run does not go on.
    """
    location.store_without_fsync.put(path, encode_rows(rows))


def read_stored(store: ObjectStore, path: str) -> pa.Table:
    """Read stored rows. Raises CorruptDataError if the file is not whole."""
    return decode_rows(store.get(path), name=path)


def encode_rows(rows: pa.Table) -> pa.Buffer:
    """Return rows as a stream of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def decode_rows(data: bytes, *, name: str) -> pa.Table:
    """Return the rows of a stream of Arrow. Raises CorruptDataError if it is not whole."""
    # Arrow takes a stream that was cut off between two messages for a shorter one.
    if not data.endswith(_END):
        raise CorruptDataError(f"{name} was not written whole: it has no end")
    try:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_all().combine_chunks()
    except pa.ArrowInvalid as error:
        raise CorruptDataError(f"{name} was not written whole: {error}") from error
