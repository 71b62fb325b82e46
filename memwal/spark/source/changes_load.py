"""Plan the changes between two tokens, and keep the versions that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

from memwal.base_table.snapshot import open_base
from memwal.errors import InvalidInputError, TableSetupError
from memwal.feed.change_rows import CHANGE_COLUMNS, changes_schema
from memwal.feed.changes import NOW
from memwal.feed.state import base_of, read_state_at
from memwal.feed.token import FeedToken
from memwal.reader.predicate import parenthesize_filter
from memwal.reader.scan import check_filter
from memwal.spark.source.changes_plan import ChangesPlan, plan_changes
from memwal.spark.source.held_versions import ConsumerVersions, HeldVersions
from memwal.spark.source.scan_plan import ReadOptions
from memwal.storage.location import TableLocation

START: Final = "start"
"""Value of ``changes_after`` for everything."""


def check_stream_source(options: ReadOptions) -> None:
    """Raise InvalidInputError for options that a stream cannot have, or lacks."""
    if options.changes_after is None:
        raise InvalidInputError(
            "a stream reads changes: set changes_after to start, to now, or to the token of "
            "memwal.Table.changes"
        )
    if options.changes_until is not None:
        raise InvalidInputError("a stream goes on: leave changes_until out")
    if options.consumer is not None and options.changes_after not in (START, NOW):
        raise InvalidInputError(
            "a stream goes on from the token of its consumer: set changes_after to start or to "
            "now, for a consumer that is made here"
        )


@dataclass
class ChangesLoad:
    """Changes of a table as the options of a load or a stream ask for."""

    location: TableLocation
    options: ReadOptions
    session: str  # in the names of tags

    @cached_property
    def held(self) -> HeldVersions | ConsumerVersions:
        """Tags that keep the versions. Claims the consumer, if one is named."""
        options = self.options
        if options.consumer is None:
            return HeldVersions(
                self.location, seconds=options.protect_seconds, session=self.session
            )
        start = NOW if options.changes_after == NOW else None
        return ConsumerVersions(self.location, options.consumer, start=start)

    def newest(self) -> str:
        """Return the token of all changes so far, and keep its version."""
        return str(self.held.newest(fresh=self.options.fresh).token)

    def first(self, now: str) -> str:
        """Return the token that the changes begin after, empty for all of them; else ``now``.

        InvalidInputError if the option is no token.
        """
        if isinstance(self.held, ConsumerVersions):
            return self.held.token or ""
        after = self.options.changes_after
        if after == START or after is None:
            return ""
        return now if after == NOW else str(FeedToken.parse(after, f"{START} or {NOW}"))

    def schema(self, until: str | None, columns: Sequence[str] | None) -> pa.Schema:
        """Return the columns of the changes until a token, by default the newest one."""
        if until is None:
            base = open_base(self.location)
        else:
            base = base_of(self.location, FeedToken.parse(until))
        base.check_supported()
        if not base.primary_key:
            raise TableSetupError(
                f"{self.location} has no primary key: Spark reads changes by key. table.changes() "
                "reads its rows from the logs"
            )
        return changes_schema(base, columns)

    def plan(self, after: str, until: str, names: Sequence[str]) -> ChangesPlan:
        """Plan the changes between tokens, with the columns of a data frame.

        Columns that were added to the table later are left out: they are null.
        """
        first = FeedToken.parse(after) if after else None
        last = FeedToken.parse(until)
        is_until = self.options.changes_until is not None
        if first is not None and is_until and last.precedes(first):
            raise InvalidInputError("changes_until is older than changes_after; swap the tokens")
        tags = self.held.hold(last, *([first] if first is not None else []))
        state = read_state_at(self.location, last)
        base = state.plan.base
        columns = [name for name in names if name not in CHANGE_COLUMNS]
        present = [name for name in columns if name in base.schema.names]
        if len(present) < len(columns):
            newest = open_base(self.location).schema.names
            gone = [name for name in columns if name not in newest]
            if gone:
                raise InvalidInputError(
                    f"{self.location} has no column {gone[0]} any more; load it again, or start "
                    "the stream again with its checkpoint"
                )
        predicate = parenthesize_filter(self.options.filter)
        if predicate is not None:
            check_filter(base, predicate)
        return plan_changes(state, first, last, columns=tuple(present), filter=predicate, tags=tags)
