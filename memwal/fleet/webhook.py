"""Messages about events to a webhook, in the form that Slack takes.

The address of a webhook is a secret: whoever has it can post. It is in no message, no log and no
``repr`` here; of an answer, only the number is told.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from memwal.errors import InvalidInputError, MemWalError
from memwal.fleet.events import Event

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
