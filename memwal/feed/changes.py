"""The feed: the rows that changed after a token, as a stream: newest ones, or all versions."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Final, Literal

import pyarrow as pa

from memwal.boundary.public import public_items, public_methods
from memwal.errors import InvalidInputError, ObjectNotFoundError, TokenExpiredError
from memwal.feed.base_changes import Changed
from memwal.feed.change_rows import Reading, Since, changes_schema
from memwal.feed.state import FeedState, read_state, read_state_at
from memwal.feed.token import FeedToken
from memwal.reader.predicate import parenthesize_filter
from memwal.reader.result import Result
from memwal.reader.scan import check_filter
from memwal.reader.sources.generation import open_sources, retry_if_collected
from memwal.reader.sources.plan import ReadPlan
from memwal.storage.location import TableLocation

NOW: Final = "now"


@public_methods
class Changes(Result):
    """Keys of a table that changed after a token, each once with its newest row, or each version.

    Made by :meth:`memwal.Table.changes`, which fixes the changes; their rows are read when it is
    used. Unflushed rows are changes as soon as they are acknowledged. Using a feed again returns
    the same changes. Only if their sources are collected before the first use, that reads newer
    changes too, which follow the token once more. The feed keeps its unflushed rows in memory. The
    rows have the columns of the table, null beside the key for a delete, and

    * ``_change``: ``upsert`` or ``delete``. A delete may be of a key that never was there;
    * ``_gen``: the generation that has the change, 0 for the base table;
    * ``_region``: the region, null for the base table;
    * ``_position``: the entry of the region's log, null if it is flushed and the grain is "net".

    ``_gen`` and ``_position`` order the changes within a region. Regions have no common order.

    As for a scan, memory grows with the unmerged rows that changed: to find the newest row of each
    key takes up to 90 bytes a key beside the keys, 900 MB for 10 million. The rows are streamed.

    The grain "log" returns every version of a row that was acknowledged after the token, in the
    order of each region's log: later versions of a key follow earlier ones. Merges are no change.
    Rows that other clients wrote to the base table directly come last, as in the grain "net". A
    table without a primary key has this grain only: each row once, and no deletes.

    >>> feed = table.changes()
    >>> table.upsert({"id": 1, "n": 7, "text": "a"})
    >>> table.changes(feed.token).count_rows()
    1

    Parameters
    ----------
    after : str, optional
        ``token`` of an earlier feed. By default the whole table; "now" for no change.
    until : str, optional
        ``token`` of a later feed, which this one ends with: it returns rows as of then. Rows of a
        generation that has been flushed since may be newer.
    columns, filter : optional
        As for a scan; columns of the key and those above are added, and deletes returned anyway.
    grain : {"net", "log"}
        Versions of each key that are returned: its newest row, or every version. The whole table,
        without ``after``, has the newest rows only.

    Raises
    ------
    InvalidInputError
        ``after`` is no token, or later than ``until``; columns are unknown, also in the filter, or
        one has the name of one above.
    ProgressLostError
        The base table went back, and no decision was made about the generations that it lost.
    TokenExpiredError
        Mostly when it is used. The version of the base table that the token names was cleaned up,
        or generations were collected that alone tell of a deleted key: ones with rows that the
        token's reader saw before they were merged. Generations were given up. With the grain "log",
        log entries behind the token were collected or abandoned. Without a primary key, the base
        table cannot tell rows that were returned from others. The feed was used before, and
        generations that it read then were collected since: ask for a new feed. Without a tag on
        :attr:`version`, generations and their log entries stay for the retention of the collection,
        an hour by default.
    """

    def __init__(
        self,
        location: TableLocation,
        *,
        after: str | None,
        until: str | None,
        columns: Sequence[str] | None,
        filter: str | None,
        grain: Literal["net", "log"],
    ) -> None:
        super().__init__(self._use, lambda: self._output)
        self._location = location
        self._grain = grain
        self._columns = columns
        self._filter = parenthesize_filter(filter)
        self._until = None if until is None else FeedToken.parse(until, "or None for now")
        state = self._read()
        base = state.plan.base
        self._token = self._until or state.token
        if not base.primary_key:
            # No row replaces another, so a row that is newer than the token would come twice.
            self._grain, self._until = "log", self._token
            if after is None:
                state.check_whole(self._token)
        self._after: FeedToken | None = None
        if after is not None:
            self._after = self._token if after == NOW else FeedToken.parse(after, 'None or "now"')
        self._output = changes_schema(base, self._columns)
        # None if a source of it was collected before the first use.
        self._state: FeedState | None = state
        self._is_used = False
        # Two first uses at once must not plan anew each.
        self._lock = threading.Lock()
        if self._filter is not None:
            # Generations may still have a column that the table has no more.
            check_filter(base, self._filter)
        if self._after is not None:
            if self._until is not None and self._until.precedes(self._after):
                raise InvalidInputError("until is older than after; swap the tokens")
            state.seen(self._after)

    @property
    def token(self) -> str:
        """Text to go on with: ``changes(after=token)`` returns the changes after this feed."""
        return str(self._token)

    @property
    def version(self) -> int:
        """Version of the base table that the token names.

        A tag on it keeps all that a feed needs to go on from the token, for as long as the tag is
        there: the rows of the version, and the generations that it does not have.
        """
        return self._token.version

    def __repr__(self) -> str:
        return f"Changes({self._location.uri!r}, token={self.token!r})"

    def _read(self) -> FeedState:
        if self._until is None:
            return read_state(self._location)
        return read_state_at(self._location, self._until)

    def _use(self) -> pa.RecordBatchReader:
        with self._lock:
            reader = retry_if_collected(self._start)
            self._is_used = True
            return reader

    def _start(self) -> pa.RecordBatchReader:
        try:
            return self._read_first(self._state or self._read())
        except ObjectNotFoundError as error:
            self._check_unused(error)
            self._state = None
            raise

    def _check_unused(self, gone: ObjectNotFoundError | None = None) -> None:
        """Raise TokenExpiredError if the feed was used: a new plan may have other changes."""
        if self._is_used:
            raise TokenExpiredError(
                f"the feed of {self._location} was used before, and what it read was collected "
                "since; ask for a new one with the same arguments"
            ) from gone

    def _read_first(self, state: FeedState) -> pa.RecordBatchReader:
        """Read the first batch, while the feed can still start over."""
        self._state = state
        if (self._until or state.token) == self._after:
            # The same version, generations and ends of the logs: no source need be opened.
            return pa.RecordBatchReader.from_batches(self._output, [])

        def plan(is_first: bool) -> ReadPlan:
            nonlocal state
            if not is_first:
                self._check_unused()
                # A generation was merged and collected since: the base table tells of it now.
                self._state = state = self._read()
            return state.plan

        sources = open_sources(plan)
        base = sources.base
        logged = self._grain == "log"
        since = None if self._after is None else Since.of(self._after, state, logged=logged)
        reading = Reading(
            sources, state.logs, since, changes_schema(base, self._columns), self._filter
        )
        whole = dict[int, Changed].fromkeys(base.dataset.fragment_ids(), True)
        marks = whole if since is None else since.base.rows
        if since is not None and logged:
            logs = state.logged_since(since.after, self._until or state.token)
            # A direct write is newer than the merged versions of its key, and is left out if the
            # key has unmerged ones.
            parts = [reading.versions(logs), reading.batches((), marks, removed=True)]
        else:
            parts = [reading.batches(range(len(sources.generations)), marks, removed=True)]
        batches = public_items(itertools.chain.from_iterable(parts), "to_reader()")
        first = list(itertools.islice(batches, 1))
        return pa.RecordBatchReader.from_batches(reading.schema, itertools.chain(first, batches))
