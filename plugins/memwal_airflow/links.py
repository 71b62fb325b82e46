"""Paths in the Airflow UI, and links of a task: to Spark's UI, and to the page of its table.

Airflow stores the address of a link as an XCom when the task has ended; the operators store it as
soon as they know it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

from memwal.spark.session import APPLICATION_LINE
from memwal_airflow.provider.settings import DRIVER_POD_URL, RUNBOOK_URL, SPARK_HISTORY_URL
from memwal_airflow.version_compat import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from memwal_airflow.version_compat import TaskInstanceKey

_APPLICATION = re.compile(
    re.escape(APPLICATION_LINE) + r"(?P<id>[A-Za-z0-9_.-]+)(?:: (?P<ui>https?://\S+))?"
)


class SparkUiLink(BaseOperatorLink):
    """Link to the UI of the Spark application while it runs, and then to the history server.

    A driver in a cluster is linked to the page of its pod instead, see :func:`pod_address`.
    """

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the page of an ended application below ``[memwal] spark_history_url``.

        Empty without an application or without the setting.
        """
        server = SPARK_HISTORY_URL.read()
        application_id = getattr(operator, "spark_application_id", None)
        if not server or application_id is None:
            return ""
        return f"{server.rstrip('/')}/history/{application_id}/"


class TablePageLink(BaseOperatorLink):
    """Link to the page of the table in Airflow's UI."""

    name = "MemWAL table"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of the table's page; empty for a table that is in no catalog."""
        return table_address(getattr(operator, "table", None))


def spark_application(line: str) -> tuple[str, str | None] | None:
    """Return id and UI address of the Spark application, if this line of its log has them."""
    match = _APPLICATION.search(line)
    return None if match is None else (match["id"], match["ui"])


def pod_address(reattach_state: Mapping[str, str]) -> str:
    """Return ``[memwal] driver_pod_url`` with the namespace and name of a driver's pod put in.

    Empty without the setting, or for an application without a pod.
    """
    page = DRIVER_POD_URL.read()
    if not page or "pod" not in reattach_state:
        return ""
    page = page.replace("{namespace}", reattach_state["namespace"])
    return page.replace("{pod}", reattach_state["pod"])


def table_address(table: object) -> str:
    """Return the path of a managed table's page in Airflow's UI."""
    if table is None:
        return ""
    return app_path(f"/#/tables/{quote(str(table), safe='')}")


DRAIN_DAG_ID = "memwal_drain"
"""The DAG that runs the jobs of the tables that have no DAG of their own."""

URL_PREFIX = "/memwal"
"""Path that the app is mounted at."""


def root_path() -> str:
    """Return the path that Airflow is served below, without a trailing slash; usually empty."""
    return urlsplit(str(conf.get("api", "base_url", fallback="/"))).path.rstrip("/")


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
    url = RUNBOOK_URL.read()
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
