"""Where the repository's DAG file and plugins are, and a table that is registered."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from support.airflow.quiet import QUIET

import memwal
from memwal.catalog import Catalog, Policy

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Registered:
    """A table in a catalog of its own, and what Airflow must be told to find it."""

    table: memwal.Table
    catalog: Catalog
    env: dict[str, str]

    def write(self, *ids: int) -> None:
        """Write and flush these keys, as one generation per region."""
        self.table.upsert(pa.table({"id": pa.array(ids, pa.int64()), "v": ["x"] * len(ids)}))


@pytest.fixture
def registered(tmp_path: Path) -> Registered:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = memwal.create(
        str(tmp_path / "flights.lance"),
        schema,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        maintained_indexes=["id_idx"],
    )
    env = {
        "MEMWAL_CATALOG_URL": f"sqlite:///{tmp_path / 'catalog.db'}",
        "MEMWAL_CATALOG_SNAPSHOT": str(tmp_path / "tables.json"),
        **QUIET,
    }
    catalog = Catalog(env["MEMWAL_CATALOG_URL"], snapshot_path=env["MEMWAL_CATALOG_SNAPSHOT"])
    catalog.migrate()
    policy = Policy(
        schedule=None,
        merge_at_generations=2,
        merge_at_age_seconds=3600,
    )
    catalog.register("flights", uri=table.uri, policy=policy, owner="tests")
    return Registered(table=table, catalog=catalog, env=env)
