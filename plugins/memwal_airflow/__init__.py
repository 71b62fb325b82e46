"""Airflow parts of memwal: sensors, operators, the DAG factory and an embedded Airflow.

The folder above this package is Airflow's ``plugins_folder``, so that ``memwal_airflow`` can be
imported by DAG files, by the triggerer and by tests that put that folder on ``sys.path``.
Nothing is imported here: the triggerer and the DAG processor load only what they use.
"""

from __future__ import annotations

from typing import Final

DAG_PREFIX: Final = "memwal__"
"""What the ids of the tables' DAGs begin with."""
