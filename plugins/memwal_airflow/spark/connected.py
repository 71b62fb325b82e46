"""Jobs whose tasks run in a session of a Spark Connect server.

The job itself, which plans and commits, runs in the task's own process: it starts no other process
that imports Lance and PySpark anew. So it ends with its task, and a retry does the remaining work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseHook

from memwal.errors import InvalidInputError
from memwal.spark.connect import CONNECT_PREFIX, connect_session
from memwal.spark.runner import spark_runner, with_trace_context
from memwal_airflow.provider.settings import SPARK_CONN_ID, SPARK_MASTER
from memwal_airflow.spark.application import LEASE_CHECK_SECONDS

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from memwal.fleet import JobSpec
    from memwal.jobs.job import Guard, JobResult

CONNECT_TYPE = "spark_connect"
"""Type of a connection to a Spark Connect server, defined by the Spark provider."""


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """Address of a Spark Connect server, and its token."""

    url: str
    token: str | None = field(default=None, repr=False)


def connect_server(
    *, master: str | None = None, conn_id: str | None = None
) -> ConnectServer | None:
    """Return the server of a master or a connection; default: of the configured ones.

    None if these name another Spark.
    """
    if conn_id is None and master is None:
        conn_id, master = SPARK_CONN_ID.read() or None, SPARK_MASTER.read()
    if conn_id is not None:
        connection = BaseHook.get_connection(conn_id)
        if connection.conn_type != CONNECT_TYPE:
            return None
        return ConnectServer(connect_url(connection), connection.password or None)
    if master is None or not master.startswith(CONNECT_PREFIX):
        return None
    return ConnectServer(master)


def connect_url(connection: Connection) -> str:
    """Return the URL of a connection of type ``spark_connect``, as the provider's hook reads it.

    Without its token, which is the password of the connection. Raises InvalidInputError if the
    host of the connection is missing, or is more than a host.
    """
    host = (connection.host or "").removeprefix(CONNECT_PREFIX)
    if not host or "/" in host or ";" in host:
        raise InvalidInputError(
            f"The host of the connection {connection.conn_id!r} must be that of a Spark Connect "
            "server, and nothing more: its port, its token (the password), the user (the login) "
            "and use_ssl have fields of their own."
        )
    parameters = []
    if connection.login:
        parameters.append(f"user_id={quote(connection.login, safe='')}")
    if str(connection.extra_dejson.get("use_ssl")).lower() == "true":
        parameters.append("use_ssl=true")
    address = f"{CONNECT_PREFIX}{host}" + (f":{connection.port}" if connection.port else "")
    return f"{address}/;{';'.join(parameters)}" if parameters else address


def run_connected(
    server: ConnectServer,
    spec: JobSpec,
    *,
    storage_options: Mapping[str, str] | None,
    py_files: str | None,
    guard: Guard,
    raise_if_killed: Callable[[], None],
    session: str | None = None,
) -> JobResult:
    """Run a job here, and its tasks in a session on a server.

    The session is that of the policy, else ``session``, else one for the table. ``py_files`` are
    paths of wheels and zip files for the workers, divided by commas. The ``guard`` is called before
    each commit and every few seconds, and ``raise_if_killed`` twice a second while tasks run: an
    error that they raise ends the tasks.
    """
    from memwal.fleet.job_spec import run_locally
    from memwal.fleet.tables import open_managed

    table = open_managed(spec.table, storage_options=storage_options)
    name = spec.table.policy.spark_session or session or table.uri
    files = [Path(file) for file in (py_files or "").split(",") if file]
    spark = connect_session(server.url, name=name, py_files=files, token=server.token)
    checked_at = time.monotonic()

    def check() -> None:
        nonlocal checked_at
        raise_if_killed()
        if time.monotonic() - checked_at >= LEASE_CHECK_SECONDS:
            guard()
            checked_at = time.monotonic()

    try:
        description = f"memwal {spec.job} {table.uri}"
        run = with_trace_context(spark_runner(spark, description=description, check=check))
        return run_locally(table, spec, run=run, guard=guard)
    finally:
        spark.stop()
