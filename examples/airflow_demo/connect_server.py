"""A Spark Connect server on 127.0.0.1, whose Spark stays up for the jobs of a demo.

A job by ``spark-submit`` starts a JVM, a session and Python workers of its own, which takes some
ten seconds of two processors. A job of a session that is up takes about two.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from airflow_demo.processes import ENDS_WITH_CALLER, free_port
from memwal.spark.session import ensure_java

START_SECONDS = 600.0
STOP_SECONDS = 10.0

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_LAUNCHER = f"{ENDS_WITH_CALLER}import os, sys\nos.execvp(sys.argv[1], sys.argv[1:])\n"


class ConnectServerError(RuntimeError):
    """The server did not start, or stopped by itself."""


class ConnectServer:
    """Start and stop a Spark Connect server.

    Parameters
    ----------
    log : Path
        File for its output.
    cores : int
        Tasks that run at once.
    env : mapping, optional
        Added to the environment of the server and its workers.
    conf : mapping, optional
        Spark properties, over those that it has by itself.
    """

    def __init__(
        self,
        log: Path,
        *,
        cores: int = 2,
        env: Mapping[str, str] | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        self._cores = cores
        self._env = dict(env or {})
        self._conf = dict(conf or {})
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"sc://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Process id; raises ConnectServerError if it does not run."""
        self.check()
        return self._process.pid  # type: ignore[union-attr]

    @property
    def airflow_settings(self) -> dict[str, str]:
        """Section ``[memwal]`` of an Airflow whose jobs run on it, also those of small tables."""
        return {"spark_master": self.url, "local_below_bytes": "0"}

    def start(self) -> Self:
        """Start it, and return at once."""
        environment = {**os.environ, **self._env, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["PYSPARK_PYTHON"] = sys.executable
        ensure_java(environment)
        properties = {
            "spark.master": f"local[{self._cores}]",
            # The id of a session that was closed cannot be used again.
            "spark.connect.session.manager.defaultSessionTimeout": "-1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            **self._conf,
        }
        submit = str(Path(sys.executable).with_name("spark-submit"))
        conf = [word for key, value in properties.items() for word in ("--conf", f"{key}={value}")]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCHER, submit, "--class", _CLASS, *conf],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def wait(self) -> None:
        """Wait until it takes connections."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.2)
        raise ConnectServerError(f"the Spark Connect server did not start; see {self._log}")

    def check(self) -> None:
        """Raise ConnectServerError if it has ended by itself."""
        if self._process is None or self._process.poll() is not None:
            raise ConnectServerError(f"the Spark Connect server stopped; see {self._log}")

    def stop(self, *, seconds: float = STOP_SECONDS) -> None:
        """End it, with its workers; by SIGKILL if it has not ended by itself after this time."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
