"""Writer that Spark calls: ``write`` in its tasks, ``commit`` and ``abort`` at the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (  # noqa: TID253 - subclasses of Spark's are defined here
    DataSourceArrowWriter,
    WriterCommitMessage,
)

from memwal.errors import MemWalError
from memwal.lsm.wal.applied_steps import Step
from memwal.spark.sink.numbering import numbering_of
from memwal.spark.sink.plan import WritePlan
from memwal.spark.sink.staged_rows import RegionStream, delete_staged

logger = logging.getLogger(__name__)


QUERY_ID: Final = "sql.streaming.queryId"
"""Property of the tasks of a streaming query: the query's id, which the checkpoint has too."""


@dataclass(frozen=True)
class TaskRows(WriterCommitMessage):  # type: ignore[misc]
    """Rows of one task of a write."""

    parts: tuple[RegionStream, ...]
    query_id: str = ""  # of the streaming query


class MemWalWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writer of a data frame."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRows:
        """Stage the rows of a task."""
        return TaskRows(self._plan.stage(iterator), query_of_task())

    def commit(self, messages: Sequence[TaskRows | None]) -> None:
        """Write the rows of all tasks."""
        version = self._plan.options.version
        if version is None:
            check_complete(messages)
            commit_tasks(self._plan, messages, None)
        else:
            commit_step(self._plan, messages, version)

    def abort(self, messages: Sequence[TaskRows | None]) -> None:
        """Delete the rows that the tasks staged."""
        delete_staged(self._plan.location.store, parts_of(messages))


def query_of_task() -> str:
    """Return the id of the streaming query that the task belongs to; empty if to none."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (None if context is None else context.getLocalProperty(QUERY_ID)) or ""


def commit_step(plan: WritePlan, messages: Sequence[TaskRows | None], version: int) -> None:
    """Write the rows of all tasks as a step, unless the regions have it.

    The query that the tasks tell is the incarnation: a new checkpoint counts from 0 again.
    """
    check_complete(messages)
    options = plan.options
    # A step without rows has nothing that could be written twice.
    query_ids = {message.query_id for message in messages if message and message.parts}
    if len(query_ids) > 1:
        raise MemWalError(f"the tasks of version {version} belong to several queries")
    for query_id in query_ids:
        numbering = numbering_of(
            plan.location, options.source, query_id, version, on_restart=options.on_restart
        )
        if version >= numbering.first:
            commit_tasks(plan, messages, numbering.step(version))
            continue
        logger.warning(
            "version %d of %s is taken for written, as on_restart='continue' says: %s has "
            "versions up to %d",
            *(version, numbering.source, options.uri, numbering.first),
        )
        delete_staged(plan.location.store, parts_of(messages))


def commit_tasks(plan: WritePlan, messages: Sequence[TaskRows | None], step: Step | None) -> None:
    """Write the rows of all tasks, then delete the staged copies."""
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


def parts_of(messages: Sequence[TaskRows | None]) -> list[RegionStream]:
    """Return the rows that all tasks staged."""
    return [part for message in messages if message is not None for part in message.parts]
