"""Structured Streaming sink that writes each batch once, through the log of each region.

Spark repeats a batch if its driver dies before the checkpoint records it, and it may retry a task
or run it speculatively. A query with a new checkpoint counts its batches from 0 again. The sink
relies neither on the checkpoint nor on the order of tasks: a batch is a step of its query
(docs/design/0008), which each region applies once. The rows of a region are shuffled into one task,
which writes them as one entry of the region's log, in the table's types and with the newest row of
each key.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from uuid import UUID
from zlib import crc32

import numpy as np
import pyarrow as pa

from memwal.boundary.public import public
from memwal.errors import (
    ConflictError,
    InvalidInputError,
    MemWalError,
    OutcomeUnknownError,
    PartialWriteError,
    RegionFencedError,
    SourceRestartedError,
    StoreUnavailableError,
    WriterClosedError,
)
from memwal.format.wal_layout import NewestStep
from memwal.lsm.region_places import router_in_force
from memwal.lsm.wal.applied_steps import AppliedStep, Step, is_step_visible, read_steps_of
from memwal.region.router import Router
from memwal.region.spec import RegionSpec
from memwal.spark.parallelism import parallelism
from memwal.spark.session import without_harmless_warnings
from memwal.spark.sink.changes import ChangeColumns, as_table_types
from memwal.storage.open import check_options
from memwal.table import Table, open
from memwal.writer.region_writer.options import WriterOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROW = "\x00row"


logger = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
"""Property of the jobs of a streaming query: the query's id, which the checkpoint has too."""

OnRestart = Literal["continue", "new"]

_REGION: Final = "__memwal_region"
_WRITTEN: Final = "written int, skipped int, rows bigint"
_MAX_ATTEMPTS: Final = 6
_BACKOFF_SECONDS: Final = 0.2
# Errors that another attempt of the same task causes while it has claimed the regions, or just had.
_TRANSIENT_ERRORS: Final = (
    RegionFencedError,
    WriterClosedError,
    ConflictError,
    OutcomeUnknownError,
    StoreUnavailableError,
)


@public
def foreach_batch(
    uri: str,
    *,
    op_column: str | None = None,
    delete_ops: Sequence[str] = ("d", "delete"),
    sequence_by: str | None = None,
    source: str | None = None,
    checkpoint: str | None = None,
    on_restart: OnRestart | None = None,
    drop_extra_columns: bool = False,
    max_parallelism: int | None = None,
    options: WriterOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> BatchSink:
    """Return a callable for ``DataStreamWriter.foreachBatch`` that writes a stream into a table.

    Each batch is written exactly once into each region, whatever process dies and is repeated, and
    is flushed, so that all readers see it. Rows of a table without a primary key are appended.
    Executors need memwal installed.

    Parameters
    ----------
    uri : str
        A table with MemWAL.
    op_column : str, optional
        Column that tells deletes from upserts, for example ``op``. Of a deleted row only the key
        columns and the region columns are used.
    delete_ops : sequence of str, default ("d", "delete")
        Values of ``op_column`` that mean a delete. All others are upserts.
    sequence_by : str, optional
        Column that orders the rows of one key within a batch: the highest value wins. Without it, a
        key that is twice in a batch is refused. Between batches, the later batch wins.
    source : str, optional
        Name under which regions record the query's batches. By default the id of the query, which
        is in its checkpoint: with a new checkpoint, whose batches are counted from 0 again, the
        query is another source, and all its batches are written.
    checkpoint : str, optional
        The ``checkpointLocation`` of the query, if Spark does not tell the query's id: with Spark
        Connect. It is read by Spark, once.
    on_restart : {"continue", "new"}, optional
        What the first batch does if ``source`` has batches of a query with another checkpoint.
        ``"new"`` writes all batches, and refuses those of the earlier query. ``"continue"`` takes
        the batches up to the newest recorded number for written, whatever their rows: for a
        checkpoint whose numbers were carried over. By default this is an error.
    drop_extra_columns : bool, default False
        Leave out the columns that the table does not have, instead of refusing the batch.
    max_parallelism : int, optional
        Maximum number of tasks that write. By default as many as the cluster runs at once when the
        batch starts, or the number of regions if that is smaller.
    options : WriterOptions, optional
        Options of the writer of each task.
    storage_options : mapping of str to str, optional
        As Lance takes them. They are sent inside the tasks, and appear in no plan or
        configuration.

    Raises
    ------
    TableSetupError
        There is no table, or it has no MemWAL.
    InvalidInputError
        ``op_column`` names a column of the table's key, or the table has none, or
        ``max_parallelism`` is not positive.
    """
    if max_parallelism is not None and max_parallelism < 1:
        raise InvalidInputError(f"max_parallelism must be at least 1, not {max_parallelism}")
    table = open(uri, storage_options=storage_options)
    table.region_spec()
    if op_column is not None and not table.primary_key:
        raise InvalidInputError(
            f"{uri} has no primary key, so that nothing can be deleted: leave op_column out"
        )
    if op_column in table.primary_key:
        raise InvalidInputError(f"op_column {op_column!r} is a column of the table's key")
    return BatchSink(
        uri=uri,
        changes=ChangeColumns(
            op_column=op_column, delete_ops=tuple(delete_ops), sequence_by=sequence_by
        ),
        source=source,
        checkpoint=checkpoint,
        on_restart=on_restart,
        drop_extra_columns=drop_extra_columns,
        max_parallelism=max_parallelism,
        options=options or WriterOptions(),
        storage_options=check_options(storage_options or {}),
    )


@dataclass(frozen=True, kw_only=True)
class BatchSink:
    """Sink of a stream, which writes its batches; made by :func:`foreach_batch`."""

    uri: str
    changes: ChangeColumns
    source: str | None
    checkpoint: str | None
    on_restart: OnRestart | None
    drop_extra_columns: bool
    max_parallelism: int | None
    options: WriterOptions
    storage_options: Mapping[str, str] = field(repr=False)
    # Of the query that runs, read with its first batch.
    _numbering: dict[str, BatchNumbering] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch.

        Raises InvalidInputError if the batch lacks a column, has one too many, or Spark does not
        tell the query, SourceRestartedError if the source has batches of another checkpoint, and
        PySparkException, with the message of memwal, if a task failed in all attempts.
        """
        from pyspark.sql import functions as sf

        table = open(self.uri, storage_options=self.storage_options)
        schema = table.schema
        names = self.changes.names(schema)
        missing = [name for name in names if name not in rows.columns]
        if missing:
            raise InvalidInputError(
                f"batch {batch_id} lacks the columns {', '.join(missing)}; it has "
                f"{', '.join(rows.columns)}"
            )
        extra = [name for name in rows.columns if name not in names]
        if extra and not self.drop_extra_columns:
            raise InvalidInputError(
                f"batch {batch_id} has columns that {self.uri} lacks: {', '.join(extra)}; add them "
                "to the table, or leave them out with drop_extra_columns=True"
            )
        _, spec = table.region_spec()
        numbering = self._numbering_of(rows, table, batch_id)
        if batch_id < numbering.first:
            logger.warning(
                "batch %d of %s is taken for written, as on_restart='continue' says: %s has "
                "batches up to %d",
                *(batch_id, numbering.source, self.uri, numbering.first),
            )
            return
        write = BatchWrite(self, numbering.step(batch_id))
        regions = Router(spec, schema).assignments()
        tasks = self.max_parallelism or parallelism(rows.sparkSession)
        if regions is not None:
            tasks = min(tasks, len(regions))
        rows = rows.select(*names)
        if tasks > 1:
            numbers = {str(region.region_id): n for n, region in enumerate(regions or ())}
            number_of = sf.arrow_udf(_region_numbers(spec, schema, numbers), "int")
            columns = [sf.col(f"`{name}`") for name in spec.columns]
            placed = rows.withColumn(_REGION, number_of(*columns))
            rows = placed.repartitionById(tasks, sf.col(_REGION)).drop(_REGION)
        else:
            rows = rows.repartition(1)
        with without_harmless_warnings():
            results = rows.mapInArrow(write, _WRITTEN).collect()
        logger.info(
            "batch %d of %s: %d rows into %d regions of %s; %d regions had it",
            batch_id,
            numbering.source,
            sum(result.rows for result in results),
            sum(result.written for result in results),
            self.uri,
            sum(result.skipped for result in results),
        )

    def _numbering_of(self, rows: DataFrame, table: Table, batch_id: int) -> BatchNumbering:
        query_id = _query_id(rows, self.checkpoint)
        found = self._numbering.get(query_id)
        if found is None:
            if self.source is not None:
                recorded = read_steps_of(table.location, self.source).values()
                found = number_batches(
                    self.source, query_id, recorded, batch_id, on_restart=self.on_restart
                )
            elif query_id:
                found = BatchNumbering(f"spark-query-{query_id}")
            else:
                raise InvalidInputError(
                    "this batch belongs to no streaming query: give the sink a source, under "
                    "which the batches are counted"
                )
            self._numbering[query_id] = found
        return found


@dataclass(frozen=True, slots=True)
class BatchNumbering:
    """Numbering of the batches of a query as steps of its source."""

    source: str
    incarnation: str = ""
    replaces: tuple[str, ...] = ()
    first: int = 0  # batches below this are taken for written

    def step(self, batch_id: int) -> Step:
        """Return the step that a batch is."""
        return Step(self.source, batch_id, self.incarnation, self.replaces)


def number_batches(
    source: str,
    query_id: str,
    recorded: Collection[NewestStep],
    batch_id: int,
    *,
    on_restart: OnRestart | None,
) -> BatchNumbering:
    """Decide, before a query's first batch, how its numbers relate to those of the source.

    ``recorded`` are the newest steps of the source, of all regions: a region that the earlier query
    did not reach must not take a batch that the others refuse. What a query once replaced stays
    replaced, so that the query may start again without ``on_restart``.
    """
    over = {name for step in recorded for name in step.replaced}
    if query_id in over:
        raise SourceRestartedError(
            f"another query has replaced query {query_id!r} as source {source!r}; stop this one, "
            "or give it a source of its own"
        )
    earlier = {step.incarnation for step in recorded} - over - {query_id}
    newest = max((step.version for step in recorded if step.incarnation in earlier), default=-1)
    if not earlier or on_restart == "new" or (earlier == {""} and newest < batch_id):
        return BatchNumbering(source, query_id, tuple(sorted(over | earlier)))
    if on_restart == "continue" and len(earlier) == 1:
        return BatchNumbering(source, earlier.pop(), tuple(sorted(over)), newest)
    raise SourceRestartedError(
        f"source {source!r} has batches up to {newest} of another checkpoint "
        f"({', '.join(sorted(earlier)) or 'unknown'}), and batch {batch_id} is of query "
        f"{query_id!r}: with on_restart='new' all batches of this query are written, and with "
        f"on_restart='continue' those up to {newest} are taken for written; a query that runs "
        "beside the other one needs a source of its own"
    )


@dataclass(frozen=True)
class BatchWrite:
    """Writer of one task's part of a batch: all rows of some regions, and no others."""

    sink: BatchSink
    step: Step

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows; yield one row with the numbers of regions and rows."""
        non_empty = [batch for batch in batches if batch.num_rows]
        if not non_empty:
            return
        rows = pa.Table.from_batches(non_empty)
        table = open(self.sink.uri, storage_options=self.sink.storage_options)
        upserts, deletes = self.sink.changes.newest(rows, table.schema, table.primary_key)
        applied = self._write(table, upserts, deletes)
        yield pa.record_batch(
            {
                "written": pa.array([len(applied.written)], pa.int32()),
                "skipped": pa.array([len(applied.skipped)], pa.int32()),
                "rows": pa.array([rows.num_rows], pa.int64()),
            }
        )

    def _write(self, table: Table, upserts: pa.Table, deletes: pa.Table) -> AppliedStep:
        """Write the rows; retry while attempts of this task claim the regions from each other."""
        _, spec = table.region_spec()
        deletes = deletes.select(list(dict.fromkeys([*table.primary_key, *spec.columns])))
        regions = _regions_of(router_in_force(table.base()), spec, upserts, deletes)
        step = self.step
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            # Checked without a claim, so that no writer is fenced if there is nothing to write.
            if all(is_step_visible(table.location.store, region, step) for region in regions):
                return AppliedStep(skipped=regions)
            try:
                with table.writer(options=self.sink.options, region_ids=regions) as writer:
                    if not table.primary_key:
                        return writer.apply(appends=upserts, **asdict(step))
                    return writer.apply(upserts=upserts, deletes=deletes, **asdict(step))
            except MemWalError as error:
                if attempt == _MAX_ATTEMPTS or not _is_transient(error):
                    raise
                logger.info("batch %d is written again: %s", step.version, error)
                time.sleep(_BACKOFF_SECONDS * 2**attempt * random.random())  # noqa: S311
        raise AssertionError


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, PartialWriteError):
        return all(_is_transient(failure.error) for failure in error.failures)
    return isinstance(error, _TRANSIENT_ERRORS)


def _regions_of(router: Router, spec: RegionSpec, *parts: pa.Table) -> tuple[UUID, ...]:
    region_ids = {
        assignment.region_id
        for part in parts
        for batch in part.select(spec.columns).to_batches()
        if batch.num_rows
        for assignment, _ in router.route(batch)
    }
    return tuple(sorted(region_ids))


def _region_numbers(
    spec: RegionSpec, schema: pa.Schema, numbers_by_name: Mapping[str, int]
) -> Callable[..., pa.Array]:
    """Return a function of the region columns that numbers rows by region."""

    def numbers(*columns: pa.Array) -> pa.Array:
        rows = pa.table(list(columns), names=spec.columns)
        fields = pa.schema([schema.field(name) for name in spec.columns])
        (batch,) = as_table_types(rows, fields).combine_chunks().to_batches()
        numbered = batch.append_column(_ROW, pa.array(np.arange(batch.num_rows)))
        found = np.empty(batch.num_rows, np.int32)
        for assignment, part in Router(spec, schema).route(numbered):
            name = str(assignment.region_id)
            number = numbers_by_name.get(name, crc32(name.encode()) >> 1)
            found[part.column(_ROW).to_numpy()] = number
        return pa.array(found)

    return numbers


def _query_id(rows: DataFrame, checkpoint: str | None) -> str:
    """Return the id of the query that a batch belongs to, or "" if it belongs to none."""
    from pyspark.errors import PySparkException

    if checkpoint is not None:
        metadata = rows.sparkSession.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
        return str(json.loads("".join(row.value for row in metadata))["id"])
    try:
        return rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or ""
    except PySparkException as error:
        raise InvalidInputError(
            "Spark Connect does not tell the query that this batch belongs to: give the sink the "
            "query's checkpointLocation, as checkpoint"
        ) from error
