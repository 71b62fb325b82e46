"""Notifications that each channel has received, so that no channel gets the same one twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select

from memwal.catalog.database import Database
from memwal.catalog.models import NotifiedEventRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a channel was last told about one subject.

    Attributes
    ----------
    table : str
        Name of the managed table.
    topic, subject : str
        What it is about: of a table, at most one thing is told of each at a time.
    kind : str
        What was told.
    mark : str
        Tells this occurrence from others of its kind.
    since : datetime
        When it began, in UTC.
    told_at : datetime
        When it was told, in UTC.
    open : bool
        Whether its end is still to be told.
    """

    table: str
    topic: str
    subject: str
    kind: str
    mark: str
    since: datetime
    told_at: datetime
    open: bool

    @property
    def key(self) -> tuple[str, str, str]:
        """Table, topic and subject."""
        return self.table, self.topic, self.subject


class Notified:
    """What the channels of a catalog were told. Every call can raise ``StoreUnavailableError``.

    Parameters
    ----------
    database : Database
        Where it is kept; of a catalog, :attr:`memwal.catalog.Catalog.notified`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, channel: str) -> list[Told]:
        """Return what a channel was told and whose end is still to be told."""
        query = (
            select(NotifiedEventRow)
            .where(NotifiedEventRow.channel == channel, NotifiedEventRow.open)
            .order_by(NotifiedEventRow.table_name, NotifiedEventRow.topic, NotifiedEventRow.subject)
        )
        with self._database.reading() as session:
            return [
                Told(
                    table=row.table_name,
                    topic=row.topic,
                    subject=row.subject,
                    kind=row.kind,
                    mark=row.mark,
                    since=row.since,
                    told_at=row.told_at,
                    open=row.open,
                )
                for row in session.scalars(query)
            ]

    def last_told_at(self, channel: str) -> datetime | None:
        """When a channel was last told something, in UTC."""
        query = select(func.max(NotifiedEventRow.told_at)).where(
            NotifiedEventRow.channel == channel
        )
        with self._database.reading() as session:
            return session.scalar(query)

    def keep(self, channel: str, told: Iterable[Told]) -> None:
        """Write down what a channel was told."""
        with self._database.writing() as session:
            for one in told:
                session.merge(
                    NotifiedEventRow(
                        channel=channel,
                        table_name=one.table,
                        topic=one.topic,
                        subject=one.subject,
                        kind=one.kind,
                        mark=one.mark,
                        since=one.since,
                        told_at=one.told_at,
                        open=one.open,
                    )
                )

    def prune(self, *, before: datetime) -> None:
        """Forget what ended, and was told before a time."""
        with self._database.writing() as session:
            session.execute(
                delete(NotifiedEventRow).where(
                    NotifiedEventRow.told_at < before, ~NotifiedEventRow.open
                )
            )
