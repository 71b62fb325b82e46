"""The DAG of tasks that belong to no single table; its settings are in ``[memwal]``."""

from __future__ import annotations

from airflow.sdk import get_parsing_context
from memwal_airflow.fleet_dag import FLEET_DAG_ID, build_fleet_dag

if get_parsing_context().dag_id in (None, FLEET_DAG_ID):
    dag = build_fleet_dag()
