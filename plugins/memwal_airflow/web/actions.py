"""Routes that change something: start runs, and retry skipped regions."""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated, Any
from uuid import UUID

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.common.dagbag import create_dag_bag
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.datamodels.dag_run import TriggerDAGRunPostBody
from airflow.api_fastapi.core_api.routes.public.dag_run import trigger_dag_run
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models import Log
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from fastapi import APIRouter, Depends, HTTPException, Request, status
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, field_validator
from sqlalchemy import select
from sqlalchemy.orm import Session

from memwal.jobs.due import JOBS
from memwal.util.records import JsonObject
from memwal.util.safe_json import read_json
from memwal_airflow.dag_factory import dag_id
from memwal_airflow.links import DRAIN_DAG_ID, run_link
from memwal_airflow.web.access import (
    CatalogDep,
    StartableTable,
    from_this_page,
    has_drain,
    maintaining_dag,
)

MAX_REQUEST_BYTES = 1 << 20
"""Enough for the ids of 20,000 regions."""

router = APIRouter(dependencies=[Depends(from_this_page)])


class RetryBody(BaseModel):
    """Body of a request to retry the skipped regions of a table."""

    model_config = ConfigDict(extra="forbid")

    regions: list[UUID] = Field(default_factory=list)
    """All regions if empty."""


class RunBody(RetryBody):
    """Body of a request to run jobs of a table, with the parameters of its DAG."""

    jobs: list[str] = Field(default_factory=list)
    force: StrictBool = False
    dry_run: StrictBool = False

    @field_validator("jobs")
    @classmethod
    def _jobs_exist(cls, jobs: list[str]) -> list[str]:
        unknown = sorted(set(jobs) - set(JOBS))
        if unknown:
            raise ValueError(f"there is no job {', '.join(unknown)}; there are {', '.join(JOBS)}")
        return jobs


async def _read_json_body(request: Request, _user: GetUserDep) -> object:
    """Return the JSON of a request; the body is read for logged-in users only."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_REQUEST_BYTES:
            raise HTTPException(
                status.HTTP_413_CONTENT_TOO_LARGE,
                f"A request has at most {MAX_REQUEST_BYTES} bytes.",
            )
    try:
        return read_json(bytes(content))
    except ValueError as error:
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "The request is not JSON.") from error


def _body(kind: type[BaseModel]) -> Any:
    """Depend on the body of a request, read by a model."""

    def read(values: Annotated[object, Depends(_read_json_body)]) -> BaseModel:
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False)
            raise RequestValidationError(problems) from error

    return Depends(read)


@router.post("/tables/{name}/runs", status_code=status.HTTP_202_ACCEPTED)
def start_run(
    managed: StartableTable,
    body: Annotated[RunBody, _body(RunBody)],
    user: GetUserDep,
    session: SessionDep,
    request: Request,
) -> JsonObject:
    """Start a run for the table as the user, with the request as its parameters."""
    dag = maintaining_dag(managed, drained=has_drain(session))
    conf = body.model_dump(mode="json")
    if dag == DRAIN_DAG_ID:
        conf["tables"] = [managed.name]
    model = session.scalar(
        select(DagModel).where(DagModel.dag_id == dag, ~DagModel.is_stale).limit(1)
    )
    if model is None:
        why = "not yet" if managed.enabled else "since the table is not maintained"
        raise HTTPException(status.HTTP_409_CONFLICT, f"There is no DAG {dag} in Airflow, {why}.")
    # Annotated with the answer of its route, but returns the run itself.
    run: Any = trigger_dag_run(
        dag,
        TriggerDAGRunPostBody(logical_date=None, conf=conf),
        _dag_bag(),
        user,
        session,
        request,
    )
    session.flush()
    _log(session, user, "memwal_start_run", dag_id=dag, run_id=run.run_id, extra=conf)
    return {
        "dag_run_id": run.run_id,
        "link": run_link(dag, run.run_id),
        "paused": bool(model.is_paused),
    }


@router.post("/tables/{name}/retry")
def retry(
    managed: StartableTable,
    body: Annotated[RetryBody, _body(RetryBody)],
    user: GetUserDep,
    session: SessionDep,
    catalog: CatalogDep,
) -> JsonObject:
    """Let the next merge include skipped regions; all of them if the request names none."""
    regions = [str(region) for region in body.regions]
    released = catalog.backoffs.retry_regions(managed.name, regions or None)
    _log(session, user, "memwal_retry", dag_id=dag_id(managed), extra={"regions": regions})
    return {"retried": [record.region_id for record in released]}


@cache
def _dag_bag() -> DBDagBag:
    # A mounted app cannot reach the one of the API server.
    return create_dag_bag()


def _log(session: Session, user: BaseUser, event: str, **values: Any) -> None:
    """Write an entry to Airflow's audit log."""
    extra = json.dumps(values.pop("extra"))
    name = user.get_name()
    session.add(Log(event=event, owner=name, owner_display_name=name, extra=extra, **values))
