"""Connection, schema check and migration of the catalog's database."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from memwal.catalog.models import HEAD_REVISION
from memwal.errors import (
    ConflictError,
    InvalidInputError,
    MissingExtraError,
    StoreAccessError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal.storage.local_files import from_os_error
from memwal.util.optional_deps import how_to_install
from memwal.util.safe_json import is_unicode

URL_VARIABLE = "MEMWAL_CATALOG_URL"
URL_FILE_VARIABLE = "MEMWAL_CATALOG_URL_FILE"
MIGRATE_COMMAND = "memwal catalog migrate"
BUSY_SECONDS = 30.0
WRITES = "memwal_writes"
CHECK_SECONDS = 60.0
"""Interval at which a process checks again whether it may use the schema."""
MIGRATIONS = Path(__file__).parent / "migrations"
# Any number, as long as all versions that migrate a catalog use the same.
_MIGRATION_LOCK = 5_275_803_947_121
# A change of a table waits for the transactions that use it, and all later ones wait behind it.
_TABLE_LOCK_SECONDS = 5

_PASSWORD = re.compile(r":[^/@]*@")

# SQLSTATE: insufficient privilege; read-only transaction.
_REFUSALS = frozenset({"42501", "25006"})
# SQLSTATE: undefined table; undefined column.
_MISSING = frozenset({"42P01", "42703"})


def default_url() -> str:
    """Return ``$MEMWAL_CATALOG_URL``, the URL in ``$MEMWAL_CATALOG_URL_FILE``, or a SQLite file.

    The SQLite file is in the folder ``$XDG_DATA_HOME/memwal``, by default
    ``~/.local/share/memwal``. It does not depend on the working directory, so that a shell,
    Airflow's tasks and Spark see the same one.
    """
    url = os.environ.get(URL_VARIABLE)
    if url:
        return url
    file = os.environ.get(URL_FILE_VARIABLE)
    if file:
        return _read_url(Path(file))
    data_home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return f"sqlite:///{Path(data_home) / 'memwal' / 'catalog.db'}"


def _read_url(path: Path) -> str:
    try:
        url = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"The catalog URL cannot be read from {path} (${URL_FILE_VARIABLE}): "
            f"{type(error).__name__}; write the URL into that file, readable for this user."
        ) from error
    if not url:
        raise InvalidInputError(f"{path} (${URL_FILE_VARIABLE}) is empty; write the URL into it.")
    return url


class Database:
    """Transactions on the catalog's database, with errors that name the next step.

    SQLite is opened with a write-ahead journal and waits up to 30 s while another process writes.
    """

    def __init__(self, url: str) -> None:
        if not is_unicode(url):
            raise InvalidInputError(f"The catalog URL (${URL_VARIABLE}) must be UTF-8.")
        try:
            self._url: sa.URL = sa.make_url(url)
            self.engine: sa.Engine = sa.create_engine(
                self._url, pool_pre_ping=True, json_deserializer=_read_column
            )
        except (sa.exc.ArgumentError, ValueError, TypeError) as error:
            # The text of each of these errors may contain a part of the URL with the password.
            raise InvalidInputError(
                f"The catalog URL (${URL_VARIABLE}) cannot be used: {type(error).__name__}; give "
                "an SQLAlchemy URL such as sqlite:////var/lib/memwal/catalog.db."
            ) from None
        except ImportError as error:
            raise MissingExtraError(
                f"The catalog URL (${URL_VARIABLE}) needs the driver {error.name}, which is not "
                "installed; for PostgreSQL give postgresql+psycopg://... and "
                f"{how_to_install('postgres')}"
            ) from error
        if _PASSWORD.search(self._url.database or ""):
            # The password would be shown in messages, as a part of the database name.
            raise InvalidInputError(
                f"The catalog URL (${URL_VARIABLE}) has a user and a password in the name of the "
                "database; they come right behind the two slashes: postgresql://user:password@host."
            )
        self._check_at = -math.inf
        if self._is_sqlite:
            sa.event.listen(self.engine, "connect", _prepare_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)

    @property
    def shown_url(self) -> str:
        """The URL for messages, without password and query, which may be secrets."""
        return self._url.set(query={}).render_as_string(hide_password=True)

    @property
    def is_shared(self) -> bool:
        """True if the database is on a server, which other machines can use."""
        return not self._is_sqlite

    @property
    def _is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    @property
    def _sqlite_file(self) -> Path | None:
        name = self._url.database
        return Path(name) if self._is_sqlite and name and name != ":memory:" else None

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session for reading."""
        with self._translated():
            self._check_revision()
            with Session(self.engine) as session:
                yield session

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a session that is committed when the block ends without an error.

        On SQLite the write lock is acquired at the start: a transaction that reads first and writes
        later would be refused instead of waiting if another process wrote in between.
        """
        with self._translated():
            self._check_revision()
            engine = self.engine.execution_options(**{WRITES: True})
            with Session(engine, expire_on_commit=False) as session, session.begin():
                yield session

    def migrate(self) -> None:
        """Create or update the schema. Safe to call again, and from two processes at once.

        A newer schema that this program may use stays as it is. Processes of the version before may
        use the catalog during the migration and afterwards. Raises ``TableSetupError`` for a newer
        schema that this program may not use.
        """
        from alembic import command
        from alembic.config import Config

        file = self._sqlite_file
        if file is not None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise from_os_error(error, "make the folder", str(file.parent)) from error
        config = Config()
        # Interpolation is on in this option, so a percent sign in the path is doubled.
        folder = str(MIGRATIONS).replace("%", "%%")
        config.set_main_option("script_location", folder)
        with self._translated():
            engine = self.engine.execution_options(**{WRITES: True})
            with engine.begin() as connection:
                if connection.dialect.name == "postgresql":
                    # Without the lock, two processes would both create the same table, and one
                    # of them would fail.
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_TABLE_LOCK_SECONDS}s'")
                if self._needs_migration(_revision(connection)):
                    config.attributes["connection"] = connection
                    command.upgrade(config, "head")
        self._check_at = -math.inf

    def _check_revision(self) -> None:
        if time.monotonic() < self._check_at:
            return
        file = self._sqlite_file
        revision = None
        # Connecting would create an empty file.
        if file is None or file.exists():
            with self.engine.connect() as connection:
                revision = _revision(connection)
        if self._needs_migration(revision):
            state = "has no schema yet" if revision is None else f"has the old schema {revision}"
            raise TableSetupError(
                f"The catalog {self.shown_url} {state}; call Catalog(url).migrate(), or run: "
                f"{MIGRATE_COMMAND}"
            )
        self._check_at = time.monotonic() + CHECK_SECONDS

    def _needs_migration(self, revision: str | None) -> bool:
        """Return whether the schema is older than this program.

        Raises TableSetupError if it is newer, and programs of this version may not use it.
        """
        if revision is None:
            return True
        known = _schema(HEAD_REVISION)
        if (oldest := revision.rpartition("_")[2]) > known:
            raise TableSetupError(
                f"The catalog {self.shown_url} has schema {_schema(revision)}, which versions of "
                f"memwal before schema {oldest} cannot use; this one is of schema {known}. Stop "
                "this process, and start it again with a newer memwal."
            )
        return _schema(revision) < known

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.DataError, OverflowError, UnicodeEncodeError) as error:
            raise InvalidInputError(
                f"The catalog {self.shown_url} cannot keep, or look for, what it was given: a "
                "number has 64 bits, and a text is Unicode without a NUL."
            ) from error
        except (StaleDataError, sa.exc.NoResultFound) as error:
            raise ConflictError(
                f"A row of the catalog {self.shown_url} was deleted by another process during the "
                "call, which wrote nothing; call again."
            ) from error
        except sa.exc.TimeoutError as error:
            raise StoreUnavailableError(
                f"The catalog {self.shown_url} did not answer: all connections of this process "
                "wait for it."
            ) from error
        except sa.exc.IntegrityError:
            # The caller knows which constraint it violated.
            raise
        except sa.exc.DBAPIError as error:
            if _names_what_is_missing(error):
                # Since the last check, the catalog can have got a schema that excludes us.
                self._check_at = -math.inf
                with contextlib.suppress(sa.exc.DBAPIError):
                    self._check_revision()
            if _is_refusal(error):
                raise StoreAccessError(
                    f"The catalog {self.shown_url} refused: {_cause(error)}. Take a database user "
                    "with that right; the guide to security has the grants of each."
                ) from None
            if not isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError)):
                raise TableSetupError(
                    f"The catalog {self.shown_url} cannot be used: {_cause(error)}. Look at "
                    "whether it is the right database."
                ) from error
            raise StoreUnavailableError(
                f"The catalog {self.shown_url} did not answer: {_cause(error)}. Check that it is "
                f"reachable and not locked by another process for longer than {BUSY_SECONDS:g} s."
            ) from error


def _read_column(text: str | bytes) -> object:
    """Return the value of a JSON column; None if it is no JSON, so that other rows can be read."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def database_time(session: Session) -> datetime:
    """Return the time in UTC, by the one clock that all users of a database share.

    SQLite has no clock: its users are on one machine and share the clock of that machine.
    """
    match session.get_bind().dialect.name:
        case "sqlite":
            return datetime.now(UTC)
        case "postgresql":
            # The time of this statement; now() is the start of the transaction.
            now = session.scalar(sa.select(sa.func.clock_timestamp()))
        case _:
            now = session.scalar(sa.select(sa.func.current_timestamp()))
    if not isinstance(now, datetime):
        raise StoreUnavailableError(f"The catalog's database returned {now!r} instead of the time.")
    return now.replace(tzinfo=UTC) if now.tzinfo is None else now.astimezone(UTC)


def _revision(connection: sa.Connection) -> str | None:
    """Return the revision of the schema; None for a database without one."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return None if revision is None else str(revision)


def _schema(revision: str) -> str:
    """Return the schema that a revision names, which ``0003`` and ``0003_0002`` do alike."""
    return revision.partition("_")[0]


def _names_what_is_missing(error: sa.exc.DBAPIError) -> bool:
    """Return whether a statement named a table or a column that the database does not have."""
    missing = getattr(error.orig, "sqlstate", None) in _MISSING
    text = str(error.orig)
    return missing or "no such " in text or "has no column named" in text


def _is_refusal(error: sa.exc.DBAPIError) -> bool:
    """Return whether the database user lacks a privilege, or the database is read-only."""
    refused = getattr(error.orig, "sqlstate", None) in _REFUSALS
    return refused or "readonly database" in str(error.orig)


def _cause(error: sa.exc.DBAPIError) -> str:
    """Return the driver's message; SQLAlchemy's would repeat the statement with its values."""
    return str(error.orig).strip().splitlines()[0] if error.orig else type(error).__name__


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # With None the driver opens no transactions by itself; _begin_sqlite does.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
