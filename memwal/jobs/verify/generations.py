"""Checks of one flushed generation: present, complete, in the table's schema, sidecars correct."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.base_table.snapshot import BaseTable, open_dataset
from memwal.errors import CorruptDataError, InvalidInputError, ObjectNotFoundError
from memwal.format.bloom import BloomFilter
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    PK_INDEX_DIR,
    TOMBSTONE,
    generation_dir,
    parse_generation_name,
    table_manifest_keys,
)
from memwal.format.region_manifest import FlushedGeneration
from memwal.jobs.verify.findings import Finding
from memwal.jobs.verify.task import Unreadable, reading, wrong_files
from memwal.reader.latest import ROW_ADDRESS
from memwal.region.rows import align_rows, key_column, with_field_ids
from memwal.storage.location import TableLocation

if TYPE_CHECKING:
    import lance

Rows = npt.NDArray[np.int64]

PAGES = "page_data.lance"
DIRECTORY = "page_lookup.lance"


@dataclass(frozen=True, slots=True, eq=False)
class StoredKeys:
    """The keys of a generation as they are stored.

    Attributes
    ----------
    columns : pyarrow.Table
        The key columns of every row that is not deleted from the data set, in stored order.
    encoded : pyarrow.Array
        The same, one value each.
    rows : numpy.ndarray of int64
        The number of each row among all that were ever written there, ascending.
    written : int
        How many rows were written.
    """

    columns: pa.Table
    encoded: pa.Array
    rows: Rows
    written: int


def check_bloom(location: TableLocation, folder: str, keys: StoredKeys) -> str | None:
    """What is wrong with a generation's Bloom filter; None when it is right or absent."""
    try:
        data = location.store.get(f"{folder}/{BLOOM_FILTER_NAME}")
    except ObjectNotFoundError:
        return None
    try:
        bloom = BloomFilter.from_bytes(data)
    except CorruptDataError as error:
        return str(error)
    denied = int(np.count_nonzero(~bloom.might_contain(keys.columns.columns)))
    return f"it denies {denied} of {keys.columns.num_rows} keys" if denied else None


def check_key_index(location: TableLocation, folder: str, keys: StoredKeys) -> str | None:
    """What is wrong with a generation's key index; None when it is right.

    It holds every row that was written, also one that was deleted from the data set again. It is
    to be called for a generation that has both files.
    """
    index = f"{folder}/{PK_INDEX_DIR}"
    try:
        with reading(location.store, index):
            directory = _read(location, f"{index}/{DIRECTORY}")
            pages = _read(location, f"{index}/{PAGES}")
            values = pages.column("values").combine_chunks()
            numbers = pages.column("ids").combine_chunks().to_numpy().astype(np.int64)
            if values.type != keys.encoded.type:
                values = values.cast(keys.encoded.type)
            return (
                _wrong_order(values)
                or _wrong_directory(directory, values)
                or _wrong_rows(values, numbers, keys)
            )
    except Unreadable as error:
        return f"it cannot be read: {error}"


def _read(location: TableLocation, path: str) -> pa.Table:
    from lance.file import LanceFileReader

    reader = LanceFileReader(location.child(path), **location.lance_arguments())
    return reader.read_all().to_table()


def _wrong_order(values: pa.Array) -> str | None:
    plain = _ordered_type(values)
    if len(plain) > 1 and not pc.all(pc.less_equal(plain[:-1], plain[1:])).as_py():
        return "its keys are not in order"
    return None


def _ordered_type(values: pa.Array) -> pa.Array:
    return values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else values


def _wrong_directory(directory: pa.Table, values: pa.Array) -> str | None:
    metadata = directory.schema.metadata or {}
    page_rows = int(metadata.get(b"batch_size", b"0"))
    if page_rows < 1:
        return "its directory does not tell how long a page is"
    first = np.arange(0, len(values), page_rows)
    last = np.minimum(first + page_rows, len(values)) - 1
    wanted = (values.take(pa.array(first)), values.take(pa.array(last)))
    found = tuple(directory.column(name).combine_chunks() for name in ("min", "max"))
    if any(
        len(there) != len(right) or not there.cast(right.type).equals(right)
        for there, right in zip(found, wanted, strict=True)
    ):
        return "its directory does not fit its pages"
    if directory.column("page_idx").to_pylist() != list(range(len(first))):
        return "its directory numbers the pages in another way"
    return None


def _wrong_rows(values: pa.Array, numbers: Rows, keys: StoredKeys) -> str | None:
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    if len(ordered) and (ordered[0] < 0 or ordered[-1] >= keys.written):
        return f"it leads to row {ordered[-1]} of {keys.written}"
    if np.any(ordered[1:] == ordered[:-1]):
        return "it leads to one row by two keys"
    at: npt.NDArray[Any] = np.minimum(np.searchsorted(ordered, keys.rows), max(len(ordered) - 1, 0))
    if not len(ordered):
        return "it is empty" if len(keys.rows) else None
    lacking = int(np.count_nonzero(ordered[at] != keys.rows))
    if lacking:
        return f"it lacks {lacking} of {len(keys.rows)} rows"
    led = values.take(pa.array(order[at]))
    if not led.equals(keys.encoded):
        wrong = pc.sum(pc.not_equal(led, keys.encoded)).as_py()
        return f"{wrong} of its keys lead to rows with another key"
    return None


@dataclass(frozen=True, slots=True)
class GenerationCheck:
    """A generation that is looked at.

    Attributes
    ----------
    base : BaseTable
    region_id : UUID
    flushed : FlushedGeneration
        What the manifest says of it.
    merged : bool
        Whether the base table has its rows.
    """

    base: BaseTable
    region_id: UUID
    flushed: FlushedGeneration
    merged: bool

    @property
    def folder(self) -> str:
        """Of the generation, below the table."""
        return generation_dir(self.region_id, self.flushed.path)

    def finding(self, code: str, text: str, object: str | None = None) -> Finding:
        """Something that is wrong with it."""
        return Finding.of(code, object or self.folder, text, region=self.region_id)


def check_generation(check: GenerationCheck, *, rows: bool) -> Iterator[Finding | pa.Table]:
    """Check a generation.

    Parameters
    ----------
    rows : bool
        Whether to read its rows, all of them, a batch at a time.

    Yields
    ------
    Finding or pyarrow.Table
        What is wrong; and, when the rows were read, once the columns that regions are told by.
    """
    if parse_generation_name(check.flushed.path) != check.flushed.generation:
        # Said of the manifest.
        return
    store = check.base.location.store
    try:
        with reading(store, check.folder):
            dataset = open_dataset(check.base.location, check.folder)
            manifest = _manifest(check, dataset)
    except Unreadable as error:
        if isinstance(error.__cause__, ObjectNotFoundError):
            code = "merged-generation-missing" if check.merged else "generation-missing"
            yield check.finding(code, f"generation {check.flushed.generation} is not there")
        else:
            yield check.finding("generation-damaged", f"it does not open: {error}")
        return
    wrong = list(wrong_files(check.base.location, check.folder, dataset, manifest))
    if wrong:
        text = ", ".join(f"{key}: {what or 'missing'}" for key, what in wrong[:5])
        yield check.finding("generation-damaged", text)
        return
    misfit = _misfit(check.base, dataset)
    if misfit is not None:
        yield check.finding("generation-schema", misfit)
        return
    yield from _check_presence(check)
    if rows:
        yield from _check_rows(check, dataset)


def _manifest(check: GenerationCheck, dataset: lance.LanceDataset) -> bytes:
    store = check.base.location.store
    inverted, plain = (f"{check.folder}/{key}" for key in table_manifest_keys(int(dataset.version)))
    return store.get(inverted if store.exists(inverted) else plain)


def _misfit(base: BaseTable, dataset: lance.LanceDataset) -> str | None:
    """Why rows of a generation cannot be brought into the form of the table."""
    stored = dataset.schema
    if TOMBSTONE not in stored.names or stored.field(TOMBSTONE).type != pa.bool_():
        return f"it has no column {TOMBSTONE} of booleans"
    for name in base.primary_key:
        if name not in stored.names:
            return f"it has no key column {name}"
        if stored.field(name).type != base.schema.field(name).type:
            return (
                f"key column {name} is {stored.field(name).type}, and "
                f"{base.schema.field(name).type} in the table"
            )
    identified = with_field_ids(stored, dataset.lance_schema)
    plain = pa.schema([field for field in identified if field.name != TOMBSTONE])
    try:
        align_rows(plain.empty_table(), base.identified_schema)
    except InvalidInputError as error:
        return str(error)
    kinds = {_id(field): field.type for field in plain}
    for field in base.identified_schema:
        kind = kinds.get(_id(field))
        if kind is not None and pt.is_nested(kind) != pt.is_nested(field.type):
            return f"column {field.name} is {kind}, and {field.type} in the table"
    return None


def _id(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(b"lance:field_id")


def _check_presence(check: GenerationCheck) -> Iterator[Finding]:
    store = check.base.location.store
    bloom = f"{check.folder}/{BLOOM_FILTER_NAME}"
    if not store.exists(bloom):
        yield check.finding("bloom-missing", "lookups ask the generation for every key", bloom)
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
        with reading(location.store, check.folder):
            rows, keys = _read_keys(check.base, dataset)
    except Unreadable as error:
        yield check.finding("generation-damaged", f"its rows cannot be read: {error}")
        return
    said = check.flushed.rows
    if said is not None and said != keys.written:
        text = f"it has {keys.written} rows; the manifest says {said}"
        yield check.finding("generation-rows", text)
    repeated = len(keys.encoded) - len(keys.encoded.unique())
    if repeated:
        yield check.finding("generation-keys-repeated", f"{repeated} rows too many")
    wrong = check_bloom(location, check.folder, keys)
    if wrong is not None:
        yield check.finding("bloom-wrong", wrong, f"{check.folder}/{BLOOM_FILTER_NAME}")
    index = f"{check.folder}/{PK_INDEX_DIR}"
    if all(location.store.exists(f"{index}/{name}") for name in (DIRECTORY, PAGES)):
        wrong = check_key_index(location, check.folder, keys)
        if wrong is not None:
            yield check.finding("key-index-wrong", wrong, index)
    yield rows


def read_stored_keys(base: BaseTable, dataset: lance.LanceDataset) -> StoredKeys:
    """The keys of a generation, as they are stored."""
    return _read_keys(base, dataset, everything=False)[1]


def _read_keys(
    base: BaseTable, dataset: lance.LanceDataset, *, everything: bool = True
) -> tuple[pa.Table, StoredKeys]:
    """Read the rows, and keep what regions are told by: integers, texts, dates and the like."""
    schema = dataset.schema
    kept = [
        field.name
        for field in schema
        if field.name in base.primary_key
        or field.name == TOMBSTONE
        or (everything and not pt.is_nested(field.type) and field.name in _sources(base))
    ]
    scanner = dataset.scanner(
        columns=schema.names if everything else kept,
        with_row_address=True,
        scan_in_order=True,
    )
    # Columns that are only read to see whether they can be are let go of with their batch.
    parts = [batch.select([*kept, ROW_ADDRESS]) for batch in scanner.to_batches()]
    fields = [schema.field(name) for name in kept]
    wanted = pa.schema([*fields, pa.field(ROW_ADDRESS, pa.uint64())])
    rows = pa.Table.from_batches([part.cast(wanted) for part in parts], wanted).combine_chunks()
    fragments = dataset.get_fragments()
    starts = np.cumsum([0, *(fragment.physical_rows for fragment in fragments)])
    place = {
        fragment.fragment_id: start for fragment, start in zip(fragments, starts, strict=False)
    }
    addresses = rows.column(ROW_ADDRESS).to_numpy()
    numbers = (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64)
    for fragment, start in place.items():
        numbers[(addresses >> np.uint64(32)) == fragment] += int(start)
    order = np.argsort(numbers, kind="stable")
    if np.any(order != np.arange(len(order))):
        rows, numbers = rows.take(pa.array(order)), numbers[order]
    columns = rows.select(list(base.primary_key))
    keys = StoredKeys(columns, key_column(columns, base.primary_key), numbers, int(starts[-1]))
    return rows.drop_columns([ROW_ADDRESS]), keys


def _sources(base: BaseTable) -> set[str]:
    """Columns that any spec of the table divides by."""
    names = {field_id: name for name, field_id in base.field_ids().items()}
    return {
        names[source]
        for spec in base.details.region_specs
        for field in spec.fields
        for source in field.source_ids
        if source in names
    }
