"""Running spark-submit for a job: where the applications are, which master, what environment."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import Connection
from airflow.sdk.configuration import conf

import memwal
from memwal.errors import InvalidInputError
from memwal.spark.java import ensure_java
from memwal.telemetry.tracing import trace_environment

SECTION = "memwal"
DEFAULT_MASTER = "local[*]"
KILL_SECONDS = 2.0
HIDDEN_PREFIXES = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_", "MEMWAL_CATALOG_")


def configured_master() -> str:
    """Master URL of ``[memwal] spark_master`` in ``airflow.cfg``, else ``local[*]``."""
    return str(conf.get(SECTION, "spark_master", fallback=DEFAULT_MASTER))


def configured_connection() -> str | None:
    """Connection id of ``[memwal] spark_conn_id`` in ``airflow.cfg``, if any."""
    return conf.get(SECTION, "spark_conn_id", fallback=None) or None


def application_path(name: str) -> str:
    """Path of a Spark application, such as ``merge.py``.

    They are in ``[memwal] spark_apps_folder``, by default ``spark_apps`` beside the plugins folder.

    Raises
    ------
    InvalidInputError
        There is no such file.
    """
    default = Path(__file__).resolve().parents[2] / "spark_apps"
    path = Path(conf.get(SECTION, "spark_apps_folder", fallback=str(default))) / name
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

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the application until it ends."""
        env = job_environment()
        if self._connection["master"].startswith("local"):
            # Else the JVM binds to the machine's address on the network.
            env.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        binary = self._connection["spark_binary"]
        if shutil.which(binary, path=env["PATH"]) is None:
            raise InvalidInputError(
                f"{binary} is not on the PATH; install memwal[spark] where Airflow runs."
            )
        try:
            return super().submit(application, env=env, **kwargs)
        finally:
            if self._submit_sp is not None:
                # The provider leaves the pipe of the log open.
                self._submit_sp.stdout.close()

    def on_kill(self) -> None:
        """End the JVM, its Python driver and its workers, then do what the provider does.

        The provider kills the JVM alone; the driver, which commits to the table, is a child of
        it and would go on.
        """
        if self._submit_sp is not None and self._submit_sp.poll() is None:
            kill_family(self._submit_sp)
        super().on_kill()


def kill_family(process: subprocess.Popen[Any]) -> None:
    """End a child process and all that descend from it: ask first, kill what is left after 2 s.

    The exit code stays for the caller to fetch.
    """
    try:
        descendants = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for name in ("terminate", "kill"):
        for member in (process, *descendants):
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                getattr(member, name)()
        # Not the child itself: psutil would fetch its exit code, and the hook would see a success.
        _, descendants = psutil.wait_procs(descendants, timeout=KILL_SECONDS)
