"""A sink for Structured Streaming that writes each batch once, through the log of each region.

A batch comes again when its driver dies before the checkpoint says that it is through, and so does
a task that Spark tries twice or runs speculatively. Neither the checkpoint nor the order of tasks
is relied upon: a batch is a step of its query (docs/design/0008), which each region takes once. The
rows of a region are brought into one task, which writes them as one entry of the region's log.
"""

from __future__ import annotations

import logging
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID
from zlib import crc32

import pyarrow as pa

from memwal.errors import (
    ConflictError,
    InvalidInputError,
    MemWalError,
    OutcomeUnknownError,
    PartialWriteError,
    RegionFencedError,
    StoreUnavailableError,
    WriterClosedError,
)
from memwal.region.routing import Router
from memwal.region.spec import RegionSpec
from memwal.spark.batch_rows import BatchForm, as_table_types, region_names
from memwal.storage.open import check_options
from memwal.table import Table, open
from memwal.writer.applied import Step, is_through
from memwal.writer.options import WriterOptions
from memwal.writer.steps import AppliedStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
"""Property that Spark gives the jobs of a streaming query; it stands in the checkpoint."""

_REGION: Final = "__memwal_region"
_WRITTEN: Final = "written int, known int, rows bigint"
_ATTEMPTS: Final = 6
_BACKOFF_SECONDS: Final = 0.2
# Another attempt of the same task may have the regions, or had them a moment ago.
_PASSING: Final = (
    RegionFencedError,
    WriterClosedError,
    ConflictError,
    OutcomeUnknownError,
    StoreUnavailableError,
)


def foreach_batch(
    uri: str,
    *,
    op_column: str | None = None,
    delete_ops: Sequence[str] = ("d", "delete"),
    sequence_by: str | None = None,
    source: str | None = None,
    max_parallelism: int | None = None,
    options: WriterOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> BatchSink:
    """Return what ``DataStreamWriter.foreachBatch`` calls to write a stream into a table.

    Each batch is written exactly once into each region, whatever dies and is repeated, and is
    flushed when it is through, so that everybody sees it. Columns that the table has not are
    left out. Executors need memwal installed.

    Parameters
    ----------
    uri : str
        A table with MemWAL.
    op_column : str, optional
        Column that tells deletes from upserts, for example ``op``. Of a deleted row only the key
        columns matter, and those that the table is divided by.
    delete_ops : sequence of str, default ("d", "delete")
        Its values that mean a delete. All others are upserts.
    sequence_by : str, optional
        Column that orders the rows of one key within a batch: the highest counts. Without it, a
        key that is twice in a batch is refused. Between batches, the later batch counts.
    source : str, optional
        Name under which regions remember the query's batches. By default the id of the query,
        which stands in its checkpoint: with a new checkpoint, whose batches are counted from 0
        again, the query is another source. Spark Connect does not tell the id.
    max_parallelism : int, optional
        Tasks that write, at most. By default as many as the cluster has cores for, and no more
        than there are regions.
    options : WriterOptions, optional
        Of each task's writer.
    storage_options : mapping of str to str, optional
        As Lance takes them. They travel inside the tasks, and stand in no plan or configuration.

    Raises
    ------
    TableSetupError
        There is no table, or it has no MemWAL.
    InvalidInputError
        ``op_column`` names a column of the table's key, or ``max_parallelism`` is not positive.
    """
    if max_parallelism is not None and max_parallelism < 1:
        raise InvalidInputError(f"max_parallelism must be at least 1, not {max_parallelism}")
    table = open(uri, storage_options=storage_options)
    table.region_spec()
    if op_column in table.primary_key:
        raise InvalidInputError(f"op_column {op_column!r} is a column of the table's key")
    return BatchSink(
        uri=uri,
        form=BatchForm(op_column=op_column, delete_ops=tuple(delete_ops), sequence_by=sequence_by),
        source=source,
        max_parallelism=max_parallelism,
        options=options or WriterOptions(),
        storage_options=check_options(storage_options or {}),
    )


@dataclass(frozen=True, kw_only=True)
class BatchSink:
    """Writes batches; made by :func:`foreach_batch`."""

    uri: str
    form: BatchForm
    source: str | None
    max_parallelism: int | None
    options: WriterOptions
    storage_options: Mapping[str, str] = field(repr=False)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch.

        Raises
        ------
        InvalidInputError
            The batch lacks a column, or nothing tells the name of the source.
        PySparkException
            A task failed for good; its message has that of memwal.
        """
        from pyspark.sql import functions as sf

        table = open(self.uri, storage_options=self.storage_options)
        schema = table.schema
        chosen = [name for name in self.form.names(schema) if name in rows.columns]
        missing = [name for name in self.form.names(schema) if name not in chosen]
        if missing:
            raise InvalidInputError(
                f"batch {batch_id} lacks the columns {', '.join(missing)}; it has "
                f"{', '.join(rows.columns)}"
            )
        _, spec = table.region_spec()
        write = BatchWrite(
            uri=self.uri,
            form=self.form,
            source=self.source or _query_id(rows),
            version=batch_id,
            options=self.options,
            storage_options=self.storage_options,
        )
        regions = Router(spec, schema).assignments()
        tasks = self.max_parallelism or _cores(rows)
        if regions is not None:
            tasks = min(tasks, len(regions))
        rows = rows.select(*chosen)
        if tasks > 1:
            known = {str(one.region_id): number for number, one in enumerate(regions or ())}
            number_of = sf.arrow_udf(_region_numbers(spec, schema, known), "int")
            columns = [sf.col(f"`{name}`") for name in spec.columns]
            placed = rows.withColumn(_REGION, number_of(*columns))
            rows = placed.repartitionById(tasks, sf.col(_REGION)).drop(_REGION)
        else:
            rows = rows.repartition(1)
        with warnings.catch_warnings():
            # Of pandas there are no rows here.
            warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
            done = rows.mapInArrow(write, _WRITTEN).collect()
        logger.info(
            "batch %d of %s: %d rows into %d regions of %s; %d regions had it",
            batch_id,
            write.source,
            sum(one.rows for one in done),
            sum(one.written for one in done),
            self.uri,
            sum(one.known for one in done),
        )


@dataclass(frozen=True, kw_only=True)
class BatchWrite:
    """What a task does with its part of a batch: all rows of some regions, and no others."""

    uri: str
    form: BatchForm
    source: str
    version: int
    options: WriterOptions
    storage_options: Mapping[str, str] = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows; yields one row that tells what became of them."""
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        rows = pa.Table.from_batches(found)
        table = open(self.uri, storage_options=self.storage_options)
        upserts, deletes = self.form.newest(rows, table.schema, table.primary_key)
        done = self._write(table, upserts, deletes)
        yield pa.record_batch(
            {
                "written": pa.array([len(done.written)], pa.int32()),
                "known": pa.array([len(done.known)], pa.int32()),
                "rows": pa.array([rows.num_rows], pa.int64()),
            }
        )

    def _write(self, table: Table, upserts: pa.Table, deletes: pa.Table) -> AppliedStep:
        """Write, however many attempts of this task claim the regions from each other."""
        _, spec = table.region_spec()
        deletes = deletes.select(list(dict.fromkeys([*table.primary_key, *spec.columns])))
        regions = _regions_of(Router(spec, table.schema), spec, upserts, deletes)
        step = Step(self.source, self.version)
        for attempt in range(1, _ATTEMPTS + 1):
            # Without a claim, so that nobody is fenced where there is nothing to do.
            if all(is_through(table.location.store, region, step) for region in regions):
                return AppliedStep(known=regions)
            try:
                with table.writer(options=self.options, region_ids=regions) as writer:
                    return writer.apply(
                        upserts=upserts, deletes=deletes, source=self.source, version=self.version
                    )
            except MemWalError as error:
                if attempt == _ATTEMPTS or not _is_passing(error):
                    raise
                logger.info("batch %d is written again: %s", self.version, error)
                time.sleep(_BACKOFF_SECONDS * 2**attempt * random.random())  # noqa: S311
        raise AssertionError


def _is_passing(error: BaseException) -> bool:
    if isinstance(error, PartialWriteError):
        return all(_is_passing(failure.error) for failure in error.failures)
    return isinstance(error, _PASSING)


def _regions_of(router: Router, spec: RegionSpec, *parts: pa.Table) -> tuple[UUID, ...]:
    found = {
        assignment.region_id
        for part in parts
        for batch in part.select(spec.columns).to_batches()
        if batch.num_rows
        for assignment, _ in router.route(batch)
    }
    return tuple(sorted(found))


def _region_numbers(
    spec: RegionSpec, schema: pa.Schema, known: Mapping[str, int]
) -> Callable[..., pa.Array]:
    """A function of the region columns that gives rows of one region one number."""

    def numbers(*columns: pa.Array) -> pa.Array:
        rows = pa.table(list(columns), names=spec.columns)
        (batch,) = as_table_types(rows, _fields(schema, spec.columns)).combine_chunks().to_batches()
        names = region_names(Router(spec, schema), batch).dictionary_encode()
        of_each = [
            known.get(name, crc32(name.encode()) >> 1) for name in names.dictionary.to_pylist()
        ]
        return pa.array(of_each, pa.int32()).take(names.indices)

    return numbers


def _fields(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def _query_id(rows: DataFrame) -> str:
    from pyspark.errors import PySparkException

    try:
        found = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkException:
        found = None
    if not found:
        raise InvalidInputError(
            "Spark does not tell the id of the query that this batch belongs to: give the sink a "
            "source, a name that changes when the query gets a new checkpoint"
        )
    return f"spark-query-{found}"


def _cores(rows: DataFrame) -> int:
    from pyspark.errors import PySparkException

    try:
        return int(rows.sparkSession.sparkContext.defaultParallelism)
    except PySparkException:
        return int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
