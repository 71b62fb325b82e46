"""The driver of a job in a cluster: submitted by this try, or found by it; followed, and ended.

Its pod has a name that is made of the run it belongs to. The API server gives a name to one pod at
a time, which is what keeps two tries of a task from having two drivers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.sdk.configuration import conf

from memwal.errors import MemWalError
from memwal.spark.result_store import delete_result, read_result
from memwal_airflow.kubernetes.api import Cluster, KubernetesUnavailableError
from memwal_airflow.kubernetes.pod_log import LogPosition
from memwal_airflow.kubernetes.pod_state import PodState, config_maps
from memwal_airflow.spark.application import LOOK_SECONDS, SparkJob
from memwal_airflow.spark.settings import SECTION

LABEL = "memwal.io/"
RUN_LABEL, ATTEMPT_LABEL = LABEL + "run", LABEL + "attempt"
DEFAULT_START_SECONDS = 600
BLOCKED_SECONDS = 120.0
"""How long a driver may wait for its image, or for a Secret, before it is given up."""

GRACE_SECONDS = 10
GONE_SECONDS = 40.0
"""How long is waited for the end of a pod that was told to end."""

POLL_SECONDS = 2.0
GONE_POLL_SECONDS = 0.25

log = logging.getLogger(__name__)


def start_seconds() -> float:
    """``[memwal] driver_start_seconds`` of ``airflow.cfg``: how long a driver may take to start."""
    return float(conf.getfloat(SECTION, "driver_start_seconds", fallback=DEFAULT_START_SECONDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultAddress:
    """Where a driver writes its result.

    Attributes
    ----------
    uri : str
    options : dict or None
        Storage options that reach it.
    """

    uri: str
    options: dict[str, str] | None


class DriverPod:
    """A driver in a cluster, as the operators deal with any application.

    Parameters
    ----------
    cluster : Cluster
    pod_name : str
    attempt : str
        Tells this driver from others that had its name.
    result_at : ResultAddress
    submission : SparkJob, optional
        The ``spark-submit`` that makes the pod, if it is this try's own.
    uid : str, optional
        That of the pod, where it is known.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        pod_name: str,
        attempt: str,
        result_at: ResultAddress,
        submission: SparkJob | None = None,
        uid: str | None = None,
    ) -> None:
        self.cluster = cluster
        self.pod_name = pod_name
        self.attempt = attempt
        self.result_at = result_at
        self.submission = submission
        self._uid = uid
        self._ended: PodState | None = None
        self._outcome = "was not submitted"
        self._result: dict[str, Any] | None = None
        self._settled = False

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"driver pod {self.cluster.namespace}/{self.pod_name}"

    @property
    def outcome(self) -> str:
        """How it ended, for messages."""
        if self._ended is not None and self._ended.succeeded:
            return f"ended well and left no result at {self.result_at.uri}; look at its log above"
        return self._outcome

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than well."""
        return self._ended is not None and not self._ended.succeeded

    @property
    def known(self) -> dict[str, str]:
        """What a retry finds it by."""
        return {"namespace": self.cluster.namespace, "pod": self.pod_name}

    def is_there(self) -> bool:
        """Whether it runs, or has left its result."""
        return self._find() is not None or self.result() is not None

    def lines(self, look: Callable[[], None]) -> Iterator[str]:
        """The lines of its submission and of its log, until it ends.

        Parameters
        ----------
        look : callable
            Called every few seconds; what it raises ends the wait, and not the driver.
        """
        if self.submission is not None:
            yield from self.submission.lines(look)
            if not self._is_submitted(self.submission):
                return
        yield from self._follow(_Patience(look))

    def result(self) -> dict[str, Any] | None:
        """The result that it wrote, if it did."""
        if self._result is None:
            self._result = read_result(self.result_at.uri, self.result_at.options)
            # From here on nothing of it is needed that is not in this process.
            self._settled = self._result is not None or self._ended is not None
        return self._result

    def end(self) -> None:
        """End it: the submission that may make its pod, the pod, and with that its executors.

        Safe to call when it has ended.
        """
        if self.submission is not None:
            self.submission.end()
        try:
            pod = self._find()
            if pod is not None:
                remove(self.cluster, pod)
        except (KubernetesUnavailableError, MemWalError) as error:
            log.error("The %s may still run; delete it. %s", self.name, error)

    def clean_up(self) -> None:
        """Remove what it left: its pod, then its result, once that is taken."""
        if self.submission is not None:
            self.submission.clean_up()
        if not self._settled:
            return
        try:
            pod = self._find()
            if pod is not None:
                remove(self.cluster, pod)
            # Last: a pod that ended well without a result would be taken for one that failed.
            delete_result(self.result_at.uri, self.result_at.options)
        except (KubernetesUnavailableError, MemWalError) as error:
            log.warning("What is left of the %s is cleaned up later: %s", self.name, error)

    def _find(self) -> dict[str, Any] | None:
        """Its pod, and no other one by its name."""
        pod = self.cluster.pod(self.pod_name)
        return pod if pod is not None and attempt_of(pod) == self.attempt else None

    def _is_submitted(self, submission: SparkJob) -> bool:
        """Whether there is a driver to wait for, whatever ``spark-submit`` said of it."""
        code = submission.exit_code
        if code == 0:
            return True
        how = f"was not started: spark-submit ended with exit code {code}"
        pod = self.cluster.pod(self.pod_name)
        if pod is None:
            self._outcome = f"{how} and made no driver pod"
            return False
        if attempt_of(pod) != self.attempt:
            self._outcome = f"{how}: another try has the {self.name}; the next one waits for it"
            return False
        if PodState.of(pod).started:
            log.warning("spark-submit ended with exit code %s, and its %s runs.", code, self.name)
            return True
        # Made and not whole: what else it needs is made after the pod.
        remove(self.cluster, pod)
        self._outcome = f"{how}; the pod that it left had not started, and was deleted"
        return False

    def _follow(self, patience: _Patience) -> Iterator[str]:
        position = LogPosition()
        told = ""
        while True:
            try:
                pod = self._find()
                if pod is None or (self._uid is not None and pod["metadata"]["uid"] != self._uid):
                    self._outcome = "is gone: its pod was deleted by somebody, or with its node"
                    return
                self._uid = pod["metadata"]["uid"]
                state = PodState.of(pod)
                if state.started:
                    yield from self._new_lines(state, position)
                if state.ended:
                    self._ended, self._outcome = state, state.text
                    return
                if not state.started and patience.is_over(state):
                    remove(self.cluster, pod)
                    self._outcome = f"was given up, since it {state.text}"
                    return
                if not state.started and state.text != told:
                    told = state.text
                    log.info("The %s %s.", self.name, told)
            except KubernetesUnavailableError as error:
                # The driver needs nobody to look at it; it is looked at again.
                log.warning("%s", error)
            patience.rest()

    def _new_lines(self, state: PodState, position: LogPosition) -> Iterator[str]:
        try:
            text = self.cluster.log(self.pod_name, state.container, since=position.since)
        except KubernetesUnavailableError as error:
            # It comes from the node, which can be gone when the rest of the pod is known.
            log.warning("%s", error)
            return
        yield from position.new_lines(text, over=state.ended)


class _Patience:
    """The pauses of a wait, and its limits."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._began = self._looked_at = time.monotonic()
        self._blocked_since: float | None = None
        self._longest = start_seconds()

    def is_over(self, state: PodState) -> bool:
        """Whether a driver that has not started is not waited for any longer."""
        now = time.monotonic()
        if not state.blocked:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        blocked_for = 0.0 if self._blocked_since is None else now - self._blocked_since
        return now - self._began >= self._longest or blocked_for >= BLOCKED_SECONDS

    def rest(self) -> None:
        """Wait a little; look at the lease now and then."""
        time.sleep(POLL_SECONDS)
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._look()
            self._looked_at = time.monotonic()


def attempt_of(pod: Mapping[str, Any]) -> str | None:
    """Which driver of its name a pod is."""
    found: str | None = (pod["metadata"].get("labels") or {}).get(ATTEMPT_LABEL)
    return found


def is_whole(cluster: Cluster, pod: Mapping[str, Any]) -> bool:
    """Whether all is there that a pod needs to start, as far as this may be asked.

    ``spark-submit`` makes the driver's config map last. One that died before left a pod that
    waits for it for ever.
    """
    return all(cluster.has_config_map(name) is not False for name in config_maps(pod))


def remove(cluster: Cluster, pod: Mapping[str, Any]) -> None:
    """Delete a pod, and make sure that it is gone.

    Raises
    ------
    KubernetesUnavailableError
        It is not known to be gone: the server does not answer, or the pod's node does not.
    """
    meta = pod["metadata"]
    cluster.delete(pod, grace_seconds=GRACE_SECONDS)
    ends_at = time.monotonic() + GONE_SECONDS
    while time.monotonic() < ends_at:
        found = cluster.pod(meta["name"])
        if found is None or found["metadata"]["uid"] != meta["uid"]:
            return
        time.sleep(GONE_POLL_SECONDS)
    raise KubernetesUnavailableError(
        f"The pod {meta['name']} was told to end and is still there after {GONE_SECONDS:g} s; its "
        "node may be out of reach."
    )
