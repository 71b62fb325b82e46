"""Links from a task of memwal: to Spark's UI, and to the page of its table.

Airflow keeps the address of a link as an XCom of the task. It does so when the task has ended;
the operators do it as soon as they know one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from memwal.spark.session import APPLICATION_LINE
from memwal_airflow.spark.settings import SECTION

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

_APPLICATION = re.compile(
    re.escape(APPLICATION_LINE) + r"(?P<id>[A-Za-z0-9_.-]+)(?:: (?P<ui>https?://\S+))?"
)


class SparkUiLink(BaseOperatorLink):
    """To the UI of the Spark application while it runs, and then to the history server.

    The latter is ``[memwal] spark_history_url`` of ``airflow.cfg``; without one, the link is empty
    when the application has ended. Of a driver in a cluster it leads to the page of its pod while
    that runs, see :func:`pod_address`.
    """

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Address of an application that has ended, in the process of its task."""
        return history_address(getattr(operator, "spark_application_id", None))


class TablePageLink(BaseOperatorLink):
    """To the page of the table, in Airflow's UI."""

    name = "MemWAL table"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Address of the table's page; empty for a table that is in no catalog."""
        return table_address(getattr(operator, "table", None))


def spark_application(line: str) -> tuple[str, str | None] | None:
    """Id of the Spark application, and the address of its UI, if this line of its log tells."""
    found = _APPLICATION.search(line)
    return None if found is None else (found["id"], found["ui"])


def history_address(application_id: str | None) -> str:
    """Where the history server shows an application; empty when there is none of them."""
    server = conf.get(SECTION, "spark_history_url", fallback="")
    if not server or application_id is None:
        return ""
    return f"{server.rstrip('/')}/history/{application_id}/"


def pod_address(known: Mapping[str, str]) -> str:
    """Page of a driver's pod, where ``[memwal] driver_pod_url`` tells of such; else empty.

    Parameters
    ----------
    known : mapping
        ``namespace`` and ``pod``, which the setting may hold as ``{namespace}`` and ``{pod}``;
        nothing of an application that has no pod.
    """
    page = str(conf.get(SECTION, "driver_pod_url", fallback=""))
    if not page or "pod" not in known:
        return ""
    return page.replace("{namespace}", known["namespace"]).replace("{pod}", known["pod"])


def table_address(table: Any) -> str:
    """Where Airflow's UI shows a managed table."""
    if table is None:
        return ""
    path = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{path}/memwal/#/tables/{quote(str(table), safe='')}"
