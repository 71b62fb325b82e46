"""Which rows of a MemTable a predicate lets through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from memwal.memtable.indexes import MemTableSnapshot
from memwal.reader.generations import GenerationSource, write_in_memory
from memwal.reader.newest import ROW_ADDRESS
from memwal.table_index.base_table import BaseTable

if TYPE_CHECKING:
    import lance

_KEY_FIELD: Final = b"primary-key"


def passing_rows(
    source: GenerationSource, filter: str, base: BaseTable
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows of a MemTable a predicate lets through.

    The predicate is Lance's to evaluate. What it names is copied for Lance, and nothing else,
    unless the rows have to be brought into another form anyway.

    Parameters
    ----------
    source : GenerationSource
        A MemTable.
    filter : str
        SQL predicate over columns of the table.

    Returns
    -------
    numpy.ndarray of bool, shape (rows,)
    """
    snapshot = source.snapshot
    dataset = source.dataset if snapshot is None else _named_columns(snapshot, filter, base)
    found = dataset.scanner(columns=[], filter=filter, with_row_address=True).to_table()
    passing = np.zeros(dataset.count_rows(), np.bool_)
    passing[found.column(ROW_ADDRESS).to_numpy().astype(np.int64)] = True
    return passing


def _named_columns(snapshot: MemTableSnapshot, filter: str, base: BaseTable) -> lance.LanceDataset:
    text = filter.casefold().replace("``", "`")
    # A column that the predicate names stands in its text; one more does no harm.
    named = [name for name in base.schema.names if name.casefold().replace("``", "`") in text]
    names = named or list(base.primary_key)
    rows = pa.Table.from_arrays(
        [snapshot.view.column(name) for name in names],
        schema=pa.schema([_without_key(snapshot.view.schema.field(name)) for name in names]),
    )
    return write_in_memory(rows)


def _without_key(field: pa.Field) -> pa.Field:
    """The field as one that is no part of a key: some of a key's columns alone are none."""
    kept = {name: value for name, value in (field.metadata or {}).items() if _KEY_FIELD not in name}
    return field.with_nullable(True).with_metadata(kept)
