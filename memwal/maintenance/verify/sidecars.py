"""What stands beside the rows of a generation, compared with the keys that are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.bloom import BloomFilter
from memwal.format.names import BLOOM_FILTER_NAME, PK_INDEX_DIR
from memwal.maintenance.verify.unreadable import Unreadable, reading
from memwal.storage.location import TableLocation

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
