"""Airflow parts of memwal: sensors, operators, the DAG factory and an embedded Airflow.

Airflow finds :mod:`memwal_airflow.plugin` and :mod:`memwal_airflow.provider` by entry points.
Nothing is imported here: the triggerer and the DAG processor load only what they use.
"""

from __future__ import annotations

from typing import Final

DAG_PREFIX: Final = "memwal__"
"""What the ids of the tables' DAGs begin with."""
