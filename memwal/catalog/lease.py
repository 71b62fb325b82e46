"""A lease that somebody holds, and keeps by renewing it."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Protocol, Self

from memwal.boot_clock import boot_seconds
from memwal.errors import ConflictError, StoreUnavailableError

logger = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0


class LeaseLostError(ConflictError):
    """The lease under which a job runs is over; the job stopped before its next commit.

    What to do: run the job again. What was committed stays.
    """


class LeaseBook(Protocol):
    """Where leases are written down. All calls can raise StoreUnavailableError."""

    def renew(self, resource: str, token: int, ttl: timedelta) -> bool:
        """Let the lease last for ``ttl`` from now; False when it is over."""

    def holds(self, resource: str, token: int) -> bool:
        """Whether the lease with this token is in force."""

    def give_back(self, resource: str, token: int) -> None:
        """End the lease if it has this token."""


class Lease:
    """A lease that is renewed in the background; a context manager that releases it at its end.

    Parameters
    ----------
    book : LeaseBook
        Where it is kept; :meth:`Leases.acquire` makes leases.
    asked_at : float
        When it was asked for, in seconds of a clock that nobody sets.

    Attributes
    ----------
    resource, holder : str
        What is leased, and to whom.
    token : int
        Fencing token: strictly higher than that of every earlier lease of the resource.
    ttl : timedelta
        How long it lasts after a renewal.
    """

    def __init__(
        self,
        book: LeaseBook,
        *,
        resource: str,
        holder: str,
        token: int,
        ttl: timedelta,
        asked_at: float,
    ) -> None:
        self.resource = resource
        self.holder = holder
        self.token = token
        self.ttl = ttl
        self._book = book
        # By our own clock, from before the request was sent: never later than the database's end.
        self._ends_at = asked_at + ttl.total_seconds()
        self._over = threading.Event()
        self._lost: str | None = None
        self._thread = threading.Thread(
            target=self._keep, name=f"lease {resource}"[:60], daemon=True
        )
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether it is known to be lost, or was not renewed in time; asks nobody."""
        return self._lost is not None or boot_seconds() >= self._ends_at

    def check(self) -> None:
        """Make sure that the lease is in force; to be called just before every commit.

        The database is asked. While it does not answer, the holder goes on until the time to live
        is over by its own clock.

        Raises
        ------
        LeaseLostError
            It is not: it was not renewed in time, somebody else has it, or it was released.
        """
        self._refuse_if_over()
        try:
            if not self._book.holds(self.resource, self.token):
                self._lose("it ran out or was taken away")
        except StoreUnavailableError as error:
            logger.warning("the lease of %s cannot be looked at: %s", self.resource, error)
        # After the look, which can have taken any time.
        self._refuse_if_over()

    def release(self) -> None:
        """Give the lease back. Safe to call again, and when it is lost.

        When the database does not answer, it runs out by itself.
        """
        if self._over.is_set():
            return
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)
        if self._lost is None:
            self._lost = "it was released"
            try:
                self._book.give_back(self.resource, self.token)
            except StoreUnavailableError as error:
                logger.warning("the lease of %s runs out by itself: %s", self.resource, error)

    def _refuse_if_over(self) -> None:
        if self._lost is None and boot_seconds() >= self._ends_at:
            self._lose("it was not renewed in time")
        if self._lost is not None:
            raise LeaseLostError(
                f"The lease of {self.resource} (token {self.token}) is lost: {self._lost}. "
                "Nothing more was done; start again."
            )

    def _lose(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
            logger.warning("the lease of %s (token %d): %s", self.resource, self.token, why)

    def _keep(self) -> None:
        usual = self.ttl.total_seconds() / 3
        pause = usual
        while not self._over.wait(pause) and self._lost is None:
            asked_at = boot_seconds()
            if asked_at >= self._ends_at:
                self._lose("it was not renewed in time")
                return
            try:
                renewed = self._book.renew(self.resource, self.token, self.ttl)
            except StoreUnavailableError as error:
                logger.warning("the lease of %s was not renewed yet: %s", self.resource, error)
                pause = usual / 4
                continue
            if not renewed:
                self._lose("it ran out or was taken away")
                return
            self._ends_at = asked_at + self.ttl.total_seconds()
            pause = usual

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "lost" if self.lost else "held"
        return f"Lease({self.resource!r}, token={self.token}, {state})"
