"""Tables as Spark data frames: ``spark.read.format("memwal").load(uri)``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (  # noqa: TID253 - what is defined here is a subclass
    DataSource,
    DataSourceReader,
    InputPartition,
)

from memwal.errors import InvalidInputError
from memwal.spark.arrow_types import check_schema, spark_schema, to_spark
from memwal.spark.partition_reader import read_partition
from memwal.spark.read_tags import SESSION, renew_if_due
from memwal.spark.scan_plan import LoadPlan, parse_options, plan_load
from memwal.storage.credentials import read_options_file
from memwal.storage.location import TableLocation
from memwal.storage.open import check_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "memwal"


def register(spark: SparkSession, *, storage_options: Mapping[str, str] | None = None) -> None:
    """Register the data source with a session; see :func:`memwal.spark.register`."""
    # Spark sends a class that is defined here to the driver's Python workers as a whole, with
    # every attribute that differs from the one of its base class.
    source = type(
        "MemWalDataSourceOfSession",
        (MemWalDataSource,),
        {"_storage_options": check_options(storage_options or {}), "_session": SESSION},
    )
    spark.dataSource.register(source)


class MemWalDataSource(DataSource):  # type: ignore[misc]
    """Data source of the newest row of every key, as :meth:`memwal.table.Table.scan` returns it.

    A load reads one snapshot of the table: that of ``load()``, or, if the caller gives a
    ``schema(...)``, that of its first query. Every query of the data frame reads that snapshot, so
    a table can be joined with itself; load again to see rows that were written since. Options are
    the attributes of :class:`memwal.spark.scan_plan.ReadOptions`.
    """

    # Set by register() in a subclass.
    _storage_options: ClassVar[Mapping[str, str]] = {}
    _session: ClassVar[str | None] = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Here, so that an option that is a secret is refused before there is a plan to show it.
        self._options = parse_options(options)
        super().__init__(options)
        self._plan: LoadPlan | None = None

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the snapshot that will be read."""
        plan = self._make_plan(self._options.columns)
        schema = spark_schema(plan.schema, omit_unsupported=self._options.omit_unsupported)
        # Spark keeps this object, and asks its copies for readers.
        columns = pa.schema([plan.schema.field(name) for name in schema.names])
        self._plan = replace(plan, schema=columns)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of a schema: the source's, or one that the caller gave."""
        plan = self._plan
        if plan is None:
            if self._options.columns is not None:
                raise InvalidInputError("choose columns by a schema or by the option, not by both")
            plan = self._make_plan(tuple(schema.names))
            check_schema(schema, spark_schema(plan.schema))
        # A query may come long after the load.
        renew_if_due(plan.snapshot.location, plan.protection)
        return MemWalReader(plan, schema)

    def _make_plan(self, columns: tuple[str, ...] | None) -> LoadPlan:
        file = self._options.storage_options_file
        storage_options = read_options_file(file) if file is not None else self._storage_options
        location = TableLocation(self._options.uri, storage_options)
        return plan_load(location, self._options, columns=columns, session=self._session or SESSION)


class MemWalReader(DataSourceReader):  # type: ignore[misc]
    """Reader of a load plan.

    It has no ``pushFilters``. Spark 4.3 keeps the filters that were pushed last with the load and
    not with the query: any other query of the same data frame, and any other branch of a union,
    would be answered with them.
    """

    def __init__(self, plan: LoadPlan, schema: StructType) -> None:
        self._plan = plan
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the plan."""
        return [InputPartition(part) for part in self._plan.partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition in Spark's types; runs in an executor."""
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        for batch in read_partition(self._plan, partition.value):
            yield to_spark(batch, schema, truncate=self._plan.truncate)
