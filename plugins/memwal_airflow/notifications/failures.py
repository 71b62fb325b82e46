"""Record failures in Airflow in the catalog, as the table's last error everywhere.

A failure to write to the catalog is logged, and fails nothing else: the caller has a failure of its
own, or none.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from contextlib import closing

from airflow.sdk.exceptions import AirflowFailException

from memwal.catalog.records import DAG_JOB
from memwal.errors import MemWalError
from memwal.util.log import safe_error_text
from memwal_airflow.spark.errors import SparkApplicationError

logger = logging.getLogger(__name__)

# The last line of a traceback, without the module of the error.
_LAST_LINE = re.compile(r"(?:\w+\.)*(\w+(?:: .*)?)")


def record_failure(table: str, job: str, reason: str) -> None:
    """Record that ``job`` of a table failed, as ``Catalog.backoffs.record_failure`` does."""
    from memwal.catalog import Catalog

    try:
        with closing(Catalog()) as catalog:
            catalog.backoffs.record_failure(table, job, reason)
    except MemWalError as error:
        logger.warning("The failure of %s was not recorded: %s", job, error)


def record_dag_failure(reason: str, *, table: str | None = None) -> None:
    """Record that the DAG of a table, or of all enabled tables, cannot be built.

    A DAG file is parsed every few seconds: what is recorded already is not written again.
    """
    from memwal.catalog import Catalog

    try:
        with closing(Catalog()) as catalog:
            recorded = {
                failed.table
                for failed in catalog.backoffs.failed_jobs()
                if failed.job == DAG_JOB and failed.reason == reason
            }
            tables = [t.name for t in catalog.list(enabled_only=True)] if table is None else [table]
            for name in set(tables) - recorded:
                catalog.backoffs.record_failure(name, DAG_JOB, reason)
    except MemWalError as error:
        logger.warning("The failure to build DAGs was not recorded: %s", error)


def clear_failures(table: str, jobs: Iterable[str]) -> None:
    """Record that jobs of a table succeeded."""
    from memwal.catalog import Catalog

    try:
        with closing(Catalog()) as catalog:
            for job in jobs:
                catalog.backoffs.clear_failure(table, job)
    except MemWalError as error:
        logger.warning("The success of %s was not recorded: %s", table, error)


def failure_reason(error: BaseException | str | None) -> str:
    """Return type and text of an error in one line, without secrets.

    Only messages of memwal are included: those of a secrets backend may say what it holds.
    """
    if error is None or isinstance(error, str):
        text = error or "the task was ended from outside, as when its process is killed"
    elif isinstance(error.__cause__, MemWalError):
        text = f"{type(error.__cause__).__name__}: {error.__cause__}"
    elif isinstance(error, MemWalError | AirflowFailException | SparkApplicationError):
        text = f"{type(error).__name__}: {error}"
    else:
        text = safe_error_text(error)
    return " ".join(text.split())


def traceback_reason(stacktrace: str) -> str:
    """Return the error at the end of a traceback, in one line."""
    lines = [line for line in stacktrace.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "the file cannot be imported"
    match = _LAST_LINE.fullmatch(last)
    return match[1] if match is not None else last
