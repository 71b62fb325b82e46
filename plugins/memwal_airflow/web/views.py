"""What can be read. Only the view of a collection opens a table; the others ask the catalog."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query

from memwal.fleet import overview
from memwal.fleet.overview import table_detail, table_history
from memwal_airflow.dag_factory import dag_id
from memwal_airflow.web import collection
from memwal_airflow.web.access import ReadableTable, may_start, may_start_any, readable
from memwal_airflow.web.rows import fleet_row, run_row, table_page
from memwal_airflow.web.state import CatalogDep

MOST_POINTS = 500

router = APIRouter()


@router.get("/me")
def me(user: GetUserDep, catalog: CatalogDep) -> dict[str, Any]:
    """Who asks, and whether the page should show buttons at all."""
    return {"name": user.get_name(), "may_write": may_start_any(user, catalog)}


@router.get("/fleet")
def fleet(user: GetUserDep, catalog: CatalogDep) -> dict[str, Any]:
    """All tables that the user may see."""
    now = datetime.now(UTC)
    found = overview(catalog, now=now)
    seen = readable(user, {dag_id(one.managed) for one in found})
    return {
        "at": now.isoformat(),
        "tables": [fleet_row(one) for one in found if dag_id(one.managed) in seen],
    }


@router.get("/tables/{name}")
def table(managed: ReadableTable, user: GetUserDep, catalog: CatalogDep) -> dict[str, Any]:
    """One table with its regions, and what is due."""
    page = table_page(table_detail(catalog, managed.name))
    return {**page, "may_write": may_start(user, dag_id(managed))}


@router.get("/tables/{name}/history")
def history(
    managed: ReadableTable,
    catalog: CatalogDep,
    hours: Annotated[float, Query(gt=0, le=24 * 366)] = 24,
) -> dict[str, Any]:
    """How the backlog went."""
    since = datetime.now(UTC) - timedelta(hours=hours)
    points = table_history(catalog, managed.name, since=since, most=MOST_POINTS)
    return {"samples": [point.to_dict() for point in points]}


@router.get("/tables/{name}/runs")
def runs(
    managed: ReadableTable,
    catalog: CatalogDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    job: Annotated[str | None, Query(max_length=32, pattern=r"^[\w-]*$")] = None,
) -> dict[str, Any]:
    """The latest runs of its jobs, newest first."""
    found = catalog.runs(table=managed.name, job=job or None, limit=limit)
    return {"runs": [run_row(run) for run in found]}


@router.get("/tables/{name}/collection")
def would_go(managed: ReadableTable) -> dict[str, Any]:
    """What a collection would delete now, what it would leave, and why."""
    return collection.explained(managed)
