"""Numbering of the batches of a streaming query, as steps of its source.

A query with a new checkpoint counts its batches from 0 again. By default the source is the query
itself, whose id its checkpoint has. Several queries can follow one another under the name of one
source: the id of the query is then the incarnation of its steps.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from memwal.errors import SourceRestartedError
from memwal.format.wal_layout import NewestStep
from memwal.lsm.wal.applied_steps import Step, read_steps_of
from memwal.storage.location import TableLocation

OnRestart = Literal["continue", "new"]


@dataclass(frozen=True, slots=True)
class BatchNumbering:
    """Numbering of the batches of a query as steps of its source."""

    source: str
    incarnation: str = ""
    replaces: tuple[str, ...] = ()
    first: int = 0  # batches below this are taken for written

    def step(self, batch_id: int) -> Step:
        """Return the step that a batch is."""
        return Step(self.source, batch_id, self.incarnation, self.replaces)


def number_batches(
    source: str,
    query_id: str,
    recorded: Collection[NewestStep],
    batch_id: int,
    *,
    on_restart: OnRestart | None,
) -> BatchNumbering:
    """Decide, before a query's first batch, how its numbers relate to those of the source.

    ``recorded`` are the newest steps of the source, of all regions: a region that the earlier query
    did not reach must not take a batch that the others refuse. A query that was once replaced stays
    replaced, so that the query may start again without ``on_restart``.
    """
    over = {name for step in recorded for name in step.replaced}
    if query_id in over:
        raise SourceRestartedError(
            f"another query has replaced query {query_id!r} as source {source!r}; stop this one, "
            "or give it a source of its own"
        )
    earlier = {step.incarnation for step in recorded} - over - {query_id}
    newest = max((step.version for step in recorded if step.incarnation in earlier), default=-1)
    if not earlier or on_restart == "new" or (earlier == {""} and newest < batch_id):
        return BatchNumbering(source, query_id, tuple(sorted(over | earlier)))
    if on_restart == "continue" and len(earlier) == 1:
        return BatchNumbering(source, earlier.pop(), tuple(sorted(over)), newest)
    raise SourceRestartedError(
        f"source {source!r} has batches up to {newest} of another checkpoint "
        f"({', '.join(sorted(earlier)) or 'unknown'}), and batch {batch_id} is of query "
        f"{query_id!r}: with on_restart='new' all batches of this query are written, and with "
        f"on_restart='continue' those up to {newest} are taken for written; a query that runs "
        "beside the other one needs a source of its own"
    )


def numbering_of(
    location: TableLocation,
    source: str | None,
    query_id: str,
    batch_id: int,
    *,
    on_restart: OnRestart | None,
) -> BatchNumbering:
    """Return the numbering of a query; raises as :func:`number_batches` does.

    Asked for each batch, since each commit may be another process. The answer is that of the first
    batch: its steps have recorded the query that it replaced or continued.
    """
    if source is None:
        return BatchNumbering(f"spark-query-{query_id}")
    recorded = read_steps_of(location, source).values()
    return number_batches(source, query_id, recorded, batch_id, on_restart=on_restart)
