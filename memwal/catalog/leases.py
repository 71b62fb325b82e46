"""Leases on tables and jobs, so that a second run waits or skips instead of wasting work.

A lease is not a fence. Between a check of the lease and the next action, a process can be paused
for any time; its actions after the pause must still be refused by a compare-and-swap. A lease
guarantees that two holders of one resource never have the same token, that later holders have
higher tokens, and that a holder which checks after its lease expired gets an error.

A held lease is renewed in the background, and released at the end of its context.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from memwal.boundary.public import public
from memwal.catalog.database import Database, database_time
from memwal.catalog.models import LeaseRow, record_of
from memwal.errors import (
    ConflictError,
    InvalidInputError,
    LeaseLostError,
    MemWalError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal.util.clock import Duration, boot_seconds, duration
from memwal.util.records import JsonRecord

logger = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0


@public
class Lease:
    """Lease that is renewed in the background; a context manager that releases it on exit.

    Parameters
    ----------
    leases : Leases
        Storage of the lease; :meth:`Leases.acquire` makes leases.
    requested_at : float
        Time before the request was sent, in seconds of a clock that is never set.

    Attributes
    ----------
    resource, holder : str
        The leased resource, and its holder.
    token : int
        Fencing token: strictly higher than that of every earlier lease of the resource.
    ttl : timedelta
        How long it lasts after a renewal.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        resource: str,
        holder: str,
        token: int,
        ttl: timedelta,
        requested_at: float,
    ) -> None:
        self.resource = resource
        self.holder = holder
        self.token = token
        self.ttl = ttl
        self._leases = leases
        # By our own clock, from before the request was sent: never later than the expiry in the
        # database.
        self._ends_at = requested_at + ttl.total_seconds()
        self._over = threading.Event()
        self._lost: str | None = None
        self._thread = threading.Thread(
            target=self._renew_until_over, name=f"lease {resource}"[:60], daemon=True
        )
        self._thread.start()

    @property
    def lost(self) -> bool:
        """True if the lease is known to be lost or was not renewed in time; asks no database."""
        return self._lost is not None or boot_seconds() >= self._ends_at

    def check(self) -> None:
        """Check that the lease is in force; call this just before every commit.

        Queries the database. While the database does not answer, the holder goes on until the time
        to live is over by its own clock.

        Raises
        ------
        LeaseLostError
            The lease was not renewed in time, another process has it, or it was released.
        """
        self._refuse_if_over()
        try:
            if not self._leases.holds(self.resource, self.token):
                self._lose("it ran out or was taken away")
        except StoreUnavailableError as error:
            logger.warning("the lease of %s cannot be checked: %s", self.resource, error)
        # Checked again after the query, which can have taken any time.
        self._refuse_if_over()

    def release(self) -> None:
        """Release the lease. Safe to call again, and after the lease was lost.

        If the database does not answer or refuses, the lease expires by itself.
        """
        if self._over.is_set():
            return
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)
        if self._lost is None:
            self._lost = "it was released"
            try:
                self._leases.end(self.resource, self.token)
            except MemWalError as error:
                logger.warning(
                    "the lease of %s was not released, it will expire: %s", self.resource, error
                )

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

    def _renew_until_over(self) -> None:
        usual = self.ttl.total_seconds() / 3
        pause = usual
        while not self._over.wait(pause) and self._lost is None:
            requested_at = boot_seconds()
            if requested_at >= self._ends_at:
                self._lose("it was not renewed in time")
                return
            try:
                renewed = self._leases.renew(self.resource, self.token, self.ttl)
            except TableSetupError as error:
                # A migration excluded this program: its work ends before the next commit.
                self._lose(str(error))
                return
            except MemWalError as error:
                logger.warning("the lease of %s was not renewed yet: %s", self.resource, error)
                pause = usual / 4
                continue
            if not renewed:
                self._lose("it ran out or was taken away")
                return
            self._ends_at = requested_at + self.ttl.total_seconds()
            pause = usual

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "lost" if self.lost else "held"
        return f"Lease({self.resource!r}, token={self.token}, {state})"


DEFAULT_TTL = timedelta(seconds=60)

_SHORTEST_TTL = timedelta(milliseconds=300)
_LONGEST_POLL_SECONDS = 1.0
# How far beyond its time to live an expiry may lie before the clock must have been put back.
_CLOCK_SLACK = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord(JsonRecord):
    """Lease as stored in the catalog."""

    resource: str
    """The leased resource."""
    holder: str
    """Its current or last holder."""
    token: int
    """Number of the lease; every later one of the same resource has a higher one."""
    ttl_seconds: float
    """Time until it ends without a renewal."""
    acquired_at: datetime
    """In UTC."""
    expires_at: datetime | None
    """In UTC; None if it was released."""
    held: bool
    """Whether it was in force when the record was read."""


@public
class Leases:
    """Leases of a catalog.

    Parameters
    ----------
    database : Database
        Database of the catalog; :attr:`memwal.catalog.Catalog.leases` makes this object.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def acquire(
        self,
        resource: str,
        *,
        holder: str | None = None,
        ttl: Duration = DEFAULT_TTL,
        wait: Duration | None = None,
    ) -> Lease:
        """Acquire a lease, and renew it in the background until it is released.

        Parameters
        ----------
        resource : str
            Up to 500 characters; see :func:`job_resource`.
        holder : str, optional
            Name of the holder, for messages: by default machine and process.
        ttl : float or timedelta, default 60 s
            How long the lease lasts after the last renewal; it is renewed after every third of this
            time. After a crash other processes wait for this time; a pause or a database outage
            that is longer loses the lease. At least 0.3 s.
        wait : float or timedelta, optional
            How long to wait while another process holds the lease. None does not wait.

        Raises
        ------
        ConflictError
            Another process still holds it after ``wait``.
        InvalidInputError
            The resource is empty or too long, or ``ttl`` too short.
        StoreUnavailableError
            The database does not answer.

        Examples
        --------
        >>> with catalog.leases.acquire(job_resource("flights", "merge")) as lease:
        ...     for task in plan:
        ...         prepare(task)
        ...         lease.check()
        ...         commit(task)
        """
        if not resource or len(resource) > 500:
            raise InvalidInputError("The resource of a lease has 1 to 500 characters.")
        ttl = duration(ttl, "ttl")
        longest_wait = None if wait is None else duration(wait, "wait").total_seconds()
        if ttl < _SHORTEST_TTL:
            raise InvalidInputError(f"A lease of {ttl} is too short to be renewed; use 0.3 s.")
        name = (holder or default_holder())[:200]
        started = time.monotonic()
        while True:
            requested_at = boot_seconds()
            record, acquired = self._try_acquire(resource, name, ttl)
            if acquired:
                return Lease(
                    self,
                    resource=resource,
                    holder=name,
                    token=record.token,
                    ttl=ttl,
                    requested_at=requested_at,
                )
            remaining = -1.0
            if longest_wait is not None:
                remaining = longest_wait + started - time.monotonic()
            if remaining <= 0:
                raise ConflictError(
                    f"{resource} is leased to {record.holder} (token {record.token}) until "
                    f"{record.expires_at:%Y-%m-%d %H:%M:%S} UTC or longer; try again later."
                )
            pause = min(_LONGEST_POLL_SECONDS, record.ttl_seconds / 5, ttl.total_seconds() / 5)
            time.sleep(min(remaining, pause * random.uniform(0.5, 1.0)))  # noqa: S311

    def list(self, *, held_only: bool = True) -> list[LeaseRecord]:
        """Return the leases by resource; also ended leases unless ``held_only``."""
        with self._database.reading() as session:
            now = database_time(session)
            rows = session.scalars(select(LeaseRow).order_by(LeaseRow.resource))
            records = [_record(row, now) for row in rows]
        return [record for record in records if record.held or not held_only]

    def find(self, resource: str) -> LeaseRecord | None:
        """Return the record of the lease of ``resource``; None if it was never leased."""
        with self._database.reading() as session:
            row = session.get(LeaseRow, resource)
            return None if row is None else _record(row, database_time(session))

    def release(self, resource: str, *, token: int | None = None) -> LeaseRecord:
        """End the lease of ``resource`` by force, and return its record from before.

        With ``token``, only if the lease has this token. The holder notices at its next renewal or
        check, and may go on until then: make sure that the holder is dead, or do not start another
        one.

        Raises
        ------
        ObjectNotFoundError
            The resource was never leased.
        ConflictError
            The lease has another token by now.
        """
        with self._database.writing() as session:
            row = _lock_row(session, resource)
            if row is None:
                raise ObjectNotFoundError(f"No lease of {resource!r} is known.")
            if token is not None and row.token != token:
                raise ConflictError(
                    f"The lease of {resource} has token {row.token} by now, not {token}."
                )
            record = _record(row, database_time(session))
            row.expires_at = None
        if record.held:
            taken = "the lease of %s was taken from %s (token %d) by force"
            logger.warning(taken, resource, record.holder, record.token)
        return record

    def renew(self, resource: str, token: int, ttl: timedelta) -> bool:
        """Extend a lease to ``ttl`` from now; return False if it is over."""
        with self._database.writing() as session:
            row = _lock_row(session, resource)
            now = database_time(session)
            if row is None or row.token != token or not _is_held(row, now):
                return False
            row.expires_at = now + ttl
            return True

    def holds(self, resource: str, token: int) -> bool:
        """Return whether the lease with this token is in force."""
        with self._database.reading() as session:
            row = session.get(LeaseRow, resource)
            return row is not None and row.token == token and _is_held(row, database_time(session))

    def end(self, resource: str, token: int) -> None:
        """End a lease if it has this token."""
        with self._database.writing() as session:
            row = _lock_row(session, resource)
            if row is not None and row.token == token:
                row.expires_at = None

    def _try_acquire(self, resource: str, holder: str, ttl: timedelta) -> tuple[LeaseRecord, bool]:
        """Acquire the lease if it is free; return the lease in force, and whether it is ours."""
        with self._database.writing() as session:
            row = _lock_row(session, resource)
            if row is None:
                _insert(session, resource, holder, ttl)
                row = _lock_row(session, resource)
            if row is None:
                raise ConflictError(f"The lease of {resource} came and went; try again.")
            now = database_time(session)
            if _is_held(row, now):
                return _record(row, now), False
            row.token += 1
            row.holder = holder
            row.ttl_seconds = ttl.total_seconds()
            row.acquired_at = now
            row.expires_at = now + ttl
            return _record(row, now), True


def job_resource(table: str, job: str, *, part: str | None = None) -> str:
    """Return the resource to lease for a ``job`` on a ``table``, or on a ``part`` of it such as an
    index.
    """
    return f"table/{table}/{job}" if part is None else f"table/{table}/{job}/{part}"


def default_holder() -> str:
    """Return the names of machine and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _lock_row(session: Session, resource: str) -> LeaseRow | None:
    """Lock and return the row of a resource until the end of the transaction."""
    query = select(LeaseRow).where(LeaseRow.resource == resource).with_for_update()
    return session.scalar(query.execution_options(populate_existing=True))


def _insert(session: Session, resource: str, holder: str, ttl: timedelta) -> None:
    """Insert a row without a holder, unless another process has just inserted one."""
    row = LeaseRow(
        resource=resource,
        token=0,
        holder=holder,
        ttl_seconds=ttl.total_seconds(),
        acquired_at=database_time(session),
        expires_at=None,
    )
    with contextlib.suppress(IntegrityError), session.begin_nested():
        session.add(row)


def _is_held(row: LeaseRow, now: datetime) -> bool:
    if row.expires_at is None or row.expires_at <= now:
        return False
    # No renewal sets the expiry so far ahead: the clock was set back, and without this check the
    # lease of a dead holder would stay in force.
    return row.expires_at <= now + timedelta(seconds=row.ttl_seconds) + _CLOCK_SLACK


def _record(row: LeaseRow, now: datetime) -> LeaseRecord:
    return record_of(LeaseRecord, row, held=_is_held(row, now))
