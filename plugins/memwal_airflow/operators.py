"""The maintenance jobs as Airflow operators; each runs one Spark application."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, Context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from memwal_airflow.recording import Recorder
from memwal_airflow.spark import (
    JobSubmitHook,
    application_path,
    configured_connection,
    configured_master,
)
from memwal_airflow.storage import options_file, table_at


class TableJobOperator(SparkSubmitOperator):
    """Runs one maintenance job on one table as a Spark application.

    The master is that of ``spark_conn_id`` or ``master``, whichever is given, else that of
    ``spark_conn_id`` or ``spark_master`` in section ``[memwal]`` of ``airflow.cfg``, else
    ``local[*]``; always in client mode. A killed task ends the JVM, its driver and its workers. A
    task whose own process is killed at once cannot, and its job may go on beside the retry: the
    jobs are safe to run twice.

    Parameters
    ----------
    table : str
        Name of the managed table.
    table_uri : str
        Where it is.
    storage_options_ref : str, optional
        Path of a JSON file, or ``airflow:{connection id}``. Options themselves never appear on
        the command line.
    master : str, optional
        Spark master URL. Give this or a connection, not both.
    spark_conn_id : str, optional
        Airflow connection of a Spark cluster.
    spark_conf : mapping, optional
        Spark properties, over the defaults.
    **kwargs
        As of ``SparkSubmitOperator``.

    Returns
    -------
    dict
        ``JobResult.to_dict()``, which is also recorded in the catalog.
    """

    job: ClassVar[str]
    template_fields: Sequence[str] = ("table_uri", "storage_options_ref", "master", "spark_conn_id")

    def __init__(
        self,
        *,
        table: str,
        table_uri: str,
        storage_options_ref: str | None = None,
        master: str | None = None,
        spark_conn_id: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=30))
        super().__init__(conf=dict(spark_conf or {}), name=f"memwal-{self.job}-{table}", **kwargs)
        self.table = table
        self.table_uri = table_uri
        self.storage_options_ref = storage_options_ref
        self.master = master
        self.spark_conn_id = spark_conn_id

    def idle_reason(self, context: Context) -> str | None:
        """Why there is nothing to do; None when there is. Asked before Spark is started."""
        return None

    def job_arguments(self) -> list[str]:
        """Options of this job on the command line."""
        return []

    def take(self, result: dict[str, Any], context: Context) -> None:
        """Act on a result, for example by raising a skip or describing the asset."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the job, record it, and return its result; skipped in a run with ``dry_run``."""
        if context["params"].get("dry_run"):
            raise AirflowSkipException("Dry run: nothing is changed.")
        reason = self.idle_reason(context)
        if reason is not None:
            raise AirflowSkipException(reason)
        run = self.recorder.started(self.job, _external_id(context))
        try:
            result = self._submit(context)
        except BaseException as error:
            self.recorder.failed(run, error)
            raise
        self.recorder.succeeded(run, result)
        for problem in result.get("problems", ()):
            self.log.warning("%s left undone: %s", self.job, problem)
        context["ti"].xcom_push(key="result", value=result)
        self.take(result, context)
        return result

    @cached_property
    def recorder(self) -> Recorder:
        """Where runs are recorded."""
        return Recorder(self.table)

    def _submit(self, context: Context) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="memwal-") as folder:
            answer = Path(folder) / "result.json"
            arguments = ["--table", self.table_uri, "--result", str(answer)]
            options = options_file(self.storage_options_ref, Path(folder))
            if options is not None:
                arguments += ["--storage-options-file", options]
            self.application = application_path(f"{self.job}.py")
            self.application_args = arguments + self.job_arguments()
            super().execute(context)
            return _read_result(answer)

    def _get_hook(self) -> JobSubmitHook:
        connection = self.spark_conn_id
        if connection is None and self.master is None:
            connection = configured_connection()
        if connection is not None:
            # The provider takes a connection that does not exist for a YARN cluster.
            BaseHook.get_connection(connection)
        return JobSubmitHook(
            master=None if connection else self.master or configured_master(),
            conn_id=connection or "memwal_spark",
            conf=self.conf,
            application_args=self.application_args,
            name=self.name,
        )


class MergeOperator(TableJobOperator):
    """Merges the backlog of some regions into the base table.

    Skipped, without an asset event, when nothing was merged.

    Parameters
    ----------
    regions : list of str
        UUIDs of the regions; usually what ``DecideMergeOperator`` returned.
    max_bytes : int, optional
        Most bytes that one commit takes in.
    **kwargs
        As of :class:`TableJobOperator`.
    """

    job = "merge"
    template_fields = (*TableJobOperator.template_fields, "regions")

    def __init__(self, *, regions: Any, max_bytes: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.regions = regions
        self.max_bytes = max_bytes

    def job_arguments(self) -> list[str]:
        """``--region`` for each."""
        arguments = [text for region in self.regions for text in ("--region", str(region))]
        if self.max_bytes is not None:
            arguments += ["--commit-bytes", str(self.max_bytes)]
        return arguments

    def take(self, result: dict[str, Any], context: Context) -> None:
        """Describe the merge on its asset."""
        figures = result["figures"]
        if figures["generations"]:
            rows = figures["rows_upserted"] + figures["rows_deleted"]
            extra = {"rows": rows, "generations": figures["generations"]}
            _describe(self, context, {"version": result["version"], **extra})
        elif result["problems"]:
            raise AirflowException(
                "No region could be merged; the first problem: " + result["problems"][0]
            )
        else:
            raise AirflowSkipException("Nothing was merged: the backlog is gone by now.")


class BuildIndexesOperator(TableJobOperator):
    """Brings the maintained indexes up to what was merged; skipped when they are."""

    job = "index"

    def idle_reason(self, context: Context) -> str | None:
        """All indexes cover all merged generations."""
        status = table_at(self.table_uri, self.storage_options_ref).status()
        if any(index.generations for index in status.indexes):
            return None
        return "Every maintained index covers what was merged."

    def take(self, result: dict[str, Any], context: Context) -> None:
        """Describe the build on its asset."""
        if not result["commits"]:
            raise AirflowSkipException("No index was changed: they have caught up by now.")
        _describe(self, context, {"version": result["version"]})


class BuildSnapshotOperator(TableJobOperator):
    """Publishes the region snapshot that readers plan by.

    Parameters
    ----------
    merge_task_id : str
        The snapshot is due after this task merged something, and when there is none yet.
    **kwargs
        As of :class:`TableJobOperator`.
    """

    job = "snapshot"

    def __init__(self, *, merge_task_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.merge_task_id = merge_task_id

    def idle_reason(self, context: Context) -> str | None:
        """Nothing was merged in this run, and a snapshot exists."""
        if context["ti"].xcom_pull(task_ids=self.merge_task_id) is not None:
            return None
        status = table_at(self.table_uri, self.storage_options_ref).status()
        if status.snapshot_age_seconds is None:
            return None
        return "Nothing was merged in this run, and a region snapshot exists."


class CollectGarbageOperator(TableJobOperator):
    """Deletes what no reader can need any more.

    Parameters
    ----------
    grace_seconds, retention_seconds : float
        As of ``Table.collect_garbage``. No collection starts within the grace period after the
        last one, since little can have become free.
    **kwargs
        As of :class:`TableJobOperator`.
    """

    job = "gc"

    def __init__(self, *, grace_seconds: float, retention_seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grace_seconds = grace_seconds
        self.retention_seconds = retention_seconds

    def idle_reason(self, context: Context) -> str | None:
        """The last collection was a moment ago."""
        age = self.recorder.seconds_since(self.job)
        if age is None or age >= self.grace_seconds:
            return None
        return (
            f"The last collection was {age:.0f} s ago; the next is due after "
            f"{self.grace_seconds:.0f} s."
        )

    def job_arguments(self) -> list[str]:
        """Grace, retention, and that it is meant."""
        return [
            *("--grace-seconds", f"{self.grace_seconds:g}"),
            *("--retention-seconds", f"{self.retention_seconds:g}"),
            "--execute",
        ]


def _external_id(context: Context) -> str:
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"


def _describe(operator: TableJobOperator, context: Context, extra: dict[str, Any]) -> None:
    for asset in operator.outlets:
        context["outlet_events"][asset].extra.update(extra)


def _read_result(path: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AirflowException(
            "The Spark application ended well and left no result; look at its log above."
        ) from None
    return result
