"""Writer of a streaming query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (  # noqa: TID253 - a subclass of Spark's is defined here
    DataSourceStreamArrowWriter,
)

from memwal.errors import MemWalError
from memwal.spark.sink.plan import WritePlan
from memwal.spark.sink.staged_rows import delete_staged
from memwal.spark.sink.writers import TaskRows, commit_step, parts_of, query_of_task


class MemWalStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writer of a streaming query: each batch is a step.

    Spark makes a writer for each batch and another writer for its commit, which knows the query
    only from the messages.
    """

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRows:
        """Stage the rows of a task."""
        query_id = query_of_task()
        if not query_id:
            raise MemWalError("Spark does not tell the query that this task belongs to")
        return TaskRows(self._plan.stage(iterator), query_id)

    def commit(self, messages: Sequence[TaskRows | None], batchId: int) -> None:
        """Write the rows of a batch, unless the regions have it."""
        commit_step(self._plan, messages, batchId)

    def abort(self, messages: Sequence[TaskRows | None], batchId: int) -> None:
        """Delete the rows that the tasks staged."""
        delete_staged(self._plan.location.store, parts_of(messages))
