"""Versions of the base table that a load or a stream of changes keeps, by tags."""

from __future__ import annotations

from memwal.base_table.refs import ReadTag
from memwal.base_table.snapshot import BaseTable
from memwal.errors import ObjectNotFoundError
from memwal.feed.base_changes import expired
from memwal.feed.consumer import Consumer
from memwal.feed.state import FeedState, base_of, read_state
from memwal.feed.token import FeedToken
from memwal.spark.source.read_tags import protect, renew_if_due, unprotect
from memwal.spark.source.scan_plan import plan_protected
from memwal.storage.location import TableLocation


class HeldVersions:
    """Versions of tokens that may be read again, each with a read tag."""

    def __init__(self, location: TableLocation, *, seconds: int, session: str) -> None:
        self._location = location
        self._seconds = seconds
        self._session = session
        self._tags: dict[int, ReadTag | None] = {}

    def newest(self, *, fresh: bool) -> FeedState:
        """Return the newest state: the flushed rows, or all acknowledged ones; keep its version."""

        def plan() -> tuple[FeedState, BaseTable]:
            state = read_state(self._location, flushed=not fresh)
            return state, state.plan.base

        state, base = plan()
        if base.version in self._tags:
            self.renew()
            return state
        state, tag = plan_protected(
            self._location, plan, seconds=self._seconds, session=self._session, is_newest=True
        )
        self._tags[state.plan.base.version] = tag
        return state

    def hold(self, *tokens: FeedToken) -> tuple[ReadTag, ...]:
        """Keep the versions of tokens, and return their tags; TokenExpiredError if one is gone."""
        for token in tokens:
            if token.version not in self._tags:
                base = base_of(self._location, token)
                try:
                    tag, _ = protect(base, seconds=self._seconds, session=self._session)
                except ObjectNotFoundError as error:
                    reason = f"version {token.version} was cleaned up"
                    raise expired(self._location, reason) from error
                self._tags[token.version] = tag
        self.renew()
        return tuple(tag for token in tokens if (tag := self._tags[token.version]) is not None)

    def renew(self) -> None:
        """Renew the tags that are due."""
        for tag in self._tags.values():
            renew_if_due(self._location, tag)

    def done(self, token: str) -> None:
        """Let the versions before that of a token go; none for an empty one."""
        version = FeedToken.parse(token).version if token else 0
        for number in [number for number in self._tags if number < version]:
            tag = self._tags.pop(number)
            if tag is not None:
                unprotect(self._location, tag)


class ConsumerVersions(Consumer):
    """The same for a query whose tokens a consumer of the table keeps, within its limits.

    Claims the consumer: to be made by the process of the driver alone.
    """

    def newest(self, *, fresh: bool) -> FeedState:
        """Return the newest state, as :meth:`HeldVersions.newest`."""
        with self._lock:
            return self._plan_held(
                self._check(), lambda: read_state(self._location, flushed=not fresh)
            )

    def hold(self, *tokens: FeedToken) -> tuple[ReadTag, ...]:
        """Keep the versions of tokens; there are no tags that expire while a task reads."""
        with self._lock:
            state = self._check()
            for token in tokens:
                if self._tag_of(state, token.version) is None:
                    self._held[token.version], _ = self._place(token, state)
        return ()

    def renew(self) -> None:
        """Record that the query has read everything."""
        with self._lock:
            self._renew(self._check())

    def done(self, token: str) -> None:
        """Commit a token; a batch that ends within the changes until a later one renews it.

        So does a token of the version that is committed already, with fewer rows of logs: the query
        was started again without ``fresh``. The version, which is held, keeps the rows that both
        tokens need.
        """
        if not token or token == self.token or self._is_behind(FeedToken.parse(token)):
            self.renew()
        else:
            self.commit(token)

    def _is_behind(self, token: FeedToken) -> bool:
        """Return whether a token is of the committed version, with fewer rows of logs."""
        if self.token is None:
            return False
        known = FeedToken.parse(self.token)
        return token.version == known.version and token.precedes(known)
