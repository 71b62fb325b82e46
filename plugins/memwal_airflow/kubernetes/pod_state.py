"""What the status of a driver's pod means, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

DRIVER_CONTAINER = "spark-kubernetes-driver"
"""What Spark calls the driver's container, unless a pod template names it."""

# Waiting for what will not come by itself, or rarely.
_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_OUT_OF_MEMORY = "OOMKilled"
_EVICTED = "Evicted"
_UNSCHEDULABLE = "Unschedulable"
_KILLED = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """How far a driver is.

    Attributes
    ----------
    container : str
        Name of the driver's container.
    started : bool
        Whether that runs, or ran.
    ended : bool
        Whether it has ended, also when others in its pod have not.
    succeeded : bool
        Whether it has ended with 0.
    blocked : bool
        Whether it waits for something that seldom comes without somebody's help.
    text : str
        The state for people, with what to do about it.
    """

    container: str
    started: bool
    ended: bool
    succeeded: bool
    blocked: bool
    text: str

    @classmethod
    def of(cls, pod: Mapping[str, Any]) -> Self:
        """Read the status of a pod."""
        status = pod.get("status") or {}
        phase = status.get("phase") or "Pending"
        container = _driver_container(pod)
        states = {one["name"]: one.get("state") or {} for one in _statuses(status)}
        state = states.get(container, {})
        ended = state.get("terminated")
        over = ended is not None or phase in ("Succeeded", "Failed")
        succeeded = ended["exitCode"] == 0 if ended else phase == "Succeeded"
        waiting = state.get("waiting") or {}
        if over:
            text = "ended well" if succeeded else _failure(status, ended or {})
        elif "running" in state or phase == "Running":
            text = "runs"
        else:
            text = _why_it_waits(status, waiting)
        return cls(
            container=container,
            started=over or "running" in state or (not waiting and phase == "Running"),
            ended=over,
            succeeded=over and succeeded,
            blocked=not over and waiting.get("reason") in _IMAGE | _CONFIG,
            text=text,
        )


def config_maps(pod: Mapping[str, Any]) -> list[str]:
    """Names of the config maps that a pod cannot start without."""
    volumes = pod["spec"].get("volumes") or ()
    return [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]


def _driver_container(pod: Mapping[str, Any]) -> str:
    names: list[str] = [one["name"] for one in pod["spec"]["containers"]]
    return DRIVER_CONTAINER if DRIVER_CONTAINER in names else names[0]


def _statuses(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(status.get("containerStatuses") or ())


def _failure(status: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    reason = ended.get("reason") or status.get("reason") or ""
    code = ended.get("exitCode")
    if reason == _OUT_OF_MEMORY:
        return (
            "was killed since it ran out of memory (OOMKilled): give it more by "
            "spark.driver.memory or spark.driver.memoryOverhead"
        )
    if status.get("reason") == _EVICTED:
        return (
            f"was evicted from its node ({status.get('message') or 'no reason was given'}): the "
            "next try looks for another place; if it happens again, let it request what it uses"
        )
    if status.get("reason"):
        return f"was ended with its pod: {status['reason']} ({status.get('message') or 'no more'})"
    if code == _KILLED:
        return (
            "was killed (exit code 137): by its node, for memory as a rule; look at the events of "
            "the namespace"
        )
    return f"ended with exit code {code}" if code is not None else "failed; nobody says why"


def _why_it_waits(status: Mapping[str, Any], waiting: Mapping[str, Any]) -> str:
    reason, message = waiting.get("reason") or "", waiting.get("message") or "no more is said"
    if reason in _IMAGE:
        return (
            f"has an image that cannot be pulled ({reason}: {message}): check "
            "spark.kubernetes.container.image and spark.kubernetes.container.image.pullSecrets"
        )
    if reason in _CONFIG:
        return (
            f"cannot be made ({reason}: {message}): check that the Secrets and ConfigMaps exist "
            "that the Spark configuration names"
        )
    for condition in status.get("conditions") or ():
        if condition.get("reason") == _UNSCHEDULABLE:
            return (
                f"finds no node ({condition.get('message') or 'Unschedulable'}): let it ask for "
                "less (spark.driver.memory, spark.kubernetes.driver.request.cores), or add nodes"
            )
    return f"waits to be started ({reason or 'Pending'}); kubectl describe pod tells more"
