"""Notifications sent to each channel, stored so that no channel receives the same one twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select

from memwal.catalog.database import Database
from memwal.catalog.models import NotifiedEventRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Latest notification of one subject that a channel received.

    Attributes
    ----------
    table : str
        Name of the managed table.
    topic, subject : str
        Subject of the condition. A channel has at most one notification for each table, topic and
        subject.
    kind : str
        Kind of the condition (:class:`memwal.fleet.health.ConditionKind`).
    mark : str
        Distinguishes this occurrence from others of its kind.
    since : datetime
        When the condition began, in UTC.
    sent_at : datetime
        When the notification was sent, in UTC.
    open : bool
        Whether the end of the condition has not been sent yet.
    """

    table: str
    topic: str
    subject: str
    kind: str
    mark: str
    since: datetime
    sent_at: datetime
    open: bool

    @property
    def key(self) -> tuple[str, str, str]:
        """Table, topic and subject."""
        return self.table, self.topic, self.subject


class Notifications:
    """Notifications of a catalog's channels. Every call can raise ``StoreUnavailableError``.

    Parameters
    ----------
    database : Database
        Database of the catalog; :attr:`memwal.catalog.Catalog.notifications` makes this object.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, channel: str) -> list[Notification]:
        """Return the notifications of a channel whose conditions have no end sent yet."""
        query = (
            select(NotifiedEventRow)
            .where(NotifiedEventRow.channel == channel, NotifiedEventRow.open)
            .order_by(NotifiedEventRow.table_name, NotifiedEventRow.topic, NotifiedEventRow.subject)
        )
        with self._database.reading() as session:
            return [
                Notification(
                    table=row.table_name,
                    topic=row.topic,
                    subject=row.subject,
                    kind=row.kind,
                    mark=row.mark,
                    since=row.since,
                    sent_at=row.told_at,
                    open=row.open,
                )
                for row in session.scalars(query)
            ]

    def last_sent_at(self, channel: str) -> datetime | None:
        """Return when a channel was last sent a notification, in UTC; None if never."""
        query = select(func.max(NotifiedEventRow.told_at)).where(
            NotifiedEventRow.channel == channel
        )
        with self._database.reading() as session:
            return session.scalar(query)

    def record(self, channel: str, notifications: Iterable[Notification]) -> None:
        """Record notifications that a channel received."""
        with self._database.writing() as session:
            for sent in notifications:
                session.merge(
                    NotifiedEventRow(
                        channel=channel,
                        table_name=sent.table,
                        topic=sent.topic,
                        subject=sent.subject,
                        kind=sent.kind,
                        mark=sent.mark,
                        since=sent.since,
                        told_at=sent.sent_at,
                        open=sent.open,
                    )
                )

    def prune(self, *, before: datetime) -> None:
        """Delete notifications of ended conditions that were sent before a time."""
        with self._database.writing() as session:
            session.execute(
                delete(NotifiedEventRow).where(
                    NotifiedEventRow.told_at < before, ~NotifiedEventRow.open
                )
            )
