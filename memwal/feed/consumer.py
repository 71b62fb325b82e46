"""Consumers: readers of a table's feed whose tokens are kept in the table."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeVar
from uuid import uuid4

from memwal.base_table.refs import (
    ConsumerTag,
    delete_tag,
    list_consumer_tags,
    parse_consumer_tag,
    place_tag,
)
from memwal.boundary.public import public_methods
from memwal.errors import (
    ConflictError,
    ConsumerExpiredError,
    ConsumerFencedError,
    InvalidInputError,
    MemWalError,
    ObjectNotFoundError,
    TokenExpiredError,
)
from memwal.feed.base_changes import expired
from memwal.feed.changes import NOW, Changes
from memwal.feed.consumer_state import ConsumerState, Phase, read_state, swap_state
from memwal.feed.state import FeedState, base_of
from memwal.feed.token import FeedToken
from memwal.storage.location import TableLocation
from memwal.util.retry import LostRaceError, retry_lost_races

logger = logging.getLogger(__name__)

RENEW_AFTER: Final = timedelta(minutes=10)
"""Time after which a read without changes records that the consumer has seen all."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_ATTEMPTS: Final = 5

Planned = TypeVar("Planned", Changes, FeedState)


@public_methods
class Consumer:
    """Reader of a table's feed whose token is kept in the table.

    Made by :meth:`memwal.Table.consumer`, which claims the consumer: each call of an object that
    held it before raises ConsumerFencedError. Only feeds that it made before can still be read.
    Changes after the token are kept by collections and by clean-ups of versions, within the limits
    ``gc_consumer_seconds`` and ``gc_consumer_bytes`` of the policy.

    >>> consumer = table.consumer("embeddings", start="now")
    >>> table.upsert({"id": 1, "n": 7, "text": "a"})
    >>> feed = consumer.read(columns=["n"])
    >>> feed.count_rows()
    1
    >>> consumer.commit(feed.token)

    A process that dies between the two reads the same changes, or newer rows of their keys, once
    more. A process that stores the token together with its own results, and commits it when it
    starts, applies each change once.

    Thread-safe. InvalidInputError is raised for a name or a start that is none. Each call raises

    * ConsumerFencedError: another process opened, reset or dropped the consumer since;
    * ConsumerExpiredError: it exceeded a limit of the policy; :meth:`reset` begins again;
    * StoreAccessError, StoreUnavailableError, OutcomeUnknownError: as for any write. To call again
      is right.
    """

    def __init__(self, location: TableLocation, name: str, *, start: str | None) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{name!r} cannot name a consumer: use up to 64 letters, digits, _ and -, a letter "
                "or digit first"
            )
        _check_start(start)
        self._location = location
        self._name = name
        self._claim = uuid4().hex[:12]
        self._lock = threading.RLock()
        # By version: of the last read, or of all tokens of a query, if they are not committed.
        self._held: dict[int, ConsumerTag] = {}
        self._state = retry_lost_races(
            lambda: self._claim_once(start),
            exhausted=ConflictError(f"other processes claim consumer {name!r} all the time"),
        )

    @property
    def name(self) -> str:
        """Name of the consumer."""
        return self._name

    @property
    def epoch(self) -> int:
        """Number of this claim: the newest one commits."""
        return self._state.epoch

    @property
    def token(self) -> str | None:
        """Token that was committed last; None before the first one of the whole table."""
        return self._state.token

    def __repr__(self) -> str:
        return f"Consumer({self._location.uri!r}, {self._name!r}, epoch={self.epoch})"

    def read(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        grain: Literal["net", "log"] = "net",
    ) -> Changes:
        """Feed of the changes after the committed token.

        Repeated without a commit, it returns them again, with newer ones. Only the last feed is
        sure to be read whole, and committed, however long that takes. Arguments are those of
        :class:`memwal.feed.changes.Changes`.
        """
        with self._lock:
            state = self._check()
            feed = self._held_feed(state, state.token, columns, filter, grain)
            if feed.token == state.token:
                self._renew(state)
            return feed

    def commit(self, token: str) -> None:
        """Make ``token``, of a feed that was read, the one that the next read goes on from.

        A token that is committed already changes nothing. InvalidInputError is raised for one from
        before it, TokenExpiredError if the table's version that it names was cleaned up: it is
        neither of the last read nor of the table's newest version.
        """
        parsed = FeedToken.parse(token)
        with self._lock:
            state = self._check()
            if token == state.token:
                return
            known = None if state.token is None else FeedToken.parse(state.token)
            if known is not None and parsed.precedes(known):
                raise InvalidInputError(
                    f"the token is from before the one that consumer {self._name!r} committed; "
                    "reset the consumer to read again"
                )
            tag = self._tag_of(state, parsed.version)
            if tag is None:
                tag, _ = self._place(parsed, state)
            self._advance(state, token, tag)

    def reset(self, token: str | None = None) -> None:
        """Begin again with the whole table, or with later changes if ``token`` is "now".

        Earlier deletes are not returned: an exact copy of the table is emptied first.
        """
        _check_start(token)
        with self._lock:
            state = self._owned()
            if token is None:
                self._advance(state, None, None)
            else:
                feed = self._held_feed(state, token)
                self._advance(state, feed.token, self._tag_of(state, feed.version))

    def drop(self) -> None:
        """End the consumer: nothing is kept for it any more."""
        with self._lock:
            state = self._owned()
            dropped = replace(state, phase=Phase.DROPPED, step=state.step + 1, token=None, tag=None)
            self._swap(state, dropped)
            self._release(*list_consumer_tags(self._location, self._name))

    def _claim_once(self, start: str | None) -> ConsumerState:
        stored = read_state(self._location.store, self._name)
        now = datetime.now(UTC)
        before = stored or ConsumerState(name=self._name)
        claimed = replace(
            before,
            epoch=before.epoch + 1,
            claim=self._claim,
            owner=f"{socket.gethostname()}:{os.getpid()}",
        )
        if stored is None or stored.phase is Phase.DROPPED:
            token = tag = None
            if start is not None:
                feed = self._held_feed(before, start)
                token, tag = feed.token, self._held[feed.version].name
            claimed = replace(
                claimed, step=before.step + 1, at=now, token=token, tag=tag, phase=Phase.ACTIVE
            )
        try:
            state = swap_state(self._location.store, before, claimed)
        except ConflictError as error:
            self._give_up(*self._held)
            raise LostRaceError(str(error)) from error
        self._held.clear()
        return state

    def _owned(self) -> ConsumerState:
        """Read the state; raise unless this object's claim is the newest."""
        state = read_state(self._location.store, self._name)
        if state is None:
            raise ConsumerFencedError(
                f"consumer {self._name!r} of {self._location} is gone: the table was replaced; "
                "open the consumer again"
            )
        if state.claim != self._claim:
            raise ConsumerFencedError(
                f"consumer {self._name!r} was claimed by {state.owner} (epoch {state.epoch}, this "
                f"one has {self.epoch}): this process must not commit any more. Let one process "
                "read for a consumer, or open it again"
            )
        self._state = state
        if state.phase is Phase.DROPPED:
            raise ConsumerFencedError(f"consumer {self._name!r} was dropped; open it again")
        return state

    def _check(self) -> ConsumerState:
        """Return the state as :meth:`_owned`; raise if the consumer is expired."""
        state = self._owned()
        if state.phase is Phase.EXPIRED:
            raise ConsumerExpiredError(
                f"consumer {self._name!r} of {self._location} expired: {state.reason}. Begin again "
                "with the whole table, and remove what it does not return: reset(), or memwal "
                f"consumers reset {self._location} {self._name}; with reset('now'), the changes "
                "since are passed over"
            )
        return state

    def _held_feed(
        self,
        state: ConsumerState,
        after: str | None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        grain: Literal["net", "log"] = "net",
    ) -> Changes:
        """Plan a feed, and hold its version instead of that of an earlier read."""
        feed = self._plan_held(
            state,
            lambda: Changes(
                self._location,
                after=after,
                until=None,
                columns=columns,
                filter=filter,
                grain=grain,
            ),
        )
        self._give_up(*(version for version in self._held if version != feed.version))
        return feed

    def _plan_held(self, state: ConsumerState, plan: Callable[[], Planned]) -> Planned:
        """Plan a read whose version has a tag: see :mod:`memwal.feed.consumer_state`."""
        for _ in range(_ATTEMPTS):
            planned = plan()
            token = FeedToken.parse(str(planned.token))
            if self._tag_of(state, token.version) is not None:
                return planned
            try:
                tag, is_newest = self._place(token, state)
            except TokenExpiredError:
                # The version was replaced and cleaned up since it was planned.
                continue
            # A process that has not seen the tag decides by versions that existed before it.
            if is_newest:
                self._held[tag.version] = tag
                return planned
            self._release(tag)
        raise ConflictError(
            f"{self._location} changes faster than its feed can be planned; call again"
        )

    def _tag_of(self, state: ConsumerState, version: int) -> ConsumerTag | None:
        """Return the tag that holds a version for this consumer; None without one."""
        for tag in (self._held.get(version), parse_consumer_tag(state.tag or "")):
            # After an expiry, the collector deletes the held versions and generations.
            if tag is not None and tag.version == version and state.needs(tag):
                return tag
        return None

    def _place(self, token: FeedToken, state: ConsumerState) -> tuple[ConsumerTag, bool]:
        """Tag the version of a token; return the tag, and whether the version is the newest."""
        base = base_of(self._location, token)
        step = max([state.step, *(tag.step for tag in self._held.values())]) + 1
        tag = ConsumerTag(self._name, step, base.version, self._claim)
        try:
            place_tag(base, tag)
        except ObjectNotFoundError as error:
            raise expired(self._location, f"version {base.version} was cleaned up") from error
        # Lance syncs neither tags nor its own commits. No state, and no token that is stored with
        # the rows, names a tag or a version that a crash of the machine takes away.
        self._location.store.barrier(up_to=tag.key)
        return tag, int(base.dataset.latest_version) == base.version

    def _advance(self, state: ConsumerState, token: str | None, tag: ConsumerTag | None) -> None:
        """Store another token, and delete the tags of the earlier tokens."""
        held = list(self._held.values())
        later = [each for each in held if tag is not None and each.version > tag.version]
        if later:
            # Their tags stay needed: the step of each is later than that of the state.
            step = min(each.step for each in later) - 1
        else:
            placed = [*held, tag] if tag is not None else held
            step = max([state.step + 1, *(each.step for each in placed)])
        after = replace(
            state,
            step=step,
            at=datetime.now(UTC),
            token=token,
            tag=tag.name if tag is not None else None,
            phase=Phase.ACTIVE,
            reason="",
        )
        # A swap without an answer may be stored, also later: the state names the tag then, so no
        # read gives it up from now on.
        self._held = {each.version: each for each in held if each != tag}
        self._swap(state, after)
        self._held = {each.version: each for each in later}
        before = (*held, parse_consumer_tag(state.tag or ""))
        self._release(*(old for old in before if old is not None and old not in (tag, *later)))

    def _renew(self, state: ConsumerState) -> None:
        """Record that the consumer has seen all, or goes on."""
        if datetime.now(UTC) - state.at >= RENEW_AFTER:
            self._swap(state, replace(state, at=datetime.now(UTC)))

    def _swap(self, before: ConsumerState, after: ConsumerState) -> None:
        try:
            self._state = swap_state(self._location.store, before, after)
        except ConflictError:
            self._check()
            raise

    def _give_up(self, *versions: int) -> None:
        """Delete the tags of reads that were not committed."""
        self._release(*(self._held.pop(version) for version in versions))

    def _release(self, *tags: ConsumerTag) -> None:
        """Delete tags that nothing needs; the collector deletes the tags that stay."""
        for tag in tags:
            try:
                delete_tag(self._location, tag)
            except MemWalError as error:
                logger.info("the tag %s of %s is left behind: %s", tag.name, self._location, error)


def _check_start(token: str | None) -> None:
    if token not in (None, NOW):
        raise InvalidInputError(
            f"{token!r} is no start of a consumer: None for the whole table, or {NOW!r}"
        )
