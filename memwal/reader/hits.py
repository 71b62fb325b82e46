"""What a search found: rows of sources with a number each, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.reader.merged_scan import passing_rows
from memwal.reader.row_set import RowIds, encode_row_set
from memwal.reader.sources.collect import ReadSources
from memwal.util.concurrency import run_all

BASE = -1
"""Number of the base table among the sources; generations count from 0."""

_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Values = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows that a search found.

    Attributes
    ----------
    source : numpy.ndarray of int64
        Which source each row is in: :data:`BASE`, or a position among the generations.
    rows : numpy.ndarray of uint64
        Row ids there.
    values : numpy.ndarray of float64
        Distance or score of each.
    """

    source: _Numbers
    rows: RowIds
    values: _Values

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, source: int, rows: RowIds, values: np.ndarray[Any, Any]) -> Hits:
        """Rows of one source."""
        return cls(
            np.full(len(rows), source, np.int64),
            np.asarray(rows, np.uint64),
            np.asarray(values, np.float64),
        )

    @classmethod
    def joined(cls, parts: Sequence[Hits]) -> Hits:
        """Hits of several searches, one after the other."""
        if not parts:
            return cls.of(BASE, np.empty(0, np.uint64), np.empty(0))
        return cls(
            np.concatenate([part.source for part in parts]),
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.values for part in parts]),
        )

    def take(self, positions: np.ndarray[Any, Any]) -> Hits:
        """Some of the hits, by position or mask."""
        return Hits(self.source[positions], self.rows[positions], self.values[positions])

    def order(self, k: int | None, *, smallest: bool) -> _Numbers:
        """Positions of the ``k`` best, best first; of equal ones the base table's, then by row."""
        values = np.asarray(self.values, np.float32)
        values = values if smallest else -values
        near = np.arange(len(values))
        if k is not None and k < len(values):
            # Of all that are as good as the last one, so that the order decides.
            near = np.flatnonzero(values <= np.partition(values, k - 1)[k - 1])
        order = np.lexsort((self.rows[near], self.source[near], values[near]))
        return near[order[:k]]

    def best(self, k: int | None, *, smallest: bool) -> Hits:
        """The ``k`` best; see :meth:`order`."""
        return self.take(self.order(k, smallest=smallest))


def fetch_rows(
    sources: ReadSources, hits: Hits, schema: pa.Schema, extra: Sequence[tuple[str, Any]]
) -> pa.Table:
    """Rows of hits in their order.

    Parameters
    ----------
    schema : pyarrow.Schema
        Columns wanted, in the types of the base table.
    extra : sequence of (str, array)
        Further columns of float32, one value per hit.

    Returns
    -------
    pyarrow.Table
    """
    base = sources.base
    names = list(schema.names) or [base.primary_key[0]]
    numbers = np.unique(hits.source).tolist()
    positions = [np.flatnonzero(hits.source == number) for number in numbers]
    parts = run_all(
        [
            partial(_rows_of, sources, number, hits.rows[mine], names)
            for number, mine in zip(numbers, positions, strict=True)
        ]
    )
    wanted = pa.schema([*schema, *(pa.field(name, pa.float32()) for name, _ in extra)])
    if not parts:
        return wanted.empty_table()
    order = np.argsort(np.concatenate(positions))
    found = pa.concat_tables(parts).take(pa.array(order)).combine_chunks()
    columns = [found.column(name) for name in schema.names]
    columns += [pa.array(np.asarray(values, np.float32)) for _, values in extra]
    return pa.Table.from_arrays(columns, schema=wanted)


def _rows_of(sources: ReadSources, number: int, rows: RowIds, names: list[str]) -> pa.Table:
    """Columns of rows of one source, in the types of the base table."""
    base = sources.base
    schema = pa.schema([base.schema.field(name) for name in names])
    if number == BASE:
        found = base.dataset._take_rows(rows.tolist(), columns=names)
    elif (snapshot := sources.generations[number].snapshot) is not None:
        found = snapshot.view.take(rows.astype(np.int64), columns=names)
    else:
        found = sources.generations[number].dataset._take_rows(rows.tolist(), columns=names)
    return pa.Table.from_arrays(found.columns, schema=schema)


def filter_hits(sources: ReadSources, hits: Hits, predicate: str) -> np.ndarray[Any, Any]:
    """Which of the hits a SQL predicate lets through; only their rows are read."""
    numbers = np.unique(hits.source).tolist()
    positions = [np.flatnonzero(hits.source == number) for number in numbers]
    kept = np.zeros(len(hits), np.bool_)
    for mine, passing in zip(
        positions,
        run_all(
            [
                partial(_passing, sources, number, hits.rows[mine], predicate)
                for number, mine in zip(numbers, positions, strict=True)
            ]
        ),
        strict=True,
    ):
        kept[mine] = passing
    return kept


def _passing(
    sources: ReadSources, number: int, rows: RowIds, predicate: str
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    base = sources.base
    if number != BASE and not sources.generations[number].is_flushed:
        return passing_rows(sources.generations[number], predicate, base)[rows.astype(np.int64)]
    dataset = base.dataset if number == BASE else sources.generations[number].dataset
    found = dataset.scanner(
        columns=[],
        filter=predicate,
        with_row_id=True,
        row_addr_allowlist=encode_row_set(rows),
    ).to_table()
    return np.isin(rows, found.column("_rowid").to_numpy())
