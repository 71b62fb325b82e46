"""Alert channels: deliver the conditions that began or ended since the last message; webhooks.

A channel is a recipient with a name. The notifications that it received are recorded in the
catalog, so an event is delivered once however many processes check, and an event whose delivery
failed is part of the next message.

The address of a webhook is a secret: a process that has it can post. The address is in no message,
no log and no ``repr`` here; of a response, only the status is reported.
"""

from __future__ import annotations

import html
import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from memwal.catalog.notifications import Notification
from memwal.errors import ConflictError, InvalidInputError, MemWalError
from memwal.fleet.conditions import LEASE_TOPIC, Condition, ConditionKind, conditions
from memwal.util.clock import Duration, duration
from memwal.util.records import JsonMapping, JsonObject

if TYPE_CHECKING:
    from memwal.catalog import Catalog

# Minimal time between two messages to a channel; later events wait for the next message.
MIN_INTERVAL: Final = timedelta(seconds=60)

_LEASE_TTL = timedelta(minutes=2)


def notify_channel(
    catalog: Catalog,
    channel: str,
    send: Callable[[Sequence[Condition]], None],
    *,
    tables: Collection[str] | None = None,
    pause: Duration = MIN_INTERVAL,
    now: datetime | None = None,
) -> list[Condition]:
    """Send a ``channel`` its pending events in one message, record them as sent, and return them.

    Any number of processes may call this: a lease lets one of them send. If this process dies
    between the delivery and the record, the message is sent again. Raises the errors of ``send``,
    and ``StoreUnavailableError`` if the ``catalog`` does not answer.

    Parameters
    ----------
    channel : str
        Name of the channel, up to 100 characters; not its address, which may be a secret.
    send : callable
        Delivers one message about the events; if it raises, they stay pending.
    tables : collection of str, optional
        Only events of these tables.
    pause : float or timedelta, default 60 s
        Minimal time since the last message; earlier events stay pending.
    now : datetime, optional
        Aware; by default the present.
    """
    now = now or datetime.now(UTC)
    if not _pending_events(catalog, channel, tables, now)[0]:
        return []
    try:
        lease = catalog.leases.acquire(f"events/{channel}", ttl=_LEASE_TTL)
    except ConflictError:
        # Another process is sending to this channel.
        return []
    with lease:
        events, ended = _pending_events(catalog, channel, tables, now)
        last = catalog.notifications.last_sent_at(channel)
        if not events or (last is not None and last <= now < last + duration(pause, "pause")):
            return []
        send(events)
        catalog.notifications.record(
            channel, [*(_notification(event, now) for event in events), *ended]
        )
    return events


def _pending_events(
    catalog: Catalog, channel: str, tables: Collection[str] | None, now: datetime
) -> tuple[list[Condition], list[Notification]]:
    """Return the pending events, and the notifications to close without an event."""
    open_notifications = {sent.key: sent for sent in catalog.notifications.open(channel)}
    current = {item.key: item for item in conditions(catalog, tables=tables, now=now)}
    watched = {table.name for table in catalog.list(enabled_only=True)}
    events = [
        condition
        for key, condition in current.items()
        if key not in open_notifications or open_notifications[key].mark != condition.mark
    ]
    ended: list[Notification] = []
    for key, sent in open_notifications.items():
        if key in current or (tables is not None and sent.table not in tables):
            continue
        if sent.topic == LEASE_TOPIC or sent.table not in watched:
            ended.append(replace(sent, open=False))
        else:
            events.append(_end_event(sent, now))
    return events, ended


def _end_event(sent: Notification, now: datetime) -> Condition:
    minutes = max((now - sent.since).total_seconds(), 0) / 60
    return Condition(
        kind=ConditionKind(sent.kind),
        table=sent.table,
        owner="",
        topic=sent.topic,
        subject=sent.subject,
        mark=sent.mark,
        over=True,
        since=sent.since,
        text=" ".join(f"over after {minutes:.0f} min: {sent.topic} {sent.subject}".split()),
    )


def _notification(event: Condition, now: datetime) -> Notification:
    return Notification(
        table=event.table,
        topic=event.topic,
        subject=event.subject,
        kind=event.kind.value,
        mark=event.mark,
        since=event.since,
        sent_at=now,
        open=not event.over,
    )


ATTEMPTS: Final = 3
TIMEOUT_SECONDS: Final = 10.0

_MAX_LISTED = 20
_MAX_TEXT = 300
_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0
_TOO_MANY = 429
# Characters that a request line holds without escaping.
_PRINTABLE = re.compile(r"[!-~]+")


class DeliveryError(MemWalError):
    """Delivery failed, or its outcome is unknown; the events are sent again later."""


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """Response of a webhook."""

    status: int  # HTTP status
    retry_after: str | None = None  # value of the ``Retry-After`` header


Post = Callable[[JsonMapping], WebhookResponse]
"""Posts a body as JSON, once, and returns the response of any status.

Without a response, or with one that is not HTTP, it raises ``OSError`` or ``HTTPException``."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook, given by its address."""

    url: str = field(repr=False)  # a secret
    timeout: float = TIMEOUT_SECONDS  # in seconds, of each step of the exchange

    def __post_init__(self) -> None:
        if not _is_webhook_url(self.url):
            raise InvalidInputError(
                "the address of the webhook is invalid; give one such as https://host/path, "
                "without a user, and with special characters percent-encoded, such as %20"
            )

    @classmethod
    def from_file(cls, path: Path) -> Webhook:
        """Read the address from a file that contains only the address.

        Raises ``InvalidInputError`` if the file cannot be read, or contains something else.
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

    def post(self, body: JsonMapping) -> WebhookResponse:
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
                return WebhookResponse(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return WebhookResponse(error.code, error.headers.get("Retry-After"))

    def send(self, events: Sequence[Condition]) -> None:
        """Deliver one message about the events; raise ``DeliveryError`` on failure."""
        deliver(self.post, events)


def deliver(
    post: Post,
    events: Sequence[Condition],
    *,
    attempts: int = ATTEMPTS,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Deliver one message about the events, with retries after transient failures.

    ``post`` posts a body once. The pause between the attempts is one second, then doubles, or is
    the time that the response asks for, up to 30 s; ``sleep`` takes its seconds. After the last
    attempt raises ``DeliveryError``, whose message does not contain the address.
    """
    body = slack_body(events)
    reason = ""
    for number in range(attempts):
        retry_after = None
        try:
            response = post(body)
        except (OSError, http.client.HTTPException) as error:
            # The text of the error may contain the address, and so would a chained cause.
            reason = f"no answer ({type(error).__name__})"
        else:
            if 200 <= response.status < 300:
                return
            reason = f"the answer was {response.status}"
            if response.status != _TOO_MANY and response.status < 500:
                break
            retry_after = response.retry_after
        if number + 1 < attempts:
            sleep(_retry_delay(number, retry_after))
    raise DeliveryError(
        f"the webhook did not take the message: {reason}; it is sent again with the next one"
    )


def slack_body(events: Sequence[Condition]) -> JsonObject:
    """Return a message in the format of Slack's webhooks: critical events first, ended last."""
    ranked = sorted(events, key=lambda event: (event.over, not event.kind.is_critical))
    return {"text": "\n".join(_message_lines(ranked))}


def _message_lines(events: Sequence[Condition]) -> Iterator[str]:
    for event in events[:_MAX_LISTED]:
        symbol = ":rotating_light:" if event.critical else ":warning:"
        symbol = ":white_check_mark:" if event.over else symbol
        what = event.kind.value.replace("_", " ")
        owner = f" ({event.owner})" if event.owner else ""
        line = f"{symbol} {event.table}{owner}: {what}: {_truncated(event.text)}"
        # Otherwise an error message could mention a whole channel, or hide a link behind a word.
        yield html.escape(line, quote=False)
    if len(events) > _MAX_LISTED:
        yield f"... and {len(events) - _MAX_LISTED} more; memwal fleet events lists them"


def _truncated(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."


def _retry_delay(number: int, retry_after: str | None) -> float:
    delay: float = _FIRST_PAUSE_SECONDS * 2**number
    if retry_after is not None and retry_after.strip().isdecimal():
        delay = float(retry_after)
    return min(delay, _MAX_PAUSE_SECONDS)


def _is_webhook_url(url: str) -> bool:
    """Return whether the HTTP client accepts this URL; its error would contain the whole URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        return False
    printable = _PRINTABLE.fullmatch(url) is not None and "@" not in parts.netloc
    return printable and parts.scheme in ("http", "https") and host != "" and port != 0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirect: the message goes to the configured address only."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None
