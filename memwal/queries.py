"""Queries that users ask of tables and writers: scan, lookup, search, explain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Unpack

import lance
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table.blobs import BlobHandling
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.boundary.public import public
from memwal.errors import InvalidInputError
from memwal.inputs.rows import Keys, import_data
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.position import WritePosition
from memwal.reader.lookup import lookup_rows, open_blobs
from memwal.reader.predicate import SqlFilter
from memwal.reader.result import Result
from memwal.reader.scan import Scan, open_newest, output_schema
from memwal.reader.sources.cache import LruCache, version_key
from memwal.reader.sources.generation import ReadSources, open_sources, retry_if_collected
from memwal.reader.sources.plan import (
    ReadPlan,
    plan_fresh,
    plan_read,
    plan_snapshot,
    plan_version,
)
from memwal.reader.sources.pruning import KeyBuilder, keys_in_filter
from memwal.reader.sources.snapshot import open_stale_snapshot, open_version
from memwal.storage.location import TableLocation
from memwal.util.clock import Duration, duration

# The searches are imported inside the methods that run them: a process that only scans starts in
# less time.
if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from memwal.reader.latest import NewestRows
    from memwal.search.text.query import TextQuery
    from memwal.search.vector.query import SearchOptions
    from memwal.writer.table_writer import TableWriter

_row_schemas: LruCache[RowSchema] = LruCache(64)


@public
class Queries:
    """Queries of a table, of a writer (which also sees its unflushed rows), or of a view.

    :meth:`memwal.Table.fresh`, :meth:`memwal.Table.at_most`, :meth:`memwal.Table.at` and
    :meth:`memwal.Writer.fresh` return a view, which has these queries and nothing else.
    """

    def __init__(self, location: TableLocation) -> None:
        self.location = location

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location.uri!r})"

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: SqlFilter | None = None,
        limit: int | None = None,
        offset: int = 0,
        with_generation: bool = False,
        with_row_address: bool = False,
        blob_handling: BlobHandling | None = None,
    ) -> Scan:
        """Scan the newest row of every key.

        Parameters
        ----------
        columns : sequence of str, optional
            Columns to return, in this order; all by default.
        filter : str, optional
            SQL predicate over any columns, as for :meth:`lance.LanceDataset.scanner`.
        limit : int, optional
            Maximum number of rows.
        offset : int, default 0
            Number of rows to skip first. The order of rows is not defined.
        with_generation : bool, default False
            Add ``_gen``: the generation that has the row, 0 for the base table.
        with_row_address : bool, default False
            Add ``_rowaddr``: the row's address in the data set of its generation or in the base
            table; in a MemTable the row's number.
        blob_handling : "blobs_descriptions" or "all_binary", optional
            Values of blob columns, as in Lance: by default descriptions, from which nothing is read
            (of a row in a MemTable the size counts); or the bytes. See :meth:`take_blobs`.

        Returns
        -------
        Scan
            Lazy; ``to_table()``, ``to_batches()``, ``to_reader()``, ``to_pandas()``,
            ``to_polars()`` and ``to_pylist()`` run it, ``count_rows()`` counts, ``explain()`` plans
            without reading rows. polars, DuckDB and pyarrow take it as a stream.

        Raises
        ------
        InvalidInputError
            ``limit`` or ``offset`` is negative.
        """
        return Scan(
            lambda: self._open_sources(filter=filter, keys=keys_in_filter(filter)),
            lambda: self._open_sources(filter=filter),
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            with_generation=with_generation,
            with_row_address=with_row_address,
            blob_handling=blob_handling,
        )

    def count_rows(self, *, filter: SqlFilter | None = None) -> int:
        """Count the rows, or the rows that pass a filter: ``scan(filter=...).count_rows()``.

        Without a ``filter``, and if all rows are merged, no row is read.

        >>> table.count_rows(filter="n > 5")
        2
        """
        return self.scan(filter=filter).count_rows()

    def head(self, n: int = 5) -> pa.Table:
        """Return up to ``n`` rows, any of them: ``scan(limit=n).to_table()``.

        >>> table.head(2).num_rows
        2
        """
        return self.scan(limit=n).to_table()

    def to_arrow(self) -> pa.Table:
        """Read all rows into a table of Arrow: ``scan().to_table()``."""
        return self.scan().to_table()

    def to_pandas(self) -> pd.DataFrame:
        """Read all rows into a data frame of pandas: ``scan().to_pandas()``."""
        return self.scan().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Read all rows into a data frame of polars: ``scan().to_polars()``."""
        return self.scan().to_polars()

    def to_dataset(self) -> lance.LanceDataset | None:
        """Return the base table, pinned at its version, if it has every row that a read sees now.

        None while any row is not merged. See ``checkpoint``.
        """
        sources, newest = open_newest(self._open_sources)
        return None if len(newest.keys) else sources.base.dataset

    def explain(
        self, *, filter: SqlFilter | None = None, columns: Sequence[str] | None = None
    ) -> ReadPlan:
        """Plan a :meth:`scan` without running it: the sources that it reads and leaves out."""
        return self.scan(columns=columns, filter=filter).explain()

    def lookup(self, keys: Keys, *, columns: Sequence[str] | None = None) -> Result:
        """Look up rows by key.

        >>> table.lookup(2).to_pylist()
        [{'id': 2, 'n': 6, 'text': 'b'}]

        Parameters
        ----------
        keys : keys
            The key columns as a table, a data frame, a dict of columns, or a list of dicts. If the
            key has one column, also its values: an array, a Series, a list, or one value. They are
            cast to the types of the key, if they stay the same.
        columns : optional
            As for :meth:`scan`.

        Returns
        -------
        Result
            One row per key that exists, in the order of ``keys``. Lazy, as of :meth:`scan`: errors
            about keys and columns are raised when it is used.

        Raises
        ------
        InvalidInputError
            A stream of keys cannot be read. When the result is used: the keys do not fit the
            primary key, or the version that is read has none.
        """
        open_keyed = self._keyed(keys)

        def look_up() -> pa.Table:
            return lookup_rows(*open_keyed(), columns=columns)

        return Result(
            lambda: retry_if_collected(look_up), lambda: output_schema(self._open_base(), columns)
        )

    def take_blobs(self, keys: Keys, column: str) -> list[lance.BlobFile | None]:
        """Open the blobs of some keys as files, which read nothing until they are asked.

        As ``take_blobs`` of Lance, also for rows that are not merged: those of a MemTable are in
        memory already, and a blob at an address of its own is opened there.

        >>> [blob.read() for blob in table.take_blobs([1, 2], "image")]  # doctest: +SKIP
        [b'...', b'...']

        Parameters
        ----------
        keys : keys
            As for :meth:`lookup`.
        column : str
            A blob column.

        Returns
        -------
        list of lance.BlobFile or None
            One for each key, in their order; None if the value is null or the key has no row.

        Raises
        ------
        InvalidInputError
            As :meth:`lookup`, or the column has no blobs.
        """
        open_keyed = self._keyed(keys)
        return retry_if_collected(lambda: open_blobs(*open_keyed(), column))

    def _keyed(self, keys: Keys) -> Callable[[], tuple[ReadSources, pa.Table]]:
        """Return a function that opens the sources of a read of some keys, and converts these."""
        converted: tuple[BaseTable, pa.Table] | None = None

        def key_columns(base: BaseTable) -> pa.Table:
            nonlocal converted
            if converted is None or converted[0] is not base:
                converted = base, convert(base)
            return converted[1]

        def convert(base: BaseTable) -> pa.Table:
            if not base.primary_key:
                raise InvalidInputError(
                    f"version {base.version} of {base.location} has no primary key; scan it instead"
                )
            row_schema = _row_schemas.get(
                version_key(base), lambda: RowSchema(base.identified_schema, base.primary_key)
            )
            return row_schema.convert_keys(keys)

        def open_keyed() -> tuple[ReadSources, pa.Table]:
            sources = self._open_sources(keys=key_columns)
            return sources, key_columns(sources.base)

        keys = import_data(keys)
        return open_keyed

    def search(
        self,
        vector: npt.ArrayLike | pa.Array,
        *,
        column: str | None = None,
        prefilter: bool = True,
        **options: Unpack[SearchOptions],
    ) -> Result:
        """Find the rows with the nearest vectors.

        Regions in which no row can pass the filter are not read, unless ``prefilter`` is False.

        Parameters
        ----------
        vector : array of numbers, shape (dimension,) or (vectors, dimension)
            Several vectors for a column of multivectors.
        column : str, optional
            Optional if the table has one column of vectors.
        prefilter : bool, default True
            False filters after the search, so that fewer than ``k`` rows may remain.
        **options
            ``k``, ``filter``, ``columns``, ``metric``, ``nprobes``, ``refine_factor``, ``ef``: see
            :class:`memwal.search.vector.query.SearchOptions`.

        Returns
        -------
        Result
            Lazy, as of :meth:`scan`: the columns and ``_distance``, nearest first.

        Raises
        ------
        InvalidInputError
            An argument does not fit the table; the message names it.
        """
        from memwal.search import DISTANCE, search

        return self._found(
            partial(search, vector=vector, column=column, prefilter=prefilter, **options),
            options.get("columns"),
            [DISTANCE],
            # A filter after the search needs the nearest rows of all regions.
            filter=options.get("filter") if prefilter else None,
        )

    def search_text(
        self,
        query: str | TextQuery,
        *,
        column: str | Sequence[str] | None = None,
        k: int | None = 10,
        filter: SqlFilter | None = None,
        columns: Sequence[str] | None = None,
    ) -> Result:
        """Find the rows whose texts match best.

        A score depends on the texts of all rows, so every region is read, with any filter.

        Parameters
        ----------
        query : str or query
            Text, for any of its terms; or a query object such as
            :class:`memwal.search.text.query.MatchQuery`.
        column : str or sequence of str, optional
            Columns to search; by default all with a text index. The best column of a row counts.
            A query object names its own.
        k : int or None, default 10
            Maximum number of rows; None returns all that match.
        filter : str, optional
            SQL predicate over any columns. It does not change the scores.
        columns : optional
            As for :meth:`scan`.

        Returns
        -------
        Result
            Lazy, as of :meth:`scan`: the columns and ``_score``, best first.

        Raises
        ------
        InvalidInputError
            A column has no text index, or an argument does not fit.
        """
        from memwal.search import SCORE, search_text

        return self._found(
            partial(search_text, query=query, column=column, k=k, filter=filter, columns=columns),
            columns,
            [SCORE],
        )

    def search_hybrid(
        self,
        vector: npt.ArrayLike | pa.Array,
        query: str | TextQuery,
        *,
        vector_column: str | None = None,
        text_column: str | Sequence[str] | None = None,
        weight: float = 0.5,
        candidates: int | None = None,
        **options: Unpack[SearchOptions],
    ) -> Result:
        """Find rows by vectors and texts together, by reciprocal rank fusion.

        Parameters
        ----------
        vector, query
            As for :meth:`search` and :meth:`search_text`.
        vector_column, text_column : optional
            As ``column`` of these methods.
        weight : float, default 0.5
            Weight of the vectors in the rank, from 0 to 1.
        candidates : int, optional
            Number of rows of each search that are ranked; ``max(k, 50)`` by default.
        **options
            As for :meth:`search`.

        Returns
        -------
        Result
            Lazy, as of :meth:`scan`: the columns, ``_distance``, ``_score`` and
            ``_relevance_score``, most relevant first.
        """
        from memwal.search import DISTANCE, RELEVANCE, SCORE, search_hybrid

        return self._found(
            partial(
                search_hybrid,
                vector=vector,
                query=query,
                vector_column=vector_column,
                text_column=text_column,
                weight=weight,
                candidates=candidates,
                **options,
            ),
            options.get("columns"),
            [DISTANCE, SCORE, RELEVANCE],
        )

    def _found(
        self,
        search: Callable[[ReadSources, NewestRows], pa.Table],
        columns: Sequence[str] | None,
        extra: Sequence[str],
        *,
        filter: str | None = None,
    ) -> Result:
        """Return the result of a search, which has ``extra`` columns of float32.

        The search is repeated on a new snapshot if the garbage collector deletes a generation or
        the base table's version during the search.
        """

        def run() -> pa.Table:
            return search(*open_newest(lambda: self._open_sources(filter=filter)))

        def schema() -> pa.Schema:
            fields = output_schema(self._open_base(), columns)
            return pa.schema([*fields, *(pa.field(name, pa.float32()) for name in extra)])

        return Result(lambda: retry_if_collected(run), schema)

    def _open_base(self) -> BaseTable:
        return open_base(self.location)

    def _open_sources(
        self, *, filter: str | None = None, keys: KeyBuilder | None = None
    ) -> ReadSources:
        return open_sources(lambda reuse: self._plan(filter=filter, keys=keys, reuse=reuse))

    def _plan(self, *, filter: str | None, keys: KeyBuilder | None, reuse: bool) -> ReadPlan:
        return plan_read(self.location, filter=filter, keys=keys, reuse=reuse)


class VersionQueries(Queries):
    """Queries of a version of the base table, by its number or its tag.

    They see exactly the rows of that version, and no generation that was not merged by then.
    """

    def __init__(self, location: TableLocation, version: int | str) -> None:
        super().__init__(location)
        self._version = version

    def _open_base(self) -> BaseTable:
        return open_version(self.location, self._version)

    def _plan(self, *, filter: str | None, keys: KeyBuilder | None, reuse: bool) -> ReadPlan:
        return plan_version(self.location, self._version)


class StaleQueries(Queries):
    """Queries that may read a region snapshot of an age up to ``max_age``."""

    def __init__(self, location: TableLocation, max_age: timedelta) -> None:
        super().__init__(location)
        self._max_age = max_age

    def _plan(self, *, filter: str | None, keys: KeyBuilder | None, reuse: bool) -> ReadPlan:
        snapshot = open_stale_snapshot(self.location, self._max_age, keys=keys, reuse=reuse)
        return plan_snapshot(snapshot, filter=filter, keys=keys)


class FreshQueries(Queries):
    """Queries that see the rows that any writer acknowledged, flushed or not.

    ``at_least`` and ``timeout`` are those of :meth:`memwal.Table.fresh`. The MemTables of
    ``writer`` replace the logs of the regions that it holds.
    """

    def __init__(
        self,
        location: TableLocation,
        *,
        at_least: WritePosition | str | None,
        timeout: Duration,
        writer: TableWriter | None = None,
    ) -> None:
        super().__init__(location)
        self._at_least = WritePosition.parse(at_least) if isinstance(at_least, str) else at_least
        self._timeout = duration(timeout, "timeout").total_seconds()
        self._writer = writer

    def _open_sources(
        self, *, filter: str | None = None, keys: KeyBuilder | None = None
    ) -> ReadSources:
        from memwal.reader.sources.log_tails import check_logged, wait_for_position

        open_once = super()._open_sources

        def open_now() -> ReadSources:
            if self._at_least is not None and self._writer is not None:
                # Before the MemTables are taken, so that these have the rows of the entries. The
                # log of a region that the writer holds is not read.
                held = self._writer.claims()
                own = [entry for entry in self._at_least.entries if entry[0] in held]
                check_logged(self.location.store, own)
            return open_once(filter=filter, keys=keys)

        return wait_for_position(open_now, self._timeout)

    def _plan(self, *, filter: str | None, keys: KeyBuilder | None, reuse: bool) -> ReadPlan:
        return plan_fresh(
            self.location,
            {} if self._writer is None else self._writer.claims(),
            at_least=self._at_least,
            filter=filter,
            # The position may be of a region that the keys leave out.
            keys=keys if self._at_least is None else None,
            reuse=reuse,
        )
