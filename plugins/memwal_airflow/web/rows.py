"""What the catalog knows, as the page is told it."""

from __future__ import annotations

from typing import Any

from memwal.catalog import JobRun, TableState
from memwal.fleet import TableOverview
from memwal.fleet.overview import QUALITY, TableDetail
from memwal_airflow.dag_factory import dag_id
from memwal_airflow.web.places import dag_link, task_link


def fleet_row(one: TableOverview) -> dict[str, Any]:
    """One table among all."""
    policy, sample = one.managed.policy, one.backlog
    dag = dag_id(one.managed)
    return {
        "table": one.table,
        "uri": one.uri,
        "owner": one.managed.owner,
        "enabled": one.enabled,
        "tags": list(policy.tags),
        "dag_id": dag,
        "dag_link": dag_link(dag),
        "health": one.health.value,
        "reasons": list(one.reasons),
        "sampled_at": None if sample is None else sample.at.isoformat(),
        "backlog": None
        if sample is None
        else {
            "generations": sample.generations,
            "rows": sample.rows,
            "bytes": sample.bytes,
            "wal_entries": sample.wal_entries,
            "oldest_seconds": one.oldest_seconds,
        },
        "late_seconds": policy.late_seconds,
        "critical_seconds": policy.critical_seconds,
        "rows_in_per_second": one.rates.rows_in,
        "rows_merged_per_second": one.rates.rows_merged,
        "lag_generations": sample and sample.lag_generations,
        "lag_rows": sample and sample.lag_rows,
        "reclaimable_bytes": sample and sample.reclaimable_bytes,
        "regions": sample and sample.regions,
        "base_rows": sample and sample.base_rows,
        "version": sample and sample.version,
        "running": [_running(run) for run in one.running],
        "last_runs": {job: at.isoformat() for job, at in one.last_runs.items()},
        "held": one.held,
        "errors": [error.to_dict() for error in one.errors],
    }


def table_page(detail: TableDetail) -> dict[str, Any]:
    """One table with its regions; ``held`` are the regions themselves here."""
    state: TableState | None = detail.state
    return {
        **fleet_row(detail.overview),
        "policy": detail.overview.managed.policy.to_dict(),
        "status": None if state is None else state.status.to_dict(),
        "due": {job: one.to_dict() for job, one in detail.due.items()},
        "held": [record.to_dict() for record in detail.held],
        "troubles": [trouble.to_dict() for trouble in detail.overview.troubles],
        "quality": None if detail.checked is None else _found_in_rows(detail.checked),
    }


def run_row(run: JobRun) -> dict[str, Any]:
    """One run of a job."""
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
        "figures": result.get("figures"),
        "problems": result.get("problems"),
        "error": run.error,
        "quality": result.get(QUALITY),
        "link": task_link(run.external_id),
    }


def _found_in_rows(run: JobRun) -> dict[str, Any]:
    """What a gate or a check found, with where it did."""
    ended = run.finished_at
    return {
        **(run.result or {})[QUALITY],
        "at": None if ended is None else ended.isoformat(),
        "job": run.job,
        "link": task_link(run.external_id),
    }


def _running(run: JobRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "job": run.job,
        "started_at": run.started_at.isoformat(),
        "done": run.done,
        "total": run.total,
        "link": task_link(run.external_id),
    }
