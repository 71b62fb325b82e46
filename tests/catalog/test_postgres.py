"""The catalog on a real PostgreSQL, where it could differ from SQLite."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import event, select, text
from support.data.postgres import PostgresServer
from support.processes import running_python

from memwal.catalog import Catalog
from memwal.catalog.database import MIGRATE_COMMAND, Database, database_time
from memwal.catalog.models import FailedJobRow, ManagedTableRow
from memwal.errors import (
    ConflictError,
    InvalidInputError,
    NotRegisteredError,
    StoreUnavailableError,
    TableSetupError,
)


def test_an_address_is_stored_absolute_or_refused(each_catalog: Catalog) -> None:
    each_catalog.register("flights", uri="s3://lake/flights.lance/")
    assert each_catalog.get("flights").uri == "s3://lake/flights.lance"
    if each_catalog.database.is_shared:
        with pytest.raises(InvalidInputError, match=r"flights\.lance"):
            each_catalog.update("flights", uri="flights.lance")
        return
    each_catalog.update("flights", uri="flights.lance")
    assert each_catalog.get("flights").uri == str(Path("flights.lance").absolute())


def test_an_unmigrated_database_says_so(empty_postgres_url: str) -> None:
    catalog = Catalog(empty_postgres_url)
    with pytest.raises(TableSetupError, match=MIGRATE_COMMAND):
        catalog.list()
    catalog.close()


@pytest.mark.few(1)
def test_processes_that_migrate_at_once_all_succeed(each_empty_url: str) -> None:
    code = f"from memwal.catalog import Catalog; Catalog({each_empty_url!r}).migrate()"
    with ExitStack() as stack:
        processes = [stack.enter_context(running_python(code)) for _ in range(3)]
        assert [process.wait() for process in processes] == [0, 0, 0]
    catalog = Catalog(each_empty_url)
    assert catalog.list() == []
    catalog.close()


def test_the_time_is_that_of_the_statement_not_of_the_transaction(database: Database) -> None:
    with database.reading() as session:
        first = database_time(session)
        time.sleep(0.02)
        second = database_time(session)
    assert first.tzinfo is UTC
    assert second > first
    assert abs((second - datetime.now(UTC)).total_seconds()) < 60


def test_a_server_that_is_gone_is_unavailable_and_comes_back(
    postgres: PostgresServer, postgres_url: str
) -> None:
    catalog = Catalog(postgres_url)
    catalog.register("a", uri="/data/a.lance")
    postgres.stop()
    try:
        with pytest.raises(StoreUnavailableError):
            catalog.list()
    finally:
        postgres.start()
    assert [table.name for table in catalog.list()] == ["a"]
    catalog.close()


def test_a_connection_that_breaks_in_a_transaction_is_unavailable(postgres_url: str) -> None:
    database = Database(postgres_url)
    with pytest.raises(StoreUnavailableError), database.writing() as session:
        killer = Database(postgres_url)
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        with killer.engine.connect() as connection:
            connection.execute(text(f"SELECT pg_terminate_backend({pid})"))
        killer.engine.dispose()
        session.execute(select(1))
    database.engine.dispose()


@pytest.fixture
def two(postgres_url: str) -> Iterator[tuple[Catalog, Catalog]]:
    """Return one catalog as two processes have it."""
    catalogs = Catalog(postgres_url), Catalog(postgres_url)
    yield catalogs
    for catalog in catalogs:
        catalog.close()


def test_a_failure_is_recorded_though_another_process_records_and_clears_it_meanwhile(
    two: tuple[Catalog, Catalog],
) -> None:
    here, there = two
    event.listen(
        FailedJobRow,
        "before_insert",
        lambda *_: there.backoffs.record_failure("flights", "merge", "theirs"),
        once=True,
    )
    event.listen(
        here.database.engine,
        "rollback_savepoint",
        lambda *_: there.backoffs.clear_failure("flights", "merge"),
        once=True,
    )
    failed = here.backoffs.record_failure("flights", "merge", "ours")
    assert (failed.reason, failed.attempts) == ("ours", 1)
    assert there.backoffs.failed_jobs() == [failed]


def test_a_row_that_another_process_deletes_meanwhile_is_a_conflict(
    two: tuple[Catalog, Catalog],
) -> None:
    here, there = two
    here.register("flights", uri="/data/flights.lance")
    event.listen(
        ManagedTableRow, "before_update", lambda *_: there.unregister("flights"), once=True
    )
    with pytest.raises(ConflictError):
        here.update("flights", owner="data")
    with pytest.raises(NotRegisteredError):
        here.update("flights", owner="data")


def test_threads_share_a_catalog(each_catalog: Catalog) -> None:
    def register(start: int) -> None:
        for n in range(start, start + 5):
            each_catalog.register(f"t{n}", uri="/data/t.lance")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(register, range(0, 20, 5)))
    assert len(each_catalog.list()) == 20
