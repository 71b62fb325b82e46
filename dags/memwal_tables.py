"""The DAGs of all managed tables, one each, built from ``$MEMWAL_CATALOG_SNAPSHOT``."""

from __future__ import annotations

from memwal_airflow.dag_factory import build_dags, snapshot_path

globals().update(build_dags(snapshot_path()))
