"""Open the generations of a read plan: flushed ones, which stay open in a cache, and MemTables.

A generation that was collected in between is in the base table by then, so a read that plans anew
finds its rows there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import lance
import pyarrow as pa

from memwal.base_table.blobs import (
    BlobHandling,
    blob_names,
    describe,
    has_external,
    is_blob,
    is_blob_v2,
    own_bytes,
    read_schema,
    with_values,
    write_options,
)
from memwal.base_table.region_marks import UNMARKED
from memwal.base_table.required_regions import region_error
from memwal.base_table.snapshot import BaseTable, lance_errors, open_dataset
from memwal.errors import ConflictError, CorruptDataError, ObjectNotFoundError
from memwal.format.paths import TOMBSTONE, generation_dir
from memwal.format.region_manifest import FlushedGeneration
from memwal.lsm.memtable.indexes import MemTableSnapshot, UnflushedRows
from memwal.reader.sources.cache import LruCache, version_key
from memwal.reader.sources.plan import ReadPlan
from memwal.region.manifest_store import RegionManifestStore
from memwal.region.rows import (
    align_rows,
    check_known_columns,
    has_same_fields,
    stored_schema,
    with_field_ids,
)
from memwal.util.concurrency import Lazy, run_all

_ROWS_OF_ONE_FILE: Final = 1 << 31
# 512 open generations, fewer if some were copied.
_CACHE_BYTES: Final = 512 << 20
# Approximate size of an open data set with the metadata that Lance has read of it.
_DATASET_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class GenerationSource:
    """A generation as a data set: flushed, or a MemTable of this process."""

    region_id: UUID
    generation: int
    # Rows in stored form; within it a higher row address is newer.
    opened: Lazy[lance.LanceDataset]
    # Name of the content, which never names another one; None for a MemTable, which changes.
    identity: str | None
    # Of a MemTable: the same rows in the same order, with the indexes over them. None if the
    # rows do not have the table's present schema.
    unflushed: UnflushedRows | None = None
    # Of a MemTable: its rows in the table's present schema, in the same order as in the data
    # set, where the row address of each is its number. None if the data set has them in other
    # types.
    snapshot: MemTableSnapshot | None = None
    is_flushed: bool = True  # False for a MemTable.
    # Of a flushed generation that has the table's present schema: its folder below the table.
    folder: str | None = None
    # Of a flushed generation that was converted to that schema: memory of its rows.
    copied_bytes: int = 0
    # Columns that another client flushed and that memwal can neither read nor merge.
    unusable: frozenset[str] = frozenset()
    is_local: bool = True  # Whether its rows are on this machine.

    @property
    def dataset(self) -> lance.LanceDataset:
        """The data set; a MemTable is copied into one at the first use."""
        return self.opened()


def open_all(base: BaseTable, generations: Sequence[FlushedGeneration]) -> list[GenerationSource]:
    """Open flushed generations in parallel. They never change, and a cache keeps them open.

    The columns of a generation that was open before are known: if the cache has evicted it, it is
    opened when it is used, which a lookup does only if its filter may have the key.

    Raises ObjectNotFoundError if one was collected. It may also have been open before, but then
    every read of it fails.
    """
    options = tuple(sorted(base.location.storage_options.items()))
    schema = _serialized.get(
        version_key(base), lambda: _present_schema(base).serialize().to_pybytes()
    )
    opened: dict[int, GenerationSource] = {}
    missing: dict[int, Callable[[], GenerationSource]] = {}
    for at, stored in enumerate(generations):
        folder = generation_dir(stored.region_id, stored.path)
        key = (base.location.child(folder), options, schema)
        open_it = partial(_open_cached, base, stored, key)
        source = _generations.use(key)
        if source is None and _present.use(key):
            source = GenerationSource(
                region_id=stored.region_id,
                generation=stored.generation,
                opened=Lazy(partial(_dataset_of, open_it)),
                identity=key[0],
                folder=folder,
                is_local=base.location.store.is_local,
            )
        if source is None:
            missing[at] = open_it
        else:
            opened[at] = source
    # Threads only where something has to be read.
    opened |= zip(missing, run_all(list(missing.values())), strict=True)
    return [opened[at] for at in range(len(generations))]


def _open_cached(base: BaseTable, stored: FlushedGeneration, key: Hashable) -> GenerationSource:
    source = _generations.get(
        key, lambda: open_generation(base, stored.region_id, stored.generation, stored.path)
    )
    if source.folder is not None:
        _present.put(key, True)
    return source


def _dataset_of(open_it: Callable[[], GenerationSource]) -> lance.LanceDataset:
    return open_it().dataset


def open_generation(
    base: BaseTable, region_id: UUID, generation: int, path: str
) -> GenerationSource:
    """Open a flushed generation with the columns of the base table."""
    folder: str | None = generation_dir(region_id, path)
    copied_bytes = 0
    dataset = open_dataset(
        base.location,
        generation_dir(region_id, path),
        # In files of version 2.0 the dictionaries stay: all sources of a read must agree.
        as_stored=base.has_narrow_dictionaries and base.dataset is base.stored,
    )
    identity: str | None = base.location.child(generation_dir(region_id, path))
    schema = dataset.schema  # converted anew with each access
    missing = {*base.primary_key, TOMBSTONE}.difference(schema.names)
    if missing:
        raise CorruptDataError(
            f"{identity} lacks the columns {', '.join(sorted(missing))}, so that it is no "
            "generation of this table; keep it, and run memwal verify"
        )
    unusable = frozenset(base.unusable).intersection(schema.names)
    stored = with_field_ids(
        pa.schema([f for f in schema if f.name not in unusable]),
        [f for f in dataset.lance_schema.fields() if f.name() not in unusable],
    )
    check_known_columns(stored, base.identified_schema, name=dataset.uri)
    if not has_same_fields(_without_tombstone_id(stored), _present_schema(base)):
        # Flushed before columns were added, renamed or dropped. It is bounded by the size of a
        # MemTable, so its rows can be converted to the present schema in memory.
        with lance_errors(f"reading {identity}"):
            columns = [*stored.names, "_rowaddr"] if blob_names(stored) else stored.names
            rows = dataset.to_table(columns=columns)
            if blob_names(stored):
                rows = with_values(dataset, rows, stored)
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
        unusable=unusable,
        is_local=base.location.store.is_local or identity is None,
    )


def open_to_merge(base: BaseTable, region_id: UUID, generation: int, path: str) -> GenerationSource:
    """Open a flushed generation to move its rows; TableSetupError if it has an unusable column."""
    source = open_generation(base, region_id, generation, path)
    base.check_usable(source.unusable)
    return source


def open_memtable(base: BaseTable, region_id: UUID, unflushed: UnflushedRows) -> GenerationSource:
    """Open a MemTable; it becomes a data set only for SQL or an index of Lance."""
    schema = _present_schema(base)
    is_present = has_same_fields(unflushed.snapshot.view.schema, schema)
    snapshot = unflushed.snapshot
    if not is_present:
        rows = align_rows(unflushed.rows, schema)
        snapshot = UnflushedRows.of(
            unflushed.generation, rows.schema, base.primary_key, rows.to_batches()
        ).snapshot
    # Lance stores values of some types as others.
    fields = snapshot.view.schema
    has_types = all(fields.field(field.name).type == field.type for field in base.schema)
    return GenerationSource(
        region_id=region_id,
        generation=unflushed.generation,
        opened=Lazy(lambda: _in_memory(base, snapshot.view.to_table())),
        identity=None,
        is_flushed=False,
        unflushed=unflushed if is_present else None,
        snapshot=snapshot if has_types else None,
    )


def _present_schema(base: BaseTable) -> pa.Schema:
    return stored_schema(base.identified_schema, base.primary_key)


def _without_tombstone_id(schema: pa.Schema) -> pa.Schema:
    """Remove the field id of the tombstone column.

    It was the next free id when the generation was flushed, and a column that was added to the
    table since may have it.
    """
    position = schema.get_field_index(TOMBSTONE)
    return schema.set(position, schema.field(position).remove_metadata())


def _in_memory(base: BaseTable, rows: pa.Table) -> lance.LanceDataset:
    return write_in_memory(align_rows(rows, _present_schema(base)))


def write_in_memory(rows: pa.Table) -> lance.LanceDataset:
    """Write rows into a data set of one file, where the row address of each is its number."""
    return lance.write_dataset(
        rows,
        "memory://",
        max_rows_per_file=_ROWS_OF_ONE_FILE,
        data_storage_version="2.2" if any(map(is_blob_v2, rows.schema)) else None,
        **write_options(rows.schema),
    )


def read_in_memory(batch: pa.RecordBatch, handling: BlobHandling | None) -> pa.RecordBatch:
    """Return rows of a MemTable as a scan of Lance would give them, also their blob columns."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not is_blob(field):
            columns.append(column)
        elif handling != "all_binary":
            columns.append(describe(column, field))
        elif has_external(column, field):
            dataset = write_in_memory(pa.table([column], schema=pa.schema([field])))
            rows = dataset.scanner(blob_handling="all_binary", scan_in_order=True).to_table()
            columns.append(rows.column(0).combine_chunks())
        else:
            columns.append(own_bytes(column, field))
    return pa.RecordBatch.from_arrays(columns, schema=read_schema(batch.schema, handling))


def described(rows: pa.Table) -> pa.Table:
    """Return rows of a MemTable as a scan would give them, with descriptions."""
    if not any(map(is_blob, rows.schema)):
        return rows
    batches = [read_in_memory(batch, None) for batch in rows.to_batches()]
    return pa.Table.from_batches(batches, read_schema(rows.schema))


_serialized: LruCache[bytes] = LruCache(256)
# Which generations have the table's present schema.
_present: LruCache[bool] = LruCache(1 << 16)
_generations: LruCache[GenerationSource] = LruCache(
    _CACHE_BYTES, lambda source: _DATASET_BYTES + source.copied_bytes
)


_MAX_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class ReadSources:
    """A read plan with its generations opened."""

    plan: ReadPlan
    # Flushed ones and MemTables, oldest first within each region.
    generations: tuple[GenerationSource, ...]

    @property
    def base(self) -> BaseTable:
        """Pinned version of the base table."""
        return self.plan.base


def open_sources(plan: Callable[[bool], ReadPlan]) -> ReadSources:
    """Plan a read and open its generations.

    ``plan`` is called with whether it may use cached reads of this process; again, without them,
    when a generation was merged and collected after the manifest that lists it was read: the base
    table of the new plan contains that generation. Raises ConflictError if generations vanish
    faster than they can be opened: the collector's grace is too short; and CorruptDataError if the
    newest manifest of a region names one that is gone.
    """
    gone: ObjectNotFoundError | None = None
    planned: ReadPlan | None = None
    for attempt in range(_MAX_ATTEMPTS):
        try:
            planned = plan(attempt == 0)
            sources = open_all(planned.base, planned.generations)
        except ObjectNotFoundError as error:
            gone = error
            continue
        sources += [
            open_memtable(planned.base, region_id, rows) for region_id, rows in planned.memtables
        ]
        return ReadSources(planned, tuple(sorted(sources, key=lambda source: source.generation)))
    if planned is not None:
        _check_named(planned)
    raise ConflictError(
        f"generations were collected before they could be read, {_MAX_ATTEMPTS} times ({gone}); "
        "give the garbage collector a longer grace period"
    ) from gone


def _check_named(plan: ReadPlan) -> None:
    """Raise CorruptDataError if a generation of a plan is gone that its region still names.

    The collector deletes the folder of a generation a grace period after the newest manifest has
    stopped to name it.
    """
    store = plan.base.location.store
    for stored in plan.generations:
        region_id = stored.region_id
        try:
            open_generation(plan.base, region_id, stored.generation, stored.path)
        except ObjectNotFoundError as error:
            newest = RegionManifestStore(store, region_id).read_latest()
            lost = region_error(store, region_id, newest, UNMARKED, 0)
            if lost is not None:
                raise lost from error
            if newest is not None and any(f.path == stored.path for f in newest.flushed):
                raise CorruptDataError(
                    f"{generation_dir(region_id, stored.path)} is missing or lacks files: "
                    f"generation {stored.generation} of region {region_id}, which its manifest "
                    "names and the base table does not have. If its disk is not mounted, mount it; "
                    "otherwise run memwal verify --repair, which makes it again from the log if "
                    "that still has its rows"
                ) from error


Result = TypeVar("Result")


def retry_if_collected(read: Callable[[], Result]) -> Result:
    """Run a read, and run it again if an object that it needs was collected during the read.

    ``read`` opens its sources anew each time. ObjectNotFoundError is raised if an object is gone
    each time: the table is damaged. If it is one of a generation, :func:`open_sources` says so, as
    no generation stays open.
    """

    for _ in range(_MAX_ATTEMPTS - 1):
        with suppress(ObjectNotFoundError):
            return read()
        _generations.clear()
        _present.clear()
    return read()
