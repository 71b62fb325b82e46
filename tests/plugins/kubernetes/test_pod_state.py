"""What the status of a driver's pod means."""

from __future__ import annotations

from typing import Any

import pytest
from memwal_airflow.kubernetes.pod_state import DRIVER_CONTAINER, PodState, config_maps


def pod(phase: str | None, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """A pod with a side car before its driver."""
    statuses = [{"name": "mesh", "state": {"running": {}}}]
    if state is not None:
        statuses.append({"name": DRIVER_CONTAINER, "state": state})
    containers = [{"name": "mesh"}, {"name": DRIVER_CONTAINER}]
    return {
        "spec": {"containers": containers},
        "status": {"phase": phase, "containerStatuses": statuses, **status},
    }


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


def unschedulable() -> dict[str, Any]:
    return {"conditions": [{"reason": "Unschedulable", "message": "0/3 nodes: 3 tainted"}]}


@pytest.mark.parametrize(
    ("found", "flags", "text"),
    [
        (pod(None), "", "waits to start (Pending)"),
        (pod("Pending", {"waiting": {"reason": "ContainerCreating"}}), "", "(ContainerCreating)"),
        (pod("Pending", **unschedulable()), "", "scheduled (0/3 nodes: 3 tainted): let it request"),
        (
            pod("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}),
            "blocked",
            "cannot be pulled (ImagePullBackOff: no such tag): check spark.kubernetes.container",
        ),
        (
            pod("Pending", {"waiting": {"reason": "CreateContainerConfigError"}}),
            "blocked",
            "check that the Secrets and ConfigMaps exist",
        ),
        (pod("Running", {"running": {}}), "started", "runs"),
        # The driver's container has ended, and the side car goes on.
        (pod("Running", ended(0, "Completed")), "started ended succeeded", "succeeded"),
        (pod("Running", ended(3)), "started ended", "ended with exit code 3"),
        (pod("Failed", ended(137, "OOMKilled")), "started ended", "give it more with spark.driver"),
        (pod("Failed", ended(137)), "started ended", "exit code 137"),
        (
            pod("Failed", ended(137), reason="Evicted", message="low on memory"),
            "started ended",
            "was evicted from its node (low on memory)",
        ),
        (pod("Failed", reason="NodeLost"), "started ended", "ended with its pod: NodeLost"),
        (pod("Failed"), "started ended", "without an exit code"),
        (pod("Succeeded"), "started ended succeeded", "succeeded"),
    ],
)
def test_states(found: dict[str, Any], flags: str, text: str) -> None:
    state = PodState.of(found)
    set_flags = [
        flag for flag in ("started", "ended", "succeeded", "blocked") if getattr(state, flag)
    ]
    assert set_flags == flags.split()
    assert text in state.message
    assert state.container == DRIVER_CONTAINER


def test_a_pod_template_may_name_the_container() -> None:
    assert PodState.of({"spec": {"containers": [{"name": "mine"}]}}).container == "mine"


def test_what_a_pod_needs_to_start() -> None:
    volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}]
    assert config_maps({"spec": {"volumes": volumes}}) == ["c"]
    assert config_maps({"spec": {}}) == []
