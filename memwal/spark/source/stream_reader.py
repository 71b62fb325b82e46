"""Source of a streaming query: its offsets are tokens of the feed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (  # noqa: TID253 - a subclass of Spark's is defined here
    DataSourceStreamReader,
    InputPartition,
)

from memwal.errors import InvalidInputError
from memwal.feed.changes import NOW
from memwal.feed.token import FeedToken
from memwal.spark.source.changes_load import ChangesLoad
from memwal.spark.source.changes_plan import ChangesPlan
from memwal.spark.source.changes_reader import read_changes


class Offset(NamedTuple):
    """Place of a query in the feed: a token, and a number of units behind it."""

    token: str  # empty for nothing, "now" before a first batch without changes
    until: str = ""  # token that ``units`` belong to, empty for none
    units: int = 0

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Offset:
        """Return the offset of a checkpoint."""
        try:
            return cls(**values)
        except TypeError as error:
            raise InvalidInputError(f"{values!r} is no offset of a stream of changes") from error

    def to_dict(self) -> dict[str, str | int]:
        """Return the offset as Spark stores it."""
        return {"token": self.token} if not self.until else self._asdict()


class MemWalStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Source of a streaming query.

    Spark makes one for the query in a process of the driver, which plans, and others for tasks,
    which read. ``limit`` is that of a batch, None for a Spark that has no limits.
    """

    def __init__(
        self,
        load: ChangesLoad,
        names: Sequence[str],
        convert: Callable[[pa.RecordBatch], pa.RecordBatch],
        limit: object,
    ) -> None:
        self._load = load
        self._names = names
        self._convert = convert
        self._limit = limit
        self._target: str | None = None  # of a query that ends
        self._planned: tuple[str, str, ChangesPlan] | None = None

    def initialOffset(self) -> dict[str, str | int]:
        """Return the offset before the first batch.

        Spark asks again if that is repeated, so it is not the newest offset: the first batch then
        ends at the newest, without changes.
        """
        return Offset(self._load.first(NOW)).to_dict()

    def getDefaultReadLimit(self) -> object:
        """Return the limit of a batch, in Spark's class."""
        return self._limit

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query with the rows that the table has now."""
        self._target = self._load.newest()

    def latestOffset(
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, str | int]:
        """Return where the next batch ends. A batch never has units of two tokens.

        An older Spark tells neither where it starts nor a limit.
        """
        if start is None:
            return Offset(self._load.newest()).to_dict()
        at = Offset.parse(start)
        until = at.until or self._target or self._load.newest()
        rows = getattr(limit, "max_rows", None)
        if at.token == until:
            # Until here, batches are done: Spark asks for the next one.
            self._load.held.renew()
        if at.token in (until, NOW) or rows is None:
            return Offset(until).to_dict()
        plan = self._plan(at.token, until)
        end = plan.end(at.units, max_rows=rows)
        is_last = end == len(plan.units)
        return (Offset(until) if is_last else Offset(at.token, until, end)).to_dict()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Divide a batch, the same way each time."""
        first, last = Offset.parse(start), Offset.parse(end)
        if first == last or first.token == NOW:
            return []
        until = last.until or last.token
        # An older Spark goes on from part of a token with a newer one: then all is read again.
        begin = first.units if first.until == until else 0
        plan = self._plan(first.token, until)
        stop = last.units if last.until else None
        parts = plan.parts(self._load.options, begin, stop)
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition in Spark's types; runs in an executor."""
        for batch in read_changes(self._load.location, partition.value):
            yield self._convert(batch)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Let the versions before this offset go: no batch begins there again."""
        self._load.held.done(Offset.parse(end).token)

    def _plan(self, after: str, until: str) -> ChangesPlan:
        if self._planned is None or self._planned[:2] != (after, until):
            self._planned = after, until, self._load.plan(after, until, self._names)
        else:
            self._load.held.hold(FeedToken.parse(until))
        return self._planned[2]
