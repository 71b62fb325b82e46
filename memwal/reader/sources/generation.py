"""One open generation: flushed, or a MemTable of this process.

Flushed generations never change and stay open in a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import lance
import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, lance_errors, open_dataset
from memwal.errors import CorruptDataError
from memwal.format.paths import TOMBSTONE, generation_dir
from memwal.format.region_manifest import FlushedGeneration
from memwal.lsm.memtable.indexes import MemTableSnapshot
from memwal.lsm.memtable.unflushed import UnflushedRows
from memwal.reader.cache.lru import Recent
from memwal.region.rows import align_rows, has_same_fields, stored_schema, with_field_ids
from memwal.util.concurrency import Lazy, run_all

_ONE_FILE = 1 << 31
# 512 open ones, less where they were copied.
_OPEN_BYTES = 512 << 20
# An open data set with what Lance has read of it: about so much.
_DATASET_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class GenerationSource:
    """One generation as a data set: flushed, or a MemTable of this process.

    Attributes
    ----------
    region_id : UUID
    generation : int
    opened : Lazy of lance.LanceDataset
        Rows in stored form; within it a higher row address is newer.
    identity : str or None
        Names the content for ever; None for a MemTable, which changes.
    unflushed : UnflushedRows or None
        Of a MemTable: what else answers for the same rows, in the same order. None when they are
        not in the table's present form.
    snapshot : MemTableSnapshot or None
        Of a MemTable: its rows in the table's present form, in the same order as in the data set,
        where the row address of each is its number. None when the data set has them in other
        types.
    is_flushed : bool
        Whether it is flushed, and no MemTable.
    folder : str or None
        Of a flushed generation in the table's present form: its folder below the table.
    copied_bytes : int
        Of a flushed generation that was brought into the table's present form: memory of its rows.
    """

    region_id: UUID
    generation: int
    opened: Lazy[lance.LanceDataset]
    identity: str | None
    unflushed: UnflushedRows | None = None
    snapshot: MemTableSnapshot | None = None
    is_flushed: bool = True
    folder: str | None = None
    copied_bytes: int = 0

    @property
    def dataset(self) -> lance.LanceDataset:
        """The data set; a MemTable is copied into one when it is first asked for."""
        return self.opened()


def open_all(
    base: BaseTable, wanted: Sequence[tuple[UUID, FlushedGeneration]]
) -> list[GenerationSource]:
    """Open generations side by side. They never change and stay open for a while.

    One that was collected since may still look open here, but every read of it fails.
    """
    options = tuple(sorted(base.location.storage_options.items()))
    form = _wanted(base).serialize().to_pybytes()

    def opened(region_id: UUID, flushed: FlushedGeneration) -> GenerationSource:
        name = base.location.child(generation_dir(region_id, flushed.path))
        return _generations.get(
            (name, options, form),
            lambda: open_generation(base, region_id, flushed.generation, flushed.path),
        )

    return run_all([partial(opened, region_id, flushed) for region_id, flushed in wanted])


def open_generation(
    base: BaseTable, region_id: UUID, generation: int, path: str
) -> GenerationSource:
    """Open a flushed generation, with the columns that the base table has.

    Raises
    ------
    ObjectNotFoundError
        It was collected.
    """
    folder: str | None = generation_dir(region_id, path)
    copied_bytes = 0
    dataset = open_dataset(base.location, generation_dir(region_id, path))
    identity: str | None = base.location.child(generation_dir(region_id, path))
    missing = {*base.primary_key, TOMBSTONE}.difference(dataset.schema.names)
    if missing:
        raise CorruptDataError(
            f"{identity} lacks the columns {', '.join(sorted(missing))}, so that it is no "
            "generation of this table; keep it, and run memwal verify"
        )
    stored = with_field_ids(dataset.schema, dataset.lance_schema)
    if not has_same_fields(_without_tombstone_id(stored), _wanted(base)):
        # Flushed before columns were added, renamed or dropped. It is bounded by the size of a
        # MemTable, so that its rows can be brought into today's form in memory.
        with lance_errors(f"reading {identity}"):
            rows = dataset.to_table()
        rows = pa.Table.from_arrays(rows.columns, schema=_without_tombstone_id(stored))
        dataset, identity, folder = _in_memory(base, rows), None, None
        copied_bytes = rows.nbytes
    return GenerationSource(
        region_id=region_id,
        generation=generation,
        opened=Lazy.of(dataset),
        identity=identity,
        folder=folder,
        copied_bytes=copied_bytes,
    )


def open_memtable(base: BaseTable, region_id: UUID, unflushed: UnflushedRows) -> GenerationSource:
    """A MemTable; as a data set only where SQL or an index of Lance is asked for."""
    wanted = _wanted(base)
    present = has_same_fields(unflushed.snapshot.view.schema, wanted)
    snapshot = unflushed.snapshot
    if not present:
        rows = align_rows(unflushed.rows, wanted)
        snapshot = UnflushedRows.of(
            unflushed.generation, rows.schema, base.primary_key, rows.to_batches()
        ).snapshot
    return GenerationSource(
        region_id=region_id,
        generation=unflushed.generation,
        opened=Lazy(lambda: _in_memory(base, snapshot.view.to_table())),
        identity=None,
        is_flushed=False,
        unflushed=unflushed if present else None,
        snapshot=snapshot if _same_types(snapshot.view.schema, base.schema) else None,
    )


def _same_types(stored: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether stored values are what a data set would give: Lance has its own form of some."""
    return all(stored.field(field.name).type == field.type for field in wanted)


def _wanted(base: BaseTable) -> pa.Schema:
    return stored_schema(base.identified_schema, base.primary_key)


def _without_tombstone_id(schema: pa.Schema) -> pa.Schema:
    """The tombstone's id was the next free one when the generation was flushed, and a column that
    was added to the table since may have it."""
    position = schema.get_field_index(TOMBSTONE)
    return schema.set(position, schema.field(position).remove_metadata())


def _in_memory(base: BaseTable, rows: pa.Table) -> lance.LanceDataset:
    return write_in_memory(align_rows(rows, _wanted(base)))


def write_in_memory(rows: pa.Table) -> lance.LanceDataset:
    """Rows as a data set of one file, where the row address of each is its number."""
    return lance.write_dataset(rows, "memory://", max_rows_per_file=_ONE_FILE)


_generations: Recent[GenerationSource] = Recent(
    _OPEN_BYTES, lambda source: _DATASET_BYTES + source.copied_bytes
)
