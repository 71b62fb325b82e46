"""What a catalog of an earlier memwal holds is there after the migration."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Column, MetaData, event, select, text

import memwal.catalog.database as database_module
from memwal.catalog import Catalog, Policy, RunState, read_snapshot
from memwal.catalog.database import MIGRATE_COMMAND, WRITES, Database
from memwal.catalog.models import HEAD_REVISION, Base
from memwal.errors import TableSetupError

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


RENAMED = {"held_regions": "skipped_regions", "job_troubles": "failed_jobs"}
REVISIONS = [f"{number:04}" for number in range(1, int(HEAD_REVISION) + 1)]


def filled(url: str, policy: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Put a row with every column into each table of a catalog of any schema; return them."""
    database = Database(url)
    tables = MetaData()
    rows: dict[str, dict[str, Any]] = {}
    with database.engine.execution_options(**{WRITES: True}).begin() as connection:
        tables.reflect(connection)
        for table in tables.sorted_tables:
            if table.name == "alembic_version":
                continue
            row = {
                column.name: policy if column.name == "policy" else some(column)
                for column in table.columns
            }
            connection.execute(table.insert().values(row))
            rows[table.name] = row
    database.engine.dispose()
    return rows


def some(column: Column[Any]) -> Any:
    """A value that fits a column."""
    kind = column.type.python_type
    values = {
        str: "running" if column.name == "state" else f"a {column.name}"[:16],
        int: 7,
        float: 2.5,
        bool: True,
        datetime: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        object: {"metrics": {"rows": 1}},
    }
    return values[kind]


@pytest.mark.few(7)
@pytest.mark.parametrize("revision", REVISIONS)
def test_every_migration_goes_up_with_rows_from_each_earlier_schema(
    each_empty_url: str, revision: str
) -> None:
    migrate(each_empty_url, revision)
    policy = OLD_POLICY if revision == "0001" else Policy().to_dict()
    before = filled(each_empty_url, policy)
    assert {"managed_tables", "job_runs", "backlog_samples"} <= set(before)

    catalog = Catalog(each_empty_url)
    if revision != HEAD_REVISION:
        with pytest.raises(TableSetupError, match=f"{revision}.*{MIGRATE_COMMAND}"):
            catalog.list()
    catalog.migrate()

    (table,) = catalog.list()
    assert table.name == "a name"
    (run,) = catalog.runs()
    assert (run.table, run.result) == ("a table_name", {"metrics": {"rows": 1}})
    tables = MetaData()
    with catalog.database.engine.connect() as connection:
        tables.reflect(connection)
        for name, row in before.items():
            table_now = tables.tables[RENAMED.get(name, name)]
            (found,) = connection.execute(select(table_now)).mappings()
            kept = {key: value for key, value in row.items() if key in found and key != "policy"}
            assert {key: as_put(found[key]) for key in kept} == kept
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, Base.metadata) == []
    catalog.close()


def as_put(value: Any) -> Any:
    """SQLite drops the zone of a time."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


@pytest.mark.few(6)
@pytest.mark.parametrize("revision", REVISIONS[1:])
def test_each_migration_can_be_taken_back(each_empty_url: str, revision: str) -> None:
    migrate(each_empty_url, revision)
    before = f"{int(revision) - 1:04}"
    migrate(each_empty_url, before, command.downgrade)
    migrate(each_empty_url, HEAD_REVISION)


def test_stored_results_and_conditions_take_the_words_of_today(each_empty_url: str) -> None:
    old = {
        "job_runs": {
            "result": {
                "figures": {"rows": 1},
                "problems": ["left out"],
                "held": [],
                "quality": {"mode": "hold", "held": ["a region"]},
            }
        },
        "notified_events": {"kind": "region_held", "mark": "region_held 3"},
        "job_troubles": {"job": "look"},
        "managed_tables": {"policy": {"quality": {"mode": "hold"}}},
    }
    new = {
        "job_runs": {
            "result": {
                "metrics": {"rows": 1},
                "warnings": ["left out"],
                "skipped_regions": [],
                "quality": {"mode": "skip", "skipped_regions": ["a region"]},
            }
        },
        "notified_events": {"kind": "region_skipped", "mark": "region_skipped 3"},
        "failed_jobs": {"job": "status"},
        "managed_tables": {"policy": {"quality": {"mode": "skip"}}},
    }
    migrate(each_empty_url, "0007")
    filled(each_empty_url, Policy().to_dict())
    database = Database(each_empty_url)
    tables = MetaData()
    with database.engine.execution_options(**{WRITES: True}).begin() as connection:
        tables.reflect(connection)
        for name, values in old.items():
            connection.execute(tables.tables[name].update().values(values))
    migrate(each_empty_url, "0008")
    for expected in (new, old):
        with database.engine.connect() as connection:
            tables.clear()
            tables.reflect(connection)
            for name, values in expected.items():
                (found,) = connection.execute(select(tables.tables[name])).mappings()
                assert {key: found[key] for key in values} == values
        migrate(each_empty_url, "0007", command.downgrade)
    database.engine.dispose()


def test_the_running_runs_of_a_table_are_found_by_their_index(each_catalog: Catalog) -> None:
    run = each_catalog.start_run("flights", "merge")
    statements: list[str] = []

    def plan(connection: Any, _cursor: Any, text: str, parameters: Any, *_: Any) -> None:
        if "ix_job_runs" not in text and "FROM job_runs" in text:
            statements.append(text)

    engine = each_catalog.database.engine
    event.listen(engine, "before_cursor_execute", plan)
    (found,) = each_catalog.runs(table="flights", state=RunState.RUNNING)
    event.remove(engine, "before_cursor_execute", plan)
    assert found.run_id == run
    # The state stands in the text: of a parameter no database knows that the index has it.
    assert any("state = 'running'" in text for text in statements)
    query = "SELECT id FROM job_runs WHERE table_name = 'flights' AND state = 'running'"
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            told = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}").all()
        else:
            connection.exec_driver_sql("SET enable_seqscan = off")
            told = connection.exec_driver_sql(f"EXPLAIN {query}").all()
    assert "ix_job_runs_running" in str(told)
