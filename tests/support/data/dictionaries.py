"""Tables whose columns are stored as dictionaries with narrow indices, and rows for them."""

import os
from typing import Any

import lance
import pyarrow as pa

import memwal

NARROW = pa.dictionary(pa.int8(), pa.string())
"""A column of :data:`DICTIONARIES`: of categories of pandas, as Lance stores it."""

DICTIONARIES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("kind", NARROW),
        ("list", pa.list_(NARROW)),
        ("struct", pa.struct([("kind", NARROW)])),
        ("number", pa.dictionary(pa.uint8(), pa.int64())),
    ]
)


def dictionary_table(uri: os.PathLike[str], *, version: str | None = None) -> memwal.Table:
    """Make a table of :data:`DICTIONARIES` that memwal did not create, and enable MemWAL."""
    lance.write_dataset(DICTIONARIES.empty_table(), uri, data_storage_version=version)
    spec = memwal.RegionSpec.unsharded()
    return memwal.enable(uri, primary_key=["id"], region_spec=spec)


def categories(start: int, stop: int) -> pa.Table:
    """Rows that have a category each; every tenth has none."""
    ids = range(start, stop)
    indices = [None if number % 10 == 3 else number - start for number in ids]
    kind = pa.DictionaryArray.from_arrays(
        pa.array(indices, pa.int8()), [f"kind {number}" for number in ids]
    )
    number = pa.DictionaryArray.from_arrays(pa.array(range(len(ids)), pa.uint8()), [*ids])
    columns = [
        pa.array(ids, pa.int64()),
        kind,
        pa.ListArray.from_arrays(pa.array(range(len(ids) + 1), pa.int32()), kind),
        pa.StructArray.from_arrays([kind], names=["kind"]),
        number,
    ]
    return pa.Table.from_arrays(columns, schema=DICTIONARIES)


def values(found: pa.Table) -> dict[int, Any]:
    """Return the other columns of each row, by id."""
    return {row.pop("id"): row for row in found.to_pylist()}


def wanted(stop: int) -> dict[int, Any]:
    """Return what :func:`values` has to return of the rows up to ``stop``."""
    kinds = [None if number % 10 == 3 else f"kind {number}" for number in range(stop)]
    return {
        number: {"kind": kind, "list": [kind], "struct": {"kind": kind}, "number": number}
        for number, kind in enumerate(kinds)
    }
