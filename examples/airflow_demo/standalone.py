"""An embedded Airflow for demos and tests: one folder, SQLite, 127.0.0.1.

It runs the four components that ``airflow standalone`` runs, with three differences that matter on
a shared machine. Every port is free and bound to 127.0.0.1 (the two log servers, which listen on
every interface, are not started; the API server reads the log files itself). The components end
with :meth:`AirflowStandalone.stop`, by their process ids. All settings are in
``{home}/airflow.cfg``, so that secrets do not reach the environment of tasks and
``AIRFLOW_HOME={home} airflow ...`` on a shell uses the same Airflow.

It is not for production: SQLite, one machine, and the simple auth manager.

Examples
--------
>>> with AirflowStandalone(home, dags_folder=dags) as airflow:
...     run_id = airflow.trigger("memwal__flights", {"force": True})
...     state = airflow.wait_run("memwal__flights", run_id)
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from airflow_demo.home import write_passwords, write_settings
from airflow_demo.processes import ENDS_WITH_CALLER, free_port
from airflow_demo.rest import AirflowApi, AirflowApiError

COMPONENTS: dict[str, list[str]] = {
    "api-server": ["api-server"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
}
"""Component name to the arguments of the ``airflow`` command that runs it.

The scheduler is the last, and waits for the API server: a task that finds none fails its first try.
"""

USERS = {"admin": "admin", "viewer": "viewer"}
"""User name to role of the simple auth manager."""

LAUNCHER = (
    f"{ENDS_WITH_CALLER}"
    "import runpy, sys\n"
    "sys.argv[0] = 'airflow'\n"
    "runpy.run_module('airflow', run_name='__main__')\n"
)
"""Runs the ``airflow`` command."""

START_SECONDS = 600.0
STOP_SECONDS = 20.0


class AirflowStandaloneError(AirflowApiError):
    """The embedded Airflow did not start, stopped by itself, or did not answer in time."""


class AirflowStandalone(AirflowApi):
    """Start, query and stop an embedded Airflow.

    Parameters
    ----------
    home : str or Path
        ``AIRFLOW_HOME``: settings, database, logs and passwords. Created if absent; an existing
        home is started again with its database, on a new port.
    dags_folder : str or Path
        The DAG files that Airflow loads.
    plugins_folder : str or Path, optional
        Plugins besides memwal's own, which Airflow finds by its entry point. Default: ``plugins``
        in ``home``, which need not exist.
    env : mapping, optional
        Added to the environment of every component and so of every task, for example
        ``MEMWAL_CATALOG_URL``. ``AIRFLOW*`` variables of the calling process are not passed on.
    settings : mapping, optional
        ``{"section": {"option": value}}``, over the defaults of :meth:`settings`.
    parallelism : int, default 4
        Concurrent tasks. Each costs about 150 MiB, a Spark driver about 500 MiB more.

    Notes
    -----
    Takes about 15 s to become healthy and about 1.5 GiB of memory. The components also end when
    the thread that called :meth:`start` ends without :meth:`stop`.
    """

    def __init__(
        self,
        home: str | Path,
        *,
        dags_folder: str | Path,
        plugins_folder: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, str]] | None = None,
        parallelism: int = 4,
    ) -> None:
        super().__init__()
        self.home = Path(home).resolve()
        self.dags_folder = Path(dags_folder).resolve()
        self.plugins_folder = Path(plugins_folder or self.home / "plugins").resolve()
        self.parallelism = parallelism
        self.port = 0
        self._extra_env = dict(env or {})
        self._extra_settings = {name: dict(options) for name, options in (settings or {}).items()}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._left_behind: list[psutil.Process] = []
        # Held while a component is started, so that a cancelled start leaves none behind.
        self._starting = threading.Lock()

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Address of the UI and the REST API; meaningful after :meth:`start`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each component that was started."""
        return {name: process.pid for name, process in self._processes.items()}

    def password(self, user: str = "admin") -> str:
        """Password of ``admin`` or ``viewer``; created for every new home."""
        passwords: dict[str, str] = json.loads(self._passwords_file.read_text())
        return passwords[user]

    def environment(self) -> dict[str, str]:
        """Environment of the components, for ``airflow`` commands beside them."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW__", "AIRFLOW_"))}
        folders = _library_folders()
        folders += [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
        env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
        env["AIRFLOW_HOME"] = str(self.home)
        env["PYTHONUNBUFFERED"] = "1"
        return {**env, **self._extra_env}

    def settings(self) -> dict[str, dict[str, str]]:
        """Settings written to ``airflow.cfg``, without the secrets."""
        merged = {
            "core": {
                "dags_folder": str(self.dags_folder),
                "plugins_folder": str(self.plugins_folder),
                "executor": "LocalExecutor",
                "parallelism": str(self.parallelism),
                "load_examples": "False",
                "execution_api_server_url": f"{self.url}/execution/",
                "simple_auth_manager_users": ",".join(f"{u}:{r}" for u, r in USERS.items()),
                "simple_auth_manager_passwords_file": str(self._passwords_file),
            },
            # On a busy disk a component waits longer than SQLite's default 5 s to write.
            "database": {"sql_alchemy_conn": f"sqlite:///{self.home / 'airflow.db'}?timeout=60"},
            "logging": {"base_log_folder": str(self.home / "logs")},
            "api": {"host": "127.0.0.1", "port": str(self.port), "base_url": self.url},
            # Maximum delay until a registered table has its DAG.
            "dag_processor": {"min_file_process_interval": "5", "refresh_interval": "5"},
            "usage_data_collection": {"enabled": "False"},
        }
        for section, options in self._extra_settings.items():
            merged.setdefault(section, {}).update(options)
        return merged

    def start(self) -> None:
        """Write the settings, create the database and start the components.

        Returns when the database exists and the API server answers (about 10 s); see
        :meth:`wait_healthy`.

        Raises
        ------
        AirflowStandaloneError
            Already started, the database could not be created, or a component ended by itself
            (the message names the log).
        """
        if self._processes:
            raise AirflowStandaloneError(f"Airflow in {self.home} is running; call stop() first.")
        self._component_logs.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        write_passwords(self._passwords_file, USERS)
        write_settings(self.home, self.settings())
        migrate = self._spawn("db-migrate", ["db", "migrate"])
        try:
            self.wait(
                lambda: migrate.poll() is not None, timeout=START_SECONDS, what="make its database"
            )
        finally:
            family = _family(migrate.pid)
            migrate.kill()
            migrated = migrate.wait()
            for child in family:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        if migrated != 0:
            raise AirflowStandaloneError(
                f"Airflow's database in {self.home} could not be created; "
                f"read {self._log_file('db-migrate')}."
            )
        for name, arguments in COMPONENTS.items():
            if name == "scheduler":
                self.wait(self._answers, timeout=START_SECONDS, what="answer")
            with self._starting:
                if self._cancelled.is_set():
                    raise AirflowStandaloneError("The start of Airflow was cancelled.")
                self._processes[name] = self._spawn(name, arguments)

    def _answers(self) -> bool:
        self.check()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def wait_healthy(self, timeout: float = START_SECONDS) -> None:
        """Wait until the database, scheduler, triggerer and DAG processor report ``healthy``.

        Raises
        ------
        AirflowStandaloneError
            A component ended by itself, or ``timeout`` seconds passed.
        """

        def healthy() -> bool:
            self.check()
            return self.is_healthy()

        self.wait(healthy, timeout=timeout, what="become healthy")

    def task_log(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> str:
        """Log of every try of a task, as text; for messages about a failed run."""
        folder = self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}"
        folder = folder / f"task_id={task_id}"
        folder = folder / f"map_index={map_index}" if map_index >= 0 else folder
        return "\n".join(path.read_text() for path in sorted(folder.glob("attempt=*.log*")))

    def kill(self, name: str) -> None:
        """Kill a component with SIGKILL. Its child processes remain until :meth:`stop`."""
        process = self._processes.pop(name)
        self._left_behind += _family(process.pid)
        process.kill()
        process.wait()

    def restart(self, name: str) -> None:
        """Start a killed component again, or one more of its kind: ``triggerer-2``."""
        self._processes[name] = self._spawn(name, COMPONENTS[name.rstrip("-0123456789")])

    def restart_ended(self) -> None:
        """Start the components again that have ended by themselves."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                self.restart(name)

    def cancel(self) -> None:
        """Let every wait end with an error, and start no component any more."""
        with self._starting:
            super().cancel()

    def stop(self, *, seconds: float = STOP_SECONDS) -> None:
        """End the components and the processes that they started.

        Sends SIGTERM first, so that running tasks can end their Spark jobs; processes that remain
        after some seconds are killed. Only descendants of the components are affected. A second
        call does nothing.
        """
        family = [child for process in self._left_behind for child in _kin(process)]
        family += [child for process in self._processes.values() for child in _family(process.pid)]
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for process in self._processes.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _, alive = psutil.wait_procs(family, timeout=min(seconds, 2) / 2)
        for child in alive:
            child.terminate()
        _, alive = psutil.wait_procs(alive, timeout=min(seconds, 5) / 2)
        for child in alive:
            child.kill()
        self._processes.clear()
        self._left_behind.clear()
        # Last: a thread may hold the connections while it waits for an answer.
        self.close()

    @property
    def _passwords_file(self) -> Path:
        return self.home / "passwords.json"

    @property
    def _component_logs(self) -> Path:
        return self.home / "logs" / "components"

    def _log_file(self, name: str) -> Path:
        return self._component_logs / f"{name}.log"

    def _spawn(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        with self._log_file(name).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, *arguments],
                cwd=self.home,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # An interrupt typed on the terminal must reach the caller only, which calls stop().
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise when a component has ended by itself.

        Raises
        ------
        AirflowStandaloneError
            Not started, or a component ended; the message names its log.
        """
        if not self._processes:
            raise AirflowStandaloneError("Airflow is not running; call start() first.")
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise AirflowStandaloneError(
                    f"Airflow's {name} ended with code {process.returncode}; "
                    f"read {self._log_file(name)}."
                )


def _family(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _kin(process: psutil.Process) -> list[psutil.Process]:
    return [process, *_family(process.pid)] if process.is_running() else []


def _library_folders() -> list[str]:
    """Folders of the packages that this process uses."""
    specs = [importlib.util.find_spec(name) for name in ("memwal", "memwal_airflow")]
    return [
        str(Path(place).resolve().parent)
        for spec in specs
        if spec is not None
        for place in spec.submodule_search_locations or ()
    ]
