"""The command line of spark-submit, made by Airflow's Spark provider.

The provider imports the client of Kubernetes where that is installed, which takes seconds: only
what submits a job imports this.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook, Connection

from memwal.errors import InvalidInputError
from memwal_airflow.spark.settings import (
    CLUSTER,
    application_path,
    checked_deploy_mode,
    configured_connection,
    configured_deploy_mode,
    configured_master,
    is_kubernetes,
    job_environment,
    properties_file,
)

_KUBERNETES_PROVIDER = "airflow.providers.cncf.kubernetes"


class JobSubmitHook(SparkSubmitHook):
    """The provider's hook, with a master that need not be a connection and a clean environment.

    Parameters
    ----------
    master : str or None
        Master URL; None takes the Spark connection ``conn_id``.
    deploy_mode : str, optional
        ``client``, where the driver is a child of this process and sees its files, or
        ``cluster``. By default that of the connection, else ``[memwal] deploy_mode``.
    **options
        As of ``SparkSubmitHook``.

    Attributes
    ----------
    master, mode : str
        What it came to.

    Raises
    ------
    InvalidInputError
        Cluster mode is asked for, and the cluster is not Kubernetes; or there is no provider of
        Kubernetes for Airflow, which that of Spark needs.
    """

    def __init__(
        self, *, master: str | None, deploy_mode: str | None = None, **options: Any
    ) -> None:
        self._given_master = master
        try:
            super().__init__(deploy_mode=deploy_mode, **options)
        except NameError:
            # What the provider comes to for a master that it lacks a package for.
            if importlib.util.find_spec(_KUBERNETES_PROVIDER) is not None:
                raise
            raise InvalidInputError(
                "A Spark master on Kubernetes needs Airflow's provider of it: install "
                "memwal[kubernetes] where Airflow runs."
            ) from None
        known = self._connection
        self.master: str = known["master"]
        self.mode = checked_deploy_mode(known["deploy_mode"] or configured_deploy_mode())
        known["deploy_mode"] = self.mode
        if self.is_cluster_mode and not is_kubernetes(self.master):
            raise InvalidInputError(
                f"Cluster mode is for Kubernetes (k8s://...), and the master is {self.master}: a "
                "job there is run in client mode; set the deploy mode of its operator or its "
                "Spark connection to client."
            )

    @property
    def is_cluster_mode(self) -> bool:
        """Whether the driver runs in the cluster."""
        return self.mode == CLUSTER

    @property
    def namespace(self) -> str | None:
        """Namespace that the connection or the Spark configuration names, if any."""
        return self._connection["namespace"] or None

    @property
    def context(self) -> str | None:
        """Context of the kubeconfig that the Spark configuration names, if any."""
        return self._conf.get("spark.kubernetes.context")

    def get_connection(self, conn_id: str) -> Connection:  # type: ignore[override]
        """The connection that stands for the master, or the real one."""
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
        """Command line and environment of ``spark-submit`` for an application.

        Parameters
        ----------
        application : str
            Its name, such as ``merge.py``.
        arguments : sequence of str
            What it is given.
        conf : mapping, optional
            Spark properties that count before all others.

        Raises
        ------
        InvalidInputError
            There is no ``spark-submit`` on the path, or no Java.
        """
        self._application_args = list(arguments)
        self._conf = {**self._conf, **(conf or {})}
        env = job_environment()
        if self.master.startswith("local"):
            # Else the JVM binds to the machine's address on the network.
            env.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        binary = self._connection["spark_binary"]
        if shutil.which(binary, path=env["PATH"]) is None:
            raise InvalidInputError(
                f"{binary} is not on the PATH; install memwal[spark] where Airflow runs."
            )
        command = self._build_spark_submit_command(application_path(application, mode=self.mode))
        return command, {**env, **(self._env or {})}

    def follow(self, lines: Iterator[str]) -> str:
        """Write the log of an application to that of the task; return the end of it."""
        self._process_spark_submit_log(lines)
        return self._submit_log_tail


def submit_hook(
    *, master: str | None = None, conn_id: str | None = None, **options: Any
) -> JobSubmitHook:
    """The hook for a master or a connection; without either, for the configured ones.

    Parameters
    ----------
    master, conn_id : str, optional
    **options
        As of :class:`JobSubmitHook`.
    """
    if conn_id is None and master is None:
        conn_id = configured_connection()
    if conn_id is not None:
        # The provider takes a connection that does not exist for a YARN cluster.
        BaseHook.get_connection(conn_id)
    return JobSubmitHook(
        master=None if conn_id else master or configured_master(),
        conn_id=conn_id or "memwal_spark",
        **{"properties_file": properties_file(), **options},
    )
