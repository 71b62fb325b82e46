"""Checks of one flushed generation: complete, in the table's schema, with correct sidecars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.base_table.named_files import find_bad_blobs, find_bad_external_files, find_bad_files
from memwal.base_table.snapshot import BaseTable, open_dataset
from memwal.errors import CorruptDataError, InvalidInputError, ObjectNotFoundError
from memwal.format.bloom import BloomFilter
from memwal.format.lance_files import NamedFile
from memwal.format.lance_manifest import named_files
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    PK_INDEX_DIR,
    SIZED_FILTER_NAME,
    TOMBSTONE,
    VERSIONS_DIR,
    generation_dir,
    parse_generation_name,
    table_manifest_keys,
)
from memwal.format.region_manifest import FlushedGeneration
from memwal.jobs.verify.damage import Unreadable, damage_as_unreadable, find_bad_data_files
from memwal.jobs.verify.findings import Finding
from memwal.jobs.verify.indexes import index_problems
from memwal.lsm.flush.key_index import DIRECTORY, PAGES
from memwal.reader.latest import ROW_ADDRESS
from memwal.region.rows import align_rows, key_column, with_field_ids
from memwal.storage.location import TableLocation

Rows = npt.NDArray[np.int64]

_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class StoredKeys:
    """Stored keys of a generation."""

    # Key columns of every row that is not deleted from the data set, in stored order.
    columns: pa.Table
    encoded: pa.Array  # the same keys, encoded to one value each
    rows: Rows  # number of each row among all that were ever written to the data set, ascending
    written: int  # number of rows that were written


def check_bloom(
    location: TableLocation, folder: str, keys: StoredKeys, *, name: str = BLOOM_FILTER_NAME
) -> str | None:
    """Check a Bloom filter of a generation. Returns its problem; None if it is right or missing.

    ``name`` is that of the file: of Lance's filter, or of the sized one.
    """
    try:
        data = location.store.get(f"{folder}/{name}")
    except ObjectNotFoundError:
        return None
    read = BloomFilter.from_sized if name == SIZED_FILTER_NAME else BloomFilter.from_bytes
    try:
        bloom = read(data)
    except CorruptDataError as error:
        return str(error)
    denied = int(np.count_nonzero(~bloom.might_contain(keys.columns.columns)))
    return f"it denies {denied} of {keys.columns.num_rows} keys" if denied else None


def check_key_index(location: TableLocation, folder: str, keys: StoredKeys) -> str | None:
    """Check a generation's key index, both files of which exist. Returns its problem, or None.

    The index holds every row that was written, including rows that were deleted from the data set.
    """
    index = f"{folder}/{PK_INDEX_DIR}"
    try:
        with damage_as_unreadable(location.store, index):
            directory = _read_lance_file(location, f"{index}/{DIRECTORY}")
            pages = _read_lance_file(location, f"{index}/{PAGES}")
            values = pages.column("values").combine_chunks()
            numbers = pages.column("ids").combine_chunks().to_numpy().astype(np.int64)
            if values.type != keys.encoded.type:
                values = values.cast(keys.encoded.type)
            return (
                _order_problem(values)
                or _directory_problem(directory, values)
                or _rows_problem(values, numbers, keys)
            )
    except Unreadable as error:
        return f"it cannot be read: {error}"


def _read_lance_file(location: TableLocation, path: str) -> pa.Table:
    from lance.file import LanceFileReader

    reader = LanceFileReader(location.child(path), **location.lance_arguments())
    return reader.read_all().to_table()


def _order_problem(values: pa.Array) -> str | None:
    ordered = values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else values
    if len(ordered) > 1 and not pc.all(pc.less_equal(ordered[:-1], ordered[1:])).as_py():
        return "its keys are not in order"
    return None


def _directory_problem(directory: pa.Table, values: pa.Array) -> str | None:
    metadata = directory.schema.metadata or {}
    page_rows = int(metadata.get(b"batch_size", b"0"))
    if page_rows < 1:
        return "its directory does not record the size of a page"
    first = np.arange(0, len(values), page_rows)
    last = np.minimum(first + page_rows, len(values)) - 1
    bounds = (values.take(pa.array(first)), values.take(pa.array(last)))
    stored_bounds = tuple(directory.column(name).combine_chunks() for name in ("min", "max"))
    if any(
        len(stored) != len(right) or not stored.cast(right.type).equals(right)
        for stored, right in zip(stored_bounds, bounds, strict=True)
    ):
        return "its directory does not fit its pages"
    if directory.column("page_idx").to_pylist() != list(range(len(first))):
        return "its directory does not number the pages from 0 in order"
    return None


def _rows_problem(values: pa.Array, numbers: Rows, keys: StoredKeys) -> str | None:
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    if len(ordered) and (ordered[0] < 0 or ordered[-1] >= keys.written):
        return f"it points to row {ordered[-1]} of {keys.written}"
    # The same key may be there twice: so Lance 9 enters a row that it replayed. A reader finds the
    # row that it is to find.
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    if not values.take(pa.array(order[again])).equals(values.take(pa.array(order[again - 1]))):
        return "two of its keys point to one row"
    at = np.minimum(np.searchsorted(ordered, keys.rows), max(len(ordered) - 1, 0))
    if not len(ordered):
        return "it is empty" if len(keys.rows) else None
    lacking = int(np.count_nonzero(ordered[at] != keys.rows))
    if lacking:
        return f"it lacks {lacking} of {len(keys.rows)} rows"
    indexed = values.take(pa.array(order[at]))
    if not indexed.equals(keys.encoded):
        wrong = pc.sum(pc.not_equal(indexed, keys.encoded)).as_py()
        return f"{wrong} of its keys point to rows with another key"
    return None


@dataclass(frozen=True, slots=True)
class GenerationCheck:
    """A generation to check."""

    base: BaseTable
    region_id: UUID
    flushed: FlushedGeneration  # its entry in the manifest
    merged: bool  # whether the base table has its rows

    @property
    def folder(self) -> str:
        """Key of the generation's folder, below the table."""
        return generation_dir(self.region_id, self.flushed.path)

    def finding(self, code: str, text: str, object: str | None = None) -> Finding:
        """Make a finding about this generation, by default about its folder."""
        return Finding(code, object or self.folder, text, region=self.region_id)


def check_generation(
    check: GenerationCheck, *, rows: bool, deep: bool = False
) -> Iterator[Finding | pa.Table]:
    """Check a generation; with ``rows``, read all of its rows too, batch by batch.

    With ``deep``, its indexes are compared with the rows.

    Yields the findings; and, if the rows were read, once the columns from which regions are
    computed.
    """
    if parse_generation_name(check.flushed.path) != check.flushed.generation:
        # The check of the manifest reports it.
        return
    store = check.base.location.store
    try:
        with damage_as_unreadable(store, check.folder):
            dataset = open_dataset(check.base.location, check.folder)
            keys = table_manifest_keys(int(dataset.version))
            inverted, plain = (f"{check.folder}/{key}" for key in keys)
            manifest = store.get(inverted if store.exists(inverted) else plain)
    except Unreadable as error:
        if isinstance(error.__cause__, ObjectNotFoundError):
            code = "merged-generation-missing" if check.merged else "generation-missing"
            yield check.finding(code, f"generation {check.flushed.generation} is missing")
        else:
            yield check.finding("generation-damaged", f"it does not open: {error}")
        return
    files = named_files(manifest, name=f"{check.folder}/{VERSIONS_DIR}")
    wrong = find_bad_data_files(store, check.folder, files)
    wrong += find_bad_external_files(check.base.location, manifest)
    if not wrong and rows:
        # A file that cannot be read is found again with the rows.
        with suppress(Unreadable), damage_as_unreadable(store, check.folder):
            wrong = find_bad_blobs(store, dataset, folder=check.folder)
    if wrong:
        yield check.finding("generation-damaged", "; ".join(map(str, wrong[:_MAX_SHOWN])))
        return
    yield from _check_indexes(check, dataset, files, deep=deep)
    misfit = _schema_problem(check.base, dataset)
    if misfit is not None:
        yield check.finding("generation-schema", misfit)
        return
    yield from _check_presence(check)
    if rows:
        yield from _check_rows(check, dataset)


def _check_indexes(
    check: GenerationCheck, dataset: lance.LanceDataset, files: Sequence[NamedFile], *, deep: bool
) -> Iterator[Finding]:
    indexed = [file for file in files if file.index is not None]
    bad = find_bad_files(check.base.location.store, indexed, folder=check.folder)
    if bad:
        yield check.finding("generation-index-damaged", "; ".join(map(str, bad[:_MAX_SHOWN])))
    elif deep:
        problems = [f"{name}: {problem}" for name, problem in index_problems(dataset)]
        if problems:
            yield check.finding("generation-index-damaged", "; ".join(problems[:_MAX_SHOWN]))


def _schema_problem(base: BaseTable, dataset: lance.LanceDataset) -> str | None:
    """Return why rows of a generation cannot be converted to the table's schema, or None."""
    stored = dataset.schema
    if TOMBSTONE not in stored.names or stored.field(TOMBSTONE).type != pa.bool_():
        return f"it has no column {TOMBSTONE} of booleans"
    for name in base.primary_key:
        if name not in stored.names:
            return f"it has no key column {name}"
        if stored.field(name).type != base.schema.field(name).type:
            return (
                f"key column {name} is {stored.field(name).type}, but "
                f"{base.schema.field(name).type} in the table"
            )
    identified = with_field_ids(stored, dataset.lance_schema.fields())
    columns = pa.schema([field for field in identified if field.name != TOMBSTONE])
    if columns.equals(base.identified_schema, check_metadata=True):
        return None
    try:
        align_rows(columns.empty_table(), base.identified_schema)
    except InvalidInputError as error:
        return str(error)
    kinds = {_field_id(field): field.type for field in columns}
    for field in base.identified_schema:
        kind = kinds.get(_field_id(field))
        if kind is not None and pt.is_nested(kind) != pt.is_nested(field.type):
            return f"column {field.name} is {kind}, but {field.type} in the table"
    return None


def _field_id(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(b"lance:field_id")


def _check_presence(check: GenerationCheck) -> Iterator[Finding]:
    store = check.base.location.store
    bloom = f"{check.folder}/{BLOOM_FILTER_NAME}"
    if not store.exists(bloom):
        yield check.finding("bloom-missing", "every lookup of a key reads the generation", bloom)
    if not check.base.primary_key:
        return
    index = f"{check.folder}/{PK_INDEX_DIR}"
    missing = [name for name in (DIRECTORY, PAGES) if not store.exists(f"{index}/{name}")]
    if missing:
        text = f"{' and '.join(missing)} missing"
        yield check.finding("key-index-missing", text, index)


def _check_rows(
    check: GenerationCheck, dataset: lance.LanceDataset
) -> Iterator[Finding | pa.Table]:
    location = check.base.location
    try:
        with damage_as_unreadable(location.store, check.folder):
            rows, keys = read_keys(check.base, dataset)
    except Unreadable as error:
        yield check.finding("generation-damaged", f"its rows cannot be read: {error}")
        return
    recorded = check.flushed.rows
    if recorded is not None and recorded != keys.written:
        text = f"it has {keys.written} rows; the manifest records {recorded}"
        yield check.finding("generation-rows", text)
    has_keys = bool(check.base.primary_key)
    repeated = len(keys.encoded) - len(keys.encoded.unique())
    if repeated and has_keys:
        yield check.finding("generation-keys-repeated", f"{repeated} surplus rows")
    for name in (BLOOM_FILTER_NAME, SIZED_FILTER_NAME):
        wrong = check_bloom(location, check.folder, keys, name=name)
        if wrong is not None:
            yield check.finding("bloom-wrong", wrong, f"{check.folder}/{name}")
    index = f"{check.folder}/{PK_INDEX_DIR}"
    if has_keys and all(location.store.exists(f"{index}/{name}") for name in (DIRECTORY, PAGES)):
        wrong = check_key_index(location, check.folder, keys)
        if wrong is not None:
            yield check.finding("key-index-wrong", wrong, index)
    yield rows


def read_keys(
    base: BaseTable, dataset: lance.LanceDataset, *, everything: bool = True
) -> tuple[pa.Table, StoredKeys]:
    """Read the rows, and return the columns from which regions are computed, and the keys.

    With ``everything``, all columns are read, to check that they can be.
    """
    schema = dataset.schema
    returned = [
        field.name
        for field in schema
        if field.name in base.primary_key
        or field.name == TOMBSTONE
        or (everything and not pt.is_nested(field.type) and field.name in _region_columns(base))
    ]
    scanner = dataset.scanner(
        columns=schema.names if everything else returned,
        with_row_address=True,
        scan_in_order=True,
    )
    # Columns that are only read as a check are freed with their batch.
    parts = [batch.select([*returned, ROW_ADDRESS]) for batch in scanner.to_batches()]
    fields = [schema.field(name) for name in returned]
    result_schema = pa.schema([*fields, pa.field(ROW_ADDRESS, pa.uint64())])
    rows = pa.Table.from_batches(
        [part.cast(result_schema) for part in parts], result_schema
    ).combine_chunks()
    fragments = dataset.get_fragments()
    starts = np.cumsum([0, *(fragment.physical_rows for fragment in fragments)])
    addresses = rows.column(ROW_ADDRESS).to_numpy()
    numbers = (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64)
    for fragment, start in zip(fragments, starts, strict=False):
        numbers[(addresses >> np.uint64(32)) == fragment.fragment_id] += int(start)
    order = np.argsort(numbers, kind="stable")
    if np.any(order != np.arange(len(order))):
        rows, numbers = rows.take(pa.array(order)), numbers[order]
    columns = rows.select(list(base.primary_key))
    keys = StoredKeys(columns, key_column(columns, base.primary_key), numbers, int(starts[-1]))
    return rows.drop_columns([ROW_ADDRESS]), keys


def _region_columns(base: BaseTable) -> set[str]:
    """Return the columns from which any spec of the table computes regions."""
    names = {field_id: name for name, field_id in base.field_ids().items()}
    return {
        names[source]
        for spec in base.details.region_specs
        for field in spec.fields
        for source in field.source_ids
        if source in names
    }
