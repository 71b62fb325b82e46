"""Notifier for callbacks of users' own DAGs and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseNotifier, Context

from memwal_airflow.notifications.events import notify_events


class MemWalNotifier(BaseNotifier):
    """Sends new events of tables, for example when a task that uses them fails.

    Parameters
    ----------
    tables : sequence of str, optional
        Names of tables in the catalog; default: all.
    conn_id : str, optional
        Connection to send to, instead of the one in ``airflow.cfg``.
    **kwargs
        As of ``BaseNotifier``.

    Examples
    --------
    >>> DAG("load", on_failure_callback=MemWalNotifier(tables=["flights"]))
    """

    template_fields = ("tables",)

    def __init__(
        self, *, tables: Sequence[str] | None = None, conn_id: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.tables = tables
        self.conn_id = conn_id

    def notify(self, context: Context) -> None:
        """Send the events."""
        notify_events(conn_id=self.conn_id, tables=self.tables)
