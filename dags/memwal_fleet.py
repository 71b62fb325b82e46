"""The DAGs that belong to no single table; their settings are in ``[memwal]``."""

from __future__ import annotations

from memwal_airflow.fleet_dag import build_fleet_dags

globals().update(build_fleet_dags())
