"""State of a driver's pod, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from memwal.util.records import JsonMapping

DRIVER_CONTAINER = "spark-kubernetes-driver"
"""Name that Spark gives the driver's container, unless a pod template names it."""

# Reasons of a wait that rarely ends without a user's help.
_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_OUT_OF_MEMORY = "OOMKilled"
_EVICTED = "Evicted"
_UNSCHEDULABLE = "Unschedulable"
_KILLED = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """State of the driver's container in its pod; ``message`` tells users what to do about it."""

    container: str
    started: bool  # It runs or ran.
    ended: bool  # Also when other containers of the pod have not.
    succeeded: bool  # Ended with exit code 0.
    blocked: bool  # It waits for something that rarely comes without a user's help.
    message: str

    @classmethod
    def of(cls, pod: JsonMapping) -> Self:
        """Derive the state from a pod as the API has it."""
        status = pod.get("status") or {}
        phase = status.get("phase") or "Pending"
        container = _driver_container(pod)
        statuses = status.get("containerStatuses") or ()
        states = {item["name"]: item.get("state") or {} for item in statuses}
        state = states.get(container, {})
        terminated = state.get("terminated")
        ended = terminated is not None or phase in ("Succeeded", "Failed")
        succeeded = terminated["exitCode"] == 0 if terminated else phase == "Succeeded"
        waiting = state.get("waiting") or {}
        if ended:
            message = "succeeded" if succeeded else _failure_message(status, terminated or {})
        elif "running" in state or phase == "Running":
            message = "runs"
        else:
            message = _waiting_message(status, waiting)
        return cls(
            container=container,
            started=ended or "running" in state or (not waiting and phase == "Running"),
            ended=ended,
            succeeded=ended and succeeded,
            blocked=not ended and waiting.get("reason") in _IMAGE | _CONFIG,
            message=message,
        )


def config_maps(pod: JsonMapping) -> list[str]:
    """Return the names of the config maps that a pod cannot start without."""
    volumes = pod["spec"].get("volumes") or ()
    return [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]


def _driver_container(pod: JsonMapping) -> str:
    names: list[str] = [container["name"] for container in pod["spec"]["containers"]]
    return DRIVER_CONTAINER if DRIVER_CONTAINER in names else names[0]


def _failure_message(status: JsonMapping, terminated: JsonMapping) -> str:
    reason = terminated.get("reason") or status.get("reason") or ""
    code = terminated.get("exitCode")
    if reason == _OUT_OF_MEMORY:
        return (
            "was killed since it ran out of memory (OOMKilled): give it more with "
            "spark.driver.memory or spark.driver.memoryOverhead"
        )
    if status.get("reason") == _EVICTED:
        return (
            f"was evicted from its node ({status.get('message') or 'no reason was given'}): the "
            "retry is scheduled anew; if it happens again, let it request what it uses"
        )
    if status.get("reason"):
        details = status.get("message") or "no details"
        return f"was ended with its pod: {status['reason']} ({details})"
    if code == _KILLED:
        return (
            "was killed (exit code 137): by its node, for memory as a rule; look at the events of "
            "the namespace"
        )
    return f"ended with exit code {code}" if code is not None else "failed without an exit code"


def _waiting_message(status: JsonMapping, waiting: JsonMapping) -> str:
    reason, message = waiting.get("reason") or "", waiting.get("message") or "no details"
    if reason in _IMAGE:
        return (
            f"has an image that cannot be pulled ({reason}: {message}): check "
            "spark.kubernetes.container.image and spark.kubernetes.container.image.pullSecrets"
        )
    if reason in _CONFIG:
        return (
            f"cannot be created ({reason}: {message}): check that the Secrets and ConfigMaps exist "
            "that the Spark configuration names"
        )
    for condition in status.get("conditions") or ():
        if condition.get("reason") == _UNSCHEDULABLE:
            return (
                f"cannot be scheduled ({condition.get('message') or _UNSCHEDULABLE}): let it "
                "request less (spark.driver.memory, spark.kubernetes.driver.request.cores), or add "
                "nodes"
            )
    return f"waits to start ({reason or 'Pending'}); kubectl describe pod tells more"
