"""Entries of a region's log: encoded alone, or appended in one call."""

from collections.abc import Sequence

import pyarrow as pa

from memwal.format.wal_encoder import EntryEncoder
from memwal.lsm.wal.appender import LogAppender, PreparedEntry


def encode_entry(
    batches: Sequence[pa.RecordBatch],
    *,
    schema: pa.Schema,
    writer_epoch: int,
    generation: int,
    writer_id: str,
) -> bytes:
    """Encode a single entry."""
    encoder = EntryEncoder(schema, writer_epoch=writer_epoch, writer_id=writer_id)
    return encoder.encode(batches, generation=generation).data


def append(
    log: LogAppender, batches: Sequence[pa.RecordBatch], *, generation: int
) -> PreparedEntry:
    """Make a group of writes durable as one entry."""
    stored = log.put(log.prepare(batches, generation=generation))
    log.acknowledge(stored)
    return stored
