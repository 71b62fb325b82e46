"""Writer that Spark calls: ``write`` in its tasks, ``commit`` and ``abort`` at the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (  # noqa: TID253 - subclasses of Spark's are defined here
    DataSourceArrowWriter,
    WriterCommitMessage,
)

from memwal.errors import MemWalError
from memwal.lsm.wal.applied_steps import Step
from memwal.spark.sink.plan import WritePlan
from memwal.spark.sink.staged_rows import RegionRows, delete_staged

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskRows(WriterCommitMessage):  # type: ignore[misc]
    """Rows of one task of a write."""

    parts: tuple[RegionRows, ...]
    query_id: str = ""  # of the streaming query


class MemWalWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writer of a data frame."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRows:
        """Stage the rows of a task."""
        return TaskRows(self._plan.stage(iterator))

    def commit(self, messages: Sequence[TaskRows | None]) -> None:
        """Write the rows of all tasks."""
        check_complete(messages)
        options = self._plan.options
        step = None
        if options.source is not None and options.version is not None:
            step = Step(options.source, options.version)
        commit_tasks(self._plan, messages, step)

    def abort(self, messages: Sequence[TaskRows | None]) -> None:
        """Delete what tasks staged."""
        delete_staged(self._plan.location.store, parts_of(messages))


def commit_tasks(plan: WritePlan, messages: Sequence[TaskRows | None], step: Step | None) -> None:
    """Write the rows of all tasks, then delete what they staged."""
    parts = parts_of(messages)
    done = plan.commit(parts, step)
    delete_staged(plan.location.store, parts)
    logger.info(
        "%d rows into %d regions of %s%s; %d regions had them",
        sum(part.rows for part in parts),
        len(done.written),
        plan.location.uri,
        "" if step is None else f" as version {step.version} of {step.source}",
        len(done.skipped),
    )


def check_complete(messages: Sequence[TaskRows | None]) -> None:
    """Raise MemWalError if the message of a task is missing."""
    if None in messages:
        raise MemWalError("Spark commits a write without the rows of a task; nothing was written")


def parts_of(messages: Sequence[TaskRows | None]) -> list[RegionRows]:
    """Return what all tasks staged."""
    return [part for message in messages if message is not None for part in message.parts]
