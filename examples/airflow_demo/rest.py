"""Client of Airflow's REST API for demos and tests."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx

FINAL_RUN_STATES = frozenset({"success", "failed"})
POLL_SECONDS = 0.25
ANSWER_SECONDS = 120.0


class AirflowApiError(RuntimeError):
    """Airflow refused a request, or an expected state was not reached in time."""


class AirflowApi(ABC):
    """A small client of the REST API of one Airflow."""

    def __init__(self) -> None:
        self._clients: dict[str, httpx.Client] = {}
        # One thread polls the runs while another starts them.
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    @property
    @abstractmethod
    def url(self) -> str:
        """Address of the UI and the REST API."""

    @abstractmethod
    def password(self, user: str = "admin") -> str:
        """Password of a user."""

    @abstractmethod
    def check(self) -> None:
        """Raise if Airflow has ended, so that waiting for it is pointless."""

    def cancel(self) -> None:
        """Let every wait of any thread end with an error, now and later."""
        self._cancelled.set()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def is_healthy(self) -> bool:
        """Return whether database, scheduler, triggerer and DAG processor report ``healthy``."""
        try:
            answer = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=10)
        except httpx.TransportError:
            return False
        if answer.status_code != 200:
            return False
        states = answer.json()
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all((states.get(part) or {}).get("status") == "healthy" for part in parts)

    def token(self, user: str = "admin") -> str:
        """Bearer token of ``admin`` or ``viewer`` for the REST API and the plugins' endpoints."""
        answer = httpx.post(
            f"{self.url}/auth/token",
            json={"username": user, "password": self.password(user)},
            timeout=ANSWER_SECONDS,
        )
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def client(self, user: str = "admin") -> httpx.Client:
        """HTTP client with the token and the base address; closed by :meth:`close`."""
        with self._lock:
            if user not in self._clients:
                headers = {"Authorization": f"Bearer {self.token(user)}"}
                self._clients[user] = httpx.Client(
                    base_url=self.url, headers=headers, timeout=ANSWER_SECONDS
                )
            return self._clients[user]

    def wait_dag(self, dag_id: str, *, timeout: float = 90.0) -> None:
        """Wait until a DAG is parsed; a table registered a moment ago needs about 10 s."""

        def parsed() -> bool:
            self.check()
            return self.client().get(f"/api/v2/dags/{quote(dag_id)}").status_code == 200

        self.wait(parsed, timeout=timeout, what=f"parse the DAG {dag_id!r}")

    def pause(self, dag_id: str, paused: bool = True) -> None:
        """Pause a DAG, or unpause it with ``paused=False``."""
        self._request("PATCH", f"/api/v2/dags/{quote(dag_id)}", json={"is_paused": paused})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run of a DAG through the REST API and return its run id.

        Waits until the DAG is parsed. A paused DAG accepts the run but does not start it.
        """
        self.wait_dag(dag_id)
        body = {"logical_date": None, "conf": dict(conf or {})}
        path = f"/api/v2/dags/{quote(dag_id)}/dagRuns"
        return str(self._request("POST", path, json=body).json()["dag_run_id"])

    def wait_run(self, dag_id: str, run_id: str, *, timeout: float = 600.0) -> str:
        """Wait until a run is over and return its state, ``success`` or ``failed``."""
        state = ""

        def over() -> bool:
            nonlocal state
            self.check()
            state = str(self._request("GET", self._run_path(dag_id, run_id)).json()["state"])
            return state in FINAL_RUN_STATES

        self.wait(over, timeout=timeout, what=f"finish run {run_id} of {dag_id}")
        return state

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return the task instances of a run from the REST API: ``task_id``, ``state``, ..."""
        path = f"{self._run_path(dag_id, run_id)}/taskInstances"
        answer = self._request("GET", path, params={"limit": 1000}).json()
        instances: list[dict[str, Any]] = answer["task_instances"]
        return instances

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return the value that an unmapped task pushed."""
        path = f"{self._run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{key}"
        return self._request("GET", path, params={"deserialize": "true"}).json()["value"]

    def _run_path(self, dag_id: str, run_id: str) -> str:
        return f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"

    def wait(
        self,
        done: Callable[[], bool],
        *,
        timeout: float,
        what: str,
        every: float = POLL_SECONDS,
    ) -> None:
        """Call ``done`` until it is true, with ``every`` seconds between two calls.

        A request that gets no answer, as of an Airflow that is busy, counts as not yet.

        Raises
        ------
        AirflowApiError
            It was not true after ``timeout`` seconds, or :meth:`cancel` was called.
        """
        deadline = time.monotonic() + timeout
        while not _is_answered(done):
            if time.monotonic() > deadline:
                raise AirflowApiError(f"Airflow did not {what} within {timeout:.0f} s.")
            if self._cancelled.wait(every):
                raise AirflowApiError(f"The wait for Airflow to {what} was cancelled.")

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = self.client().request(method, path, **options)
        if answer.is_error:
            raise AirflowApiError(
                f"{method} {path} was answered with {answer.status_code}: {answer.text[:500]}"
            )
        return answer


def _is_answered(done: Callable[[], bool]) -> bool:
    try:
        return done()
    except httpx.TransportError:
        return False
