"""Search hits: rows of the sources of a read, each with a distance or a score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.lsm.indexes.unusable import unusable_indexes
from memwal.reader.merged_scan import passing_rows
from memwal.reader.row_set import encode_row_set
from memwal.reader.scan import output_schema
from memwal.reader.sources.generation import ReadSources, described
from memwal.reader.sources.narrow_columns import take_stored
from memwal.reader.unreadable_indexes import scan_table
from memwal.util.arrays import Mask, Numbers, RowIds, distinct
from memwal.util.concurrency import run_all

BASE = -1
"""Number of the base table among the sources; generations count from 0."""

_Values = npt.NDArray[np.float64]
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows that a search found."""

    source: Numbers  # :data:`BASE`, or a position among the generations.
    rows: RowIds  # Row ids in that source.
    values: _Values  # Distance or score of each row.
    is_exact: bool = True  # False for estimates of an index.

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, source: int, rows: RowIds, values: npt.ArrayLike, *, is_exact: bool = True) -> Hits:
        """Return the hits of one source."""
        return cls(
            np.full(len(rows), source, np.int64),
            np.asarray(rows, np.uint64),
            np.asarray(values, np.float64),
            is_exact,
        )

    @classmethod
    def joined(cls, parts: Sequence[Hits]) -> Hits:
        """Concatenate the hits of several searches."""
        if not parts:
            return cls.of(BASE, np.empty(0, np.uint64), np.empty(0))
        return cls(
            np.concatenate([part.source for part in parts]),
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.values for part in parts]),
        )

    def read_each(self, read: Callable[[int, RowIds], Found]) -> list[tuple[Numbers, Found]]:
        """Call a function with each source and its rows, concurrently: positions, and answers."""
        numbers = distinct(self.source).tolist()
        places = [np.flatnonzero(self.source == number) for number in numbers]
        calls = [
            partial(read, number, self.rows[at]) for number, at in zip(numbers, places, strict=True)
        ]
        return list(zip(places, run_all(calls), strict=True))

    def take(self, positions: Numbers | Mask) -> Hits:
        """Return some of the hits, by position or mask."""
        return Hits(self.source[positions], self.rows[positions], self.values[positions])

    def order(self, k: int | None, *, smallest: bool) -> Numbers:
        """Return the positions of the ``k`` best hits, best first; ties by source, then by row."""
        values = np.asarray(self.values, np.float32)
        values = values if smallest else -values
        near = np.arange(len(values))
        if k is not None and k < len(values):
            # With all hits that tie with the last one, so that the order decides among them.
            near = np.flatnonzero(values <= np.partition(values, k - 1)[k - 1])
        order = np.lexsort((self.rows[near], self.source[near], values[near]))
        return near[order[:k]]

    def best(self, k: int | None, *, smallest: bool) -> Hits:
        """Return the ``k`` best hits; see :meth:`order`."""
        return self.take(self.order(k, smallest=smallest))


def fetch_rows(
    sources: ReadSources, hits: Hits, schema: pa.Schema, extra: Sequence[tuple[str, npt.ArrayLike]]
) -> pa.Table:
    """Read the columns of ``schema`` for hits, in order, and add ``extra`` columns of float32."""
    base = sources.base
    names = list(schema.names) or [base.key_or_column[0]]
    parts = hits.read_each(lambda number, rows: _read_source(sources, number, rows, names))
    output = pa.schema([*schema, *(pa.field(name, pa.float32()) for name, _ in extra)])
    if not parts:
        return output.empty_table()
    order = np.argsort(np.concatenate([at for at, _ in parts]))
    rows = pa.concat_tables([part for _, part in parts]).take(pa.array(order)).combine_chunks()
    columns = [rows.column(name) for name in schema.names]
    columns += [pa.array(np.asarray(values, np.float32)) for _, values in extra]
    return pa.Table.from_arrays(columns, schema=output)


def _read_source(sources: ReadSources, number: int, rows: RowIds, names: list[str]) -> pa.Table:
    """Read rows of one source by their ids, in the types of the base table."""
    base = sources.base
    schema = output_schema(base, names)
    if number == BASE:
        table = base.dataset._take_rows(rows.tolist(), columns=names)
    elif (snapshot := sources.generations[number].snapshot) is not None:
        table = described(snapshot.view.take(rows.astype(np.int64), columns=names))
    else:
        table = take_stored(sources.generations[number], base.schema, names, rows)
    return pa.Table.from_arrays(table.columns, schema=schema)


def filter_hits(sources: ReadSources, hits: Hits, predicate: str) -> Mask:
    """Return for each hit whether it passes a SQL predicate; only rows of hits are read."""
    base = sources.base

    def passing(number: int, rows: RowIds) -> Mask:
        if number != BASE and not sources.generations[number].is_flushed:
            return passing_rows(sources.generations[number], predicate, base)[rows.astype(np.int64)]
        dataset = base.dataset if number == BASE else sources.generations[number].dataset
        found = scan_table(
            dataset,
            columns=[],
            filter=predicate,
            with_row_id=True,
            row_addr_allowlist=encode_row_set(rows),
            use_scalar_index=number != BASE or not unusable_indexes(base),
        )
        return np.isin(rows, found.column("_rowid").to_numpy())

    mask = np.zeros(len(hits), np.bool_)
    for at, part in hits.read_each(passing):
        mask[at] = part
    return mask
