"""Assets that users' DAGs can be scheduled by."""

from __future__ import annotations

from airflow.sdk import Asset, AssetWatcher

from memwal_airflow.triggers.due import TableDueTrigger


def due_asset(table: str) -> Asset:
    """Return the asset that is updated when a job of a table is due, and starts the table's DAG.

    The triggerer watches it, see :class:`memwal_airflow.triggers.due.TableDueTrigger`. ``table`` is
    as of :func:`merged_asset`.
    """
    watcher = AssetWatcher(name=f"memwal:{table}:due", trigger=TableDueTrigger(table=table))
    return Asset(
        name=f"memwal:{table}:due",
        uri=f"memwal://{table}/due",
        group="memwal",
        watchers=[watcher],
    )


def merged_asset(table: str) -> Asset:
    """Return the asset that is updated when a merge adds rows to the base table.

    The event's extra holds ``version``, ``rows`` and ``generations``.

    Parameters
    ----------
    table : str
        Name of the managed table.
    """
    return Asset(name=f"memwal:{table}:merged", uri=f"memwal://{table}/merged", group="memwal")


def indexed_asset(table: str) -> Asset:
    """Return the asset that is updated when the indexes have caught up with the merges.

    The event's extra holds ``version``, and the ``generations`` and ``rows`` that the index
    furthest behind had not covered. ``table`` is as of :func:`merged_asset`.
    """
    return Asset(name=f"memwal:{table}:indexed", uri=f"memwal://{table}/indexed", group="memwal")
