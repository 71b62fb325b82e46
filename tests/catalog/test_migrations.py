"""What a catalog of an earlier memwal holds is there after the migration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

import memwal.catalog.database as database_module
from memwal.catalog import Catalog, Policy, RunState, read_snapshot
from memwal.catalog.database import WRITES, Database

OLD_POLICY = {
    "merge_at_generations": 7,
    "merge_at_age_seconds": 10.0,
    "merge_max_bytes": 5 << 20,
    "schedule": None,
    "sensor_poke_seconds": 10.0,
    "sensor_timeout_seconds": 60.0,
    "gc_grace_seconds": 600.0,
    "gc_retention_seconds": 3600.0,
    "tags": ["air"],
    "priority": 3,
}


Command = Callable[[Config, str], None]


def migrate(url: str, revision: str, go: Command = command.upgrade) -> None:
    database = Database(url)
    config = Config()
    folder = Path(database_module.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    with database.engine.execution_options(**{WRITES: True}).begin() as connection:
        config.attributes["connection"] = connection
        go(config, revision)
    database.engine.dispose()


@pytest.fixture
def old_url(each_empty_url: str) -> str:
    """Return the URL of a catalog of the first schema, with a table and a run in it."""
    migrate(each_empty_url, "0001")
    database = Database(each_empty_url)
    now = (
        "2026-01-02 03:04:05+00:00"
        if "postgres" in each_empty_url
        else "2026-01-02 03:04:05.000000"
    )
    with database.engine.execution_options(**{WRITES: True}).begin() as connection:
        connection.execute(
            text(
                "INSERT INTO managed_tables (id, name, uri, policy, owner, enabled, created_at, "
                "updated_at) VALUES (1, 'flights', '/data/f.lance', :policy, 'data', true, "
                ":now, :now)"
            ),
            {"policy": json.dumps(OLD_POLICY), "now": now},
        )
        connection.execute(
            text(
                "INSERT INTO job_runs (id, table_name, job, state, started_at, finished_at) "
                "VALUES (1, 'flights', 'merge', 'succeeded', :now, :now)"
            ),
            {"now": now},
        )
    database.engine.dispose()
    return each_empty_url


def test_old_policies_take_the_new_key(old_url: str, tmp_path: Path) -> None:
    path = tmp_path / "tables.json"
    catalog = Catalog(old_url, snapshot_path=path)
    catalog.migrate()
    table = catalog.get("flights")
    assert table.policy == Policy(
        merge_at_generations=7,
        merge_at_age_seconds=10.0,
        merge_commit_bytes=5 << 20,
        schedule=None,
        tags=("air",),
        priority=3,
    )
    (run,) = catalog.runs()
    assert (run.state, run.done, run.heartbeat_at) == (RunState.SUCCEEDED, None, None)
    # Airflow's file is of the new form at once.
    assert read_snapshot(path) == [table]
    catalog.close()


def test_the_way_back(old_url: str) -> None:
    migrate(old_url, "0002")
    migrate(old_url, "0001", command.downgrade)
    database = Database(old_url)
    with database.engine.connect() as connection:
        found = connection.execute(text("SELECT policy FROM managed_tables")).scalar_one()
        assert not database.engine.dialect.has_table(connection, "leases")
    assert (json.loads(found) if isinstance(found, str) else found) == OLD_POLICY
    database.engine.dispose()
