"""Tables as data frames of Spark: ``spark.read.format("memwal")``, ``df.write``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.types as pt
from pyspark.errors import PySparkTypeError  # noqa: TID253 - subclasses of Spark's are defined here
from pyspark.sql import types as st  # noqa: TID253
from pyspark.sql.datasource import (  # noqa: TID253
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_type  # noqa: TID253

from memwal.boundary.public import public
from memwal.errors import InvalidInputError
from memwal.feed.change_rows import CHANGE_COLUMNS
from memwal.spark.sink.options import (
    WriteOptions,
    check_batch_options,
    check_stream_options,
    is_for_writes,
    parse_write_options,
)
from memwal.spark.sink.plan import WritePlan, plan_write
from memwal.spark.sink.writers import MemWalWriter
from memwal.spark.source.changes_load import ChangesLoad, check_stream_source
from memwal.spark.source.changes_plan import ChangesPlan
from memwal.spark.source.changes_reader import read_changes
from memwal.spark.source.partition_reader import read_partition
from memwal.spark.source.read_tags import SESSION, renew_if_due
from memwal.spark.source.scan_plan import LoadPlan, ReadOptions, parse_options, plan_load
from memwal.spark.source.stream_reader import MemWalStreamReader
from memwal.spark.table_functions import register_functions
from memwal.spark.version_compat import (
    BATCH_LIMITS,
    ROWS_WITHOUT_COLUMNS,
    STREAM_WRITES,
    arrow_schema,
    batch_limit,
    check_here,
)
from memwal.storage.credentials import read_options_file
from memwal.storage.location import TableLocation
from memwal.storage.open import check_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "memwal"


@public
def register(spark: SparkSession, *, storage_options: Mapping[str, str] | None = None) -> None:
    """Register the format ``memwal`` of reads and writes with a session: ``memwal.spark.register``.

    Registers also the table functions ``memwal_status(uri)``, ``memwal_merge``,
    ``memwal_build_indexes``, ``memwal_compact``, ``memwal_build_snapshot``,
    ``memwal_collect_garbage``, ``memwal_recover`` and ``memwal_checkpoint`` of SQL.
    Executors need memwal installed, as they do for the maintenance jobs.

    Parameters
    ----------
    spark : SparkSession
        Also one of Spark Connect.
    storage_options : mapping of str to str, optional
        As Lance takes them, for every load and write of the session that does not set an options
        file. They are sent inside the tasks and appear neither in Spark's configuration nor in a
        plan.
    """
    # Spark sends a class that is defined here to the driver's Python workers as a whole, with
    # every attribute that differs from the one of its base class.
    options = check_options(storage_options or {})
    source = type(
        "MemWalDataSourceOfSession",
        (MemWalDataSource,),
        {"_storage_options": options, "_session": SESSION},
    )
    spark.dataSource.register(source)
    register_functions(spark, options)


class MemWalDataSource(DataSource):  # type: ignore[misc]
    """Data source of the newest row of every key, as :meth:`memwal.table.Table.scan` returns it.

    A load reads one snapshot of the table: that of ``load()``, or, if the caller gives a
    ``schema(...)``, that of its first query. Every query of the data frame reads that snapshot, so
    a table can be joined with itself; load again to see rows that were written since. With
    ``changes_after``, a load or a stream reads changes (:mod:`memwal.spark.source`). Options are
    the attributes of :class:`memwal.spark.source.scan_plan.ReadOptions`; those of a write, which
    upserts rows, of :class:`memwal.spark.sink.options.WriteOptions`.
    """

    # Set by register() in a subclass.
    _storage_options: ClassVar[Mapping[str, str]] = {}
    _session: ClassVar[str | None] = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Here, so that an option that is a secret is refused before there is a plan to show it.
        (parse_write_options if is_for_writes(options) else parse_options)(options)
        super().__init__(options)
        self._plan: LoadPlan | None = None
        self._until: str | None = None  # token that the changes of a load end with

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return FORMAT

    def schema(self) -> st.StructType:
        """Return the schema of the snapshot, or of the changes, that will be read."""
        options = parse_options(self.options)
        if options.changes_after is not None:
            # Only the process that plans the batches of a stream claims its consumer.
            load = self._changes(replace(options, consumer=None))
            self._until = options.changes_until or load.newest()
            columns = load.schema(self._until, options.columns)
            return spark_schema(columns, omit_unsupported=options.omit_unsupported)
        plan = self._make_plan(options, options.columns)
        schema = spark_schema(plan.schema, omit_unsupported=options.omit_unsupported)
        # Spark keeps this object, and asks its copies for readers.
        columns = pa.schema([plan.schema.field(name) for name in schema.names])
        self._plan = replace(plan, schema=columns)
        return schema

    def reader(self, schema: st.StructType) -> DataSourceReader:
        """Return a reader of the columns of a schema: the source's, or one that the caller gave."""
        options = parse_options(self.options)
        if options.changes_after is not None:
            if options.consumer is not None:
                raise InvalidInputError("only a stream has a consumer: leave it out")
            load = self._changes(options)
            until = self._until or options.changes_until or load.newest()
            names = self._changes_columns(load, until, schema)
            changes = load.plan(load.first(until), until, names)
            return MemWalChangesReader(load, changes, schema)
        plan = self._plan
        if plan is None:
            if options.columns is not None:
                raise InvalidInputError("choose columns by a schema or by the option, not by both")
            plan = self._make_plan(options, tuple(schema.names))
            check_schema(schema, spark_schema(plan.schema))
        if not schema.names:
            check_here(ROWS_WITHOUT_COLUMNS)
        # A query may come long after the load.
        renew_if_due(plan.snapshot.location, plan.protection)
        return MemWalReader(plan, schema)

    def streamReader(self, schema: st.StructType) -> DataSourceStreamReader:
        """Return the source of a streaming query with these columns."""
        options = parse_options(self.options)
        check_stream_source(options)
        if options.consumer is not None:
            # An older Spark does not tell whether a batch is done until it has planned the next.
            check_here(BATCH_LIMITS)
        load = ChangesLoad(self._location(options), options, uuid4().hex[:12])
        convert = partial(changes_to_spark, schema=schema, truncate=options.truncate_nanoseconds)
        limit = batch_limit(MemWalStreamReader, options.maxRowsPerTrigger)
        return MemWalStreamReader(load, self._changes_columns(load, None, schema), convert, limit)

    def writer(self, schema: st.StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a data frame with these columns."""
        options = parse_write_options(self.options)
        check_batch_options(options)
        return MemWalWriter(self._plan_write(options, schema, overwrite=overwrite))

    def streamWriter(self, schema: st.StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer of a streaming query with these columns."""
        check_here(STREAM_WRITES)
        from memwal.spark.sink.stream_writer import MemWalStreamWriter

        options = parse_write_options(self.options)
        check_stream_options(options)
        return MemWalStreamWriter(self._plan_write(options, schema, overwrite=overwrite))

    def _plan_write(
        self, options: WriteOptions, schema: st.StructType, *, overwrite: bool
    ) -> WritePlan:
        return plan_write(self._location(options), options, schema.names, overwrite=overwrite)

    def _make_plan(self, options: ReadOptions, columns: tuple[str, ...] | None) -> LoadPlan:
        location = self._location(options)
        return plan_load(location, options, columns=columns, session=self._session or SESSION)

    def _changes(self, options: ReadOptions) -> ChangesLoad:
        return ChangesLoad(self._location(options), options, self._session or SESSION)

    def _changes_columns(
        self, load: ChangesLoad, until: str | None, schema: st.StructType
    ) -> list[str]:
        """Return the columns of a schema; one that the caller gave is compared with the table."""
        names: list[str] = schema.names
        if self._until is None:
            if load.options.columns is not None:
                raise InvalidInputError("choose columns by a schema or by the option, not by both")
            columns = load.schema(until, [name for name in names if name not in CHANGE_COLUMNS])
            check_schema(schema, spark_schema(pa.schema([columns.field(name) for name in names])))
        return names

    def _location(self, options: ReadOptions | WriteOptions) -> TableLocation:
        file = options.storage_options_file
        storage_options = read_options_file(file) if file is not None else self._storage_options
        return TableLocation(options.uri, storage_options)


class MemWalReader(DataSourceReader):  # type: ignore[misc]
    """Reader of a load plan.

    It has no ``pushFilters``. Spark 4.1 to 4.3 keep the filters that were pushed last with the load
    and not with the query: any other query of the same data frame, and any other branch of a union,
    would be answered with them.
    """

    def __init__(self, plan: LoadPlan, schema: st.StructType) -> None:
        self._plan = plan
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the plan."""
        return [InputPartition(part) for part in self._plan.partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition in Spark's types; runs in an executor."""
        schema = arrow_schema(self._schema)
        for batch in read_partition(self._plan, partition.value):
            yield to_spark(batch, schema, truncate=self._plan.truncate)


class MemWalChangesReader(DataSourceReader):  # type: ignore[misc]
    """Reader of the changes between two tokens."""

    def __init__(self, load: ChangesLoad, plan: ChangesPlan, schema: st.StructType) -> None:
        self._load = load
        self._parts = plan.parts(load.options, 0, None)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the parts of the plan; tasks get this reader afterwards, and one part each."""
        parts, self._parts = self._parts, []
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition in Spark's types; runs in an executor."""
        if partition.value is None:
            # Spark's only partition of a plan without any.
            return
        truncate = self._load.options.truncate_nanoseconds
        for batch in read_changes(self._load.location, partition.value):
            yield changes_to_spark(batch, schema=self._schema, truncate=truncate)


_MAX_PRECISION: Final = 38
# Extension types whose storage type carries all of the value.
_PLAIN_EXTENSIONS: Final = ("arrow.json", "arrow.uuid")
# Types that Spark has a wider or plainer one for.
_SPARK_FORMS: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}


class UnsupportedTypeError(Exception):
    """Spark has no type for an Arrow type; never leaves this module."""


def spark_schema(schema: pa.Schema, *, omit_unsupported: bool = False) -> st.StructType:
    """Return the schema of the data frame for rows of ``schema``.

    Unsigned integers take the next wider type (64 bits: ``decimal(20,0)``), half floats become
    floats, fixed-size, large and view types their plain forms, dictionaries their values. A
    timestamp with a zone is Spark's ``timestamp``, one without is ``timestamp_ntz``.
    InvalidInputError names all columns that Spark has no type for, unless they are omitted.
    """
    fields = []
    unsupported = []
    for field in schema:
        try:
            kind = _spark_type(field.type, top=True)
        except UnsupportedTypeError as error:
            unsupported.append(f"{field.name!r} ({error})")
        else:
            fields.append(st.StructField(field.name, kind, field.nullable))
    if unsupported and not omit_unsupported:
        raise InvalidInputError(
            f"Spark has no type for these columns: {', '.join(unsupported)}; leave them out with "
            ".option('omit_unsupported', 'true') or name the others as .option('columns', ...)"
        )
    return st.StructType(fields)


def check_schema(schema: st.StructType, own_schema: st.StructType) -> None:
    """Refuse a schema of the user with another type, or not nullable although the table's is."""
    for field, own in zip(schema, own_schema, strict=True):
        same = _nullable(field.dataType) == _nullable(own.dataType)
        if not same or (own.nullable and not field.nullable):
            null = "" if own.nullable else " not null"
            raise InvalidInputError(
                f"column {own.name!r} is {own.dataType.simpleString()}{null} in the table, not "
                f"{field.dataType.simpleString()}{'' if field.nullable else ' not null'}: cast it "
                "after the load"
            )


def to_spark(batch: pa.RecordBatch, schema: pa.Schema, *, truncate: bool) -> pa.RecordBatch:
    """Convert a batch to the types that Spark expects: ``schema`` is made by Spark.

    With ``truncate``, times are cut to microseconds. InvalidInputError names the column of a value
    that does not fit.
    """
    if not schema.names:
        return batch.select([]).replace_schema_metadata(None)
    columns = [_cast(batch.column(field.name), field, truncate) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def changes_to_spark(
    batch: pa.RecordBatch, *, schema: st.StructType, truncate: bool
) -> pa.RecordBatch:
    """Convert changes as :func:`to_spark` does, with null for columns that were added later."""
    columns = arrow_schema(schema)
    for field in columns:
        if field.name not in batch.schema.names:
            batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
    return to_spark(batch, columns, truncate=truncate)


def _cast(column: pa.Array, field: pa.Field, truncate: bool) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type, safe=not truncate)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"a value of column {field.name!r} does not fit into what Spark has for it: {error}; "
            "where it is nanoseconds, cut them off with .option('truncate_nanoseconds', 'true')"
        ) from error


def _spark_type(kind: pa.DataType, *, top: bool = False) -> st.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        if top and kind.extension_name in _PLAIN_EXTENSIONS:
            return _spark_type(kind.storage_type)
        raise UnsupportedTypeError(f"extension type {kind.extension_name}")
    if pt.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if (
        pt.is_list(kind)
        or pt.is_large_list(kind)
        or pt.is_fixed_size_list(kind)
        or pt.is_list_view(kind)
        or pt.is_large_list_view(kind)
    ):
        return st.ArrayType(_spark_type(kind.value_type), True)
    if pt.is_map(kind):
        return st.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type), True)
    if pt.is_struct(kind):
        return st.StructType([st.StructField(f.name, _spark_type(f.type), True) for f in kind])
    if pt.is_decimal(kind):
        if kind.precision > _MAX_PRECISION or not 0 <= kind.scale <= kind.precision:
            raise UnsupportedTypeError(str(kind))
        return st.DecimalType(kind.precision, kind.scale)
    # Spark has no type for times of day, or one that is switched off.
    if pt.is_time(kind):
        raise UnsupportedTypeError(str(kind))
    try:
        return from_arrow_type(_SPARK_FORMS.get(kind, kind), prefer_timestamp_ntz=True)
    except PySparkTypeError as error:
        raise UnsupportedTypeError(str(kind)) from error


def _nullable(kind: st.DataType) -> st.DataType:
    """Return the type with nulls allowed at every level."""
    if isinstance(kind, st.ArrayType):
        return st.ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, st.MapType):
        return st.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    if isinstance(kind, st.StructType):
        return st.StructType(
            [st.StructField(field.name, _nullable(field.dataType), True) for field in kind]
        )
    return kind
