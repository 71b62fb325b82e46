"""Lineage: what the client of OpenLineage sends to a server about the jobs."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.providers.openlineage.utils.utils import translate_airflow_asset
from airflow.sdk import Asset, BaseOperator, TaskInstanceState
from memwal_airflow.assets import due_asset, merged_asset
from memwal_airflow.operators.lineage import dataset_name, job_lineage
from memwal_airflow.operators.maintenance import (
    MemWalCollectOperator,
    MemWalCompactOperator,
    MemWalIndexOperator,
    MemWalMergeOperator,
)
from memwal_airflow.skips import TaskSkipReason
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.transport.http import HttpConfig, HttpTransport
from support.airflow.skips import skips
from support.airflow.webhook_server import WebhookServer
from support.oracles.secrecy import Secrecy

from memwal.catalog import Catalog
from memwal.errors import StoreUnavailableError

pytestmark = pytest.mark.usefixtures("without_spark")


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("s3://lake/air/flights.lance", "s3://lake", "air/flights.lance"),
        ("gs://lake/flights.lance/", "gs://lake", "flights.lance"),
        ("az://tables/a%20b.lance", "az://tables", "a b.lance"),
        (
            "abfss://tables@lake.dfs.core.windows.net/t",
            "abfss://tables@lake.dfs.core.windows.net",
            "t",
        ),
        ("/data/flights.lance", "file", "/data/flights.lance"),
        ("file:///data/flights.lance", "file", "/data/flights.lance"),
        ("s3://lake", "s3://lake", "/"),
    ],
)
def test_a_table_has_the_name_that_openlineage_gives_it(
    uri: str, namespace: str, name: str
) -> None:
    assert dataset_name(uri) == (namespace, name)


def send(server: WebhookServer, task: BaseOperator, state: TaskInstanceState) -> dict[str, Any]:
    """Send what Airflow's provider asks the operator for, and return what came."""
    run: Any = SimpleNamespace(run_id="run")
    found = ExtractorManager().extract_metadata(run, task, state, SimpleNamespace())
    client = OpenLineageClient(transport=HttpTransport(HttpConfig(url=server.address)))
    client.emit(
        RunEvent(
            eventType=RunState.COMPLETE,
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(runId=str(uuid4()), facets=found.run_facets),
            job=Job(namespace="default", name=task.task_id, facets=found.job_facets),
            producer="https://example.com/tests",
            inputs=found.inputs,
            outputs=found.outputs,
        )
    )
    body: dict[str, Any] = server.received[-1]["body"]
    return body


def facts(datasets: list[dict[str, Any]], facets: str) -> dict[str, Any]:
    """The numbers of the facets of the only dataset."""
    (dataset,) = datasets
    (facet,) = dataset[facets].values()
    return {name: value for name, value in facet.items() if name[0] != "_"}


def test_jobs_tell_what_they_read_and_wrote_and_no_secret(
    managed: Any,
    catalog: Catalog,
    context: Any,
    tmp_path: Path,
    secrecy: Secrecy,
    webhook_server: WebhookServer,
) -> None:
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"aws_secret_access_key": secrecy.marker}))
    catalog.update("t", storage_options_ref=str(options))
    merge = MemWalMergeOperator(task_id="merge", table="t", force=True)
    result = merge.execute(context)
    told = send(webhook_server, merge, TaskInstanceState.SUCCESS)
    place = {"namespace": "file", "name": managed.uri}
    assert all(place.items() <= one.items() for one in (*told["inputs"], *told["outputs"]))
    metrics = result["metrics"]
    rows = metrics["rows_upserted"] + metrics["rows_deleted"]
    read = {"rowCount": rows, "size": metrics["bytes"] + metrics["bytes_read"]}
    assert facts(told["inputs"], "inputFacets") == read
    written = {"rowCount": rows, "size": metrics["bytes_written"]}
    assert facts(told["outputs"], "outputFacets") == written
    assert facts(told["outputs"], "facets") == {"datasetVersion": str(result["version"])}
    assert min(*read.values(), *written.values()) > 0

    index = MemWalIndexOperator(task_id="index", table="t", force=True)
    index.execute(context)
    told = send(webhook_server, index, TaskInstanceState.SUCCESS)
    assert all(place.items() <= one.items() for one in (*told["inputs"], *told["outputs"]))
    assert (len(told["inputs"]), len(told["outputs"])) == (1, 1)

    collect = MemWalCollectOperator(task_id="collect", table="t", force=True)
    collect.execute(context)
    told = send(webhook_server, collect, TaskInstanceState.SUCCESS)
    assert (len(told["inputs"]), told["outputs"]) == (1, [])
    secrecy.check(webhook_server.received)


def test_a_job_that_failed_names_its_table_and_a_skipped_one_nothing(
    managed: Any,
    context: Any,
    webhook_server: WebhookServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compact = MemWalCompactOperator(task_id="compact", table="t")
    with skips(TaskSkipReason.NOT_DUE):
        compact.execute(context)
    told = send(webhook_server, compact, TaskInstanceState.SKIPPED)
    assert (told["inputs"], told["outputs"]) == ([], [])

    def fail(*_: Any) -> None:
        raise StoreUnavailableError("the server does not answer")

    merge = MemWalMergeOperator(task_id="merge", table="t")
    monkeypatch.setattr(merge, "run_on", fail)
    with pytest.raises(StoreUnavailableError):
        merge.execute(context)
    told = send(webhook_server, merge, TaskInstanceState.FAILED)
    assert ([one["name"] for one in told["inputs"]], told["outputs"]) == ([managed.uri], [])


def test_the_jobs_of_a_table_count_together() -> None:
    def result(job: str, version: int, **metrics: int) -> dict[str, Any]:
        return {"job": job, "table": "/t", "version": version, "commits": 1, "metrics": metrics}

    lineage = job_lineage(
        [
            result("merge", 2, rows_upserted=3, rows_deleted=1, bytes=5, bytes_read=7),
            result("compact", 4, fragments_removed=8, fragments_added=2),
            result("merge", 3, rows_upserted=6, bytes=5, bytes_written=9),
        ]
    )
    (read,), (written,) = lineage.inputs, lineage.outputs
    counts = [
        (facet.rowCount, facet.size, facet.fileCount)
        for facet in (read.inputFacets["inputStatistics"], written.outputFacets["outputStatistics"])
    ]
    assert counts == [(10, 17, 8), (10, 9, 2)]
    assert written.facets["version"].datasetVersion == "4"


def test_the_asset_of_a_table_is_its_dataset(managed: Any) -> None:
    for asset in (merged_asset("t"), due_asset("t")):
        dataset = translate_airflow_asset(asset, None)
        assert dataset is not None
        assert (dataset.namespace, dataset.name) == ("file", managed.uri)
    assert translate_airflow_asset(merged_asset("unknown"), None) is None
    assert translate_airflow_asset(Asset("memwal://due/0"), None) is None
