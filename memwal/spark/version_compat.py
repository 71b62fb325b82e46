"""Differences between the versions of Spark, and nothing else of this package depends on one.

Other modules call the functions below, and ask for a feature, never for a version.
"""

from __future__ import annotations

import atexit
from functools import partial
from typing import TYPE_CHECKING, Final

from memwal.errors import InvalidInputError
from memwal.util.versions import Feature

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.errors import PythonException
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_feature = partial(Feature, "pyspark")

DATA_SOURCES: Final = _feature(
    "Python data sources",
    "4.0",
    "jobs run on Spark, and nothing else: it does not know the format memwal",
)
STREAM_WRITES: Final = _feature(
    "writes of streams",
    "4.1",
    "`foreachBatch` writes each batch as a data frame with `source` and `version`",
)
ROWS_WITHOUT_COLUMNS: Final = _feature(
    "rows without columns",
    "4.1",
    "a load without columns is refused; count one of a column",
)
BATCH_LIMITS: Final = _feature(
    "limits of batches of streams",
    "4.2",
    "`maxRowsPerTrigger` and `consumer` are refused: a batch has all changes",
)
FEATURES: Final = (DATA_SOURCES, STREAM_WRITES, ROWS_WITHOUT_COLUMNS, BATCH_LIMITS)
"""Features that a supported version may lack, for ``memwal doctor --versions``."""

_NAMED_TIME_ZONE: Final = _feature("time zone of an Arrow schema", "4.2", "it is always UTC")

# Functions that clients register for the end of their process, in one version or another.
_EXIT_CALLS: Final = ("_on_exit", "_cleanup_ml_cache", "_cleanup_ml")


def check_here(feature: Feature) -> None:
    """Raise InvalidInputError if this Spark lacks a feature."""
    if not feature.here:
        raise InvalidInputError(
            f"this Spark has no {feature.name}, so that {feature.without}; use "
            f"{feature.package} {feature.since} or newer"
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow types that Spark expects of the rows of a data source, in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    options = {"timezone": "UTC"} if _NAMED_TIME_ZONE.here else {}
    return to_arrow_schema(schema, **options)


def error_of_task(error: Exception) -> PythonException | None:
    """Return the error that a task raised in Python, of which Spark before 4.2 makes one of Java.

    None if it is another error of Java.
    """
    from pyspark.errors.exceptions.captured import PythonException

    java = getattr(error, "java_exception", None)
    cause = None if java is None else java.getCause()
    if cause is None or not str(cause.getClass().getName()).endswith(".python.PythonException"):
        return None
    return PythonException(origin=cause)


def batch_limit(reader: type, rows: int | None) -> object:
    """Return Spark's limit of the rows of a batch; ``rows`` is None for no limit.

    Tells Spark that a class of stream readers ends with the available rows, if asked to. An older
    Spark has no limits, and takes one batch of such a reader.
    """
    if rows is not None:
        check_here(BATCH_LIMITS)
    if not BATCH_LIMITS.here:
        return None
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    SupportsTriggerAvailableNow.register(reader)
    return ReadAllAvailable() if rows is None else ReadMaxRows(rows)


def drop_exit_call(spark: SparkSession) -> None:
    """Unregister the call to its server that a session of Spark Connect makes at exit.

    Registered, it keeps the client until the process ends.
    """
    for name in _EXIT_CALLS:
        if (call := getattr(spark.client, name, None)) is not None:
            atexit.unregister(call)
