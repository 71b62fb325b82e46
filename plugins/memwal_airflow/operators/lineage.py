"""Lineage for OpenLineage: the tables that jobs read and wrote, with rows, bytes and versions.

Airflow's provider of OpenLineage asks operators for it after their tasks, in a forked process in
which Lance must not run. So it follows from the results of the jobs alone. It has addresses and
numbers, and no storage options.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from memwal.storage.uris import LOCAL, parse_uri
from memwal.util.records import JsonMapping

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

_MERGED: Final = {"rowCount": ("rows_upserted", "rows_deleted"), "size": ("bytes", "bytes_read")}
_ADDED: Final = {"rowCount": ("rows_upserted", "rows_deleted"), "size": ("bytes_written",)}
_RECOVERED: Final = {"rowCount": ("recovered_rows",)}

_READ: Final[dict[str, Mapping[str, tuple[str, ...]]]] = {
    "merge": _MERGED,
    "checkpoint": _MERGED,
    "recover": _RECOVERED,
    "compact": {"fileCount": ("fragments_removed",)},
    "quality": {"rowCount": ("rows",)},
}
"""Metrics of a job's result that count its reads, by the names of OpenLineage."""

_WRITTEN: Final[dict[str, Mapping[str, tuple[str, ...]]]] = {
    "merge": _ADDED,
    "checkpoint": _ADDED,
    "recover": _RECOVERED,
    "compact": {"fileCount": ("fragments_added",)},
}


def dataset_name(uri: str) -> tuple[str, str]:
    """Return namespace and name of a table by OpenLineage's rules for its store.

    Examples
    --------
    >>> dataset_name("s3://lake/air/flights.lance")
    ('s3://lake', 'air/flights.lance')
    >>> dataset_name("/data/flights.lance")
    ('file', '/data/flights.lance')
    """
    parsed = parse_uri(uri)
    namespace = "file" if parsed.scheme == LOCAL else f"{parsed.scheme}://{parsed.authority}"
    return namespace, parsed.path or "/"


def job_lineage(results: Iterable[JsonMapping]) -> OperatorLineage[Any, Any]:
    """Return the lineage of jobs that ended, of one table or of many.

    Each table is an input, and an output if a job changed it.

    Parameters
    ----------
    results : iterable of mapping
        ``JobResult.to_dict()`` of each job, or the report of a verification.
    """
    from airflow.providers.common.compat.openlineage.facet import (
        InputDataset,
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.facet_v2 import dataset_version_dataset, input_statistics_input_dataset

    read: dict[str, Any] = {}
    written: dict[str, Any] = {}
    versions: dict[str, int] = {}
    for result in results:
        table, metrics = result["table"], result.get("metrics") or {}
        read.setdefault(table, Counter()).update(_counted(metrics, _READ.get(result["job"], {})))
        added = _counted(metrics, _WRITTEN.get(result["job"], {}))
        if result.get("commits") or any(added.values()):
            written.setdefault(table, Counter()).update(added)
        versions[table] = max(versions.get(table, 0), result.get("version") or 0)

    inputs: list[Any] = []
    outputs: list[Any] = []
    for table, counts in read.items():
        namespace, name = dataset_name(table)
        facet: Any = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(**counts)
        facets = {"inputStatistics": facet} if counts else {}
        inputs.append(InputDataset(namespace=namespace, name=name, inputFacets=facets))
        if table not in written:
            continue
        statistics = OutputStatisticsOutputDatasetFacet(**written[table])
        version = dataset_version_dataset.DatasetVersionDatasetFacet(str(versions[table]))
        outputs.append(
            OutputDataset(
                namespace=namespace,
                name=name,
                facets={"version": version} if versions[table] else {},
                outputFacets={"outputStatistics": statistics} if written[table] else {},
            )
        )
    return OperatorLineage(inputs=inputs, outputs=outputs)


def _counted(metrics: Mapping[str, int], names: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    return {fact: sum(metrics.get(name, 0) for name in parts) for fact, parts in names.items()}
