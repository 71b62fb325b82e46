from types import SimpleNamespace
from typing import Any

import pytest
from memwal_airflow.links import SparkUiLink, TablePageLink, spark_application
from memwal_airflow.operators.maintenance import MemWalSnapshotOperator


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("memwal: Spark application app-2026-0001", ("app-2026-0001", None)),
        (
            "memwal: Spark application local-1: http://127.0.0.1:4040",
            ("local-1", "http://127.0.0.1:4040"),
        ),
        ("26/11/21 INFO SparkUI: started", None),
    ],
)
def test_what_a_line_of_the_log_tells(line: str, found: Any) -> None:
    assert spark_application(line) == found


def test_after_the_end_the_history_server_shows_an_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: Any = SimpleNamespace(spark_application_id="app-1")
    key: Any = None
    assert SparkUiLink().get_link(ended, ti_key=key) == ""
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_HISTORY_URL", "https://history.example/")
    assert SparkUiLink().get_link(ended, ti_key=key) == "https://history.example/history/app-1/"
    ended.spark_application_id = None
    assert SparkUiLink().get_link(ended, ti_key=key) == ""


def test_the_page_of_a_table_is_below_the_address_of_the_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task: Any = MemWalSnapshotOperator(task_id="s", table="flights")
    key: Any = None
    assert TablePageLink().get_link(task, ti_key=key) == "/memwal/#/tables/flights"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host.example/airflow/")
    assert TablePageLink().get_link(task, ti_key=key) == "/airflow/memwal/#/tables/flights"
    other: Any = MemWalSnapshotOperator(task_id="s", table_uri="/data/t.lance")
    assert TablePageLink().get_link(other, ti_key=key) == ""


@pytest.mark.usefixtures("airflow_database")
def test_the_interface_finds_the_links_by_their_xcom() -> None:
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("d", schedule=None) as dag:
        MemWalSnapshotOperator(task_id="s", table="flights")
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("s")
    links = {link.name: link.xcom_key for link in again.operator_extra_links}
    assert links == {"Spark UI": "_link_SparkUiLink", "MemWAL table": "_link_TablePageLink"}
