"""The app, mounted as Airflow mounts it, with Airflow's own auth manager and its tokens."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from memwal.catalog import Catalog

# Airflow's own for unit tests is too short for what signs with it.
os.environ["AIRFLOW__API_AUTH__JWT_SECRET"] = "for tests " * 8
ROLES = {"admin": "ADMIN", "user": "USER", "viewer": "VIEWER"}


@pytest.fixture(scope="session")
def served(airflow_database: None) -> Any:
    """Return the app of the plugin, mounted in another as Airflow does."""
    with warnings.catch_warnings():
        # Airflow's own modules warn about what they import of each other.
        warnings.simplefilter("ignore")
        from airflow.api_fastapi.app import init_auth_manager
        from fastapi import FastAPI
        from memwal_airflow.web.app import create_app

        outer = FastAPI()
        outer.mount("/memwal", create_app())
        init_auth_manager()
    return outer


@pytest.fixture
def as_user(
    served: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Return a function that gives a client: ``as_user("viewer")``; nobody's without a name.

    With ``teams``, of a user who belongs to these.
    """
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from memwal_airflow.web import access
    from starlette.testclient import TestClient

    access.get_catalog.cache_clear()
    clients = []

    def make(name: str | None = None, *, cookie: bool = False, teams: Sequence[str] = ()) -> Any:
        client = TestClient(served, raise_server_exceptions=False, follow_redirects=False)
        clients.append(client)
        if name is not None:
            of_teams = {"teams": [*teams]} if teams else {}
            user = SimpleAuthManagerUser(username=name, role=ROLES[name], **of_teams)
            token = get_auth_manager().generate_jwt(user)
            if cookie:
                client.cookies.set("_token", token)
            else:
                client.headers["Authorization"] = f"Bearer {token}"
        return client

    yield make
    for client in clients:
        client.close()
    access.get_catalog().close()
    access.get_catalog.cache_clear()
