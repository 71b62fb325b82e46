"""Notifications sent to each channel, stored so that no channel receives the same one twice."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import delete, func, select

from memwal.boundary.public import public
from memwal.catalog.database import Database
from memwal.catalog.models import NotifiedEventRow, record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Latest notification of one subject that a channel received.

    A channel has at most one for each table, topic and subject.
    """

    table: str
    topic: str
    subject: str
    kind: str  # value of a :class:`memwal.fleet.conditions.ConditionKind`
    mark: str  # distinguishes this occurrence from others of its kind
    since: datetime  # when the condition began, in UTC
    sent_at: datetime  # in UTC
    open: bool  # the end of the condition has not been sent yet

    @property
    def key(self) -> tuple[str, str, str]:
        return self.table, self.topic, self.subject


@public
class Notifications:
    """Notifications of a catalog's channels. Every call can raise ``StoreUnavailableError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, channel: str) -> list[Notification]:
        """Return the notifications of a channel whose conditions have no end sent yet."""
        query = (
            select(NotifiedEventRow)
            .where(NotifiedEventRow.channel == channel, NotifiedEventRow.open)
            .order_by(NotifiedEventRow.table, NotifiedEventRow.topic, NotifiedEventRow.subject)
        )
        with self._database.reading() as session:
            return [record_of(Notification, row) for row in session.scalars(query)]

    def last_sent_at(self, channel: str) -> datetime | None:
        """Return when a channel was last sent a notification, in UTC; None if never."""
        query = select(func.max(NotifiedEventRow.sent_at)).where(
            NotifiedEventRow.channel == channel
        )
        with self._database.reading() as session:
            return session.scalar(query)

    def record(self, channel: str, notifications: Collection[Notification]) -> None:
        """Record notifications that a channel received."""
        with self._database.writing() as session:
            for sent in notifications:
                session.merge(NotifiedEventRow(channel=channel, **asdict(sent)))

    def prune(self, *, before: datetime) -> None:
        """Delete notifications of ended conditions that were sent before a time."""
        with self._database.writing() as session:
            session.execute(
                delete(NotifiedEventRow).where(
                    NotifiedEventRow.sent_at < before, ~NotifiedEventRow.open
                )
            )
