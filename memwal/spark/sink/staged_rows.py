"""Rows that a task hands to the commit: small ones in its message, others in a staged object."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pyarrow as pa

from memwal.format.paths import STAGED_ROWS_DIR
from memwal.jobs.merge.run_files import decode_rows, encode_rows
from memwal.region.router import Router
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore

# Messages of all tasks are in the memory of Spark's driver at once.
_MESSAGE_BYTES = 256 << 10
# Memory of a task.
_OBJECT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RegionStream:
    """Rows of one region, as a stream of Arrow: ``data``, or a part of a staged object."""

    region_id: UUID
    rows: int
    length: int
    key: str = ""  # of the object; empty if the rows are in ``data``
    start: int = 0
    data: bytes = field(default=b"", repr=False)

    def read(self, store: ObjectStore) -> pa.Table:
        """Return the rows. Raises an error if the object is gone or not whole."""
        if not self.key:
            return decode_rows(self.data, name="a message")
        data = store.get_range(self.key, start=self.start, length=self.length)
        return decode_rows(data, name=self.key)


def stage_rows(
    location: TableLocation,
    batches: Iterable[pa.RecordBatch],
    convert: Callable[[pa.Table], pa.Table],
    router: Router,
) -> Iterator[RegionStream]:
    """Route the rows of a task, and stage them as soon as they are many."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            pending.append(batch)
            size += batch.nbytes
        if size >= _OBJECT_BYTES:
            yield from _stage(location, _divide(pending, convert, router))
            pending, size = [], 0
    if size > _MESSAGE_BYTES:
        yield from _stage(location, _divide(pending, convert, router))
    elif pending:
        for region_id, rows in _divide(pending, convert, router).items():
            data = encode_rows(rows).to_pybytes()
            yield RegionStream(region_id, rows.num_rows, len(data), data=data)


def delete_staged(store: ObjectStore, parts: Iterable[RegionStream]) -> None:
    """Delete the staged objects of some parts; it is fine if they are gone."""
    store.delete_many(sorted({part.key for part in parts if part.key}))


def _divide(
    batches: list[pa.RecordBatch], convert: Callable[[pa.Table], pa.Table], router: Router
) -> dict[UUID, pa.Table]:
    parts = defaultdict(list)
    for batch in convert(pa.Table.from_batches(batches)).combine_chunks().to_batches():
        for assignment, rows in router.route(batch):
            parts[assignment.region_id].append(rows)
    return {region_id: pa.Table.from_batches(rows) for region_id, rows in parts.items()}


def _stage(location: TableLocation, parts: dict[UUID, pa.Table]) -> list[RegionStream]:
    """Store the rows of several regions as one object, which another attempt never replaces."""
    key = f"{STAGED_ROWS_DIR}/{uuid4()}.arrow"
    streams = [encode_rows(rows) for rows in parts.values()]
    # Without fsync: if the machine crashes, the write does not go on.
    location.store_without_fsync.put(key, b"".join(streams))
    staged, start = [], 0
    for (region_id, rows), stream in zip(parts.items(), streams, strict=True):
        staged.append(RegionStream(region_id, rows.num_rows, stream.size, key, start))
        start += stream.size
    return staged
