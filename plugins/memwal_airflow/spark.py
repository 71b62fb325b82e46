"""Running spark-submit for a job: where the applications are, which master, what environment."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import Connection
from airflow.sdk.configuration import conf

import memwal
from memwal.errors import InvalidInputError
from memwal.spark.apps_folder import apps_folder
from memwal.spark.java import ensure_java
from memwal.telemetry.tracing import trace_environment

SECTION = "memwal"
DEFAULT_MASTER = "local[*]"
HIDDEN_PREFIXES = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_", "MEMWAL_CATALOG_")


def configured_master() -> str:
    """Master URL of ``[memwal] spark_master`` in ``airflow.cfg``, else ``local[*]``."""
    return str(conf.get(SECTION, "spark_master", fallback=DEFAULT_MASTER))


def configured_connection() -> str | None:
    """Connection id of ``[memwal] spark_conn_id`` in ``airflow.cfg``, if any."""
    return conf.get(SECTION, "spark_conn_id", fallback=None) or None


def application_path(name: str) -> str:
    """Path of a Spark application, such as ``merge.py``.

    They are in ``[memwal] spark_apps_folder``, by default those that came with memwal.

    Raises
    ------
    InvalidInputError
        There is no such file.
    """
    path = Path(conf.get(SECTION, "spark_apps_folder", fallback=str(apps_folder()))) / name
    if not path.is_file():
        raise InvalidInputError(
            f"There is no Spark application {path}; set [memwal] spark_apps_folder in airflow.cfg."
        )
    return str(path)


def job_environment() -> dict[str, str]:
    """Environment of a client-mode job: the task's, without what is Airflow's own.

    Connections, variables, the keys of the API and the catalog's address, which may hold a
    password, stay behind; the rest is handed on. Python is the interpreter that runs the task, in
    driver and workers, and finds the same ``memwal``; ``JAVA_HOME`` is a Java that Spark can run
    on. If Airflow traces the task, the job goes on with its trace.

    Raises
    ------
    InvalidInputError
        There is no Java 17 or newer.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith(HIDDEN_PREFIXES)}
    binaries = str(Path(sys.executable).parent)
    env["PATH"] = os.pathsep.join([binaries, env.get("PATH", os.defpath)])
    library = str(Path(str(memwal.__file__)).resolve().parents[1])
    folders = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([library, *folders]))
    env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    ensure_java(env)
    return {**env, **trace_environment()}


class JobSubmitHook(SparkSubmitHook):
    """The provider's hook, with a master that need not be a connection and a clean environment.

    It is for client mode: the driver is a child of this process and sees its files.

    Parameters
    ----------
    master : str or None
        Master URL; None takes the Spark connection ``conn_id``.
    **options
        As of ``SparkSubmitHook``.

    Raises
    ------
    InvalidInputError
        The connection asks for cluster mode, where the result of a job would be written on
        another machine.
    """

    def __init__(self, *, master: str | None, **options: Any) -> None:
        self._master = master
        super().__init__(**options)
        if self._connection["deploy_mode"] not in (None, "client"):
            raise InvalidInputError(
                f"The Spark connection {self._conn_id!r} asks for cluster mode; set its "
                "deploy-mode to client."
            )

    def get_connection(self, conn_id: str) -> Connection:  # type: ignore[override]
        """The connection that stands for the master, or the real one."""
        if self._master is None:
            return SparkSubmitHook.get_connection(conn_id)
        extra = json.dumps({"deploy-mode": "client"})
        return Connection(conn_id=conn_id, conn_type="spark", host=self._master, extra=extra)

    def command(self, application: str) -> tuple[list[str], dict[str, str]]:
        """Command line and environment of ``spark-submit`` for an application.

        Raises
        ------
        InvalidInputError
            There is no ``spark-submit`` on the path, or no Java.
        """
        env = job_environment()
        if self._connection["master"].startswith("local"):
            # Else the JVM binds to the machine's address on the network.
            env.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        binary = self._connection["spark_binary"]
        if shutil.which(binary, path=env["PATH"]) is None:
            raise InvalidInputError(
                f"{binary} is not on the PATH; install memwal[spark] where Airflow runs."
            )
        command = self._build_spark_submit_command(application)
        return command, {**env, **(self._env or {})}

    def follow(self, lines: Iterator[str]) -> str:
        """Write the log of an application to that of the task; return the end of it."""
        self._process_spark_submit_log(lines)
        return self._submit_log_tail
