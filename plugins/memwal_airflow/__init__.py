"""Airflow parts of memwal: sensors, operators, the DAG factory and the page.

Airflow finds :mod:`memwal_airflow.plugin` and :mod:`memwal_airflow.provider` by entry points.
Nothing is imported here: the triggerer and the DAG processor load only the modules that they use.
"""

from datetime import UTC, datetime
from typing import Any, Final

DAG_PREFIX: Final = "memwal__"
"""Prefix of the ids of the tables' DAGs."""

SECTION: Final = "memwal"
"""Section of ``airflow.cfg`` with the settings of memwal."""

DAG_OPTIONS: Final[dict[str, Any]] = {
    "start_date": datetime(2025, 1, 1, tzinfo=UTC),
    "catchup": False,
    # A table is switched on and off in the catalog, not by pausing its DAG.
    "is_paused_upon_creation": False,
}
"""Options that all DAGs share."""
