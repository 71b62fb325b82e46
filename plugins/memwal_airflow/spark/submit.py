"""Command lines of jobs: spark-submit, built by Airflow's Spark provider, or a client of Connect.

The provider imports the Kubernetes client if it is installed, which takes seconds. So only tasks
that submit a job import this module.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import Connection

from memwal.errors import InvalidInputError
from memwal.spark.connect import AUTH_VARIABLE
from memwal.util.optional_deps import how_to_install
from memwal_airflow.provider.settings import SPARK_CONN_ID, SPARK_MASTER, SPARK_PROPERTIES_FILE
from memwal_airflow.spark.connected import ConnectServer, connect_server
from memwal_airflow.spark.settings import (
    CLIENT,
    CLUSTER,
    application_path,
    checked_deploy_mode,
    is_kubernetes,
    job_environment,
)

_KUBERNETES_PROVIDER = "airflow.providers.cncf.kubernetes"


class JobSubmitHook(SparkSubmitHook):
    """The provider's hook, with a master that need not be a connection and a clean environment.

    A ``master`` of None takes the Spark connection ``conn_id``. ``deploy_mode`` is ``client``,
    where the driver is a child of this process and sees its files, or ``cluster``; default: that
    of the connection, else ``[memwal] deploy_mode``. The attributes ``master`` and ``mode`` are
    the resolved ones. Raises InvalidInputError if the mode is cluster and the cluster is not
    Kubernetes, or if Airflow's Kubernetes provider is missing, which the Spark provider needs.

    With a ``server``, applications are clients of that Spark Connect server in client mode; of the
    other options only ``py_files`` has an effect.
    """

    def __init__(
        self,
        *,
        master: str | None,
        server: ConnectServer | None = None,
        deploy_mode: str | None = None,
        **options: Any,
    ) -> None:
        # The provider takes "k8s" or "yarn" anywhere in a master for such a cluster.
        self._given_master = SPARK_MASTER.default if server is not None else master
        self._server = server
        try:
            super().__init__(deploy_mode=deploy_mode, **options)
        except NameError:
            # The provider raises this for a master whose package is not installed.
            if importlib.util.find_spec(_KUBERNETES_PROVIDER) is not None:
                raise
            raise InvalidInputError(
                "A Spark master on Kubernetes needs Airflow's provider of it where Airflow runs; "
                f"{how_to_install('kubernetes')}"
            ) from None
        resolved = self._connection
        self.master: str = resolved["master"] if server is None else server.url
        self.mode = CLIENT if server is not None else checked_deploy_mode(resolved["deploy_mode"])
        resolved["deploy_mode"] = self.mode
        if self.is_cluster_mode and not is_kubernetes(self.master):
            raise InvalidInputError(
                f"Cluster mode is for Kubernetes (k8s://...), and the master is {self.master}: a "
                "job there is run in client mode; set the deploy mode of its operator or its "
                "Spark connection to client."
            )

    @property
    def is_cluster_mode(self) -> bool:
        """True if the driver runs in the cluster."""
        return self.mode == CLUSTER

    @property
    def namespace(self) -> str | None:
        """Namespace of the connection or the Spark configuration, if any."""
        return self._connection["namespace"] or None

    @property
    def context(self) -> str | None:
        """Context of the kubeconfig in the Spark configuration, if any."""
        return self._conf.get("spark.kubernetes.context")

    def get_connection(self, conn_id: str) -> Connection:  # type: ignore[override]
        """Return the Spark connection, or one that is built from the given master."""
        if self._given_master is None:
            return SparkSubmitHook.get_connection(conn_id)
        return Connection(conn_id=conn_id, conn_type="spark", host=self._given_master)

    def command(
        self,
        application: str,
        arguments: Sequence[str] = (),
        *,
        conf: Mapping[str, str] | None = None,
    ) -> tuple[list[str], dict[str, str]]:
        """Return command line and environment of ``spark-submit`` for a file such as ``merge.py``.

        The Spark properties of ``conf`` take precedence over all others. The command of a client of
        a Spark Connect server, which alone needs Java, has the server's token in its environment.
        Otherwise, raises InvalidInputError without ``spark-submit`` on the path, or without Java.
        """
        self._application_args = list(arguments)
        self._conf = {**self._conf, **(conf or {})}
        if self._server is not None:
            command = [sys.executable, application_path(application), "--remote", self.master]
            if self._py_files:
                command += ["--py-files", self._py_files]
            token = {} if self._server.token is None else {AUTH_VARIABLE: self._server.token}
            return [*command, *arguments], {**job_environment(java=False), **token}
        env = job_environment()
        if self.master.startswith("local"):
            # Otherwise the JVM binds to the machine's address on the network.
            env.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        binary = self._connection["spark_binary"]
        if shutil.which(binary, path=env["PATH"]) is None:
            raise InvalidInputError(
                f"{binary} is not on the PATH where Airflow runs; {how_to_install('spark')}"
            )
        command = self._build_spark_submit_command(application_path(application, mode=self.mode))
        return command, {**env, **(self._env or {})}

    def follow(self, lines: Iterator[str]) -> str:
        """Copy the log of an application to the log of the task, and return its last lines."""
        self._process_spark_submit_log(lines)
        return self._submit_log_tail


def submit_hook(
    *, master: str | None = None, conn_id: str | None = None, **options: Any
) -> JobSubmitHook:
    """Return the hook for a master or a connection; default: the configured ones."""
    # Raises for a connection that is missing, which the provider takes for a YARN cluster.
    server = connect_server(master=master, conn_id=conn_id)
    if server is not None:
        conn_id = None
    elif master is None:
        conn_id = conn_id or SPARK_CONN_ID.read()
    return JobSubmitHook(
        master=None if conn_id else master or SPARK_MASTER.read(),
        server=server,
        conn_id=conn_id or "memwal_spark",
        **{"properties_file": SPARK_PROPERTIES_FILE.read() or None, **options},
    )
