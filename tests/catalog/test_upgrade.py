"""A schema of the next version: who may use it, and fleets before and after an upgrade."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from support.data.tables import SCHEMA, numbered
from support.waiting import until

import memwal
import memwal.catalog.database as database_module
from memwal.catalog import Catalog, RunState, read_snapshot
from memwal.catalog.database import Database
from memwal.errors import LeaseLostError, StoreUnavailableError, TableSetupError

PACKAGE = Path(memwal.__file__).parent
MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "0002_0001"
down_revision = "0001"


def upgrade():
    op.add_column("managed_tables", sa.Column("contact", sa.Text))
    op.create_table("audits", sa.Column("id", sa.Integer, primary_key=True))
"""
# What the next version of memwal adds: a column of a table, and a key of the policy. Each is put
# before the text that is named.
ADDED = {
    "catalog/models.py": ("    regions: Mapped[int | None]\n", "    contact: Mapped[str | None]\n"),
    "catalog/records.py": ("    regions: int | None = None\n", "    contact: str | None = None\n"),
    "jobs/policy.py": ("    poll_seconds: float = ", '    new_seconds: float = seconds(3.0, "")\n'),
}


def stamp(database: Database, revision: str, *statements: str) -> None:
    with database.engine.begin() as connection:
        for statement in (*statements, f"UPDATE alembic_version SET version_num = '{revision}'"):
            connection.execute(text(statement))


def revision_of(database: Database) -> object:
    with database.engine.connect() as connection:
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


@pytest.fixture
def old(each_empty_url: str) -> Iterator[Catalog]:
    """Return a catalog of this version, which was used."""
    catalog = Catalog(each_empty_url)
    catalog.migrate()
    catalog.register("a", uri="/data/a.lance")
    yield catalog
    catalog.close()


def add_migration(package: Path) -> None:
    (package / "versions" / "rev_0002_test.py").write_text(MIGRATION)


@pytest.fixture
def newer_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let migrations of this process be those of the next version."""
    folder = tmp_path / "migrations"
    shutil.copytree(database_module.MIGRATIONS, folder)
    add_migration(folder)
    monkeypatch.setattr(database_module, "MIGRATIONS", folder)
    monkeypatch.setattr(database_module, "HEAD_REVISION", "0002_0001")


def test_a_schema_that_allows_this_version_is_used_and_stays(old: Catalog) -> None:
    add = "ALTER TABLE managed_tables ADD COLUMN contact TEXT"
    stamp(old.database, "0002_0001", add)
    again = Catalog(old.database.engine.url.render_as_string(hide_password=False))
    again.migrate()
    again.register("b", uri="/data/b.lance")
    assert [table.name for table in old.list()] == ["a", "b"]
    assert revision_of(old.database) == "0002_0001"
    again.close()


def test_a_schema_that_excludes_this_version_is_refused_and_stays(old: Catalog) -> None:
    stamp(old.database, "0003_0002")
    again = Catalog(old.database.engine.url.render_as_string(hide_password=False))
    for use in (again.list, again.migrate, lambda: again.register("b", uri="/data/b.lance")):
        with pytest.raises(TableSetupError, match="0002"):
            use()
    assert revision_of(old.database) == "0003_0002"
    again.close()


def test_a_running_process_notices_that_a_schema_excludes_it(
    old: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert old.leases.list() == []
    stamp(old.database, "0003_0002", "ALTER TABLE managed_tables RENAME COLUMN owner TO team")
    for use in (old.list, lambda: old.register("b", uri="/data/b.lance")):
        with pytest.raises(TableSetupError, match="0002"):
            use()
    # Also if all that it names is there.
    monkeypatch.setattr(database_module, "CHECK_SECONDS", 0.0)
    stamp(old.database, "0002_0001")
    assert old.leases.list() == []
    stamp(old.database, "0003_0002")
    with pytest.raises(TableSetupError, match="0002"):
        old.leases.list()


def test_the_holder_of_a_lease_loses_it_to_a_schema_that_excludes_it(
    old: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "CHECK_SECONDS", 0.0)
    catalog = Catalog(old.database.engine.url.render_as_string(hide_password=False))
    with catalog.leases.acquire("a/merge", ttl=3) as lease:
        stamp(old.database, "0003_0002")
        until(lambda: lease.lost)
        with pytest.raises(LeaseLostError, match="0002"):
            lease.check()
    catalog.close()


@pytest.mark.usefixtures("newer_migrations")
def test_a_migration_does_not_wait_long_for_a_table_that_is_in_use(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_TABLE_LOCK_SECONDS", 0.05)
    catalog = Catalog(empty_postgres_url)
    catalog.migrate()
    stamp(
        catalog.database,
        "0001",
        "ALTER TABLE managed_tables DROP COLUMN contact",
        "DROP TABLE audits",
    )
    with catalog.database.engine.connect() as holder:
        holder.execute(text("SELECT * FROM managed_tables"))
        with pytest.raises(StoreUnavailableError):
            catalog.migrate()
        assert revision_of(catalog.database) == "0001"
    catalog.migrate()
    assert revision_of(catalog.database) == "0002_0001"
    catalog.close()


class Version:
    """Commands of a version of memwal: this one, or the next, which is a copy in ``folder``."""

    def __init__(self, url: str, folder: Path, *, is_next: bool = False) -> None:
        folder.mkdir()
        self._cwd = folder
        if is_next:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(PACKAGE, folder / "memwal", ignore=ignored)
            head = folder / "memwal" / "catalog" / "models.py"
            head.write_text(head.read_text().replace('"0001"', '"0002_0001"'))
            for name, (place, line) in ADDED.items():
                file = folder / "memwal" / name
                before, found, after = file.read_text().partition(place)
                assert found
                file.write_text(before + line + found + after)
            add_migration(folder / "memwal" / "catalog" / "migrations")
        paths = filter(None, (str(folder) if is_next else "", *sys.path))
        self._env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "MEMWAL_CATALOG_URL": url,
            "MEMWAL_CATALOG_SNAPSHOT": str(folder.parent / "snapshot.json"),
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = (sys.executable, "-m", "memwal.cli.commands.app", *arguments)
        return subprocess.Popen(command, env=self._env, cwd=self._cwd)

    def run(self, *arguments: str) -> None:
        assert self.start(*arguments).wait() == 0


@pytest.mark.slow
def test_fleets_merge_before_during_and_after_an_upgrade_and_a_roll_back(
    each_empty_url: str, tmp_path: Path
) -> None:
    this = Version(each_empty_url, tmp_path / "this")
    newer = Version(each_empty_url, tmp_path / "newer", is_next=True)
    catalog = Catalog(each_empty_url)
    catalog.migrate()
    tables = {}
    for name in ("a", "b"):
        tables[name] = memwal.create(
            tmp_path / name, SCHEMA, primary_key=["id"], region_spec=memwal.RegionSpec.unsharded()
        )
    policy = ("-p", "merge_at_generations=1", "-p", "poll_seconds=1")
    this.run("catalog", "register", "a", str(tmp_path / "a"), *policy)
    written = dict.fromkeys(tables, 0)
    fleets: list[subprocess.Popen[bytes]] = []

    def merges(name: str) -> None:
        """Write, and wait until a merge has served what was written."""
        with tables[name].writer() as writer:
            writer.upsert(numbered(written[name], 10, n=1))
            writer.flush()
        written[name] += 10
        until(lambda: tables[name].status().base_rows == written[name])

    def end(fleet: subprocess.Popen[bytes]) -> None:
        fleets.remove(fleet)
        fleet.send_signal(signal.SIGTERM)
        assert fleet.wait() == 0

    def start(version: Version) -> subprocess.Popen[bytes]:
        fleets.append(version.start("fleet", "run", "--every", "0.2"))
        return fleets[-1]

    try:
        old = start(this)
        merges("a")
        migration = newer.start("catalog", "migrate")
        while migration.poll() is None:
            merges("a")
        assert migration.returncode == 0
        assert revision_of(catalog.database) == "0002_0001"
        newer.run("catalog", "register", "b", str(tmp_path / "b"), *policy)
        for name in tables:
            merges(name)
        new = start(newer)
        end(old)
        for name in tables:
            merges(name)
        # The roll back.
        this.run("catalog", "migrate")
        old = start(this)
        end(new)
        for name in tables:
            merges(name)
        end(old)
    finally:
        for fleet in fleets:
            fleet.kill()
            fleet.wait()
    runs = catalog.runs(limit=1000)
    assert {run.state for run in runs} == {RunState.SUCCEEDED}
    assert revision_of(catalog.database) == "0002_0001"
    found = read_snapshot(tmp_path / "snapshot.json")
    assert [(table.name, table.problem) for table in found] == [("a", None), ("b", None)]
    for name, table in tables.items():
        assert table.count_rows() == written[name]
    catalog.close()
