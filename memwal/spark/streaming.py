"""Structured Streaming sink that writes each batch once, through the log of each region.

A batch comes again when its driver dies before the checkpoint says that it is through, and so does
a task that Spark tries twice or runs speculatively. The sink relies neither on the checkpoint nor
on the order of tasks: a batch is a step of its query (docs/design/0008), which each region applies
once. The rows of a region are brought into one task, which writes them as one entry of the region's
log, in the table's types and with the newest row of each key.
"""

from __future__ import annotations

import logging
import random
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
from memwal.lsm.wal.applied_steps import Step, is_step_visible
from memwal.region.router import Router
from memwal.region.rows import key_column, newest_row_positions
from memwal.region.spec import RegionSpec
from memwal.storage.open import check_options
from memwal.table import Table, open
from memwal.writer.region_writer.options import WriterOptions
from memwal.writer.region_writer.steps import AppliedStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DELETED = "\x00deleted"
_ROW = "\x00row"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchForm:
    """How the rows of a batch are to be understood.

    Attributes
    ----------
    op_column : str or None
        Column that tells a delete from an upsert; None when all rows are upserts.
    delete_ops : tuple of str
        Its values that mean a delete.
    sequence_by : str or None
        Column that tells which of several rows with one key is the newest.
    """

    op_column: str | None
    delete_ops: tuple[str, ...]
    sequence_by: str | None

    def names(self, schema: pa.Schema) -> list[str]:
        """Columns of a batch that are needed, those of a table included."""
        return list(dict.fromkeys([*schema.names, *self._extra()]))

    def _extra(self) -> list[str]:
        return [name for name in (self.op_column, self.sequence_by) if name is not None]

    def newest(
        self, rows: pa.Table, schema: pa.Schema, primary_key: Sequence[str]
    ) -> tuple[pa.Table, pa.Table]:
        """The newest row of each key, as upserts and as deletes.

        Parameters
        ----------
        rows : pyarrow.Table
            Rows of a batch, in any order.
        schema : pyarrow.Schema
            Of the table.

        Raises
        ------
        InvalidInputError
            A column is missing or does not fit; the batch does not say which of two rows is newer.
        """
        flags = self._deleted(rows)
        order = self._order(rows, flags)
        if order is not None:
            rows, flags = rows.take(order), flags.take(order)
        table = as_table_types(rows, schema, primary_key)
        keep = newest_row_positions(key_column(table, primary_key))
        if order is None and len(keep) != table.num_rows:
            raise InvalidInputError(
                f"{table.num_rows - len(keep)} rows of the batch have a key that another one has, "
                "and nothing tells which is newer: name the column that does, as sequence_by"
            )
        table, flags = table.take(pa.array(keep)), flags.take(pa.array(keep))
        return table.filter(pc.invert(flags)), table.filter(flags)

    def _deleted(self, rows: pa.Table) -> pa.Array:
        if self.op_column is None:
            return pa.repeat(pa.scalar(False), rows.num_rows)
        ops = _column(rows, self.op_column)
        if ops.null_count:
            raise InvalidInputError(
                f"column {self.op_column!r} is null in {ops.null_count} rows, which are neither "
                "upserts nor deletes; fill it in"
            )
        return pc.is_in(ops.cast(pa.string()), pa.array(self.delete_ops)).combine_chunks()

    def _order(self, rows: pa.Table, flags: pa.Array) -> pa.Array | None:
        """Positions from the oldest row to the newest; of equal ones a delete counts."""
        if self.sequence_by is None:
            return None
        sequence = _column(rows, self.sequence_by)
        if sequence.null_count:
            raise InvalidInputError(
                f"column {self.sequence_by!r} is null in {sequence.null_count} rows, so that "
                "nothing tells which row is the newest; fill it in"
            )
        by = pa.table({self.sequence_by: sequence, _DELETED: flags.cast(pa.uint8())})
        return pc.sort_indices(
            by, sort_keys=[(self.sequence_by, "ascending"), (_DELETED, "ascending")]
        )


def as_table_types(rows: pa.Table, schema: pa.Schema, required: Collection[str] = ()) -> pa.Table:
    """The columns of a table, in its order and types.

    Spark has fewer types than Arrow: vectors come as lists of any length, unsigned numbers as wider
    ones. Values are checked, so that none is changed.

    Raises
    ------
    InvalidInputError
        A column is missing, or a value does not fit.
    """
    columns = []
    for target in schema:
        column = _column(rows, target.name)
        try:
            columns.append(column if column.type == target.type else column.cast(target.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"column {target.name!r} is {column.type} in the batch and {target.type} in "
                f"the table, and does not fit: {error}; cast it before the sink"
            ) from error
        if target.name in required and columns[-1].null_count:
            raise InvalidInputError(
                f"key column {target.name!r} is null in {columns[-1].null_count} rows of the "
                "batch; drop those rows or fill them in"
            )
    return pa.Table.from_arrays(
        columns, schema=pa.schema([pa.field(f.name, f.type) for f in schema])
    )


def region_names(router: Router, columns: pa.RecordBatch) -> pa.Array:
    """The region of each row, as text.

    Parameters
    ----------
    columns : pyarrow.RecordBatch
        The region columns in the types of the table.
    """
    names: npt.NDArray[Any] = np.empty(columns.num_rows, dtype=object)
    numbered = columns.append_column(_ROW, pa.array(np.arange(columns.num_rows)))
    for assignment, part in router.route(numbered):
        names[part.column(_ROW).to_numpy()] = str(assignment.region_id)
    return pa.array(names, pa.string())


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if rows.schema.get_field_index(name) < 0:
        raise InvalidInputError(
            f"the batch has no column {name!r}, or has it twice; it has "
            f"{', '.join(rows.schema.names)}"
        )
    return rows.column(name)


logger = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
"""Property that Spark gives the jobs of a streaming query; it stands in the checkpoint."""

_REGION: Final = "__memwal_region"
_WRITTEN: Final = "written int, skipped int, rows bigint"
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
            sum(one.skipped for one in done),
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
                "skipped": pa.array([len(done.skipped)], pa.int32()),
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
            if all(is_step_visible(table.location.store, region, step) for region in regions):
                return AppliedStep(skipped=regions)
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
