"""Managed tables: a catalog, tables in it with a backlog, and generations that cannot be read."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import text
from support.data.copied import copy_of
from support.data.tables import SCHEMA, folder, manifest, numbered

import memwal
from memwal.catalog import Catalog, Policy
from memwal.catalog.leases import job_resource
from memwal.catalog.models import LeaseRow
from memwal.format.paths import generation_dir

CALM = Policy(
    merge_at_generations=1,
    merge_at_age_seconds=1e9,
    snapshot_at_age_seconds=1e9,
    gc_interval_seconds=1e9,
)


@pytest.fixture
def managed(tmp_path: Path, catalog: Catalog) -> Callable[..., memwal.Table]:
    """Return a function that makes a table with a backlog of each of its regions, registered.

    ``managed("flights", buckets=2, generations=3, policy=...)``
    """

    def make(
        name: str = "flights",
        *,
        buckets: int = 2,
        generations: int = 3,
        policy: Policy = CALM,
    ) -> memwal.Table:
        def write(folder: Path) -> None:
            table = memwal.create(
                folder / "table",
                SCHEMA,
                primary_key=["id"],
                region_spec=memwal.RegionSpec.bucket("id", buckets),
            )
            with table.writer() as writer:
                for turn in range(generations):
                    writer.upsert(numbered(0, 20, n=turn))
                    writer.flush()

        shape = f"a managed table of {buckets} regions and {generations} generations"
        copy_of(shape, tmp_path / name, write, times=False)
        table = memwal.open(tmp_path / name / "table")
        catalog.register(name, uri=table.uri, policy=policy)
        return table

    return make


@pytest.fixture
def poison() -> Callable[[memwal.Table, UUID, int], Callable[[], None]]:
    """Return a function that takes a generation's folder away, and returns how to bring it back."""

    def take(table: memwal.Table, region: UUID, number: int) -> Callable[[], None]:
        (flushed,) = (f for f in manifest(table, region).flushed if f.generation == number)
        path = folder(table) / generation_dir(region, flushed.path)
        aside = folder(table).parent / f"aside-{region}-{number}"
        path.rename(aside)

        def bring_back() -> None:
            shutil.rmtree(path, ignore_errors=True)
            aside.rename(path)

        return bring_back

    return take


@pytest.fixture
def leave_lease(catalog: Catalog) -> Callable[..., None]:
    """Return a function that leaves a lease as a killed process does: nobody renews it.

    ``leave_lease("merge", timedelta(seconds=1), holder="dead:1", token=7)``, of table flights
    """

    def leave(job: str, ttl: timedelta, *, holder: str = "dead:1", token: int = 1) -> None:
        now = datetime.now(UTC)
        with catalog.database.writing() as session:
            session.add(
                LeaseRow(
                    resource=job_resource("flights", job),
                    token=token,
                    holder=holder,
                    ttl_seconds=ttl.total_seconds(),
                    acquired_at=now,
                    expires_at=now + ttl,
                )
            )

    return leave


@pytest.fixture
def try_now(catalog: Catalog) -> Callable[[], None]:
    """Return a function that lets every pause of the catalog end."""

    def go() -> None:
        with catalog.database.writing() as session:
            for name in ("skipped_regions", "failed_jobs"):
                session.execute(text(f"UPDATE {name} SET next_try_at = since"))

    return go
