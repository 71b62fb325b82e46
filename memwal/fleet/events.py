"""What happened since a channel was last told: things that went wrong, and things that mended.

A channel is whoever is told, by a name. What it was told is kept in the catalog, so that a thing is
told once however many look, and what could not be delivered is told the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from memwal.catalog.notified import Told
from memwal.errors import ConflictError
from memwal.fleet.conditions import LEASE, Condition, Kind, conditions

if TYPE_CHECKING:
    from memwal.catalog import Catalog

PAUSE: Final = timedelta(seconds=60)
"""Least time between two messages to a channel; what happens meanwhile is in the next."""

_LEASE_TTL = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that is to be told.

    Attributes
    ----------
    kind : Kind
    table : str
        Name of the managed table.
    owner : str
        Who to ask; empty when the condition is over.
    topic, subject, mark : str
        As of :class:`~memwal.fleet.conditions.Condition`.
    over : bool
        Whether it ended; else it began, or became something else.
    since : datetime
        When it began, in UTC.
    text : str
        What it is, in one line.
    """

    kind: Kind
    table: str
    owner: str
    topic: str
    subject: str
    mark: str
    over: bool
    since: datetime
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "kind": self.kind.value,
            "table": self.table,
            "owner": self.owner,
            "subject": self.subject,
            "critical": self.kind.is_critical and not self.over,
            "over": self.over,
            "since": self.since.isoformat(),
            "text": self.text,
        }


def news(
    catalog: Catalog,
    channel: str,
    *,
    tables: Collection[str] | None = None,
    now: datetime | None = None,
) -> list[Event]:
    """Return what a channel has not been told yet; asking again gives the same.

    Parameters
    ----------
    catalog : Catalog
    channel : str
        Name of the channel, up to 100 characters.
    tables : collection of str, optional
        Only of these tables.
    now : datetime, optional
        Aware; by default the present.

    Raises
    ------
    StoreUnavailableError
        The catalog does not answer.
    """
    now = now or datetime.now(UTC)
    return _news(catalog, channel, tables, now)[0]


def tell(
    catalog: Catalog,
    channel: str,
    send: Callable[[Sequence[Event]], None],
    *,
    tables: Collection[str] | None = None,
    pause: timedelta = PAUSE,
    now: datetime | None = None,
) -> list[Event]:
    """Send a channel what it has not been told yet, in one message, and remember that.

    Any number of processes may call it: one of them sends. When the message arrived and this
    process died before that was written, it is sent again.

    Parameters
    ----------
    catalog : Catalog
    channel : str
        Name of the channel, up to 100 characters: no address, which may be a secret.
    send : callable
        Delivers a message about some events; when it raises, they are told the next time.
    tables : collection of str, optional
        Only of these tables.
    pause : timedelta, default 60 s
        Least time since the last message; what is new before waits for a later call.
    now : datetime, optional
        Aware; by default the present.

    Returns
    -------
    list of Event
        What was sent.

    Raises
    ------
    StoreUnavailableError
        The catalog does not answer.
    MemWalError
        Whatever ``send`` raises.
    """
    now = now or datetime.now(UTC)
    if not _news(catalog, channel, tables, now)[0]:
        return []
    try:
        lease = catalog.leases.acquire(f"events/{channel}", ttl=_LEASE_TTL)
    except ConflictError:
        # Somebody else is telling it right now.
        return []
    with lease:
        events, ended = _news(catalog, channel, tables, now)
        last = catalog.notified.last_told_at(channel)
        if not events or (last is not None and last <= now < last + pause):
            return []
        send(events)
        catalog.notified.keep(channel, [*(_told(event, now) for event in events), *ended])
    return events


def _news(
    catalog: Catalog, channel: str, tables: Collection[str] | None, now: datetime
) -> tuple[list[Event], list[Told]]:
    """What is to be told, and what is to be forgotten without a word."""
    known = {told.key: told for told in catalog.notified.open(channel)}
    present = {one.key: one for one in conditions(catalog, tables=tables, now=now)}
    watched = {table.name for table in catalog.list(enabled_only=True)}
    events = [
        _began(one)
        for key, one in present.items()
        if key not in known or known[key].mark != one.mark
    ]
    ended: list[Told] = []
    for key, told in known.items():
        if key in present or (tables is not None and told.table not in tables):
            continue
        if told.topic == LEASE or told.table not in watched:
            ended.append(replace(told, open=False))
        else:
            events.append(_ended(told, now))
    return events, ended


def _began(one: Condition) -> Event:
    return Event(
        kind=one.kind,
        table=one.table,
        owner=one.owner,
        topic=one.topic,
        subject=one.subject,
        mark=one.mark,
        over=False,
        since=one.since,
        text=one.text,
    )


def _ended(told: Told, now: datetime) -> Event:
    minutes = max((now - told.since).total_seconds(), 0) / 60
    return Event(
        kind=Kind(told.kind),
        table=told.table,
        owner="",
        topic=told.topic,
        subject=told.subject,
        mark=told.mark,
        over=True,
        since=told.since,
        text=" ".join(f"over after {minutes:.0f} min: {told.topic} {told.subject}".split()),
    )


def _told(event: Event, now: datetime) -> Told:
    return Told(
        table=event.table,
        topic=event.topic,
        subject=event.subject,
        kind=event.kind.value,
        mark=event.mark,
        since=event.since,
        told_at=now,
        open=not event.over,
    )
