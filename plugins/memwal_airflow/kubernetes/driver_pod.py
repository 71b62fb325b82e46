"""A driver pod that this try submitted or reattached to: its log, its result and its end.

The name of the pod follows from the task instance. The API server gives a name to one pod at a
time, which keeps two tries of a task from having two drivers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from airflow.sdk.configuration import conf

from memwal.errors import MemWalError
from memwal.spark.result_store import delete_result, read_result
from memwal.util.records import JsonMapping, JsonObject
from memwal_airflow import SECTION
from memwal_airflow.kubernetes.api import Cluster, KubernetesUnavailableError
from memwal_airflow.kubernetes.pod_log import LogPosition
from memwal_airflow.kubernetes.pod_state import PodState, config_maps
from memwal_airflow.spark.application import LEASE_CHECK_SECONDS, RunningJob, SparkJob

LABEL = "memwal.io/"
RUN_LABEL, ATTEMPT_LABEL = LABEL + "run", LABEL + "attempt"
DEFAULT_START_SECONDS = 600
BLOCKED_SECONDS = 120.0
"""How long a driver may wait for its image or for a Secret before it is deleted."""

GRACE_SECONDS = 10
DELETE_SECONDS = 40.0
"""How long to wait for the end of a pod after its deletion was requested."""

POLL_SECONDS = 2.0
DELETE_POLL_SECONDS = 0.25

logger = logging.getLogger(__name__)


class DriverPod(RunningJob):
    """A driver in a cluster.

    ``attempt`` tells it from other drivers that had its name. ``submission`` is the
    ``spark-submit`` that creates the pod, if this try started it.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        pod_name: str,
        attempt: str,
        result_uri: str,
        result_options: dict[str, str] | None,
        submission: SparkJob | None = None,
        uid: str | None = None,
    ) -> None:
        self.cluster = cluster
        self.pod_name = pod_name
        self.attempt = attempt
        self.result_uri = result_uri
        self.result_options = result_options
        self.submission = submission
        self._uid = uid
        self._ended: PodState | None = None
        self._outcome = "was not submitted"
        self._result: JsonObject | None = None
        self._settled = False

    @property
    def name(self) -> str:
        return f"driver pod {self.cluster.namespace}/{self.pod_name}"

    @property
    def outcome(self) -> str:
        if self._ended is not None and self._ended.succeeded:
            return f"succeeded without a result at {self.result_uri}; look at its log above"
        return self._outcome

    @property
    def failed(self) -> bool:
        return self._ended is not None and not self._ended.succeeded

    @property
    def reattach_state(self) -> dict[str, str]:
        return {"namespace": self.cluster.namespace, "pod": self.pod_name}

    def exists(self) -> bool:
        return self._find() is not None or self.result() is not None

    def lines(self, check_lease: Callable[[], None]) -> Iterator[str]:
        """Yield the lines of the submission, then those of the driver's log."""
        if self.submission is not None:
            yield from self.submission.lines(check_lease)
            if not self._is_submitted(self.submission):
                return
        yield from self._follow(_StartLimits(check_lease))

    def result(self) -> JsonObject | None:
        if self._result is None:
            self._result = read_result(self.result_uri, self.result_options)
            # From here on, this process needs neither the pod nor the stored result.
            self._settled = self._result is not None or self._ended is not None
        return self._result

    def end(self) -> None:
        """End the submission that may create the pod, the pod, and with the pod its executors."""
        if self.submission is not None:
            self.submission.end()
        try:
            pod = self._find()
            if pod is not None:
                delete_and_wait(self.cluster, pod)
        except (KubernetesUnavailableError, MemWalError) as error:
            logger.error("The %s may still run; delete it. %s", self.name, error)

    def clean_up(self) -> None:
        """Delete the pod, then the stored result, once the result is taken."""
        if self.submission is not None:
            self.submission.clean_up()
        if not self._settled:
            return
        try:
            pod = self._find()
            if pod is not None:
                delete_and_wait(self.cluster, pod)
            # Last: a pod that succeeded without a stored result would count as failed.
            delete_result(self.result_uri, self.result_options)
        except (KubernetesUnavailableError, MemWalError) as error:
            logger.warning("The %s or its result is deleted later: %s", self.name, error)

    def _find(self) -> JsonObject | None:
        """Return the pod of this driver, never another driver's pod of the same name."""
        pod = self.cluster.pod(self.pod_name)
        return pod if pod is not None and attempt_of(pod) == self.attempt else None

    def _is_submitted(self, submission: SparkJob) -> bool:
        """Return whether there is a driver to wait for, whatever ``spark-submit`` reported."""
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
            logger.warning(
                "spark-submit ended with exit code %s, and its %s runs.", code, self.name
            )
            return True
        # Incomplete: spark-submit creates what else the driver needs after the pod.
        delete_and_wait(self.cluster, pod)
        self._outcome = f"{how}; the pod that it left had not started, and was deleted"
        return False

    def _follow(self, limits: _StartLimits) -> Iterator[str]:
        position = LogPosition()
        logged = ""
        while True:
            try:
                pod = self._find()
                if pod is None or (self._uid is not None and pod["metadata"]["uid"] != self._uid):
                    self._outcome = "is gone: its pod was deleted, by a user or with its node"
                    return
                self._uid = pod["metadata"]["uid"]
                state = PodState.of(pod)
                if state.started:
                    yield from self._new_lines(state, position)
                if state.ended:
                    self._ended, self._outcome = state, state.message
                    return
                if not state.started and limits.exceeded(state):
                    delete_and_wait(self.cluster, pod)
                    self._outcome = f"was deleted, since it {state.message}"
                    return
                if not state.started and state.message != logged:
                    logged = state.message
                    logger.info("The %s %s.", self.name, logged)
            except KubernetesUnavailableError as error:
                # The driver runs on without being watched; the next round asks again.
                logger.warning("%s", error)
            limits.pause()

    def _new_lines(self, state: PodState, position: LogPosition) -> Iterator[str]:
        try:
            text = self.cluster.log(self.pod_name, state.container, since=position.since)
        except KubernetesUnavailableError as error:
            # The log comes from the node, which can be gone while the API server has the pod.
            logger.warning("%s", error)
            return
        yield from position.new_lines(text, ended=state.ended)


class _StartLimits:
    """Limits on the start of a driver, and the pause between two polls of its pod."""

    def __init__(self, check_lease: Callable[[], None]) -> None:
        self._check_lease = check_lease
        self._started_at = self._checked_at = time.monotonic()
        self._blocked_since: float | None = None
        seconds = conf.getfloat(SECTION, "driver_start_seconds", fallback=DEFAULT_START_SECONDS)
        self._start_seconds = float(seconds)

    def exceeded(self, state: PodState) -> bool:
        """Return whether a driver that has not started has used up its time."""
        now = time.monotonic()
        if not state.blocked:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        blocked_for = 0.0 if self._blocked_since is None else now - self._blocked_since
        return now - self._started_at >= self._start_seconds or blocked_for >= BLOCKED_SECONDS

    def pause(self) -> None:
        """Sleep until the next poll, and check the lease every few seconds."""
        time.sleep(POLL_SECONDS)
        if time.monotonic() - self._checked_at >= LEASE_CHECK_SECONDS:
            self._check_lease()
            self._checked_at = time.monotonic()


def attempt_of(pod: JsonMapping) -> str | None:
    """Return the attempt that a pod belongs to, from its label."""
    attempt: str | None = (pod["metadata"].get("labels") or {}).get(ATTEMPT_LABEL)
    return attempt


def is_complete(cluster: Cluster, pod: JsonMapping) -> bool:
    """Return whether everything that a pod needs to start exists, as far as it may be read.

    ``spark-submit`` creates the driver's config map last. If it died before, the pod waits for the
    config map for ever.
    """
    return all(cluster.has_config_map(name) is not False for name in config_maps(pod))


def delete_and_wait(cluster: Cluster, pod: JsonMapping) -> None:
    """Delete a pod and wait until it is gone.

    Raises KubernetesUnavailableError if it may still exist: the API server or the pod's node does
    not answer.
    """
    meta = pod["metadata"]
    cluster.delete(pod, grace_seconds=GRACE_SECONDS)
    ends_at = time.monotonic() + DELETE_SECONDS
    while time.monotonic() < ends_at:
        current = cluster.pod(meta["name"])
        if current is None or current["metadata"]["uid"] != meta["uid"]:
            return
        time.sleep(DELETE_POLL_SECONDS)
    raise KubernetesUnavailableError(
        f"The pod {meta['name']} still exists {DELETE_SECONDS:g} s after the request to delete it; "
        "its node may be out of reach."
    )
