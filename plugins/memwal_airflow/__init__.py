"""Airflow parts of memwal: sensors, operators, the DAG factory and the page.

Airflow finds :mod:`memwal_airflow.plugin` and :mod:`memwal_airflow.provider` by entry points.
Nothing is imported here: the triggerer and the DAG processor load only what they use.
"""

from typing import Final

DAG_PREFIX: Final = "memwal__"
"""Prefix of the ids of the tables' DAGs."""

SECTION: Final = "memwal"
"""Section of ``airflow.cfg`` with the settings of memwal."""
