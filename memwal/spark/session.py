"""Spark sessions that run maintenance jobs."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from memwal.extras import needs
from memwal.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPLICATION_LINE = "memwal: Spark application "
"""What a line on stderr of an application starts with that ``spark-submit`` runs. Spark's id of it
follows, and when its UI runs, a colon and the UI's address."""

# Set by spark-submit for the Python process that it starts: there is a JVM already.
_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
_LOOPBACK = "127.0.0.1"
# Lance complains of an index that has no columns, which the MemWAL index rightly has not.
_WORKER_LOG = "spark.executorEnv.LANCE_LOG"
_WORKER_LOG_FILTER = "error,lance::index=off"
_HARMLESS_WARNINGS = (
    # The process that is forked to start the JVM runs nothing of Lance.
    "lance is not fork-safe",
    # Tasks travel in RDDs, which do not touch pandas.
    "PySpark does not yet fully support pandas",
)


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    ui: bool | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a Spark session, or take the one that runs.

    Started by ``spark-submit``, the session is what its options and ``spark-defaults.conf`` say;
    by ``python``, it is local, on a Java that :func:`memwal.spark.java.find_java` finds. Only
    what neither of them nor ``conf`` says is set here: a local session talks to ``127.0.0.1``
    alone and has no UI. Python workers are forked and reused, as is Spark's default. They run
    ``PYSPARK_PYTHON``, and without it the interpreter of this process: on a cluster whose
    machines have Python elsewhere, set it.

    Parameters
    ----------
    app_name : str
        What the cluster calls the application.
    master : str, optional
        Master URL, such as ``local[4]``. By default that of ``spark-submit``, or ``local[*]``.
    ui : bool, optional
        Whether Spark's web UI runs. By default Spark's own choice on a cluster, and off locally.
    conf : mapping of str to str, optional
        Spark properties, above all others. They are shown in the UI and stand in event logs:
        storage options do not belong here.

    Raises
    ------
    InvalidInputError
        There is no Java 17 or newer.
    MissingExtraError
        There is no PySpark.
    """
    with needs("spark"):
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wanted = dict(conf or {})
    if master is not None:
        wanted["spark.master"] = master
    if ui is not None:
        wanted["spark.ui.enabled"] = str(ui).lower()
    if not is_submitted():
        ensure_java()
        if _is_local(wanted.get("spark.master", "local[*]")):
            # The one way to keep the UI, if it is wanted, off the machine's other addresses.
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    with warnings.catch_warnings():
        for harmless in _HARMLESS_WARNINGS:
            warnings.filterwarnings("ignore", message=harmless)
        # A SparkConf that is made once there is a JVM knows what spark-submit was told.
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(wanted.items()))
        known = SparkConf().setAll(wanted.items()).setAppName(app_name)
        known.setIfMissing(_WORKER_LOG, os.environ.get("LANCE_LOG", _WORKER_LOG_FILTER))
        if _is_local(known.get("spark.master", "local[*]")):
            known.setIfMissing("spark.driver.host", _LOOPBACK)
            known.setIfMissing("spark.driver.bindAddress", _LOOPBACK)
            known.setIfMissing("spark.ui.enabled", "false")
        return SparkSession.builder.config(conf=known).getOrCreate()


def is_submitted() -> bool:
    """Whether ``spark-submit`` started this process."""
    return _GATEWAY_PORT in os.environ


def _is_local(master: str | None) -> bool:
    return master is not None and master.startswith("local")
