"""Assets that users' DAGs can be scheduled by."""

from __future__ import annotations

from airflow.sdk import Asset, AssetWatcher

from memwal_airflow.triggers.due import TablesDueTrigger


def watched_asset(shard: int, *, shards: int, combined: bool = False) -> Asset:
    """Return the asset that is updated when tables of a shard are due, and starts the due DAG.

    The triggerer watches it, see :class:`memwal_airflow.triggers.due.TablesDueTrigger`, which
    explains the arguments.
    """
    name = f"memwal:due:{shard}"
    trigger = TablesDueTrigger(shard=shard, shards=shards, combined=combined)
    watcher = AssetWatcher(name=name, trigger=trigger)
    return Asset(name=name, uri=f"memwal://due/{shard}", group="memwal", watchers=[watcher])


def unwatched_asset() -> Asset:
    """Return the asset by which the fleet DAG starts due tables that no triggerer looks at.

    Its events are as those of :func:`watched_asset`.
    """
    return Asset(name="memwal:due:unwatched", uri="memwal://due/unwatched", group="memwal")


def due_asset(table: str) -> Asset:
    """Return the asset that is updated when a job of a table is due, and starts the table's DAG.

    The event's extra holds the due ``jobs`` with their reasons. ``table`` is as of
    :func:`merged_asset`.
    """
    return Asset(name=f"memwal:{table}:due", uri=f"memwal://{table}/due", group="memwal")


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
