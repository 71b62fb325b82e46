"""One local Spark session for all tests of this folder, and a table with a backlog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.data.tables import MakeTable, keys, rows
from support.metrics.spans import traced as traced

import memwal
from memwal.jobs.job import TaskRunner
from memwal.spark.runner import spark_runner
from memwal.spark.session import spark_session


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the session writes its event log to."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(event_log: Path) -> Iterator[Any]:
    """Return a session on two cores that gives each task three tries."""
    session = spark_session(
        "memwal tests",
        master="local[2, 3]",
        conf={
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": event_log.as_uri(),
            "spark.eventLog.compress": "false",
            # It lives for seconds: compiling well costs more than it gains, and so do 200 tasks.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.sql.shuffle.partitions": "4",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def run(spark: Any) -> TaskRunner:
    """Return a runner on the session."""
    return spark_runner(spark)


MakeBacklog = Callable[..., tuple[memwal.Table, dict[int, int]]]


@pytest.fixture
def make_backlog(make_table: MakeTable) -> MakeBacklog:
    """Return a function that makes a table of four regions with flushed generations, and tells
    what it holds: every generation rewrites all keys, and deletes one of those that were left."""

    def make(generations: int, *, count: int = 40) -> tuple[memwal.Table, dict[int, int]]:
        table = make_table(buckets=4, maintained_indexes=["id_idx"])
        with table.writer() as writer:
            for n in range(generations):
                writer.upsert(rows(dict.fromkeys(range(n, count), n)))
                writer.delete(keys(n))
                writer.flush()
        return table, dict.fromkeys(range(generations, count), generations - 1)

    return make
