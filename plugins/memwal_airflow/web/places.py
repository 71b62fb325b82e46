"""Paths in the Airflow UI."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from airflow.configuration import conf

from memwal_airflow import SECTION

URL_PREFIX = "/memwal"
"""Path that the app is mounted at."""


def root_path() -> str:
    """Return the path that Airflow is served below, without a trailing slash; usually empty."""
    return urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")


def app_path(rest: str) -> str:
    """Return the path of a resource of the app; ``rest`` begins with a slash."""
    return f"{root_path()}{URL_PREFIX}{rest}"


def dag_link(dag_id: str) -> str:
    """Return the path of a DAG's page."""
    return f"{root_path()}/dags/{quote(dag_id, safe='')}"


def run_link(dag_id: str, run_id: str) -> str:
    """Return the path of a DAG run's page."""
    return f"{dag_link(dag_id)}/runs/{quote(run_id, safe='')}"


def runbook_link(runbook: str) -> str | None:
    """Return the address of a runbook by ``[memwal] runbook_url`` of ``airflow.cfg``, if it is set.

    ``{alert}`` in the setting stands for the name of the page, as for ``memwal metrics rules``.
    """
    url = str(conf.get(SECTION, "runbook_url", fallback="") or "")
    if not url:
        return None
    page, mark, section = runbook.rpartition("/")[2].partition("#")
    return url.replace("{alert}", page.removesuffix(".md")) + mark + section


def task_link(external_id: str | None) -> str | None:
    """Return the path of a task instance's page; None unless ``external_id`` names one.

    The operators record ``dag/run/task/map index``, with ``-1`` for a task that is not mapped.
    """
    parts = (external_id or "").split("/")
    if len(parts) != 4 or not all(parts):
        return None
    dag_id, run_id, task_id, map_index = parts
    if not map_index.removeprefix("-").isdecimal():
        return None
    link = f"{run_link(dag_id, run_id)}/tasks/{quote(task_id, safe='')}"
    return link if int(map_index) < 0 else f"{link}/mapped/{int(map_index)}"
