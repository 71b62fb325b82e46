"""Credentials that end, fetched anew before they do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from memwal.errors import InvalidInputError, MemWalError, StoreAccessError
from memwal.storage import uris

logger = logging.getLogger(__name__)

Fetch = Callable[[], Mapping[str, str]]
"""Returns storage options with credentials, and when they end: ``expires_at_millis``."""

EXPIRES: Final = "expires_at_millis"
_REFRESH_OFFSET: Final = "refresh_offset_millis"
# What the credentials of each cloud are called, the name that Lance knows first.
_S3 = {
    "aws_access_key_id": ("access_key_id",),
    "aws_secret_access_key": ("secret_access_key",),
    "aws_session_token": ("aws_token", "session_token", "token"),
}
_GCS = {"google_storage_token": ("bearer_token", "token")}
_AZURE = {
    "azure_storage_account_key": (
        "azure_storage_access_key",
        "azure_storage_master_key",
        "account_key",
        "access_key",
        "master_key",
    ),
    "azure_storage_sas_token": ("azure_storage_sas_key", "sas_token", "sas_key"),
    "azure_storage_token": ("bearer_token", "token"),
}
NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    uris.S3: _S3,
    uris.GCS: _GCS,
    **dict.fromkeys(uris.AZURE, _AZURE),
}

# Renewed so long before they end, or at half of a shorter life.
_MARGIN_SECONDS = 300.0
# How long credentials of which nobody knows the end are taken as good.
_UNKNOWN_SECONDS = 60.0
# Pause after a source that failed while what it gave before is still good.
_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Held:
    """Credentials and how long they are good.

    Attributes
    ----------
    options : mapping of str to str
        Under the names that Lance has for them.
    renew_at, expires_at : float
        Seconds since 1970.
    """

    options: Mapping[str, str] = field(repr=False)
    renew_at: float
    expires_at: float

    def for_lance(self) -> dict[str, str]:
        """As storage options that tell Lance when to ask again."""
        return {
            **self.options,
            EXPIRES: str(int(self.expires_at * 1000)),
            _REFRESH_OFFSET: str(int((self.expires_at - self.renew_at) * 1000)),
        }


class Credentials:
    """The credentials of one source for one kind of store.

    May be asked from many threads; one of them fetches. Iterating gives the secrets of now.

    Parameters
    ----------
    source : str
        Its name, for messages.
    fetch : callable
        Gives them.
    scheme : str
        Of the addresses that they are for.
    clock : callable, default time.time
    """

    def __init__(
        self, source: str, fetch: Fetch, *, scheme: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.source = source
        self._fetch = fetch
        self._scheme = scheme
        self._clock = clock
        self._lock = threading.Lock()
        self._held: Held | None = None

    def current(self) -> Held:
        """The credentials, fetched anew when they are about to end.

        A source that fails is asked again later, as long as what it gave before is good.

        Raises
        ------
        StoreAccessError
            The source failed, or gave none that are good.
        """
        held = self._held
        if held is not None and self._clock() < held.renew_at:
            return held
        with self._lock:
            held = self._held
            if held is None or self._clock() >= held.renew_at:
                held = self._held = self._renewed(held)
            return held

    def __iter__(self) -> Iterator[str]:
        held = self._held
        return iter(held.options.values() if held is not None else ())

    def _renewed(self, before: Held | None) -> Held:
        asked = self._clock()
        try:
            return self._taken(self._fetch(), asked)
        except Exception as error:
            # Anything can come out of a callable of the user; its text may hold a secret.
            reason = str(error) if isinstance(error, MemWalError) else type(error).__name__
            if before is not None and self._clock() < before.expires_at:
                logger.warning(
                    "the credentials source %s failed, and is asked again: %s", self.source, reason
                )
                return Held(before.options, self._clock() + _PAUSE_SECONDS, before.expires_at)
            raise StoreAccessError(
                f"the credentials source {self.source!r} gave none: {reason}; see to it, then try "
                "again"
            ) from None

    def _taken(self, given: Mapping[str, str], asked: float) -> Held:
        lowered = {key.lower(): value for key, value in given.items()}
        options = {
            name: str(value)
            for name, others in NAMES[self._scheme].items()
            if (value := next(filter(None, map(lowered.get, (name, *others))), None))
        }
        if not options:
            raise InvalidInputError(
                f"it must return storage options such as {', '.join(NAMES[self._scheme])}"
            )
        end = lowered.get(EXPIRES)
        if end is None:
            return Held(options, asked + _UNKNOWN_SECONDS, asked + 2 * _UNKNOWN_SECONDS)
        if not str(end).isdecimal():
            raise InvalidInputError(f"{EXPIRES} must be a whole number of milliseconds since 1970")
        expires_at = int(end) / 1000
        life = expires_at - asked
        if life <= 0:
            raise StoreAccessError("what it gave has ended already; look at both clocks")
        return Held(options, expires_at - min(_MARGIN_SECONDS, life / 2), expires_at)
