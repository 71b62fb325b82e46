"""Routes that read. Only the dry run of a collection opens a table; the others read the catalog."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Header, HTTPException, Query, Response, status
from fastapi.responses import JSONResponse

from memwal.catalog import JobRun, ManagedTable, TableState
from memwal.errors import MemWalError
from memwal.fleet import TableOverview, open_managed, overview
from memwal.fleet.overview import QUALITY, TableDetail, table_detail, table_history
from memwal.jobs.gc import collect_garbage
from memwal.jobs.gc.decision import summarise
from memwal.util.records import JsonObject
from memwal_airflow.dag_factory import dag_id
from memwal_airflow.hooks.storage_options import read_options
from memwal_airflow.links import dag_link, runbook_link, task_link
from memwal_airflow.version_compat import AirflowException
from memwal_airflow.web.access import (
    CatalogDep,
    ReadableTable,
    has_drain,
    maintaining_dag,
    may_start_runs,
    readable_dag_ids,
)

# Figures of the latest sample.
_FIGURES = (
    "lag_generations",
    "lag_rows",
    "reclaimable_bytes",
    "regions",
    "base_rows",
    "version",
)


def fleet_row(overview: TableOverview, *, drained: bool) -> JsonObject:
    """Return one table of the fleet; ``drained`` as of :func:`maintaining_dag`."""
    policy, dag = overview.managed.policy, maintaining_dag(overview.managed, drained=drained)
    values = overview.to_dict()
    sample = values["backlog"] or {}
    return {
        **values,
        "dag_id": dag,
        "dag_link": dag_link(dag),
        "sampled_at": sample.get("at"),
        "backlog": {**sample, "oldest_seconds": overview.oldest_seconds} if sample else None,
        **{name: sample.get(name) for name in _FIGURES},
        "late_seconds": policy.late_seconds,
        "critical_seconds": policy.critical_seconds,
        "running": [_running_row(run) for run in overview.running],
        "errors": [
            {**error.to_dict(), "runbook_link": runbook_link(error.runbook)}
            for error in overview.errors
        ],
        "reasons": [
            {
                **reason.to_dict(),
                "runbook_link": runbook_link(reason.runbook) if reason.runbook else None,
            }
            for reason in overview.reasons
        ],
    }


def table_page(detail: TableDetail, *, drained: bool) -> JsonObject:
    """Return one table; ``skipped_regions`` lists the regions here, :func:`region_rows` has all."""
    state: TableState | None = detail.state
    status = None if state is None else _without(state.status.to_dict(), "regions")
    return {
        **fleet_row(detail.overview, drained=drained),
        "policy": detail.overview.managed.policy.to_dict(),
        "status": status,
        "due": {job: _without(due.to_dict(), "regions") for job, due in detail.due.items()},
        "skipped_regions": [record.to_dict() for record in detail.skipped_regions],
        "quality": None if detail.checked is None else _quality_row(detail.checked),
    }


_AGE_STEP = timedelta(minutes=10)


def region_rows(state: TableState | None, *, now: datetime) -> JsonObject:
    """Return the regions of the latest status of a table, with ages as of a moment ago.

    The ages of a table that does not change are new every ten minutes.
    """
    if state is None:
        return {"at": None, "regions": []}
    passed = max(now - state.at, timedelta(0)) // _AGE_STEP * _AGE_STEP
    regions = state.status.aged(passed.total_seconds()).to_dict()["regions"]
    return {"at": (state.at + passed).isoformat(), "regions": regions}


def _without(values: JsonObject, key: str) -> JsonObject:
    return {name: value for name, value in values.items() if name != key}


def run_row(run: JobRun) -> JsonObject:
    """Return one run of a job."""
    result = run.result or {}
    ended = run.finished_at
    return {
        **_without(run.to_dict(), "result"),
        "seconds": None if ended is None else (ended - run.started_at).total_seconds(),
        "metrics": result.get("metrics"),
        "warnings": result.get("warnings"),
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


MAX_POINTS = 500

router = APIRouter()


@router.get("/fleet")
def fleet(user: GetUserDep, catalog: CatalogDep, session: SessionDep) -> JsonObject:
    """Return the tables that the user may see."""
    now = datetime.now(UTC)
    tables = overview(catalog, now=now)
    allowed = readable_dag_ids(user, [table.managed for table in tables])
    drained = has_drain(session)
    return {
        "at": now.isoformat(),
        "tables": [
            fleet_row(table, drained=drained)
            for table in tables
            if dag_id(table.managed) in allowed
        ],
    }


@router.get("/tables/{name}")
def table(
    managed: ReadableTable, user: GetUserDep, catalog: CatalogDep, session: SessionDep
) -> JsonObject:
    """Return one table, and the jobs that are due."""
    page = table_page(table_detail(catalog, managed.name), drained=has_drain(session))
    return {**page, "may_write": may_start_runs(user, managed)}


@router.get("/tables/{name}/regions")
def regions(
    managed: ReadableTable,
    catalog: CatalogDep,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Return the regions of the latest status; 304 for the entity tag that the client has."""
    state = next(iter(catalog.states(table=managed.name)), None)
    found = region_rows(state, now=datetime.now(UTC))
    tag = f'"{found["at"]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if if_none_match == tag:
        return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers=headers)
    return JSONResponse(found, headers=headers)


@router.get("/tables/{name}/history")
def history(
    managed: ReadableTable,
    catalog: CatalogDep,
    hours: Annotated[float, Query(gt=0, le=24 * 366)] = 24,
) -> JsonObject:
    """Return samples of the backlog."""
    since = datetime.now(UTC) - timedelta(hours=hours)
    points = table_history(catalog, managed.name, since=since, most=MAX_POINTS)
    return {"samples": [point.to_dict() for point in points]}


@router.get("/tables/{name}/runs")
def runs(
    managed: ReadableTable,
    catalog: CatalogDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    job: Annotated[str | None, Query(max_length=32, pattern=r"^[\w-]*$")] = None,
) -> JsonObject:
    """Return the latest runs of the table's jobs, newest first."""
    latest = catalog.runs(table=managed.name, job=job or None, limit=limit)
    return {"runs": [run_row(run) for run in latest]}


@router.get("/tables/{name}/collection")
def explain_garbage(managed: ReadableTable) -> JsonObject:
    """Return the decisions of a collection, at most 30 s old; 502 for a broken table."""
    # A changed policy or address has another key, so it is computed anew.
    entry = _cache_entry(managed.name, managed.updated_at)
    with entry.lock:
        if entry.answer is None or time.monotonic() >= entry.until:
            entry.answer = _dry_run(managed)
            entry.until = time.monotonic() + CACHE_SECONDS
        return entry.answer


CACHE_SECONDS = 30.0


@dataclass(slots=True)
class _CachedAnswer:
    """An answer, and the lock under which one request computes it for all that wait."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: JsonObject | None = None
    until: float = 0.0


@lru_cache(maxsize=1000)
def _cache_entry(_name: str, _updated_at: datetime) -> _CachedAnswer:
    return _CachedAnswer()


def _dry_run(table: ManagedTable) -> JsonObject:
    at = datetime.now(UTC)
    try:
        opened = open_managed(table, storage_options=read_options(table.storage_options_ref))
        # Costs some requests to the store for each region.
        options = replace(table.policy.gc_options(), dry_run=True, explain=True)
        result = collect_garbage(opened.location, options)
    except MemWalError as error:
        # Its messages hold no credentials.
        raise _unreadable(table, f"{type(error).__name__}: {error}") from error
    except AirflowException as error:
        # The connection does not exist, or the secrets backend refuses; users must not see which.
        message = f"its storage options cannot be read ({type(error).__name__})"
        raise _unreadable(table, message) from error
    return {
        "at": at.isoformat(),
        **summarise(result.decisions).to_dict(),
        "warnings": list(result.warnings),
    }


def _unreadable(table: ManagedTable, why: str) -> HTTPException:
    return HTTPException(status.HTTP_502_BAD_GATEWAY, f"{table.name} cannot be read: {why}")
