"""A driver pod that this try submitted or reattached to: its log, its result and its end.

The name of the pod follows from the task instance. The API server gives a name to one pod at a
time, which keeps two tries of a task from having two drivers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import PodLaunchFailedException
from airflow.providers.cncf.kubernetes.utils.pod_manager import (
    PodLaunchTimeoutException,
    PodManager,
)
from kubernetes.client import V1Pod

from memwal.errors import MemWalError
from memwal.spark.result_store import KEEP, delete_result, read_result
from memwal.util.records import JsonObject
from memwal_airflow.kubernetes.pods import (
    NOT_FOUND,
    KubernetesUnavailableError,
    Pods,
    describe,
    driver_container,
    has_ended,
    has_started,
    has_succeeded,
)
from memwal_airflow.provider.settings import DRIVER_START_SECONDS
from memwal_airflow.spark.application import LEASE_CHECK_SECONDS, RunningJob, SparkJob

LABEL = "memwal.io/"
RUN_LABEL, ATTEMPT_LABEL = LABEL + "run", LABEL + "attempt"
POLL_SECONDS = 2

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class DriverPod(RunningJob):
    """A driver in a cluster."""

    pods: Pods
    pod_name: str
    attempt: str  # Tells it from other drivers that had its name.
    result_uri: str
    result_options: dict[str, str] | None
    submission: SparkJob | None = None  # Creates the pod, if this try started it.
    _ended: V1Pod | None = field(default=None, init=False)
    _outcome: str = field(default="was not submitted", init=False)
    _failure: BaseException | None = field(default=None, init=False)
    _result: JsonObject | None = field(default=None, init=False)
    _settled: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        return f"driver pod {self.pods.namespace}/{self.pod_name}"

    @property
    def outcome(self) -> str:
        if self._ended is None:
            return self._outcome
        if self.failed:
            return f"failed: {describe(self._ended)}"
        return f"succeeded without a result at {self.result_uri}; look at its log above"

    @property
    def failed(self) -> bool:
        return self._ended is not None and not has_succeeded(self._ended)

    @property
    def reattach_state(self) -> dict[str, str]:
        return {"namespace": self.pods.namespace, "pod": self.pod_name}

    def exists(self) -> bool:
        return self._find() is not None or self.result() is not None

    def lines(self, check_lease: Callable[[], None]) -> Iterator[str]:
        """Yield the lines of the submission, then those of the driver's log."""
        if self.submission is not None:
            yield from self.submission.lines(check_lease)
            if not self._is_submitted(self.submission):
                return
        lines: SimpleQueue[str | None] = SimpleQueue()
        # The provider waits for pods and logs without a check of the lease in between. The thread
        # ends with the pod: a caller that stops reading here, for example for a lost lease, deletes
        # it.
        threading.Thread(target=self._watch, args=(lines,), name=self.name, daemon=True).start()
        checked_at = time.monotonic()
        while True:
            try:
                line = lines.get(timeout=LEASE_CHECK_SECONDS)
            except Empty:
                pass
            else:
                if line is None:
                    break
                yield line
            if time.monotonic() - checked_at >= LEASE_CHECK_SECONDS:
                check_lease()
                checked_at = time.monotonic()
        if self._failure is not None:
            raise self._failure

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
                self.pods.delete(pod)
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
                self.pods.delete(pod)
            # Last: a pod that succeeded without a stored result would count as failed.
            delete_result(self.result_uri, self.result_options)
        except (KubernetesUnavailableError, MemWalError) as error:
            logger.warning("The %s or its result is deleted later: %s", self.name, error)

    def _find(self) -> V1Pod | None:
        """Return the pod of this driver, never another driver's pod of the same name."""
        pod = self.pods.find(self.pod_name)
        return pod if pod is not None and attempt_of(pod) == self.attempt else None

    def _is_submitted(self, submission: SparkJob) -> bool:
        """Return whether there is a driver to wait for, independent of the report of
        ``spark-submit``.
        """
        code = submission.exit_code
        if code == 0:
            return True
        pod = self.pods.find(self.pod_name)
        if pod is None:
            left = "made no driver pod"
        elif attempt_of(pod) != self.attempt:
            left = f"another try has the {self.name}; the next one waits for it"
        elif has_started(pod):
            logger.warning("spark-submit ended with exit code %s; its %s runs.", code, self.name)
            return True
        else:
            # Incomplete: spark-submit creates the driver's other objects after the pod.
            self.pods.delete(pod)
            left = "its driver pod had not started, and was deleted"
        self._outcome = f"was not started: spark-submit ended with exit code {code}; {left}"
        return False

    def _watch(self, lines: SimpleQueue[str | None]) -> None:
        """Wait for the end of the driver, and hand over the lines of its log and then None."""
        try:
            log = _PodLogReader(self.pods, lines)
            while not self._is_over(log):
                time.sleep(POLL_SECONDS)
        except BaseException as error:
            # Raised again by the thread that reads the lines.
            self._failure = error
        finally:
            lines.put(None)

    def _is_over(self, log: _PodLogReader) -> bool:
        try:
            pod = self._find()
            if pod is not None:
                log.read(pod)
                pod = self._find()
            if pod is None:
                self._outcome = "is gone: its pod was deleted, by a user or with its node"
                return True
            if has_ended(pod):
                self._ended = pod
                return True
        except (PodLaunchFailedException, PodLaunchTimeoutException) as error:
            reason = str(error)
            pod = self._find()
            if pod is not None:
                reason += f" ({describe(pod)})"
                self.pods.delete(pod)
            self._outcome = f"was deleted, since it did not start: {reason}"
            return True
        except KubernetesUnavailableError as error:
            # The driver runs on without being watched; the next round asks again.
            logger.warning("%s", error)
            self.pods.connect()
        return False


class _PodLogReader(PodManager):
    """Waits for the start of a driver and reads its log into a queue, not into the task's log."""

    def __init__(self, pods: Pods, lines: SimpleQueue[str | None]) -> None:
        super().__init__(pods.client)
        self._pods = pods
        self._lines = lines

    def read(self, pod: V1Pod) -> None:
        """Read the log until the driver ends, from where the last call left off.

        Raises PodLaunchFailedException or PodLaunchTimeoutException if the driver does not start.
        """
        seconds = int(DRIVER_START_SECONDS.read())
        container = driver_container(pod)
        read = (pod.metadata.namespace, pod.metadata.name, container)
        self._client = self._pods.client
        with self._pods.errors("get pods", missing=(NOT_FOUND,)):
            asyncio.run(self.await_pod_start(pod, seconds, seconds, POLL_SECONDS))
        try:
            with self._pods.errors("get pods/log", missing=(NOT_FOUND,)):
                self.fetch_container_logs(
                    pod,
                    container,
                    follow=True,
                    since_time=self.container_log_times.get(read),
                    post_termination_timeout=int(KEEP.total_seconds()),
                )
        except KubernetesUnavailableError as error:
            # The log comes from the node, which can be gone while the API server has the pod.
            logger.warning("%s", error)

    def _log_message(self, message: str, *_: object) -> None:
        self._lines.put(message)


def attempt_of(pod: V1Pod) -> str | None:
    """Return the attempt that a pod belongs to, from its label."""
    attempt: str | None = (pod.metadata.labels or {}).get(ATTEMPT_LABEL)
    return attempt
