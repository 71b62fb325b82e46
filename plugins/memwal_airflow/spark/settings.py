"""Settings of Spark jobs: master, deploy mode, applications, environment, folder of results."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import memwal
from memwal.errors import InvalidInputError
from memwal.spark.application import apps_folder
from memwal.spark.runner import trace_environment
from memwal.spark.session import ensure_java
from memwal.storage.credentials import read_options_file
from memwal.storage.uris import LOCAL, parse_uri
from memwal_airflow.provider.settings import (
    DEPLOY_MODE,
    RESULTS_OPTIONS_FILE,
    RESULTS_URI,
    SPARK_APPS_FOLDER,
)

MASTER_PREFIX = "k8s://"
CLIENT, CLUSTER = "client", "cluster"
IN_IMAGE = "local://"
"""Prefix of the path of an application in the driver's image."""

_APPS_IN_IMAGE = f"{IN_IMAGE}/opt/memwal/spark_apps"
HIDDEN_PREFIXES = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_", "MEMWAL_CATALOG_")


def checked_deploy_mode(mode: str | None) -> str:
    """Return the mode, or without one ``[memwal] deploy_mode`` in ``airflow.cfg``, else ``client``.

    Raises InvalidInputError for a mode that is neither ``client`` nor ``cluster``.
    """
    mode = mode or DEPLOY_MODE.read()
    if mode not in (CLIENT, CLUSTER):
        raise InvalidInputError(f"The deploy mode is {mode!r}; it must be client or cluster.")
    return mode


def application_path(name: str, *, mode: str = CLIENT) -> str:
    """Return the path of a Spark application, for example ``merge.py``.

    Applications are in ``[memwal] spark_apps_folder``; default: the folder that came with memwal,
    and in cluster mode ``/opt/memwal/spark_apps`` of the driver's image.
    """
    folder = SPARK_APPS_FOLDER.read()
    if mode == CLUSTER:
        folder = folder or _APPS_IN_IMAGE
        if not folder.startswith(IN_IMAGE):
            raise InvalidInputError(
                f"A driver in a cluster does not see {folder}; set [memwal] spark_apps_folder in "
                f"airflow.cfg to where the applications are in its image, such as {_APPS_IN_IMAGE}."
            )
        return f"{folder.rstrip('/')}/{name}"
    path = Path((folder or str(apps_folder())).removeprefix(IN_IMAGE)) / name
    if not path.is_file():
        raise InvalidInputError(
            f"There is no Spark application {path}; set [memwal] spark_apps_folder in airflow.cfg."
        )
    return str(path)


def job_environment(*, java: bool = True) -> dict[str, str]:
    """Return the environment of a client-mode job: that of the task, without Airflow's variables.

    Connections, variables, the keys of the API and the catalog's address, which may hold a
    password, are left out. Driver and workers run the Python interpreter of the task and find the
    same ``memwal``. With ``java``, ``JAVA_HOME`` is a Java that Spark can run on, else
    InvalidInputError is raised, and Java compiles quickly rather than well unless
    ``SPARK_SUBMIT_OPTS`` says otherwise. If Airflow traces the task, the job continues its trace.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith(HIDDEN_PREFIXES)}
    binaries = str(Path(sys.executable).parent)
    env["PATH"] = os.pathsep.join([binaries, env.get("PATH", os.defpath)])
    library = str(Path(str(memwal.__file__)).resolve().parents[1])
    folders = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([library, *folders]))
    env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if java:
        ensure_java(env)
        # The tasks are Python: compiling Java twice takes half of a short driver's processor time.
        env.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
    return {**env, **trace_environment()}


def is_kubernetes(master: str) -> bool:
    """Return whether a Spark master is a Kubernetes cluster."""
    return master.startswith(MASTER_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsFolder:
    """Where drivers write their results.

    ``options_file`` is a JSON file of storage options, at the same path here and in the driver's
    container; None if the environment gives the options in both places.
    """

    uri: str
    options_file: str | None

    @classmethod
    def configured(cls) -> ResultsFolder | None:
        """Read ``[memwal] results_uri`` and ``results_options_file`` of ``airflow.cfg``, if set."""
        uri = RESULTS_URI.read()
        if not uri:
            return None
        parsed = parse_uri(uri)
        # As a URI also where it is a folder that both sides mount: a path would be a file.
        address = f"file://{quote(parsed.path)}" if parsed.scheme == LOCAL else str(parsed)
        options_file = RESULTS_OPTIONS_FILE.read() or None
        return cls(uri=address, options_file=options_file)

    @property
    def options(self) -> dict[str, str] | None:
        """Storage options of the folder, read anew."""
        return None if self.options_file is None else read_options_file(Path(self.options_file))
