"""Assets that other DAGs can be scheduled by."""

from __future__ import annotations

from airflow.sdk import Asset


def merged_asset(table: str) -> Asset:
    """Updated when rows of a table's regions reached its base table.

    The event's extra holds ``version``, ``rows`` and ``generations``.

    Parameters
    ----------
    table : str
        Name of the managed table.
    """
    return Asset(name=f"memwal:{table}:merged", uri=f"memwal://{table}/merged", group="memwal")


def indexed_asset(table: str) -> Asset:
    """Updated when the indexes of a table caught up with what was merged.

    The event's extra holds ``version``, and the ``generations`` and ``rows`` that the index which
    was furthest behind had not covered.

    Parameters
    ----------
    table : str
        Name of the managed table.
    """
    return Asset(name=f"memwal:{table}:indexed", uri=f"memwal://{table}/indexed", group="memwal")
