"""JSON of the page, from records of the catalog."""

from __future__ import annotations

from memwal.catalog import JobRun, TableState
from memwal.fleet import TableOverview
from memwal.fleet.overview import QUALITY, TableDetail
from memwal.util.records import JsonObject
from memwal_airflow.dag_factory import dag_id
from memwal_airflow.web.places import dag_link, runbook_link, task_link


def fleet_row(overview: TableOverview) -> JsonObject:
    """Return one table of the fleet."""
    policy, sample = overview.managed.policy, overview.backlog
    dag = dag_id(overview.managed)
    return {
        "table": overview.table,
        "uri": overview.uri,
        "owner": overview.managed.owner,
        "enabled": overview.enabled,
        "tags": list(policy.tags),
        "dag_id": dag,
        "dag_link": dag_link(dag),
        "health": overview.health.value,
        "reasons": list(overview.reasons),
        "sampled_at": None if sample is None else sample.at.isoformat(),
        "backlog": None
        if sample is None
        else {
            "generations": sample.generations,
            "rows": sample.rows,
            "bytes": sample.bytes,
            "wal_entries": sample.wal_entries,
            "oldest_seconds": overview.oldest_seconds,
        },
        "late_seconds": policy.late_seconds,
        "critical_seconds": policy.critical_seconds,
        "rows_in_per_second": overview.rates.rows_in,
        "rows_merged_per_second": overview.rates.rows_merged,
        "lag_generations": sample and sample.lag_generations,
        "lag_rows": sample and sample.lag_rows,
        "reclaimable_bytes": sample and sample.reclaimable_bytes,
        "regions": sample and sample.regions,
        "base_rows": sample and sample.base_rows,
        "version": sample and sample.version,
        "running": [_running_row(run) for run in overview.running],
        "last_runs": {job: at.isoformat() for job, at in overview.last_runs.items()},
        "skipped_regions": overview.skipped_regions,
        "errors": [
            {**error.to_dict(), "runbook_link": runbook_link(error.runbook)}
            for error in overview.errors
        ],
    }


def table_page(detail: TableDetail) -> JsonObject:
    """Return one table; ``skipped_regions`` lists the regions here, :func:`region_rows` has all."""
    state: TableState | None = detail.state
    status = None if state is None else _without(state.status.to_dict(), "regions")
    return {
        **fleet_row(detail.overview),
        "policy": detail.overview.managed.policy.to_dict(),
        "status": status,
        "due": {job: _without(due.to_dict(), "regions") for job, due in detail.due.items()},
        "skipped_regions": [record.to_dict() for record in detail.skipped_regions],
        "failed_jobs": [job.to_dict() for job in detail.overview.failed_jobs],
        "quality": None if detail.checked is None else _quality_row(detail.checked),
    }


def region_rows(state: TableState | None) -> JsonObject:
    """Return the regions of the latest status of a table."""
    if state is None:
        return {"at": None, "regions": []}
    return {"at": state.at.isoformat(), "regions": state.status.to_dict()["regions"]}


def _without(values: JsonObject, key: str) -> JsonObject:
    return {name: value for name, value in values.items() if name != key}


def run_row(run: JobRun) -> JsonObject:
    """Return one run of a job."""
    result = run.result or {}
    ended = run.finished_at
    return {
        "run_id": run.run_id,
        "job": run.job,
        "state": run.state.value,
        "started_at": run.started_at.isoformat(),
        "finished_at": None if ended is None else ended.isoformat(),
        "seconds": None if ended is None else (ended - run.started_at).total_seconds(),
        "done": run.done,
        "total": run.total,
        "rows": run.rows,
        "bytes": run.bytes,
        "version_before": run.version_before,
        "version_after": run.version_after,
        "metrics": result.get("metrics"),
        "warnings": result.get("warnings"),
        "error": run.error,
        "quality": result.get(QUALITY),
        "link": task_link(run.external_id),
    }


def _quality_row(run: JobRun) -> JsonObject:
    """Return the findings of a gate or of a check, with the run that made them."""
    ended = run.finished_at
    return {
        **(run.result or {})[QUALITY],
        "at": None if ended is None else ended.isoformat(),
        "job": run.job,
        "link": task_link(run.external_id),
    }


def _running_row(run: JobRun) -> JsonObject:
    row = run_row(run)
    return {key: row[key] for key in ("run_id", "job", "started_at", "done", "total", "link")}
