"""Table functions of Spark SQL: ``SELECT * FROM memwal_status('s3://lake/orders.lance')``.

A function runs in one task. A job that Spark repeats, since the task failed or the query runs
again, finds the changes of the first run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from memwal.errors import InvalidInputError
from memwal.jobs.job import JobResult
from memwal.table import Table, open

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS: Final = (
    "merge",
    "build_indexes",
    "compact",
    "build_snapshot",
    "collect_garbage",
    "recover",
    "checkpoint",
)
"""Methods of a table that are functions, each with the prefix ``memwal_``."""

_RESULT: Final = (
    "job string, version bigint, commits int, seconds double, metrics map<string, bigint>, "
    "warnings array<string>"
)
_STATUS: Final = (
    "version bigint, base_rows bigint, base_bytes bigint, fragments bigint, regions int, "
    "backlog_generations bigint, backlog_rows bigint, backlog_bytes bigint, "
    "oldest_backlog_seconds double, unflushed_wal_entries bigint, regions_to_recover int"
)


class TableFunction:
    """Handler of the functions; a subclass has the name of one."""

    method: ClassVar[str]
    storage_options: ClassVar[Mapping[str, str]]

    def eval(self, uri: str) -> Iterator[tuple[Any, ...]]:
        """Return one row about the table at an address."""
        if not uri:
            raise InvalidInputError("no table: give its address to the function")
        table = open(uri, storage_options=self.storage_options)
        yield _status(table) if self.method == "status" else _result(getattr(table, self.method)())


def register_functions(spark: SparkSession, storage_options: Mapping[str, str]) -> None:
    """Register the functions with a session."""
    if "connect" in type(spark).__module__:
        from pyspark.sql.connect.functions import udtf
    else:
        from pyspark.sql.functions import udtf
    for method in ("status", *JOBS):
        attributes = {"method": method, "storage_options": dict(storage_options)}
        handler = type("TableFunctionOfSession", (TableFunction,), attributes)
        schema = _STATUS if method == "status" else _RESULT
        # Arrow would need pandas, for one row.
        function = udtf(handler, returnType=schema, useArrow=False)
        spark.udtf.register(f"memwal_{method}", function)


def _status(table: Table) -> tuple[Any, ...]:
    status = table.status()
    return (
        status.version,
        status.base_rows,
        status.base_bytes,
        status.fragments,
        len(status.regions),
        status.backlog_generations,
        status.backlog_rows,
        status.backlog_bytes,
        status.oldest_backlog_seconds,
        status.unflushed_wal_entries,
        status.regions_to_recover,
    )


def _result(result: JobResult) -> tuple[Any, ...]:
    return (
        result.job,
        result.version,
        result.commits,
        result.seconds,
        result.metrics,
        list(result.warnings),
    )
