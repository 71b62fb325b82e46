"""A MemWAL table: reads, writers and maintenance jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import pyarrow as pa

from memwal.base_table.commit import current_spec
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.boundary.public import keywords_of, public
from memwal.boundary.text import html_table
from memwal.inputs.addresses import TableAddress, location_of
from memwal.inputs.rows import Keys, Rows
from memwal.jobs.job import TaskRunner, run_in_process
from memwal.jobs.options import (
    CompactOptions,
    CopyOptions,
    GcOptions,
    IndexOptions,
    MergeOptions,
    QualityOptions,
    RecoverOptions,
    SnapshotOptions,
    TableCheckpointOptions,
    VerifyOptions,
)
from memwal.jobs.progress import ProgressOption
from memwal.lsm.indexes.catchup import TableIndex, list_indices
from memwal.lsm.wal.position import WritePosition
from memwal.queries import FreshQueries, Queries, StaleQueries, VersionQueries
from memwal.reader.predicate import SqlFilter
from memwal.region.manifest_store import discover_regions
from memwal.region.router import Router
from memwal.region.spec import RegionSpec
from memwal.storage.location import TableLocation
from memwal.storage.open import check_reachable
from memwal.util.clock import Duration, duration, in_seconds
from memwal.writer.region_writer.options import (
    WriterOptions,
    read_writer_defaults,
    reset_writer_defaults,
    set_writer_defaults,
)

# The jobs and the writer are imported inside the methods that use them: a process that only
# reads a table starts in less time.
if TYPE_CHECKING:
    from memwal.feed.changes import Changes
    from memwal.feed.consumer import Consumer
    from memwal.jobs.gc import CollectionResult
    from memwal.jobs.job import JobResult
    from memwal.jobs.merge.picker import MergePlan
    from memwal.jobs.status import TableStatus
    from memwal.jobs.verify import VerifyReport
    from memwal.reading_writer import Writer


@public
def open(
    uri: TableAddress,
    *,
    storage_options: Mapping[str, str] | None = None,
    allow_external: Sequence[str] = (),
) -> Table:
    """Open a Lance table.

    Without MemWAL it is a table without regions: calls that need a log (writers, merges, region
    snapshots, recovery) raise TableSetupError, and everything else works.

    >>> memwal.open(table.uri).primary_key
    ('id',)

    Parameters
    ----------
    uri : str, path, lance.LanceDataset or table of LanceDB
        Address of the table: a path, ``s3://``, ``gs://`` or ``az://``; or the table, opened by
        pylance or by ``lancedb.connect``. The latest version is opened, not a checked-out one.
    storage_options : mapping of str to str, optional
        As Lance takes them; they go wherever the table goes. A table that is open brings the
        options that it was opened with, and these are added.
    allow_external : sequence of str, default none
        Addresses of folders, outside of the table, below which files of the table may be, as those
        of a shallow clone are. They are read with the same storage options, and never changed.

    Raises
    ------
    TableSetupError
        There is no table, it is a branch, or files of it are in a folder that is not allowed.
    StoreAccessError, StoreUnavailableError
        The store refused, or gave no answer.
    """
    table = Table(location_of(uri, storage_options, allow_external=allow_external))
    check_reachable(table.location.store)
    table.base().check_supported()
    return table


def _seconds_left(timeout: Duration | None, started: float) -> float | None:
    if timeout is None:
        return None
    return max(started + in_seconds(timeout) - time.monotonic(), 0.0)


@public
class Table(Queries):
    """A Lance table, with MemWAL or without. Its reads see the stored rows."""

    @property
    def uri(self) -> str:
        """Address of the table."""
        return self.location.uri

    @property
    def schema(self) -> pa.Schema:
        """Schema of the base table."""
        return self.base().schema

    @property
    def version(self) -> int:
        """Latest version of the base table."""
        return self.base().version

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Key columns, in key order."""
        return self.base().primary_key

    def _repr_html_(self) -> str:
        """Show the columns in a notebook. No rows are read."""
        base = self.base()
        keys = {name: f"key {number}" for number, name in enumerate(base.primary_key, start=1)}
        return html_table(
            f"{self.uri} at version {base.version}",
            ("column", "type", "key"),
            [(column.name, column.type, keys.get(column.name)) for column in base.schema],
        )

    def base(self) -> BaseTable:
        """The base table at its latest version."""
        return open_base(self.location)

    def region_spec(self) -> tuple[int, RegionSpec]:
        """Id and content of the spec that new rows are routed by; TableSetupError without one."""
        base = self.base()
        base.require_mem_wal()
        return current_spec(base)

    def region_ids(self) -> list[UUID]:
        """Regions that exist, and regions that the spec knows in advance."""
        region_ids = set(discover_regions(self.location.store))
        base = self.base()
        if base.details.region_specs:
            _, spec = current_spec(base)
            assignments = Router(spec, base.schema).assignments()
            region_ids.update(assignment.region_id for assignment in assignments or ())
        return sorted(region_ids)

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
            The region that all rows go to, in a table without a region spec, or with one that keeps
            all rows in one region. A key must always be written to the same one: regions are merged
            in any order.
        replay : bool, default True
            Whether a region's first claim takes over the rows of its log that were acknowledged and
            never flushed. False abandons them for good, records the abandoned positions, and starts
            over: for a log that is damaged, or has rows that must not come into the table.

        Raises
        ------
        InvalidInputError
            The table's rows are routed by a column that is not part of the key.
        TableSetupError
            Another client made regions by names of its own, so that a key could come into two.
        """
        from memwal.reading_writer import Writer

        base = self.base()
        base.require_mem_wal()
        return Writer(
            base,
            options=options or WriterOptions(),
            region_ids=region_ids,
            region=region,
            replay=replay,
        )

    @property
    def writer_defaults(self) -> dict[str, bool | int | float]:
        """Options that the table sets for all its writers, by name in :class:`WriterOptions`.

        Durations are in seconds. Options that are not in it have the defaults of the library.
        """
        return read_writer_defaults(self.base().details.writer_config_defaults)

    @keywords_of(WriterOptions)
    def set_writer_defaults(self, options: WriterOptions) -> None:
        """Set options of all writers of the table that are opened from now on.

        They are stored in the table, where Lance's clients read the options that they know. An
        option that a writer is opened with goes before them, and ``fsync`` and
        ``metrics_per_region`` belong to each producer. Options that are not given stay as they are.

        Rows are visible to readers of the storage after ten seconds at most:

        >>> table.set_writer_defaults(max_memtable_age=10)

        Raises
        ------
        InvalidInputError
            No option was given, or one that a table cannot set.
        ConflictError
            Other commits won the race in every attempt.
        """
        set_writer_defaults(self.location, options)

    def reset_writer_defaults(self, *options: str) -> None:
        """Remove ``options``, by name, from the settings of the table.

        Errors are those of :meth:`set_writer_defaults`.
        """
        reset_writer_defaults(self.location, options)

    def upsert(self, data: Rows, *, partial: bool = False) -> None:
        """Insert or replace rows now and then: opens a writer, writes, flushes and closes it.

        Every reader sees the rows afterwards. On an object store a call makes some sixty requests
        if its rows are of one region, some forty more for each other region. It leaves a generation
        in each, and it claims these regions, so that a writer that has them open, here or
        elsewhere, is fenced. For more than a few calls a minute, from several threads, or next to
        another writer, keep one :meth:`writer` open.

        >>> table.upsert({"id": 4, "n": 8, "text": "d"})
        >>> table.lookup(4).to_pylist()
        [{'id': 4, 'n': 8, 'text': 'd'}]

        Arguments and errors are those of :meth:`memwal.writer.table_writer.TableWriter.upsert`. If
        the flush fails, the rows are in the log already, and the next writer of their regions takes
        them over; writing them again is right, too.
        """
        with self.writer() as writer:
            writer.upsert(data, partial=partial)

    def append(self, data: Rows) -> None:
        """Add rows to a table without a primary key now and then; none of them replaces another.

        Cost of a call, errors, and when a writer is better: :meth:`upsert`. If it fails,
        the rows may be in the log already, and are added twice if the call is repeated:
        :meth:`memwal.writer.table_writer.TableWriter.append`.

        >>> events.append({"at": 2, "what": "scroll"})
        >>> events.count_rows()
        1
        """
        with self.writer() as writer:
            writer.append(data)

    def delete(self, keys: Keys | None = None, *, where: SqlFilter | None = None) -> None:
        """Delete rows now and then: opens a writer, deletes, flushes and closes it.

        Cost of a call, errors, and when a writer is better: :meth:`upsert`. One of ``keys``
        and ``where`` is given, as for :meth:`memwal.Writer.delete`.

        >>> table.delete([1, 4])
        >>> table.delete(where="n = 6")
        >>> table.count_rows()
        1
        """
        with self.writer() as writer:
            writer.delete(keys, where=where)

    def list_indices(self) -> list[TableIndex]:
        """Return the indexes of the base table, by name, and whether each is maintained.

        >>> len(table.list_indices())
        0
        """
        return list_indices(self.base())

    def applied(self, source: str) -> dict[UUID, int]:
        """Newest step of a source, by region.

        See :meth:`memwal.writer.table_writer.TableWriter.apply`. Regions that never had one are
        left out. Steps that are acknowledged during the call may be missing. CorruptDataError is
        raised if an entry of a log that may have recorded a step is missing or damaged.
        """
        # Other reads need no writer's modules.
        from memwal.lsm.wal.applied_steps import read_steps_of

        steps = read_steps_of(self.location, source)
        return {region_id: step.version for region_id, step in steps.items()}

    def at(self, version: int | str) -> Queries:
        """Query a ``version`` of the base table, or a tag: exactly the rows merged by then."""
        return VersionQueries(self.location, version)

    def fresh(
        self, *, at_least: WritePosition | str | None = None, timeout: Duration = 10.0
    ) -> Queries:
        """Query every row that any writer acknowledged before the query began, flushed or not.

        The logs of the regions are read: one request more for each region, and one for each entry
        that this process has not read yet.

        Parameters
        ----------
        at_least : WritePosition or str, optional
            Position of a write that each query has to see: ``WriteHandle.position`` of another
            process, or its text; several texts joined by commas. A position belongs to one table:
            another one with the same regions cannot tell.
        timeout : float or timedelta, default 10
            Seconds that a query waits for that write, before it raises ReadTimeoutError.

        Raises
        ------
        InvalidInputError
            ``at_least`` is not the text of a position, or ``timeout`` is negative.
        """
        return FreshQueries(self.location, at_least=at_least, timeout=timeout)

    def at_most(self, age: Duration) -> Queries:
        """Query a region snapshot up to ``age`` seconds old, with no request to any region.

        Rows that were flushed since the snapshot are missed, rows that were merged since are seen.
        Without such a snapshot (:meth:`build_snapshot`), the regions are read. A minute is added to
        a snapshot's age, since clocks differ. InvalidInputError is raised if ``age`` is negative.
        """
        return StaleQueries(self.location, duration(age, "age"))

    def changes(
        self,
        after: str | None = None,
        *,
        until: str | None = None,
        columns: Sequence[str] | None = None,
        filter: SqlFilter | None = None,
        grain: Literal["net", "log"] = "net",
    ) -> Changes:
        """Feed of the changes after a token: see :class:`memwal.feed.changes.Changes`."""
        from memwal.feed.changes import Changes

        return Changes(
            self.location, after=after, until=until, columns=columns, filter=filter, grain=grain
        )

    def consumer(self, name: str, *, start: str | None = None) -> Consumer:
        """Claim a reader of changes: see :class:`memwal.feed.consumer.Consumer`.

        Parameters
        ----------
        name : str
            Up to 64 letters, digits, _ and -.
        start : str, optional
            "now" if a new consumer passes over the rows that are in the table already.
        """
        from memwal.feed.consumer import Consumer

        return Consumer(self.location, name, start=start)

    def status(
        self,
        *,
        regions: Collection[UUID] | None = None,
        collection: GcOptions = GcOptions(),
        compaction: CompactOptions = CompactOptions(),
        old_bytes: bool | None = None,
    ) -> TableStatus:
        """Backlog of regions and indexes, files and versions, and the gain of each job.

        See :func:`memwal.jobs.backlog.read_status`.
        """
        from memwal.jobs.backlog import read_status

        return read_status(
            self.location,
            regions=regions,
            collection=collection,
            compaction=compaction,
            old_bytes=old_bytes,
        )

    @keywords_of(MergeOptions)
    def merge(self, options: MergeOptions) -> JobResult:
        """Merge flushed generations into the base table: :func:`memwal.jobs.merge.job.merge`."""
        from memwal.jobs.merge.job import merge

        return merge(self.location, options)

    @keywords_of(MergeOptions)
    def explain_merge(self, options: MergeOptions) -> MergePlan:
        """Explain which generations a merge would select, and why: merges nothing.

        See :func:`memwal.jobs.merge.job.explain_merge`; the limits are those of :meth:`merge`.
        """
        from memwal.jobs.merge.job import explain_merge

        return explain_merge(self.location, options)

    @keywords_of(RecoverOptions)
    def recover(self, options: RecoverOptions) -> JobResult:
        """Flush the rows of writers that died: :func:`memwal.jobs.table.recover.recover`."""
        from memwal.jobs.table.recover import recover

        return recover(self.location, options)

    def restore(
        self,
        version: int | str | None = None,
        *,
        merge_again: bool = False,
        discard_pending: bool = False,
        dry_run: bool = False,
    ) -> JobResult:
        """Restore the base table to a version, or decide after another client restored one.

        See :func:`memwal.jobs.table.restore.restore`.

        Parameters
        ----------
        version : int or str, optional
            Version of the base table, or a tag; by default the rows stay as they are.
        merge_again : bool, default False
            Whether generations that were merged since are merged again, or given up.
        discard_pending : bool, default False
            Whether generations that were never merged are given up too.
        dry_run : bool, default False
            Only count the changes that would be made.
        """
        from memwal.jobs.table.restore import restore

        return restore(
            self.location,
            version,
            merge_again=merge_again,
            discard_pending=discard_pending,
            dry_run=dry_run,
        )

    def start_region_over(self, region: UUID, *, dry_run: bool = True) -> JobResult:
        """Give up the unmerged rows of a lost region, and start it over.

        See :func:`memwal.jobs.table.lost_region.start_over`.

        Parameters
        ----------
        region : UUID
            Region whose folder, or newest manifest, is lost for good.
        dry_run : bool, default True
            Only tell which rows would be given up.
        """
        from memwal.jobs.table.lost_region import start_over

        return start_over(self.location, region, dry_run=dry_run)

    @keywords_of(CompactOptions)
    def compact(self, options: CompactOptions) -> JobResult:
        """Rewrite small fragments: :func:`memwal.jobs.table.compact.compact`."""
        from memwal.jobs.table.compact import compact

        return compact(self.location, options)

    @keywords_of(IndexOptions)
    def build_indexes(self, options: IndexOptions) -> JobResult:
        """Catch maintained indexes up: :func:`memwal.jobs.index.job.build_indexes`."""
        from memwal.jobs.index.job import build_indexes

        return build_indexes(self.location, options)

    def choose_indexes(
        self, *, add: Collection[str] = (), remove: Collection[str] = ()
    ) -> list[str]:
        """Maintain more indexes, or fewer: :func:`memwal.jobs.index.migration.choose_indexes`."""
        from memwal.jobs.index.migration import choose_indexes

        return choose_indexes(self.location, add=add, remove=remove)

    @keywords_of(SnapshotOptions)
    def build_snapshot(self, options: SnapshotOptions) -> JobResult:
        """Publish region states: :func:`memwal.jobs.table.snapshot.build_snapshot`."""
        from memwal.jobs.table.snapshot import build_snapshot

        return build_snapshot(self.location, options)

    @keywords_of(GcOptions)
    def collect_garbage(self, options: GcOptions) -> CollectionResult:
        """Delete objects that are not needed any more: :func:`memwal.jobs.gc.collect_garbage`."""
        from memwal.jobs.gc import collect_garbage

        return collect_garbage(self.location, options)

    @keywords_of(VerifyOptions)
    def verify(self, options: VerifyOptions) -> VerifyReport:
        """Check the invariants: :func:`memwal.jobs.verify.verify`."""
        from memwal.jobs.verify import verify

        return verify(self.location, options)

    def copy_to(
        self,
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        max_tasks: int | None = None,
        run: TaskRunner = run_in_process,
        progress: ProgressOption = None,
    ) -> JobResult:
        """Copy the table, in use or not: :func:`memwal.jobs.table.copy.copy_table`.

        Nothing is stored at ``uri`` yet; ``storage_options`` are those of its store. The others are
        those of :class:`memwal.jobs.options.CopyOptions`.
        """
        target = TableLocation(os.fspath(uri), storage_options or {})
        check_reachable(target.store)
        from memwal.jobs.table.copy import copy_table

        options = CopyOptions(max_tasks=max_tasks, run=run, progress=progress)
        return copy_table(self.location, target, options)

    @keywords_of(QualityOptions)
    def check_quality(self, options: QualityOptions) -> JobResult:
        """Check the base table against a suite.

        See :func:`memwal.jobs.table.quality_check.check_quality`.
        """
        from memwal.jobs.table.quality_check import check_quality

        return check_quality(self.location, options)

    @keywords_of(TableCheckpointOptions)
    def checkpoint(self, options: TableCheckpointOptions) -> JobResult:
        """Merge and index the rows of now: :func:`memwal.jobs.table.checkpoint.checkpoint`."""
        from memwal.reading_writer import flush_for_checkpoint, open_writers

        started = time.monotonic()
        for writer in open_writers(self.uri) if options.flush else ():
            left = _seconds_left(options.timeout_seconds, started)
            flush_for_checkpoint(writer, timeout=left)
        remaining = _seconds_left(options.timeout_seconds, started)
        from memwal.jobs.table.checkpoint import checkpoint

        return checkpoint(self.location, replace(options, timeout_seconds=remaining))
