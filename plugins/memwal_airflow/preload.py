"""Import modules in long-lived processes of Airflow, so that their children start sooner.

The scheduler forks the workers of a LocalExecutor, and each worker forks its tasks; the DAG
processor forks the processes that parse, the triggerer the one that runs triggers. A child has
every module that its parent had imported, in memory that they share. Otherwise each task spends
1.2 s of processor time and 120 MiB. Other processes, such as the API server, import none of it.

Lance warns at every fork: the threads that it starts when a table is opened do not survive one.
No thread runs yet when Lance was only imported, and these parents open no table, so each child
starts its own threads.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from importlib import import_module
from typing import Final

MODULES: Final = (
    "airflow.sdk.execution_time.task_runner",
    "memwal.catalog.catalog",
    "memwal.fleet.run_job",
    "memwal.fleet.watch",
    "memwal.fleet.exclusive",
    "memwal.jobs.gc.job",
    "memwal.jobs.index.job",
    "memwal.jobs.merge.job",
    "memwal.jobs.table.compact",
    "memwal.jobs.table.snapshot",
    "memwal.table",
    "memwal_airflow.dag_factory",
    "memwal_airflow.fleet_dag",
)
"""Together they import every module that a task needs to merge a small table without Spark."""

CONNECT_MODULES: Final = (
    "memwal.spark.runner",
    "pyspark.sql.connect.session",
    "pyspark.sql.connect.client.retries",
)
"""Together they import the modules that a client of Spark Connect needs, in 0.4 s of processor
time.
"""


def preload() -> None:
    """Import :data:`MODULES`, and :data:`CONNECT_MODULES` if the settings may name such a server.

    The listener calls this in the scheduler, the DAG processor and the triggerer if tasks run in a
    LocalExecutor. For workers of Celery, call it in ``airflow_local_settings.py``.
    """
    for name in MODULES:
        import_module(name)
    from memwal.spark.connect import CONNECT_PREFIX
    from memwal.spark.session import without_harmless_warnings
    from memwal_airflow.provider.settings import SPARK_CONN_ID, SPARK_MASTER

    # Of a connection, only a task may ask for the type.
    if SPARK_CONN_ID.read() or SPARK_MASTER.read().startswith(CONNECT_PREFIX):
        with suppress(ModuleNotFoundError), without_harmless_warnings():
            for name in CONNECT_MODULES:
                import_module(name)
    warnings.filterwarnings("ignore", message="lance is not fork-safe", category=UserWarning)
