"""Pods of one namespace, by the client and the pod manager of Airflow's Kubernetes provider.

The provider takes a second to import, so only tasks with a driver in a cluster import it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import (
    KubernetesApiException,
    generic_api_retry,
)
from airflow.providers.cncf.kubernetes.utils.container import (
    container_is_completed,
    container_is_succeeded,
    container_is_wait,
    get_container_status,
)
from airflow.providers.cncf.kubernetes.utils.pod_manager import PodManager, PodPhase
from kubernetes.client import (
    ApiException,
    V1DeleteOptions,
    V1ObjectMeta,
    V1Pod,
    V1Preconditions,
)
from kubernetes.config import ConfigException
from urllib3.exceptions import HTTPError

from memwal.errors import InvalidInputError
from memwal_airflow.spark.settings import MASTER_PREFIX
from memwal_airflow.version_compat import AirflowException

ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
GRACE_SECONDS = 10
DELETE_SECONDS = 40.0
"""How long to wait for the end of a pod after its deletion was requested."""

DELETE_POLL_SECONDS = 0.25
NOT_FOUND = 404
_FORBIDDEN, _CONFLICT = 403, 409
_DEFAULT_NAMESPACE = "default"
_DRIVER_CONTAINER = "spark-kubernetes-driver"
_IMAGE = "check spark.kubernetes.container.image and spark.kubernetes.container.image.pullSecrets"
_CONFIG = "check that the Secrets and ConfigMaps exist that the Spark configuration names"
_ADVICE = {
    "OOMKilled": "give it more with spark.driver.memory or spark.driver.memoryOverhead",
    "Evicted": "if it happens again, let it request what it uses",
    "Unschedulable": (
        "let it request less (spark.driver.memory, spark.kubernetes.driver.request.cores), or add "
        "nodes"
    ),
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "InvalidImageName": _IMAGE,
    "ErrImageNeverPull": _IMAGE,
    "CreateContainerConfigError": _CONFIG,
    "CreateContainerError": _CONFIG,
    "RunContainerError": _CONFIG,
}
"""Next steps by the reason that Kubernetes gives."""


_retried: Callable[[Callable[..., Any]], Callable[..., Any]] = generic_api_retry


class KubernetesUnavailableError(AirflowException):
    """The API server gave no valid answer; the requested change may have happened."""


class Pods:
    """Pods of one namespace.

    The credentials are those of the file ``$KUBECONFIG`` (in ``context``; default: its current
    one), else of the service account of this pod, else of the user's kubeconfig. Every method
    raises InvalidInputError if they do not allow the request, and KubernetesUnavailableError if
    repeated attempts got no valid answer. ``master`` is a Spark master: ``k8s://https://host:port``.
    """

    def __init__(self, master: str, namespace: str, *, context: str | None = None) -> None:
        address = master.removeprefix(MASTER_PREFIX)
        self.host = address if "://" in address else f"https://{address}"
        self.namespace = namespace
        self._context = context
        self.connect()

    def connect(self) -> None:
        """Connect with the credentials of now."""
        hook = KubernetesHook(
            kubernetes_conn_id=None,
            cluster_context=self._context,
            config_file=os.environ.get("KUBECONFIG"),
        )
        try:
            self.client = hook.core_v1_client
        except ConfigException as error:
            raise InvalidInputError(
                f"There are no credentials of the cluster {self.host} ({error}): let Airflow's "
                "tasks run with a service account of it, or name a kubeconfig in $KUBECONFIG."
            ) from None
        # Requests go where Spark submits its driver. Setting the host in the configuration is not
        # enough: the client restores the host of its credentials whenever it renews them.
        api_client = hook.api_client
        api_client.call_api = partial(api_client.call_api, _host=self.host)

    def find(self, name: str) -> V1Pod | None:
        """Return the pod of a name; None without one."""
        pod = V1Pod(metadata=V1ObjectMeta(name=name, namespace=self.namespace))
        with self.errors("get pods", missing=(NOT_FOUND,)):
            return PodManager(self.client).read_pod(pod)
        return None

    def labelled(self, labels: Mapping[str, str]) -> list[V1Pod]:
        """Return the pods that have all of these labels."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        with self.errors("list pods"):
            found = _retried(self.client.list_namespaced_pod)(
                self.namespace, label_selector=selector
            )
            return list(found.items)

    def delete(self, pod: V1Pod) -> None:
        """Delete this pod, never a later pod of the same name, and wait until it is gone.

        Raises KubernetesUnavailableError if it may still exist: the API server or the pod's node
        does not answer.
        """
        name, uid = pod.metadata.name, pod.metadata.uid
        body = V1DeleteOptions(
            grace_period_seconds=GRACE_SECONDS, preconditions=V1Preconditions(uid=uid)
        )
        with self.errors("delete pods", missing=(NOT_FOUND, _CONFLICT)):
            _retried(self.client.delete_namespaced_pod)(name, self.namespace, body=body)
        ends_at = time.monotonic() + DELETE_SECONDS
        while time.monotonic() < ends_at:
            current = self.find(name)
            if current is None or current.metadata.uid != uid:
                return
            time.sleep(DELETE_POLL_SECONDS)
        raise KubernetesUnavailableError(
            f"The pod {name} still exists {DELETE_SECONDS:g} s after the request to delete it; its "
            "node may be out of reach."
        )

    @contextlib.contextmanager
    def errors(self, request: str, *, missing: tuple[int, ...] = ()) -> Iterator[None]:
        """Translate the errors of a request; an answer with a status of ``missing`` is none."""
        try:
            yield
        except ApiException as error:
            if error.status in missing:
                return
            if error.status == _FORBIDDEN:
                raise InvalidInputError(
                    f"Kubernetes does not let Airflow {request} in the namespace "
                    f"{self.namespace}: bind a Role that does to the service account of Airflow's "
                    "workers."
                ) from None
            outcome = f"it answered {error.status} {error.reason}"
        except (HTTPError, KubernetesApiException, OSError) as error:
            outcome = f"it did not answer ({type(error).__name__})"
        else:
            return
        raise KubernetesUnavailableError(
            f"Kubernetes at {self.host} was asked to {request} in {self.namespace}: {outcome}"
        )


def own_namespace(file: Path = ACCOUNT_NAMESPACE) -> str:
    """Return the namespace of the pod that this process runs in; ``default`` outside a cluster."""
    with contextlib.suppress(OSError):
        return file.read_text().strip() or _DEFAULT_NAMESPACE
    return _DEFAULT_NAMESPACE


def driver_container(pod: V1Pod) -> str:
    """Return the name of the driver's container, which a pod template may have named."""
    names: list[str] = [container.name for container in pod.spec.containers]
    return _DRIVER_CONTAINER if _DRIVER_CONTAINER in names else names[0]


def has_started(pod: V1Pod) -> bool:
    """Return whether the driver runs or ran."""
    waits = container_is_wait(pod, driver_container(pod))
    return not waits and pod.status.phase not in (None, PodPhase.PENDING)


def has_ended(pod: V1Pod) -> bool:
    """Return whether the driver has ended, also when other containers of its pod have not."""
    completed = container_is_completed(pod, driver_container(pod))
    return completed or pod.status.phase in PodPhase.terminal_states


def has_succeeded(pod: V1Pod) -> bool:
    """Return whether the driver has ended with exit code 0."""
    succeeded = container_is_succeeded(pod, driver_container(pod))
    return succeeded or pod.status.phase == PodPhase.SUCCEEDED


def describe(pod: V1Pod) -> str:
    """Return the reasons that Kubernetes gives for the state of a pod, and the next step."""
    status = pod.status
    container = get_container_status(pod, driver_container(pod))
    state = container and container.state
    terminated = state and state.terminated
    unscheduled = [
        condition
        for condition in status.conditions or ()
        if condition.type == "PodScheduled" and condition.status == "False"
    ]
    sources: list[Any] = [status, *unscheduled, state and state.waiting, terminated]
    given = {one.reason: one.message for one in sources if one is not None and one.reason}
    words = [f"{reason}: {message}" if message else reason for reason, message in given.items()]
    if terminated:
        words.append(f"exit code {terminated.exit_code}")
    words += dict.fromkeys(_ADVICE[reason] for reason in given if reason in _ADVICE)
    return "; ".join(words) or f"{status.phase or PodPhase.PENDING}, without a reason"
