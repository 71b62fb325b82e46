"""Events of a channel: conditions that began or ended since its last delivery; Slack webhooks.

A channel is a recipient, by a name. What a channel was told is kept in the catalog, so an event is
delivered once however many processes check, and what could not be delivered is delivered the next
time.

The address of a webhook is a secret: a process that has it can post. The address is in no message,
no log and no ``repr`` here; of an answer, only the status is reported.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from memwal.catalog.notifications import Told
from memwal.errors import ConflictError, InvalidInputError, MemWalError
from memwal.fleet.health import LEASE, Condition, Kind, conditions

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
        As of :class:`~memwal.fleet.health.Condition`.
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


ATTEMPTS: Final = 3
TIMEOUT_SECONDS: Final = 10.0

_LISTED = 20
_LONGEST_TEXT = 300
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_TOO_MANY = 429
# What a request can hold as it is.
_PLAIN = re.compile(r"[!-~]+")


class DeliveryError(MemWalError):
    """A message did not arrive, or it is not known whether it did; it is sent again later."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a webhook said.

    Attributes
    ----------
    status : int
        Of HTTP.
    retry_after : str or None
        The header of that name.
    """

    status: int
    retry_after: str | None = None


Post = Callable[[Mapping[str, Any]], Answer]
"""Posts a body as JSON, once; any answer is returned. Without one, or with one that is no HTTP, an
``OSError`` or an ``HTTPException`` is raised."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook by its address.

    Attributes
    ----------
    url : str
        A secret.
    timeout : float
        Seconds to wait for each step of the answer.
    """

    url: str = field(repr=False)
    timeout: float = TIMEOUT_SECONDS

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise InvalidInputError(
                "the address of the webhook is not one; it looks like https://host/path, without "
                "a user and with what is no plain sign written as %20"
            )

    @classmethod
    def from_file(cls, path: Path) -> Webhook:
        """Read the address from a file that holds nothing else.

        Raises
        ------
        InvalidInputError
            The file cannot be read, or holds something else.
        """
        try:
            return cls(path.read_text(encoding="utf-8").strip())
        except OSError as error:
            raise InvalidInputError(
                f"cannot read the address of the webhook in {path}: {error.strerror}"
            ) from error
        except ValueError:
            raise InvalidInputError(
                f"{path} must hold the address of a webhook, such as https://host/path"
            ) from None

    def post(self, body: Mapping[str, Any]) -> Answer:
        """Post a body once."""
        request = urllib.request.Request(  # noqa: S310 - http or https, as checked
            self.url,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json; charset=utf-8", "User-Agent": "memwal"},
            method="POST",
        )
        opener = urllib.request.build_opener(_NoRedirects)
        try:
            with opener.open(request, timeout=self.timeout) as answer:
                return Answer(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers.get("Retry-After"))

    def send(self, events: Sequence[Event]) -> None:
        """Deliver a message about some events.

        Raises
        ------
        DeliveryError
            It did not arrive.
        """
        deliver(self.post, events)


def deliver(
    post: Post,
    events: Sequence[Event],
    *,
    attempts: int = ATTEMPTS,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Deliver a message about some events, trying again what may work later.

    Parameters
    ----------
    post : callable
        Posts a body once.
    events : sequence of Event
    attempts : int, default 3
        Most tries. Between them it waits for a second, then two, or as long as the answer asks
        for, up to 30 s.
    sleep : callable
        How to wait.

    Raises
    ------
    DeliveryError
        It did not arrive. The message does not tell where to.
    """
    body = slack_body(events)
    why = ""
    for number in range(attempts):
        asked = None
        try:
            answer = post(body)
        except (OSError, http.client.HTTPException) as error:
            # Its text may hold the address; so would the cause of what is raised.
            why = f"no answer ({type(error).__name__})"
        else:
            if 200 <= answer.status < 300:
                return
            why = f"the answer was {answer.status}"
            if answer.status != _TOO_MANY and answer.status < 500:
                break
            asked = answer.retry_after
        if number + 1 < attempts:
            sleep(_pause(number, asked))
    raise DeliveryError(
        f"the webhook did not take the message: {why}; it is sent again with the next one"
    )


def slack_body(events: Sequence[Event]) -> dict[str, Any]:
    """Return a message about events, the critical first, as Slack's webhooks take it."""
    ranked = sorted(events, key=lambda event: (event.over, not event.kind.is_critical))
    return {"text": "\n".join(_lines(ranked))}


def _lines(events: Sequence[Event]) -> Iterator[str]:
    for event in events[:_LISTED]:
        mark = (
            ":white_check_mark:"
            if event.over
            else ":rotating_light:"
            if event.kind.is_critical
            else ":warning:"
        )
        what = event.kind.value.replace("_", " ")
        owner = f" ({event.owner})" if event.owner else ""
        yield _escaped(f"{mark} {event.table}{owner}: {what}: {_short(event.text)}")
    if len(events) > _LISTED:
        yield f"... and {len(events) - _LISTED} more; memwal fleet events lists them"


def _escaped(text: str) -> str:
    # Else a message of an error could call a channel, or hide a link behind a word.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."


def _pause(number: int, asked: str | None) -> float:
    own: float = _FIRST_PAUSE_SECONDS * 2**number
    wanted = float(asked) if asked is not None and asked.strip().isdecimal() else own
    return min(wanted, _LONGEST_PAUSE_SECONDS)


def _is_address(url: str) -> bool:
    """Whether it can be posted to as it is: the client would tell the whole of what it cannot."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        return False
    plain = _PLAIN.fullmatch(url) is not None and "@" not in parts.netloc
    return plain and parts.scheme in ("http", "https") and host != "" and port != 0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Whoever answers with another address does not get the message there."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> None:
        return None
