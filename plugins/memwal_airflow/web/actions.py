"""What can be done: start runs, and try held regions again."""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated, Any, TypeVar
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
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, field_validator
from sqlalchemy import select
from sqlalchemy.orm import Session

from memwal.jobs.due import JOBS
from memwal.util.safe_json import read_json
from memwal_airflow.dag_factory import dag_id
from memwal_airflow.web.access import StartableTable, from_this_page
from memwal_airflow.web.places import run_link
from memwal_airflow.web.state import CatalogDep

Model = TypeVar("Model", bound=BaseModel)

MOST_BYTES = 1 << 20
"""Room for the ids of 20,000 regions."""

router = APIRouter(dependencies=[Depends(from_this_page)])


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    regions: list[UUID] = Field(default_factory=list)
    """All of them when empty."""


class RunBody(_Body):
    """Which jobs to run, and how; the parameters of a table's DAG."""

    jobs: list[str] = Field(default_factory=list)
    force: StrictBool = False
    dry_run: StrictBool = False

    @field_validator("jobs")
    @classmethod
    def _known(cls, jobs: list[str]) -> list[str]:
        unknown = sorted(set(jobs) - set(JOBS))
        if unknown:
            raise ValueError(f"there is no job {', '.join(unknown)}; there are {', '.join(JOBS)}")
        return jobs


class RetryBody(_Body):
    """Which held regions to try again."""


async def _body(request: Request, _user: GetUserDep) -> Any:
    """The JSON of a request, which is read only when a user sends it."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BYTES:
            raise HTTPException(
                status.HTTP_413_CONTENT_TOO_LARGE, f"A request has at most {MOST_BYTES} bytes."
            )
    try:
        return read_json(bytes(content))
    except ValueError as error:
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "The request is not JSON.") from error


def _checked(kind: type[Model], values: Any) -> Model:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        found = (
            f"{'.'.join(map(str, one['loc'])) or 'the request'}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False)
        )
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "; ".join(found)) from error


def _run_body(values: Annotated[Any, Depends(_body)]) -> RunBody:
    return _checked(RunBody, values)


def _retry_body(values: Annotated[Any, Depends(_body)]) -> RetryBody:
    return _checked(RetryBody, values)


@router.post("/tables/{name}/runs", status_code=status.HTTP_202_ACCEPTED)
def start_run(
    managed: StartableTable,
    asked: Annotated[RunBody, Depends(_run_body)],
    user: GetUserDep,
    session: SessionDep,
    request: Request,
) -> dict[str, Any]:
    """Start a run of the table's DAG, as the user, with what was asked as its parameters."""
    dag = dag_id(managed)
    conf = {
        "jobs": asked.jobs,
        "regions": [str(region) for region in asked.regions],
        "force": asked.force,
        "dry_run": asked.dry_run,
    }
    found = session.scalar(
        select(DagModel).where(DagModel.dag_id == dag, ~DagModel.is_stale).limit(1)
    )
    if found is None:
        why = "not yet" if managed.enabled else "since the table is not maintained"
        raise HTTPException(status.HTTP_409_CONFLICT, f"There is no DAG {dag} in Airflow, {why}.")
    # It says that it returns what its route answers with, and returns the run itself.
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
        "paused": bool(found.is_paused),
    }


@router.post("/tables/{name}/retry")
def retry(
    managed: StartableTable,
    asked: Annotated[RetryBody, Depends(_retry_body)],
    user: GetUserDep,
    session: SessionDep,
    catalog: CatalogDep,
) -> dict[str, Any]:
    """Let the next merge take held regions in; all of them when none is named."""
    regions = [str(region) for region in asked.regions]
    released = catalog.setbacks.retry(managed.name, regions or None)
    _log(session, user, "memwal_retry", dag_id=dag_id(managed), extra={"regions": regions})
    return {"retried": [record.region_id for record in released]}


@cache
def _dag_bag() -> DBDagBag:
    # The API server's own is out of reach of a mounted app.
    return create_dag_bag()


def _log(session: Session, user: BaseUser, event: str, **values: Any) -> None:
    """Leave a trace in Airflow's audit log."""
    extra = json.dumps(values.pop("extra"))
    name = user.get_name()
    session.add(Log(event=event, owner=name, owner_display_name=name, extra=extra, **values))
