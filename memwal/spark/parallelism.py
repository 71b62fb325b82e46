"""Number of tasks that a cluster runs at once, read whenever tasks are planned.

Spark's ``defaultParallelism`` counts the cores of the executors that have registered, and is 2
while there are fewer. A cluster that is still starting, or that starts executors for tasks that
wait, gets as many tasks as it will have cores for, where its settings tell.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from memwal.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

UNBOUNDED_TASKS: Final = 200
"""Tasks for dynamic allocation without an upper limit: as many as a stage of Spark's own has."""

# Spark's way of writing that there is no limit.
_NO_LIMIT = (1 << 31) - 1
_SPLITS = "splits="
_WAIT_SECONDS = 30.0
_QUIET_SECONDS = 1.0
_POLL_SECONDS = 0.1


def context_of(spark: SparkSession) -> SparkContext | None:
    """Return the context of a session; None of one of Spark Connect, which has none."""
    from pyspark.errors import PySparkAttributeError

    try:
        return spark.sparkContext
    except PySparkAttributeError:
        return None


def check_running(context: SparkContext) -> None:
    """Raise InvalidInputError if the session of a context was stopped."""
    if context._jsc is None:
        raise InvalidInputError("the Spark session was stopped; make a new one and a new runner")


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks a cluster runs at once, now or when its executors have started.

    ``spark.default.parallelism``, if it is set. Else the cores of the executors that are there; or,
    if that is more, of the executors that dynamic allocation starts at most (``maxExecutors``), or
    that ``spark.executor.instances`` or ``spark.cores.max`` ask for. Raises InvalidInputError if
    the session was stopped.
    """
    context = context_of(spark)
    if context is None:
        # A server tells its clients its ``defaultParallelism`` in plans alone: without a number of
        # slices, a range is divided into as many. Nothing runs.
        _, _, rest = spark.range(1)._explain_string().partition(_SPLITS)
        now = int(rest.partition(")")[0])
    else:
        check_running(context)
        now = int(context.defaultParallelism)
    if spark.conf.get("spark.default.parallelism", None) is not None:
        return now
    cores = max(now, 0 if _is_local(spark) else _expected_cores(spark))
    return max(cores // _number(spark, "spark.task.cpus", 1), 1)


def await_executors(spark: SparkSession) -> None:
    """Wait until no more executors register, where Spark cannot tell how many there will be.

    That is a standalone cluster without ``spark.cores.max``. Before the first executor is there, no
    task could run; the others register at about the same time. After half a minute without any, the
    cluster is taken to be full.
    """
    context = context_of(spark)
    if context is None or _is_local(spark) or _tells_size(spark):
        return
    started = changed_at = time.monotonic()
    seen = 0
    while (now := time.monotonic()) - started < _WAIT_SECONDS:
        # The driver is one of them. Spark's Python has this call only from 4.2 on.
        found = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1
        if found != seen:
            seen, changed_at = found, now
        if seen and now - changed_at >= _QUIET_SECONDS:
            return
        time.sleep(_POLL_SECONDS)


def _tells_size(spark: SparkSession) -> bool:
    master = spark.conf.get("spark.master", None) or ""
    return (
        # YARN and Kubernetes start jobs once most of the executors have registered.
        not master.startswith(("spark://", "local-cluster"))
        or spark.conf.get("spark.default.parallelism", None) is not None
        or _expected_cores(spark) > 0
    )


def _expected_cores(spark: SparkSession) -> int:
    """Return the cores of the executors that the settings ask for; 0 if they do not tell."""
    per_executor = _number(spark, "spark.executor.cores", 1)
    at_most = _number(spark, "spark.cores.max", 0)
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        executors = _number(spark, "spark.dynamicAllocation.maxExecutors", _NO_LIMIT)
        cores = UNBOUNDED_TASKS if executors >= _NO_LIMIT else executors * per_executor
    else:
        cores = _number(spark, "spark.executor.instances", 0) * per_executor
    return min(cores, at_most) if cores and at_most else cores or at_most


def _number(spark: SparkSession, name: str, default: int) -> int:
    return int(spark.conf.get(name, None) or default)


def _is_local(spark: SparkSession) -> bool:
    master = spark.conf.get("spark.master", None) or ""
    return master.startswith("local") and not master.startswith("local-cluster")
