"""One local Spark session for all tests of this folder, and a table with a backlog."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.data.backlogs import make_backlog as make_backlog
from support.metrics.spans import traced as traced

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


@pytest.fixture
def shown_by_spark(spark: Any, event_log: Path) -> Callable[[], str]:
    """Return a function that returns the text of the event log and of the configuration."""

    def read() -> str:
        # The listeners write in their own time; this waits for them.
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        events = "".join(
            file.read_text() for file in event_log.rglob("*") if file.name.startswith("events")
        )
        return events + str(spark.sparkContext.getConf().getAll())

    return read
