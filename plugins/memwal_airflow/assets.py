"""Assets that users' DAGs can be scheduled by."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow.sdk import Asset, AssetWatcher

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from airflow.providers.common.compat.openlineage.facet import Dataset

_OF_SHARDS: Final = "due"
_CHANGED: Final = "changed"


def watched_asset(shard: int, *, shards: int, drained: bool = False) -> Asset:
    """Return the asset that is updated when tables of a shard are due, and starts the due DAG.

    The triggerer watches it, see :class:`memwal_airflow.triggers.due.TablesDueTrigger`, which
    explains the arguments.
    """
    # Airflow loads this module where any DAG names any asset, see ``check_uri``.
    from memwal_airflow.triggers.due import TablesDueTrigger

    name = f"memwal:due:{shard}"
    trigger = TablesDueTrigger(shard=shard, shards=shards, drained=drained)
    watcher = AssetWatcher(name=name, trigger=trigger)
    return Asset(name=name, uri=f"memwal://due/{shard}", group="memwal", watchers=[watcher])


def unwatched_asset() -> Asset:
    """Return the asset by which the fleet DAG starts due tables that no triggerer polls.

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


def changed_asset(table: str, consumer: str) -> Asset:
    """Return the asset that is updated when a consumer of a table has changes to read.

    The triggerer watches it, see :class:`memwal_airflow.triggers.changes.TableChangedTrigger`. The
    ``payload`` in the event's extra holds the tokens ``after`` and ``until``, ``rows``, and whether
    the consumer ``expired``.
    ``table`` is as of :func:`merged_asset`.
    """
    from memwal_airflow.triggers.changes import TableChangedTrigger

    name = f"memwal:{table}:{_CHANGED}:{consumer}"
    watcher = AssetWatcher(name=name, trigger=TableChangedTrigger(table=table, consumer=consumer))
    uri = f"memwal://{table}/{_CHANGED}/{consumer}"
    return Asset(name=name, uri=uri, group="memwal", watchers=[watcher])


_BY_EVENT: Final = {"due": due_asset, "merged": merged_asset, "indexed": indexed_asset}


def check_uri(uri: SplitResult) -> SplitResult:
    """Return an address of scheme ``memwal``; raises ValueError unless an asset can have it.

    Airflow calls it for every asset with such an address.
    """
    event = uri.path.removeprefix("/")
    of_shard = uri.netloc == _OF_SHARDS and (event.isdecimal() or event == "unwatched")
    of_consumer = re.fullmatch(f"{_CHANGED}/[^/]+", event) is not None
    if not uri.netloc or not (event in _BY_EVENT or of_shard or of_consumer):
        events = ", ".join([*_BY_EVENT, f"{_CHANGED}/CONSUMER"])
        raise ValueError(
            f"{uri.geturl()} is no asset: write memwal://, a table, and one of {events}."
        )
    return uri


def create_asset(
    *, table: str, event: str = "merged", extra: dict[str, Any] | None = None
) -> Asset:
    """Return the asset of a table and one of its events, for Airflow's registry."""
    asset = _BY_EVENT[event](table)
    asset.extra.update(extra or {})
    return asset


def convert_to_dataset(asset: Asset, lineage_context: object) -> Dataset:
    """Return the dataset of OpenLineage that an asset of a table stands for.

    Raises ObjectNotFoundError for a table that is not in the catalog, which Airflow's provider of
    OpenLineage takes for an asset without a dataset.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset

    from memwal.catalog import Catalog
    from memwal_airflow.operators.lineage import dataset_name

    with closing(Catalog()) as catalog:
        namespace, name = dataset_name(catalog.get(urlsplit(asset.uri).netloc).uri)
    return Dataset(namespace=namespace, name=name)
