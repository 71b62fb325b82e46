"""A process with Airflow's FAB auth manager: what each of its users may do, as JSON.

``_fab_child.py SNAPSHOT OTHER_SNAPSHOT``: for the DAGs of the first snapshot, and then of the
other, prints a line of JSON: by user and table, the tables that the page lists, whether it offers
to start jobs, and the status of a start. Airflow's settings and the catalog are in the environment.
"""

import json
import sys
from typing import Any

from airflow.api_fastapi.app import init_auth_manager
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from fastapi import FastAPI
from memwal_airflow.dag_factory import build_dags
from memwal_airflow.web.app import create_app
from starlette.testclient import TestClient

ROLES = {"ann": "Air", "guest": "Nothing", "viewer": "Viewer", "user": "User", "admin": "Admin"}
TABLES = ("mine", "theirs")
WRITES = {"X-Requested-With": "memwal"}


def may(client: TestClient, table: str) -> tuple[bool, bool, int]:
    listed = client.get("/memwal/api/fleet").json()["tables"]
    page = client.get(f"/memwal/api/tables/{table}").json()
    started = client.post(f"/memwal/api/tables/{table}/runs", json={}, headers=WRITES)
    is_listed = table in {row["table"] for row in listed}
    return is_listed, page.get("may_write", False), started.status_code


initdb()
# init_auth_manager returns the class that the settings name.
manager: Any = init_auth_manager()
manager.get_fastapi_app()
outer = FastAPI()
outer.mount("/memwal", create_app())
clients = {}
with manager.flask_app.app_context():
    security = manager.security_manager
    security.add_role("Air")
    security.add_role("Nothing")
    manager.init_flask_resources()
    for name, role in ROLES.items():
        mail = f"{name}@example.com"
        user = security.add_user(name, name, name, mail, security.find_role(role), password=name)
        clients[name] = TestClient(outer, raise_server_exceptions=False)
        clients[name].headers["Authorization"] = f"Bearer {manager.generate_jwt(user)}"
for snapshot in sys.argv[1:]:
    with create_session() as session:
        for dag in build_dags(snapshot).values():
            # As Airflow does when it stores a DAG.
            manager.sync_dag_perms(dag, session=session)
    # Users with their rights are kept for half a minute.
    manager.cache.clear()
    rights = {user: {t: may(client, t) for t in TABLES} for user, client in clients.items()}
    print(json.dumps(rights), flush=True)
