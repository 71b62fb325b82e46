"""Queries that users ask of tables and writers: scan, lookup, search, explain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack
from uuid import UUID

import lance
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, open_base
from memwal.boundary.public import public
from memwal.errors import InvalidInputError
from memwal.inputs.rows import Keys, import_data
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.position import WritePosition
from memwal.reader.cache.keys import version_key
from memwal.reader.cache.lru import LruCache
from memwal.reader.lookup import lookup_rows
from memwal.reader.predicate import SqlFilter
from memwal.reader.result import Result
from memwal.reader.scan import Scan, open_newest, output_schema
from memwal.reader.sources.freshness import AT_LEAST_SECONDS, Freshness
from memwal.reader.sources.generation import ReadSources, open_sources, retry_if_collected
from memwal.reader.sources.plan import MemTables, ReadPlan, plan_read
from memwal.reader.sources.pruning import KeyBuilder
from memwal.reader.sources.snapshot import open_version
from memwal.storage.location import TableLocation
from memwal.util.clock import Duration

# The searches are imported inside the methods that run them: a process that only scans starts in
# less time.
if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from memwal.search.text.query import TextQuery
    from memwal.search.vector.query import SearchOptions

_DEFAULT = Freshness()
_row_schemas: LruCache[RowSchema] = LruCache(64)


@public
class Queries:
    """Queries of a table, of a writer (which also sees its unflushed rows), or of a version.

    With ``version`` (a number or a tag of the base table), queries see exactly what it contains,
    and no generation that was not merged by then.
    """

    def __init__(
        self, location: TableLocation, *, version: int | str | None = None, fresh: bool = False
    ) -> None:
        self.location = location
        self._version = version
        self._fresh = fresh

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: SqlFilter | None = None,
        limit: int | None = None,
        offset: int = 0,
        with_generation: bool = False,
        with_row_address: bool = False,
        max_staleness: Duration | None = None,
        fresh: bool | None = None,
        at_least: WritePosition | str | None = None,
        timeout: Duration = AT_LEAST_SECONDS,
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
        max_staleness : float or timedelta, optional
            Maximum age of a region snapshot that may replace the regions' manifests, in seconds. A
            minute is added to a snapshot's age, since clocks differ. By default the manifests are
            read.
        fresh : bool, optional
            Whether to see every row that any writer acknowledged before this read began, flushed
            or not: the logs of the regions are read. Costs one request more for each region, and
            one for each entry that this process has not read yet. By default as the table was
            opened: :func:`memwal.open`.
        at_least : WritePosition or str, optional
            Position of a write that this read has to see: ``WriteHandle.position`` of another
            process, or its text; several texts joined by commas. The read is fresh then. A
            position belongs to one table: another one with the same regions cannot tell.
        timeout : float or timedelta, default 10
            How long to wait for that write, in seconds.

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
        return self._scan(
            Freshness(max_staleness, fresh, at_least, timeout),
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            with_generation=with_generation,
            with_row_address=with_row_address,
        )

    def count_rows(
        self,
        *,
        filter: SqlFilter | None = None,
        max_staleness: Duration | None = None,
        fresh: bool | None = None,
        at_least: WritePosition | str | None = None,
        timeout: Duration = AT_LEAST_SECONDS,
    ) -> int:
        """Count the rows, or those that pass a filter: ``scan(filter=...).count_rows()``.

        >>> table.count_rows(filter="n > 5")
        2

        Parameters
        ----------
        filter : str, optional
            As for :meth:`scan`. Without one, and if all rows are merged, no row is read.
        max_staleness, fresh, at_least, timeout : optional
            As for :meth:`scan`.
        """
        freshness = Freshness(max_staleness, fresh, at_least, timeout)
        return self._scan(freshness, filter=filter).count_rows()

    def head(
        self,
        n: int = 5,
        *,
        max_staleness: Duration | None = None,
        fresh: bool | None = None,
        at_least: WritePosition | str | None = None,
        timeout: Duration = AT_LEAST_SECONDS,
    ) -> pa.Table:
        """Return up to ``n`` rows, any of them: ``scan(limit=n).to_table()``.

        >>> table.head(2).num_rows
        2

        Parameters
        ----------
        n : int, default 5
            Maximum number of rows.
        max_staleness, fresh, at_least, timeout : optional
            As for :meth:`scan`.
        """
        freshness = Freshness(max_staleness, fresh, at_least, timeout)
        return self._scan(freshness, limit=n).to_table()

    def to_pandas(
        self,
        *,
        max_staleness: Duration | None = None,
        fresh: bool | None = None,
        at_least: WritePosition | str | None = None,
        timeout: Duration = AT_LEAST_SECONDS,
    ) -> pd.DataFrame:
        """Read all rows into a data frame of pandas: ``scan().to_pandas()``.

        Parameters
        ----------
        max_staleness, fresh, at_least, timeout : optional
            As for :meth:`scan`.
        """
        return self._scan(Freshness(max_staleness, fresh, at_least, timeout)).to_pandas()

    def to_polars(
        self,
        *,
        max_staleness: Duration | None = None,
        fresh: bool | None = None,
        at_least: WritePosition | str | None = None,
        timeout: Duration = AT_LEAST_SECONDS,
    ) -> pl.DataFrame:
        """Read all rows into a data frame of polars: ``scan().to_polars()``.

        Parameters
        ----------
        max_staleness, fresh, at_least, timeout : optional
            As for :meth:`scan`.
        """
        return self._scan(Freshness(max_staleness, fresh, at_least, timeout)).to_polars()

    def to_dataset(self) -> lance.LanceDataset | None:
        """Return the base table, pinned at its version, if it has every row that a read sees now.

        None while any row is not merged. See ``checkpoint``.
        """
        sources, newest = open_newest(self._open_sources)
        return None if len(newest.keys) else sources.base.dataset

    def explain(
        self,
        *,
        filter: SqlFilter | None = None,
        columns: Sequence[str] | None = None,
        max_staleness: Duration | None = None,
        fresh: bool | None = None,
        at_least: WritePosition | str | None = None,
        timeout: Duration = AT_LEAST_SECONDS,
    ) -> ReadPlan:
        """Plan a :meth:`scan` without running it: the sources that it reads and leaves out.

        Parameters
        ----------
        filter, columns, max_staleness, fresh, at_least, timeout : optional
            As for :meth:`scan`.
        """
        freshness = Freshness(max_staleness, fresh, at_least, timeout)
        return self._scan(freshness, columns=columns, filter=filter).explain()

    def lookup(
        self,
        keys: Keys,
        *,
        columns: Sequence[str] | None = None,
        max_staleness: Duration | None = None,
        fresh: bool | None = None,
        at_least: WritePosition | str | None = None,
        timeout: Duration = AT_LEAST_SECONDS,
    ) -> Result:
        """Look up rows by key.

        >>> table.lookup(2).to_pylist()
        [{'id': 2, 'n': 6, 'text': 'b'}]

        Parameters
        ----------
        keys : keys
            The key columns as a table, a data frame, a dict of columns, or a list of dicts. If the
            key has one column, also its values: an array, a Series, a list, or one value. They are
            cast to the types of the key, if they stay the same.
        columns, max_staleness, fresh, at_least, timeout : optional
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
        freshness = Freshness(max_staleness, fresh, at_least, timeout)
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
            rows = pa.Table.from_batches(row_schema.convert_deletes(keys), row_schema.schema)
            return rows.select(row_schema.primary_key)

        def look_up() -> pa.Table:
            sources = self._open_sources(keys=key_columns, freshness=freshness)
            return lookup_rows(sources, key_columns(sources.base), columns=columns)

        keys = import_data(keys)
        return Result(
            lambda: retry_if_collected(look_up), lambda: output_schema(self._open_base(), columns)
        )

    def search(
        self,
        vector: npt.ArrayLike | pa.Array,
        *,
        column: str | None = None,
        prefilter: bool = True,
        max_staleness: Duration | None = None,
        fresh: bool | None = None,
        at_least: WritePosition | str | None = None,
        timeout: Duration = AT_LEAST_SECONDS,
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
        max_staleness, fresh, at_least, timeout : optional
            As for :meth:`scan`.
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
        from memwal.search import DISTANCE, run_search, search

        freshness = Freshness(max_staleness, fresh, at_least, timeout)
        # A filter after the search needs the nearest rows of all regions.
        pruned_by = options.get("filter") if prefilter else None
        return self._found(
            lambda: run_search(
                lambda: self._open_sources(filter=pruned_by, freshness=freshness),
                lambda sources, newest: search(
                    sources, newest, vector, column=column, prefilter=prefilter, **options
                ),
            ),
            options.get("columns"),
            [DISTANCE],
        )

    def search_text(
        self,
        query: str | TextQuery,
        *,
        column: str | Sequence[str] | None = None,
        k: int | None = 10,
        filter: SqlFilter | None = None,
        columns: Sequence[str] | None = None,
        max_staleness: Duration | None = None,
        fresh: bool | None = None,
        at_least: WritePosition | str | None = None,
        timeout: Duration = AT_LEAST_SECONDS,
    ) -> Result:
        """Find the rows whose texts match best.

        A score depends on the texts of all rows, so every region is read, whatever the filter.

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
        columns, max_staleness, fresh, at_least, timeout : optional
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
        from memwal.search import SCORE, run_search, search_text

        freshness = Freshness(max_staleness, fresh, at_least, timeout)
        return self._found(
            lambda: run_search(
                lambda: self._open_sources(freshness=freshness),
                lambda sources, newest: search_text(
                    sources, newest, query, column=column, k=k, filter=filter, columns=columns
                ),
            ),
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
        max_staleness: Duration | None = None,
        fresh: bool | None = None,
        at_least: WritePosition | str | None = None,
        timeout: Duration = AT_LEAST_SECONDS,
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
        max_staleness, fresh, at_least, timeout : optional
            As for :meth:`scan`.
        **options
            As for :meth:`search`.

        Returns
        -------
        Result
            Lazy, as of :meth:`scan`: the columns, ``_distance``, ``_score`` and
            ``_relevance_score``, most relevant first.
        """
        from memwal.search import DISTANCE, RELEVANCE, SCORE, run_search, search_hybrid

        freshness = Freshness(max_staleness, fresh, at_least, timeout)
        return self._found(
            lambda: run_search(
                lambda: self._open_sources(freshness=freshness),
                lambda sources, newest: search_hybrid(
                    sources,
                    newest,
                    vector,
                    query,
                    vector_column=vector_column,
                    text_column=text_column,
                    weight=weight,
                    candidates=candidates,
                    **options,
                ),
            ),
            options.get("columns"),
            [DISTANCE, SCORE, RELEVANCE],
        )

    def _found(
        self, run: Callable[[], pa.Table], columns: Sequence[str] | None, extra: Sequence[str]
    ) -> Result:
        """Return the result of a search, which has ``extra`` columns of float32."""

        def schema() -> pa.Schema:
            fields = output_schema(self._open_base(), columns)
            return pa.schema([*fields, *(pa.field(name, pa.float32()) for name in extra)])

        return Result(run, schema)

    def _scan(self, freshness: Freshness, *, filter: str | None = None, **options: Any) -> Scan:
        return Scan(
            lambda: self._open_sources(filter=filter, freshness=freshness), filter=filter, **options
        )

    def _open_base(self) -> BaseTable:
        """Open the version of the base table that queries read."""
        if self._version is not None:
            return open_version(self.location, self._version)
        return open_base(self.location)

    def _open_sources(
        self,
        *,
        freshness: Freshness = _DEFAULT,
        filter: str | None = None,
        keys: KeyBuilder | None = None,
    ) -> ReadSources:
        resolved = freshness.resolve(
            fresh_by_default=self._fresh, is_pinned=self._version is not None
        )

        def open_now() -> ReadSources:
            if resolved.at_least is not None:
                # Before the MemTables are taken, so that these have the rows of the entries.
                self._check_own(resolved.at_least)
            return open_sources(
                lambda reuse: plan_read(
                    self.location,
                    self._memtables(),
                    epochs=self._epochs(),
                    version=self._version,
                    filter=filter,
                    keys=keys if resolved.at_least is None else None,
                    max_staleness=resolved.max_staleness,
                    fresh=resolved.fresh,
                    at_least=resolved.at_least,
                    reuse=reuse,
                )
            )

        if resolved.at_least is None:
            return open_now()
        from memwal.reader.sources.log_tails import wait_for_position

        return wait_for_position(open_now, resolved.timeout)

    def _check_own(self, at_least: WritePosition) -> None:
        """Raise PositionNotReachedError for entries that the log of an own region never had."""

    def _memtables(self) -> MemTables | None:
        return None

    def _epochs(self) -> Mapping[UUID, int]:
        """Return the epoch of the claim that each MemTable of :meth:`_memtables` belongs to."""
        return {}
