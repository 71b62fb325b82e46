"""Routes that read. Only the dry run of a collection opens a table; the others read the catalog."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Header, Query, Response, status
from fastapi.responses import JSONResponse

from memwal.fleet import overview
from memwal.fleet.overview import table_detail, table_history
from memwal.util.records import JsonObject
from memwal_airflow.dag_factory import dag_id
from memwal_airflow.web import collection
from memwal_airflow.web.access import (
    CatalogDep,
    ReadableTable,
    may_start_any_runs,
    may_start_runs,
    readable_dag_ids,
)
from memwal_airflow.web.rows import fleet_row, region_rows, run_row, table_page

MAX_POINTS = 500

router = APIRouter()


@router.get("/me")
def me(user: GetUserDep, catalog: CatalogDep) -> JsonObject:
    """Return the user, and whether the page shows buttons."""
    return {"name": user.get_name(), "may_write": may_start_any_runs(user, catalog)}


@router.get("/fleet")
def fleet(user: GetUserDep, catalog: CatalogDep) -> JsonObject:
    """Return the tables that the user may see."""
    now = datetime.now(UTC)
    tables = overview(catalog, now=now)
    allowed = readable_dag_ids(user, {dag_id(table.managed) for table in tables})
    return {
        "at": now.isoformat(),
        "tables": [fleet_row(table) for table in tables if dag_id(table.managed) in allowed],
    }


@router.get("/tables/{name}")
def table(managed: ReadableTable, user: GetUserDep, catalog: CatalogDep) -> JsonObject:
    """Return one table, and the jobs that are due."""
    page = table_page(table_detail(catalog, managed.name))
    return {**page, "may_write": may_start_runs(user, dag_id(managed))}


@router.get("/tables/{name}/regions")
def regions(
    managed: ReadableTable,
    catalog: CatalogDep,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Return the regions of the latest status; 304 for the entity tag that the client has."""
    state = next(iter(catalog.states(table=managed.name)), None)
    found = region_rows(state)
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
    """Return the decisions of a collection now, with their reasons."""
    return collection.explain_collection(managed)
