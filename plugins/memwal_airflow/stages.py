"""The jobs of a table's DAG: which operator does which."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from airflow.sdk import Context
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowFailException

from memwal.catalog.records import ManagedTable
from memwal.fleet.order import Order, Skipped
from memwal.maintenance.results import JobResult
from memwal_airflow.operators import (
    BuildIndexesOperator,
    BuildSnapshotOperator,
    CollectGarbageOperator,
    MergeOperator,
    TableJobOperator,
)
from memwal_airflow.planning import CatalogTableOperator
from memwal_airflow.run_params import RunRequest
from memwal_airflow.storage import read_options


class _ByPolicy(TableJobOperator):
    """Asks the catalog whether the job is due, and within which limits it is to be done."""

    _order: Order

    def idle_reason(self, context: Context) -> str | None:
        from memwal.catalog import Catalog
        from memwal.fleet.request import Request

        request = RunRequest.of(context["params"])
        left_out = request.leaves_out(self.job)
        if left_out is not None:
            return left_out
        catalog = Catalog()
        try:
            managed = catalog.get(self.table)
            _, order = Request(
                catalog=catalog,
                managed=managed,
                job=self.job,
                force=request.force,
                dry_run=False,
                regions=tuple(map(UUID, request.regions)) or None,
                max_tasks=1,
                run_bytes=managed.policy.merge_run_bytes,
                decided=None,
                storage_options=read_options(managed.storage_options_ref),
                external_id=None,
            ).prepare()
        finally:
            catalog.close()
        if isinstance(order, Skipped):
            return order.reason
        self._order = order
        return None

    def job_arguments(self) -> list[str]:
        return self._order.arguments()


class _Merge(_ByPolicy, MergeOperator):
    pass


class _Index(_ByPolicy, BuildIndexesOperator):
    def __init__(self, *, index: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.index = index


class _Compact(_ByPolicy):
    job = "compact"


class _Snapshot(_ByPolicy, BuildSnapshotOperator):
    pass


class _Collect(_ByPolicy, CollectGarbageOperator):
    pass


class _Verify(CatalogTableOperator):
    """Checks a table in the worker itself, with the rows of one generation of each region."""

    def execute(self, context: Context) -> dict[str, Any]:
        from memwal.maintenance.verify import Severity, verify
        from memwal.storage.location import TableLocation

        with self.catalog() as catalog:
            managed = catalog.get(self.table)
            options = read_options(managed.storage_options_ref) or {}
            with catalog.record_run(self.table, "verify") as run:
                report = verify(TableLocation(managed.uri, options), sample=1)
                problems = tuple(
                    f"{found.code}: {found.text}"
                    for found in report.findings
                    if found.severity is not Severity.INFORMATION
                )
                run.finish(
                    JobResult(
                        job="verify",
                        table=report.table,
                        version=report.version,
                        tasks=report.tasks,
                        seconds=report.seconds,
                        figures={"errors": report.count(Severity.ERROR)},
                        problems=problems,
                    )
                )
            for finding in report.findings:
                self.log.warning("%s %s: %s", finding.severity.value, finding.code, finding.text)
            if not report.count(Severity.ERROR):
                catalog.setbacks.recovered(self.table, "verify")
                return report.to_dict()
            catalog.setbacks.failed(self.table, "verify", problems[0])
        raise AirflowFailException(f"{report.count(Severity.ERROR)} errors; {problems[0]}")


def merge_stage(table: ManagedTable, **options: Any) -> TableJobOperator:
    """Merge what is due."""
    return _Merge(task_id="merge", regions=[], **_named(table), **options)


def index_stage(table: ManagedTable, *, indexes: Any, **options: Any) -> MappedOperator:
    """Build each of some indexes, named by what a task returned."""
    return _Index.partial(task_id="index", **_named(table), **options).expand(index=indexes)


def compact_stage(table: ManagedTable, **options: Any) -> TableJobOperator:
    """Compact the base table."""
    return _Compact(task_id="compact", **_named(table), **options)


def snapshot_stage(table: ManagedTable, **options: Any) -> TableJobOperator:
    """Publish the region snapshot."""
    return _Snapshot(task_id="snapshot", merge_task_id="merge", **_named(table), **options)


def collect_stage(table: ManagedTable, **options: Any) -> TableJobOperator:
    """Collect garbage."""
    return _Collect(
        task_id="collect",
        grace_seconds=table.policy.gc_grace_seconds,
        retention_seconds=table.policy.gc_retention_seconds,
        **_named(table),
        **options,
    )


def verify_stage(tables: Any) -> MappedOperator:
    """Verify each of some tables, named by what a task returned."""
    return _Verify.partial(task_id="verify", retries=0).expand(table=tables)


def _named(table: ManagedTable) -> dict[str, Any]:
    return {
        "table": table.name,
        "table_uri": table.uri,
        "storage_options_ref": table.storage_options_ref,
    }
