import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, event, text
from support.processes import running_python

import memwal.catalog.database as database_module
from memwal.catalog import Catalog
from memwal.catalog.database import MIGRATE_COMMAND, Database, default_url
from memwal.catalog.models import Base
from memwal.errors import (
    InvalidInputError,
    StoreAccessError,
    StoreUnavailableError,
    TableSetupError,
)


def test_an_unmigrated_catalog_says_what_to_call_and_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    with pytest.raises(TableSetupError, match=MIGRATE_COMMAND):
        Catalog(f"sqlite:///{path}").list()
    assert not path.exists()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg:///u:hide-me@127.0.0.1:1/x",
        "sqlite:///:memory:u:hide-me@127.0.0.1:1/x",
    ],
)
def test_a_password_in_the_name_of_the_database_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        Database(url)
    assert "hide-me" not in str(refused.value)


@pytest.mark.parametrize("url", ["sqlite:///\udcff", "postgresql+psycopg://\ud800@h/x"])
def test_an_address_that_is_no_text_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError):
        Database(url)


def test_a_database_of_something_else_is_not_taken_for_a_catalog(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE notes (text TEXT)")
    connection.close()
    with pytest.raises(TableSetupError, match=MIGRATE_COMMAND):
        Catalog(f"sqlite:///{path}").register("a", uri="/data/a.lance")


def test_an_old_schema_is_refused(catalog: Catalog, url: str, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "catalog.db")
    connection.execute("UPDATE alembic_version SET version_num = '0000'")
    connection.commit()
    connection.close()
    other = Catalog(url)
    with pytest.raises(TableSetupError, match=MIGRATE_COMMAND):
        other.list()
    other.close()


def test_migrations_make_exactly_the_mapped_schema(each_empty_url: str) -> None:
    database = Database(each_empty_url)
    database.migrate()
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, Base.metadata) == []
    database.engine.dispose()


def test_migrating_again_keeps_the_tables(catalog: Catalog) -> None:
    catalog.register("a", uri="/data/a.lance")
    catalog.migrate()
    assert [table.name for table in catalog.list()] == ["a"]


def test_sqlite_has_a_write_ahead_journal_and_waits(catalog: Catalog, url: str) -> None:
    database = Database(url)
    with database.reading() as session:
        connection = session.connection()
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000
    database.engine.dispose()

    catalog = Catalog(url)
    assert catalog.list() == []
    catalog.close()


def test_processes_that_register_at_once_lose_nothing(catalog: Catalog, url: str) -> None:
    code = (
        "import sys; from memwal.catalog import Catalog; catalog = Catalog(sys.argv[1])\n"
        "for i in range(25): catalog.register(f'{sys.argv[2]}{i}', uri='/data/t.lance')\n"
    )
    with ExitStack() as stack:
        processes = [stack.enter_context(running_python(code, url, name)) for name in "pq"]
        assert [process.wait() for process in processes] == [0, 0]
    names = {table.name for table in catalog.list()}
    assert names == {f"{name}{index}" for name in "pq" for index in range(25)}


def test_a_lock_held_too_long_is_an_error_that_says_so(
    catalog: Catalog, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    other = Catalog(url)
    holder = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError):
        other.register("a", uri="/data/a.lance")
    holder.execute("ROLLBACK")
    holder.close()
    assert other.register("a", uri="/data/a.lance").name == "a"
    other.close()


def test_a_database_whose_connections_are_all_in_use_is_unavailable(url: str) -> None:
    catalog = Catalog(url)
    catalog.migrate()
    catalog.close()
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    catalog.database.engine = engine
    with engine.connect(), pytest.raises(StoreUnavailableError):
        catalog.list()
    assert catalog.list() == []
    catalog.close()


def test_readers_are_not_held_up_by_a_writer(catalog: Catalog, tmp_path: Path) -> None:
    catalog.register("a", uri="/data/a.lance")
    holder = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    holder.execute("DELETE FROM managed_tables")
    assert [table.name for table in catalog.list()] == ["a"]
    holder.execute("ROLLBACK")
    holder.close()


def test_a_url_that_cannot_be_used_does_not_show_its_password() -> None:
    for url in ("nonsense", "nodriver://u:hunter2@h/d"):
        with pytest.raises(InvalidInputError) as caught:
            Catalog(url)
        assert "hunter2" not in str(caught.value)


def test_the_default_is_the_same_file_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = default_url()
    monkeypatch.chdir(tmp_path)
    assert default_url() == here == f"sqlite:///{os.environ['XDG_DATA_HOME']}/memwal/catalog.db"
    monkeypatch.setenv("MEMWAL_CATALOG_URL", "sqlite:////elsewhere.db")
    assert default_url() == "sqlite:////elsewhere.db"


def test_a_url_can_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "catalog_url"
    monkeypatch.setenv("MEMWAL_CATALOG_URL_FILE", str(file))
    with pytest.raises(InvalidInputError, match=re.escape(str(file))):
        default_url()
    file.write_text("\n")
    with pytest.raises(InvalidInputError, match=re.escape(str(file))):
        default_url()
    file.write_text("sqlite:////filed.db\n")
    assert default_url() == "sqlite:////filed.db"
    monkeypatch.setenv("MEMWAL_CATALOG_URL", "sqlite:////elsewhere.db")
    assert default_url() == "sqlite:////elsewhere.db"


def test_the_command_of_the_message_migrates(tmp_path: Path) -> None:
    program, *arguments = shlex.split(MIGRATE_COMMAND)
    subprocess.run([Path(sys.executable).with_name(program), *arguments], check=True)
    catalog = Catalog()
    assert catalog.list() == []
    catalog.close()


def test_a_database_that_only_lets_read_says_so(url: str) -> None:
    database = Database(url)
    database.migrate()
    database.engine.dispose()
    event.listen(
        database.engine,
        "connect",
        lambda connection, _: connection.execute("PRAGMA query_only = 1"),
    )
    with database.reading() as session:
        session.execute(text("SELECT 1"))
    with (
        pytest.raises(StoreAccessError) as caught,
        database.writing() as session,
    ):
        session.execute(text("DELETE FROM leases WHERE holder = 'a value'"))
    assert caught.value.__suppress_context__
    assert "a value" not in str(caught.value)
    database.engine.dispose()
