"""A MemWAL table: what users see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import numpy.typing as npt
import pyarrow as pa

from memwal.maintenance.backlog import read_status
from memwal.maintenance.checkpoint import checkpoint
from memwal.maintenance.garbage import DEFAULT_GRACE, DEFAULT_RETENTION, collect_garbage
from memwal.maintenance.index_build import build_indexes
from memwal.maintenance.merge import DEFAULT_COMMIT_BYTES, merge
from memwal.maintenance.results import JobResult, TaskRunner, run_in_process
from memwal.maintenance.snapshot_build import build_snapshot
from memwal.maintenance.status import TableStatus
from memwal.reader.explain import ReadPlan
from memwal.reader.lookup import look_up
from memwal.reader.retry import while_collected
from memwal.reader.scan import Scan
from memwal.reader.search import answer, search, search_hybrid, search_text
from memwal.reader.sources import MemTables, ReadSources, collect_sources, collect_version
from memwal.reader.text_query import TextQuery
from memwal.region.discovery import discover_regions
from memwal.region.routing import Router
from memwal.region.spec import RegionSpec
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import BaseTable, open_base
from memwal.table_index.region_specs import current_spec
from memwal.writer.options import WriterOptions
from memwal.writer.rows import RowShape
from memwal.writer.table_writer import TableWriter


def open(uri: str, *, storage_options: Mapping[str, str] | None = None) -> Table:
    """Open a table that has MemWAL enabled.

    Raises
    ------
    TableSetupError
        There is no table, it has no primary key, or MemWAL is not enabled.
    """
    table = Table(TableLocation(uri, storage_options or {}))
    table.base().require_mem_wal()
    return table


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

    def explain(
        self, *, filter: str | None = None, columns: Sequence[str] | None = None
    ) -> ReadPlan:
        """What a scan would read now, and what it would leave out and why."""
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

        Returns
        -------
        pyarrow.Table
            One row per key that exists, in the order of ``keys``.
        """

        def found() -> pa.Table:
            sources = self._collect(max_staleness=max_staleness)
            shape = RowShape(sources.base.identified_schema, sources.base.primary_key)
            rows = pa.Table.from_batches(shape.deletes(keys), shape.schema)
            return look_up(sources, rows.select(shape.primary_key), columns=columns)

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
    ) -> pa.Table:
        """Find the rows with the nearest vectors; arguments as in ``vector_search.nearest``.

        Returns
        -------
        pyarrow.Table
            The columns and ``_distance``, nearest first.
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
        )

    def search_text(
        self,
        query: str | TextQuery,
        *,
        column: str | Sequence[str] | None = None,
        k: int | None = 10,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Find the rows whose texts match best; arguments as in ``text_search.best_texts``.

        Returns
        -------
        pyarrow.Table
            The columns and ``_score``, best first.
        """
        return self._answer(search_text, query, column=column, k=k, filter=filter, columns=columns)

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
    ) -> pa.Table:
        """Find rows by vectors and texts together; arguments as in ``reader.search``.

        Returns
        -------
        pyarrow.Table
            The columns, ``_distance``, ``_score`` and ``_relevance_score``, most relevant first.
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
        )

    def _answer(self, run: Callable[..., pa.Table], *args: Any, **options: Any) -> pa.Table:
        return answer(
            self._collect,
            lambda sources, newest: run(sources, newest, *args, **options),
        )

    def _collect(
        self, *, filter: str | None = None, max_staleness: timedelta | None = None
    ) -> ReadSources:
        return collect_sources(
            self.location, self._memtables(), filter=filter, max_staleness=max_staleness
        )

    def _memtables(self) -> MemTables | None:
        return None


class PastReads(Reads):
    """Reads of one version of the base table, without what was not merged then."""

    def __init__(self, location: TableLocation, version: int | str) -> None:
        super().__init__(location)
        self.version = version

    def _collect(
        self, *, filter: str | None = None, max_staleness: timedelta | None = None
    ) -> ReadSources:
        return collect_version(self.location, self.version)


class Writer(TableWriter, Reads):
    """A table's writer, which also reads: its reads see what it acknowledged."""

    def __init__(self, base: BaseTable, *args: Any, **kwargs: Any) -> None:
        TableWriter.__init__(self, base, *args, **kwargs)
        Reads.__init__(self, base.location)

    def _memtables(self) -> MemTables:
        return self.memtables()


class Table(Reads):
    """A table with MemWAL. Its reads see what is in storage."""

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self.location.uri

    @property
    def schema(self) -> pa.Schema:
        """Schema of the base table."""
        return self.base().schema

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Key columns, in key order."""
        return self.base().primary_key

    def base(self) -> BaseTable:
        """The base table at its latest version."""
        return open_base(self.location)

    def region_spec(self) -> tuple[int, RegionSpec]:
        """Id and content of the spec that new rows are routed by.

        Raises
        ------
        TableSetupError
            The table has none: its regions are written by hand.
        """
        base = self.base()
        base.require_mem_wal()
        return current_spec(base)

    def region_ids(self) -> list[UUID]:
        """Regions that exist, and those that the spec knows in advance."""
        found = set(discover_regions(self.location.store))
        base = self.base()
        if base.details.region_specs:
            _, spec = current_spec(base)
            known = Router(spec, base.schema).assignments()
            found.update(assignment.region_id for assignment in known or ())
        return sorted(found)

    def writer(
        self,
        *,
        options: WriterOptions | None = None,
        region_ids: Collection[UUID] | None = None,
        region: UUID | None = None,
        replay: bool = True,
    ) -> Writer:
        """Open a writer. It claims a region with the first row that belongs there.

        Parameters
        ----------
        options : WriterOptions, optional
        region_ids : collection of UUID, optional
            The only regions that the writer may claim; rows of others are refused.
        region : UUID, optional
            The region that all rows go to, in a table without a region spec. A key must always be
            written to the same one: regions are merged in any order.
        replay : bool, default True
            Whether a region's first claim takes over the rows of its log that were acknowledged
            and never flushed. False abandons them for good, records what was abandoned, and
            starts over: for a log that is damaged, or holds what must not come into the table.

        Raises
        ------
        InvalidInputError
            The table's rows are routed by a column that is not part of the key.
        """
        base = self.base()
        base.require_mem_wal()
        return Writer(
            base,
            options=options or WriterOptions(),
            region_ids=region_ids,
            region=region,
            replay=replay,
        )

    def at(self, version: int | str) -> PastReads:
        """Reads of a version of the base table, or of a tag: exactly what was merged by then."""
        return PastReads(self.location, version)

    def status(self, *, regions: Collection[UUID] | None = None) -> TableStatus:
        """Backlog, log and catch-up lag per region. See :func:`memwal.maintenance.backlog`."""
        return read_status(self.location, regions=regions)

    def merge(
        self,
        *,
        regions: Collection[UUID] | None = None,
        commit_bytes: int = DEFAULT_COMMIT_BYTES,
        max_tasks: int = 1,
        run: TaskRunner = run_in_process,
    ) -> JobResult:
        """Merge flushed generations into the base table: :func:`memwal.maintenance.merge.merge`."""
        return merge(
            self.location, regions=regions, commit_bytes=commit_bytes, max_tasks=max_tasks, run=run
        )

    def build_indexes(self, *, run: TaskRunner = run_in_process) -> JobResult:
        """Catch maintained indexes up: :func:`memwal.maintenance.index_build.build_indexes`."""
        return build_indexes(self.location, run=run)

    def build_snapshot(self, *, run: TaskRunner = run_in_process) -> JobResult:
        """Publish region states: :func:`memwal.maintenance.snapshot_build.build_snapshot`."""
        return build_snapshot(self.location, run=run)

    def collect_garbage(
        self,
        *,
        dry_run: bool = True,
        grace: timedelta = DEFAULT_GRACE,
        retention: timedelta = DEFAULT_RETENTION,
        max_tasks: int = 1,
        run: TaskRunner = run_in_process,
    ) -> JobResult:
        """Delete what nobody needs: :func:`memwal.maintenance.garbage.collect_garbage`."""
        return collect_garbage(
            self.location,
            dry_run=dry_run,
            grace=grace,
            retention=retention,
            max_tasks=max_tasks,
            run=run,
        )

    def checkpoint(self, *, run: TaskRunner = run_in_process) -> JobResult:
        """Merge and index what is flushed now: :func:`memwal.maintenance.checkpoint.checkpoint`."""
        return checkpoint(self.location, run=run)

    def __repr__(self) -> str:
        return f"Table({self.uri!r})"
