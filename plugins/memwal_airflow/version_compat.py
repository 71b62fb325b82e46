"""Differences between the versions of Airflow, and nothing else of this package depends on one.

Other modules import the names below from here, and ask for a feature, never for a version.
``memwal doctor --versions`` runs ``python -m memwal_airflow.version_compat``, which prints the
features that the installed Airflow lacks as JSON.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
    conf,
)
from airflow.providers.standard.utils.skipmixin import XCOM_SKIPMIXIN_FOLLOWED, XCOM_SKIPMIXIN_KEY
from airflow.sdk.definitions.deadline import (  # type: ignore[attr-defined]
    AsyncCallback,
    DeadlineAlert,
    DeadlineReference,
)

from memwal.util.records import plain_value
from memwal.util.versions import Feature

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.providers.common.compat.sdk import TaskInstanceKey as TaskInstanceKey

_feature = partial(Feature, "apache-airflow-core")

START_IN_TRIGGERER: Final = _feature(
    "start in the triggerer",
    "3.3",
    "the gate of a run takes a worker until it waits in the triggerer",
)
TASK_STATE: Final = _feature(
    "task state",
    "3.3",
    "the retry of a killed task does not find its Spark application, unless that runs in a "
    "Kubernetes cluster; it waits for the lease of that application",
)
TEAMS: Final = _feature("teams", "3.2", "tables belong to no team")
FEATURES: Final = (START_IN_TRIGGERER, TASK_STATE, TEAMS)

if TYPE_CHECKING or _feature("a timetable of tasks", "3.2", "").here:
    from airflow.sdk.definitions.timetables.assets import AssetTriggeredTimetable
else:
    from airflow.timetables.simple import AssetTriggeredTimetable

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AssetTriggeredTimetable",
    "DeadlineAlert",
    "TaskDeferred",
    "XCOM_SKIPMIXIN_FOLLOWED",
    "XCOM_SKIPMIXIN_KEY",
    "conf",
]


def deadline_after_queued(
    interval: timedelta, callback: Any, *, kwargs: dict[str, Any], name: str
) -> DeadlineAlert:
    """Return a deadline that calls a coroutine ``interval`` after a run was queued."""
    named = {"name": name} if _feature("name of a deadline", "3.3", "").here else {}
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=interval,
        callback=AsyncCallback(callback, kwargs=kwargs),
        **named,
    )


if __name__ == "__main__":
    print(json.dumps(plain_value([feature for feature in FEATURES if not feature.here])))
