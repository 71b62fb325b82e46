"""Catalogs with their schema: on SQLite, and on PostgreSQL where a test asks for both."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from support.data.postgres import PostgresServer

from memwal.catalog import Catalog
from memwal.catalog.database import Database
from memwal.catalog.models import Base


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Return a server that is running; a test that stops it starts it again."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def _migrated_postgres(postgres: PostgresServer) -> str:
    url = postgres.new_database()
    database = Database(url)
    database.migrate()
    database.engine.dispose()
    return url


@pytest.fixture(scope="session")
def _migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "catalog.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.engine.dispose()
    return path


@pytest.fixture
def postgres_url(_migrated_postgres: str) -> str:
    """Return the URL of a migrated catalog without rows on PostgreSQL."""
    # A database costs 300 files; its rows are quickly gone.
    database = Database(_migrated_postgres)
    tables = ", ".join(Base.metadata.tables)
    with database.engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {tables} RESTART IDENTITY"))
    database.engine.dispose()
    return _migrated_postgres


@pytest.fixture
def empty_postgres_url(postgres: PostgresServer) -> str:
    """Return the URL of an empty database on PostgreSQL."""
    return postgres.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of the database of the ``each_...`` fixtures."""
    return str(request.param)


@pytest.fixture
def each_empty_url(kind: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database, on either kind."""
    name = "url" if kind == "sqlite" else "empty_postgres_url"
    return str(request.getfixturevalue(name))


@pytest.fixture
def each_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a migrated catalog without rows, on either kind."""
    if kind == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    path = tmp_path / "catalog.db"
    shutil.copyfile(request.getfixturevalue("_migrated_file"), path)
    return f"sqlite:///{path}"


@pytest.fixture
def each_catalog(each_url: str) -> Iterator[Catalog]:
    """Return a catalog with its schema, on either kind."""
    catalog = Catalog(each_url)
    yield catalog
    catalog.close()


@pytest.fixture
def database(each_url: str) -> Iterator[Database]:
    """Return the database of a catalog, on either kind."""
    database = Database(each_url)
    yield database
    database.engine.dispose()
