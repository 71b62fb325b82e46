"""Queries that users ask of tables and writers: scan, lookup, search, explain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pyarrow as pa

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.reader.explain import ReadPlan
from memwal.reader.lookup import look_up
from memwal.reader.scan import Scan, collect_newest
from memwal.reader.sources.collect import (
    MemTables,
    ReadSources,
    collect_sources,
    collect_version,
    while_collected,
)
from memwal.reader.sources.key_routing import WantedKeys
from memwal.search import answer, search, search_hybrid, search_text
from memwal.search.text.query import TextQuery
from memwal.storage.location import TableLocation
from memwal.writer.region_writer.rows import RowSchema

if TYPE_CHECKING:
    import lance


class Reads:
    """The queries that a table and a writer answer alike; they differ in what they see."""

    def __init__(self, location: TableLocation) -> None:
        self.location = location

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        with_generation: bool = False,
        with_row_address: bool = False,
        max_staleness: timedelta | None = None,
    ) -> Scan:
        """Scan the newest row of every key.

        Parameters
        ----------
        columns : sequence of str, optional
            Columns to return, in this order; all by default.
        filter : str, optional
            SQL predicate over any columns.
        limit : int, optional
            At most this many rows.
        offset : int, default 0
            So many rows are left out first.
        with_generation, with_row_address : bool, default False
            Whether to add ``_gen`` (0 for the base table) and ``_rowaddr``.
        max_staleness : timedelta, optional
            How old a snapshot of the regions may be that the read makes do with.

        Returns
        -------
        Scan
            Lazy; ``to_table()``, ``to_batches()``, ``to_reader()``, ``to_pandas()`` run it,
            ``count_rows()`` counts, ``explain()`` tells what would be read.
        """
        return Scan(
            lambda: self._collect(filter=filter, max_staleness=max_staleness),
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            with_generation=with_generation,
            with_row_address=with_row_address,
        )

    def to_dataset(self) -> lance.LanceDataset | None:
        """The base table as a Lance data set, if it alone has every row that a read sees now.

        Returns
        -------
        lance.LanceDataset or None
            Pinned at its version; None as long as anything is not merged. See ``checkpoint``.
        """
        sources, newest = collect_newest(self._collect)
        return None if len(newest.keys) else sources.base.dataset

    def explain(
        self, *, filter: str | None = None, columns: Sequence[str] | None = None
    ) -> ReadPlan:
        """What a scan would read now, and what it would leave out and why.

        Parameters
        ----------
        filter : str, optional
            SQL predicate over any columns.
        columns : sequence of str, optional
            Columns to return; all by default.
        """
        return self.scan(columns=columns, filter=filter).explain()

    def lookup(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness: timedelta | None = None,
    ) -> pa.Table:
        """Look rows up by key.

        Parameters
        ----------
        keys : anything Arrow
            The key columns, or an array where the key has one column.
        columns : sequence of str, optional
            Columns to return; all by default.
        max_staleness : timedelta, optional
            How old a snapshot of the regions may be that the read makes do with; by default the
            regions themselves are asked.

        Returns
        -------
        pyarrow.Table
            One row per key that exists, in the order of ``keys``.

        Raises
        ------
        InvalidInputError
            The keys do not fit the primary key, or the version that is read has none.
        """

        def wanted(base: BaseTable) -> pa.Table:
            if not base.primary_key:
                raise InvalidInputError(
                    f"version {base.version} of {base.location} has no primary key; scan it instead"
                )
            row_schema = RowSchema(base.identified_schema, base.primary_key)
            rows = pa.Table.from_batches(row_schema.convert_deletes(keys), row_schema.schema)
            return rows.select(row_schema.primary_key)

        def found() -> pa.Table:
            sources = self._collect(keys=wanted, max_staleness=max_staleness)
            return look_up(sources, wanted(sources.base), columns=columns)

        return while_collected(found)

    def search(
        self,
        vector: npt.ArrayLike | pa.Array,
        *,
        column: str | None = None,
        k: int = 10,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        ef: int | None = None,
        prefilter: bool = True,
        max_staleness: timedelta | None = None,
    ) -> pa.Table:
        """Find the rows with the nearest vectors.

        Regions in which no row can pass the filter are not read.

        Parameters
        ----------
        vector : array of numbers, shape (dimension,) or (vectors, dimension)
            Several vectors for a column of multivectors.
        column : str, optional
            May be left out when the table has one column of vectors.
        k : int, default 10
            How many rows at most.
        filter : str, optional
            SQL predicate over any columns.
        columns : sequence of str, optional
            Columns to return; all by default.
        metric : str, optional
            ``l2``, ``cosine``, ``dot`` or ``hamming``; by default that of the index, or ``l2``
            when there is none. Another one is answered without the index.
        nprobes : int, optional
            Partitions to look at in each source; Lance decides by default.
        refine_factor : int, default 2, of multivectors 10
            Candidates per row that are ranked again by their vectors. More finds more of the
            nearest rows, and reads so many more vectors.
        ef : int, optional
            Candidates that a graph index keeps.
        prefilter : bool, default True
            False filters the ``k`` nearest rows, of which fewer are then left.
        max_staleness : timedelta, optional
            How old a snapshot of the regions may be that the read makes do with; by default the
            regions themselves are asked.

        Returns
        -------
        pyarrow.Table
            The columns and ``_distance``, nearest first.

        Raises
        ------
        InvalidInputError
            An argument does not fit the table; the message names it.
        """
        return self._answer(
            search,
            vector,
            column=column,
            k=k,
            filter=filter,
            columns=columns,
            metric=metric,
            nprobes=nprobes,
            refine_factor=refine_factor,
            ef=ef,
            prefilter=prefilter,
            max_staleness=max_staleness,
            # The nearest rows of all regions count where they are filtered afterwards.
            pruned_by=filter if prefilter else None,
        )

    def search_text(
        self,
        query: str | TextQuery,
        *,
        column: str | Sequence[str] | None = None,
        k: int | None = 10,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
        max_staleness: timedelta | None = None,
    ) -> pa.Table:
        """Find the rows whose texts match best.

        A score depends on the texts of all rows, so that a filter keeps no region from being read.

        Parameters
        ----------
        query : str or query
            Text, for any of its terms; or a query object such as
            :class:`memwal.search.text.query.MatchQuery`.
        column : str or sequence of str, optional
            Where to search; all columns with a text index by default. The best one counts. A query
            object names its own.
        k : int or None, default 10
            How many rows at most; None returns all that match.
        filter : str, optional
            SQL predicate over any columns. It does not touch the scores.
        columns : sequence of str, optional
            Columns to return; all by default.
        max_staleness : timedelta, optional
            How old a snapshot of the regions may be that the read makes do with; by default the
            regions themselves are asked.

        Returns
        -------
        pyarrow.Table
            The columns and ``_score``, best first.

        Raises
        ------
        InvalidInputError
            A column has no text index, or an argument does not fit.
        """
        return self._answer(
            search_text,
            query,
            column=column,
            k=k,
            filter=filter,
            columns=columns,
            max_staleness=max_staleness,
        )

    def search_hybrid(
        self,
        vector: npt.ArrayLike | pa.Array,
        query: str | TextQuery,
        *,
        vector_column: str | None = None,
        text_column: str | Sequence[str] | None = None,
        k: int = 10,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
        weight: float = 0.5,
        candidates: int | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        ef: int | None = None,
        max_staleness: timedelta | None = None,
    ) -> pa.Table:
        """Find rows by vectors and texts together, by reciprocal rank fusion.

        Parameters
        ----------
        vector : array of numbers, shape (dimension,) or (vectors, dimension)
            Several vectors for a column of multivectors.
        query : str or query
            Text, for any of its terms; or a query object such as
            :class:`memwal.search.text.query.MatchQuery`.
        vector_column, text_column : optional
            As ``column`` of :meth:`search` and :meth:`search_text`.
        k : int, default 10
            How many rows at most.
        filter : str, optional
            SQL predicate over any columns.
        columns : sequence of str, optional
            Columns to return; all by default.
        weight : float, default 0.5
            Share of the vectors, from 0 to 1.
        candidates : int, optional
            How many rows of each search are ranked; ``max(k, 50)`` by default.
        metric, nprobes, refine_factor, ef : optional
            As for :meth:`search`.
        max_staleness : timedelta, optional
            How old a snapshot of the regions may be that the read makes do with; by default the
            regions themselves are asked.

        Returns
        -------
        pyarrow.Table
            The columns, ``_distance``, ``_score`` and ``_relevance_score``, most relevant first.

        Raises
        ------
        InvalidInputError
            An argument does not fit the table; the message names it.
        """
        return self._answer(
            search_hybrid,
            vector,
            query,
            vector_column=vector_column,
            text_column=text_column,
            k=k,
            filter=filter,
            columns=columns,
            weight=weight,
            candidates=candidates,
            metric=metric,
            nprobes=nprobes,
            refine_factor=refine_factor,
            ef=ef,
            max_staleness=max_staleness,
        )

    def _answer(
        self,
        run: Callable[..., pa.Table],
        *args: Any,
        max_staleness: timedelta | None = None,
        pruned_by: str | None = None,
        **options: Any,
    ) -> pa.Table:
        return answer(
            lambda: self._collect(filter=pruned_by, max_staleness=max_staleness),
            lambda sources, newest: run(sources, newest, *args, **options),
        )

    def _collect(
        self,
        *,
        filter: str | None = None,
        keys: WantedKeys | None = None,
        max_staleness: timedelta | None = None,
    ) -> ReadSources:
        return collect_sources(
            self.location,
            self._memtables(),
            filter=filter,
            keys=keys,
            max_staleness=max_staleness,
        )

    def _memtables(self) -> MemTables | None:
        return None


class PastReads(Reads):
    """Reads of one version of the base table, without what was not merged then."""

    def __init__(self, location: TableLocation, version: int | str) -> None:
        super().__init__(location)
        self.version = version

    def _collect(
        self,
        *,
        filter: str | None = None,
        keys: WantedKeys | None = None,
        max_staleness: timedelta | None = None,
    ) -> ReadSources:
        return collect_version(self.location, self.version)
