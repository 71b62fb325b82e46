"""What users of a PostgreSQL database can do with the grants of the guide to security."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import make_url, text
from support.data.postgres import PostgresServer
from support.docs.pages import ROOT

from memwal.catalog import Catalog, Policy
from memwal.catalog.database import Database
from memwal.catalog.leases import job_resource
from memwal.catalog.models import Base
from memwal.errors import StoreAccessError
from memwal.jobs.job import JobResult, SkippedRegion
from memwal.jobs.status import TableStatus

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "guides" / "security.md"
GRANTS = "\n".join(re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
REGION = "00000000-0000-0000-0000-000000000001"

ROLES = ("reader", "page", "runner", "registrar", "committer")

AsUser = Callable[[str], Catalog]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Return a server of these tests' own: its users are of all databases."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def granted(server: PostgresServer) -> str:
    """Return the URL of a catalog of which each kind of user has a member."""
    url = server.new_database()
    database = Database(url)
    database.migrate()
    with database.engine.begin() as connection:
        for statement in GRANTS.split(";\n"):
            if statement.strip():
                connection.execute(text(statement))
        for role in ROLES:
            connection.execute(text(f"CREATE USER one_{role} IN ROLE memwal_{role}"))
    database.engine.dispose()
    return url


@pytest.fixture
def as_user(granted: str) -> Iterator[AsUser]:
    """Return a function that opens the catalog as a user; the owner has no name."""
    opened = []

    def open_as(role: str = "") -> Catalog:
        url = make_url(granted)
        url = url.set(username=f"one_{role}") if role else url
        opened.append(Catalog(url.render_as_string(hide_password=False)))
        return opened[-1]

    owner = open_as()
    owner.register("flights", uri="/data/flights.lance", policy=Policy(merge_at_generations=2))
    owner.record_backlog("flights", STATUS)
    owner.backoffs.skip_regions(
        "flights", [SkippedRegion(region_id=REGION, generation=1, reason="torn")]
    )
    yield open_as
    for table in owner.list():
        owner.unregister(table.name)
    for catalog in opened:
        catalog.close()


STATUS = TableStatus(
    uri="/data/flights.lance",
    version=1,
    base_rows=0,
    regions=(),
    indexes=(),
    snapshot_age_seconds=None,
)


def read(catalog: Catalog) -> None:
    assert [table.name for table in catalog.list()] == ["flights"]
    assert [one.table for one in catalog.states()] == ["flights"]
    catalog.backlog_points("flights", since=datetime.now(UTC) - timedelta(days=1), most=10)
    catalog.runs()
    catalog.last_runs("flights")
    catalog.backoffs.skipped_regions()
    catalog.backoffs.failed_jobs()
    catalog.reports.due_jobs()
    catalog.reports.airflow()
    catalog.leases.list()


def write_rows(catalog: Catalog) -> None:
    with catalog.leases.acquire(job_resource("flights", "merge")) as lease:
        lease.check()
        with catalog.record_run("flights", "merge") as run:
            run.finish(JobResult(job="merge", table="/data/flights.lance", version=1))
    catalog.record_backlog("flights", STATUS)
    catalog.reports.record_due("flights", {"merge": "5 generations"})
    catalog.backoffs.record_failure("flights", "gc", "no")
    catalog.backoffs.clear_failure("flights", "gc")
    catalog.backoffs.skip_regions(
        "flights", [SkippedRegion(region_id=REGION, generation=1, reason="x")]
    )
    catalog.prune()


def retry(catalog: Catalog) -> None:
    catalog.backoffs.retry_regions("flights", [REGION])


def report(catalog: Catalog) -> None:
    for _ in range(2):
        catalog.reports.record_airflow([])


def redirect(catalog: Catalog) -> None:
    catalog.update("flights", uri="/data/elsewhere.lance")


def lend(catalog: Catalog) -> None:
    catalog.update("flights", storage_options_ref="airflow:other")


def add(catalog: Catalog) -> None:
    catalog.register("more", uri="/data/more.lance")


def hold_up(catalog: Catalog) -> None:
    catalog.leases.acquire(job_resource("flights", "gc")).release()


def forge_run(catalog: Catalog) -> None:
    catalog.start_run("flights", "merge")


ACTS: dict[Callable[[Catalog], None], set[str]] = {
    read: {"reader", "page", "runner", "registrar"},
    retry: {"page", "runner", "registrar"},
    report: {"page"},
    write_rows: {"runner", "registrar"},
    forge_run: {"runner", "registrar"},
    hold_up: {"runner", "registrar"},
    redirect: set(),
    lend: set(),
    add: {"registrar"},
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_who_may_do_what(as_user: AsUser, act: Callable[[Catalog], None], role: str) -> None:
    catalog = as_user(role)
    if role in ACTS[act]:
        act(catalog)
        return
    with pytest.raises(StoreAccessError) as caught:
        act(catalog)
    # SQLAlchemy's own message would repeat the statement and its values.
    shown = "".join(map(str, (caught.value, caught.value.__cause__)))
    assert "SELECT" not in shown
    assert "INSERT" not in shown


def test_who_decides_commits_sees_nothing_else(granted: str, as_user: AsUser) -> None:
    catalog = as_user("committer")
    with catalog.database.engine.begin() as connection:
        allowed: dict[str, Any] = {
            table: connection.scalar(text(f"SELECT has_table_privilege('{table}', 'SELECT')"))
            for table in Base.metadata.tables
        }
    assert [table for table, may in allowed.items() if may] == ["external_objects"]


@pytest.mark.parametrize("role", ROLES)
def test_nobody_but_the_owner_changes_the_schema(as_user: AsUser, role: str) -> None:
    catalog = as_user(role)
    for statement in (
        "CREATE TABLE x (n int)",
        "DROP TABLE leases",
        "UPDATE alembic_version SET version_num = '1'",
    ):
        with pytest.raises(StoreAccessError), catalog.database.writing() as session:
            session.execute(text(statement))
