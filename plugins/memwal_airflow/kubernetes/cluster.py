"""Submit jobs whose driver runs in a Kubernetes cluster, and find their drivers in a retry.

The arguments of a driver hold no secrets, only names. Its credentials come from the identity of its
service account, or from Secrets that the Spark configuration mounts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from kubernetes.client import V1Pod

from memwal.catalog.records import CONNECTION_PREFIX
from memwal.errors import InvalidInputError
from memwal.spark.result_store import KEEP
from memwal.spark.runner import trace_environment
from memwal_airflow.kubernetes.driver_pod import (
    ATTEMPT_LABEL,
    LABEL,
    RUN_LABEL,
    DriverPod,
    attempt_of,
)
from memwal_airflow.kubernetes.pods import Pods, describe, has_ended, has_started, own_namespace
from memwal_airflow.provider.settings import KUBERNETES_NAMESPACE
from memwal_airflow.spark.application import SparkJob, new_job_folder
from memwal_airflow.spark.reattach import EarlierTry
from memwal_airflow.spark.settings import ResultsFolder

if TYPE_CHECKING:
    from memwal_airflow.spark.submit import JobSubmitHook

LEASE_LABEL = LABEL + "lease"

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_HASH_DIGITS = 24

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDriver:
    """Submits the driver of one task instance, or finds the driver of its earlier try."""

    hook: JobSubmitHook
    pods: Pods
    results: ResultsFolder
    run: str  # Hash of the task instance, the same for all of its tries.
    job: str

    @classmethod
    def of(cls, hook: JobSubmitHook, *, external_id: str, job: str) -> TaskDriver:
        """Build it from the settings and the Spark connection."""
        results = ResultsFolder.configured()
        if results is None:
            raise InvalidInputError(
                "In cluster mode the driver writes its result into an object store: set [memwal] "
                "results_uri in airflow.cfg to a folder there."
            )
        return cls(
            hook=hook,
            pods=driver_pods(hook),
            results=results,
            run=_name_hash(results, external_id),
            job=job,
        )

    @property
    def pod_name(self) -> str:
        return f"memwal-{self.job}-{self.run}"

    def find(self) -> EarlierTry | None:
        """Return the driver of an earlier try, if it runs or has a result.

        Deletes the pod of a driver that died without a result, or that has not started: its
        submission may have died before it created what else the driver needs. No work is lost.
        """
        pod = self.pods.find(self.pod_name)
        if pod is None:
            return None
        driver = self._driver(attempt_of(pod) or "")
        if pod.metadata.deletion_timestamp is not None:
            why = "is being deleted"
        elif has_ended(pod) and driver.result() is None:
            why = f"ended without a result ({describe(pod)})"
        elif not has_started(pod):
            why = f"has not started ({describe(pod)})"
        else:
            return EarlierTry(job=driver, regions=_merged_regions(pod))
        logger.info("The %s of an earlier try %s.", driver.name, why)
        self.pods.delete(pod)
        return None

    def submit(
        self,
        arguments: Sequence[str],
        *,
        table: str | None,
        table_uri: str,
        storage_options_ref: str | None,
        leases: Sequence[str],
        check_lease: Callable[[], None],
    ) -> DriverPod:
        """Start ``spark-submit`` for a driver.

        ``storage_options_ref`` must be the path of a JSON file in the driver's container, or None.
        ``leases`` are the resources that this task has leased, that of this job first; drivers of
        other tasks that were submitted under one of them are ended. ``check_lease`` raises when
        the lease is lost.
        """
        attempt = uuid4().hex[:_HASH_DIGITS]
        common = ["--table", table_uri, *_options_arguments(storage_options_ref)]
        common += ["--result", self._result_uri(attempt)]
        if self.results.options_file is not None:
            common += ["--result-options-file", self.results.options_file]
        labels = {
            RUN_LABEL: self.run,
            ATTEMPT_LABEL: attempt,
            f"{LABEL}job": self.job,
            f"{LABEL}table": table or "",
            LEASE_LABEL: self.lease_label(leases[0]) if leases else "",
        }
        for lease in leases:
            self._end_without_lease(lease, check_lease)
        command, env = self.hook.command(
            f"{self.job}.py",
            # Kubernetes expands $(NAME) in arguments, and reads $$ as $.
            [argument.replace("$", "$$") for argument in [*common, *arguments]],
            conf={
                "spark.kubernetes.namespace": self.pods.namespace,
                "spark.kubernetes.driver.pod.name": self.pod_name,
                "spark.kubernetes.submission.waitAppCompletion": "false",
                **{
                    f"spark.kubernetes.driver.label.{name}": value
                    for name, value in labels.items()
                    if _LABEL_VALUE.fullmatch(value)
                },
                **{
                    f"spark.kubernetes.driverEnv.{name}": value
                    for name, value in trace_environment().items()
                },
            },
        )
        with new_job_folder(self.job) as folder:
            submission = SparkJob.start(command, env=env, folder=folder)
        return self._driver(attempt, submission=submission)

    def lease_label(self, resource: str) -> str:
        """Return the label value of a leased resource."""
        return _name_hash(self.results, resource)

    def _end_without_lease(self, lease: str, check_lease: Callable[[], None]) -> None:
        """End the drivers of dead tasks: this process holds their lease, so they have lost it."""
        for pod in self.pods.labelled({LEASE_LABEL: self.lease_label(lease)}):
            if pod.metadata.name != self.pod_name and not has_ended(pod):
                logger.warning(
                    "The driver pod %s has lost its lease, which is this task's now; it is ended.",
                    pod.metadata.name,
                )
                check_lease()
                self.pods.delete(pod)

    def _driver(self, attempt: str, *, submission: SparkJob | None = None) -> DriverPod:
        return DriverPod(
            pods=self.pods,
            pod_name=self.pod_name,
            attempt=attempt,
            result_uri=self._result_uri(attempt),
            result_options=self.results.options,
            submission=submission,
        )

    def _result_uri(self, attempt: str) -> str:
        return f"{self.results.uri}/{self.run}-{attempt}.json"


def driver_pods(hook: JobSubmitHook) -> Pods:
    """Return the pods in the namespace of the drivers.

    It is that of Spark's configuration, else ``[memwal] kubernetes_namespace``, else that of the
    pod of this process.
    """
    namespace = hook.namespace or KUBERNETES_NAMESPACE.read() or own_namespace()
    return Pods(hook.master, namespace, context=hook.context)


def _name_hash(results: ResultsFolder, name: str) -> str:
    # With the folder: another Airflow may use the namespace with the same names of tables and DAGs.
    return sha256(f"{results.uri} {name}".encode()).hexdigest()[:_HASH_DIGITS]


def delete_old_drivers(pods: Pods) -> int:
    """Delete the pods of drivers that ended longer ago than results are kept; return how many."""
    before = datetime.now(UTC) - KEEP
    old = [
        pod
        for pod in pods.labelled({"spark-role": "driver"})
        if attempt_of(pod) is not None
        and has_ended(pod)
        and pod.metadata.creation_timestamp < before
    ]
    for pod in old:
        pods.delete(pod)
    return len(old)


def _options_arguments(ref: str | None) -> list[str]:
    if ref is None:
        return []
    if ref.startswith(CONNECTION_PREFIX):
        raise InvalidInputError(
            f"The storage options are in an Airflow connection ({ref}), and a driver in a cluster "
            "cannot be given those. Let its service account have access to the store and leave "
            "the reference out; or mount a Secret with the options as JSON, in the driver and "
            "where Airflow's tasks run, and refer to the path of that file."
        )
    return ["--storage-options-file", ref]


def _merged_regions(pod: V1Pod) -> tuple[UUID, ...] | None:
    """Return the regions in a driver's arguments; None for all, or for another job."""
    arguments: list[str] = pod.spec.containers[0].args or []
    regions = [value for flag, value in pairwise(arguments) if flag == "--region"]
    return tuple(map(UUID, regions)) or None
