"""A real Airflow with its provider of OpenLineage sends the lineage of jobs, and no secret."""

import json
from pathlib import Path
from typing import Any

import pytest
from airflow_demo.standalone import AirflowStandalone
from support.airflow.webhook_server import WebhookServer
from support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_ID = "memwal__flights"
SECRET = "marker-5a0c"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_merge_is_sent_with_its_table_and_rows(
    tmp_path: Path, registered: Any, webhook_server: WebhookServer
) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "memwal_tables.py").symlink_to(REPOSITORY / "dags" / "memwal_tables.py")
    for start in (0, 100):
        registered.write(*range(start, start + 100))
    registered.catalog.update("flights", storage_options_ref="airflow:lake")
    connection = {"conn_type": "memwal", "extra": {"aws_secret_access_key": SECRET}}
    transport = {"type": "http", "url": webhook_server.address}

    def ended() -> list[dict[str, Any]]:
        bodies = [one["body"] for one in webhook_server.received]
        name = f"{DAG_ID}.merge"
        return [b for b in bodies if b["job"]["name"] == name and b["eventType"] == "COMPLETE"]

    with AirflowStandalone(
        tmp_path / "airflow",
        dags_folder=dags,
        env={**registered.env, "AIRFLOW_CONN_LAKE": json.dumps(connection)},
        settings={"openlineage": {"transport": json.dumps(transport)}},
    ) as airflow:
        run_id = airflow.trigger(DAG_ID, {"jobs": ["merge"]})
        assert airflow.wait_run(DAG_ID, run_id, timeout=400) == "success"
        until(ended)
    (event,) = ended()
    (read,), (written,) = event["inputs"], event["outputs"]
    assert read["name"] == written["name"] == registered.table.uri
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 200
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 200
    assert SECRET not in json.dumps(webhook_server.received)
