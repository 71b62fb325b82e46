"""Authorization of the page, by Airflow's auth manager, and the DAG that each table is linked to.

Every route needs a user. A user who may read the DAG of a table sees the table, and a user who may
start runs of that DAG may start its jobs, also while Airflow has no such DAG: rights belong to its
id. Where Airflow has teams, a table belongs to the team of its DAG, else to the team that its owner
names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from functools import cache
from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.models.team import Team
from fastapi import Depends, HTTPException, Request, status
from sqlalchemy import select
from sqlalchemy.orm import Session

from memwal.catalog import Catalog, ManagedTable
from memwal.errors import ObjectNotFoundError
from memwal_airflow.dag_factory import dag_id
from memwal_airflow.links import DRAIN_DAG_ID
from memwal_airflow.version_compat import TEAMS

CUSTOM_HEADER = "X-Requested-With"
CUSTOM_VALUE = "memwal"
"""A form or an image of another site cannot send this header, and a script of that site may not."""


@cache
def get_catalog() -> Catalog:
    """Return the catalog of ``$MEMWAL_CATALOG_URL``, with its connections, for all requests."""
    return Catalog()


CatalogDep = Annotated[Catalog, Depends(get_catalog)]


def readable_dag_ids(user: BaseUser, tables: Collection[ManagedTable]) -> set[str]:
    """Return the ids of the tables' DAGs that a user may read, by one request for each team."""
    by_team: dict[str | None, set[str]] = defaultdict(set)
    for dag, team in _teams(tables).items():
        by_team[team].add(dag)
    allowed: set[str] = set()
    for team, members in by_team.items():
        of_team = {"team_name": team} if TEAMS.here else {}
        allowed |= get_auth_manager().filter_authorized_dag_ids(
            dag_ids=members, user=user, method="GET", **of_team
        )
    return allowed


def may_start_runs(user: BaseUser, table: ManagedTable) -> bool:
    """Return whether a user may start runs of a table's DAG."""
    ((dag, team),) = _teams([table]).items()
    return get_auth_manager().is_authorized_dag(
        method="POST",
        access_entity=DagAccessEntity.RUN,
        details=DagDetails(id=dag, team_name=team),
        user=user,
    )


def readable_table(name: str, user: GetUserDep, catalog: CatalogDep) -> ManagedTable:
    """Return the table of a path; one that the user may not see is answered like a missing one."""
    try:
        table = catalog.get(name, allow_problem=True)
    except ObjectNotFoundError as error:
        raise _no_table(name) from error
    if not readable_dag_ids(user, [table]):
        raise _no_table(name)
    return table


def startable_table(
    table: Annotated[ManagedTable, Depends(readable_table)], user: GetUserDep
) -> ManagedTable:
    """Return the table of a path if the user may start its jobs."""
    if not may_start_runs(user, table):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"You may look at {table.name}, and not start its jobs: that needs the right to start "
            "runs of its DAG.",
        )
    return table


def from_this_page(request: Request, user: GetUserDep) -> None:
    """Refuse cross-site requests: another site may make a browser send them with its cookie.

    The request must be JSON with our header; when another site sends either, the browser needs the
    consent of this server. And the browser must not say that the request comes from another site.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HTTPException(
            status.HTTP_415_UNSUPPORTED_MEDIA_TYPE, "Send JSON, as application/json."
        )
    if request.headers.get(CUSTOM_HEADER) != CUSTOM_VALUE:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"Send the header {CUSTOM_HEADER}: {CUSTOM_VALUE}."
        )
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        trusted = site in ("same-origin", "none")
    else:
        origin = request.headers.get("origin")
        # Scheme and host of this server: from the request and from the configuration.
        own = {_origin(str(request.base_url)), _origin(conf.get("api", "base_url", fallback=""))}
        trusted = origin is None or _origin(origin) in own - {("", "")}
    if not trusted:
        raise HTTPException(status.HTTP_403_FORBIDDEN, "The request comes from another site.")


def has_drain(session: Session) -> bool:
    """Return whether Airflow has the DAG that runs the jobs of many tables; one query."""
    query = select(DagModel.dag_id).where(DagModel.dag_id == DRAIN_DAG_ID, ~DagModel.is_stale)
    return session.scalar(query) is not None


def maintaining_dag(table: ManagedTable, *, drained: bool) -> str:
    """Return the id of the DAG that maintains a table; ``drained`` as of :func:`has_drain`."""
    is_drained = drained and table.enabled and table.starts_when_due
    return DRAIN_DAG_ID if is_drained else dag_id(table)


def _no_table(name: str) -> HTTPException:
    return HTTPException(status.HTTP_404_NOT_FOUND, f"No table named {name!r} is registered.")


def _teams(tables: Collection[ManagedTable]) -> dict[str, str | None]:
    """Return the teams of tables by the ids of their DAGs; None for a table without one."""
    owners = {dag_id(table): table.owner for table in tables}
    if not (TEAMS.here and conf.getboolean("core", "multi_team", fallback=False)):
        return dict.fromkeys(owners)
    names = Team.get_all_team_names()
    of_dags = DagModel.get_dag_id_to_team_name_mapping(list(owners))
    return {
        dag: of_dags.get(dag, owner if owner in names else None) for dag, owner in owners.items()
    }


def _origin(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme.lower(), parts.netloc.lower()


ReadableTable = Annotated[ManagedTable, Depends(readable_table)]
StartableTable = Annotated[ManagedTable, Depends(startable_table)]
