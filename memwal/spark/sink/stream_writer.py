"""Writer of a streaming query."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (  # noqa: TID253 - a subclass of Spark's is defined here
    DataSourceStreamArrowWriter,
)

from memwal.errors import MemWalError
from memwal.spark.sink.numbering import numbering_of
from memwal.spark.sink.plan import WritePlan
from memwal.spark.sink.staged_rows import delete_staged
from memwal.spark.sink.writers import TaskRows, check_complete, commit_tasks, parts_of

logger = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
"""Property of the tasks of a streaming query: the query's id, which the checkpoint has too."""


class MemWalStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writer of a streaming query: each batch is a step.

    Spark makes one for each batch and another one for its commit, which only the messages tell of
    the query.
    """

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRows:
        """Stage the rows of a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(QUERY_ID)
        if not query_id:
            raise MemWalError("Spark does not tell the query that this task belongs to")
        return TaskRows(self._plan.stage(iterator), query_id)

    def commit(self, messages: Sequence[TaskRows | None], batchId: int) -> None:
        """Write the rows of a batch, unless the regions have it."""
        check_complete(messages)
        options = self._plan.options
        # A batch without rows has nothing that could be written twice.
        query_ids = {message.query_id for message in messages if message and message.parts}
        if len(query_ids) > 1:
            raise MemWalError(f"the tasks of batch {batchId} belong to several queries")
        for query_id in query_ids:
            numbering = numbering_of(
                self._plan.location,
                options.source,
                query_id,
                batchId,
                on_restart=options.on_restart,
            )
            if batchId < numbering.first:
                logger.warning(
                    "batch %d of %s is taken for written, as on_restart='continue' says: %s has "
                    "batches up to %d",
                    *(batchId, numbering.source, options.uri, numbering.first),
                )
                self.abort(messages, batchId)
                return
            commit_tasks(self._plan, messages, numbering.step(batchId))

    def abort(self, messages: Sequence[TaskRows | None], batchId: int) -> None:
        """Delete what tasks staged."""
        delete_staged(self._plan.location.store, parts_of(messages))
