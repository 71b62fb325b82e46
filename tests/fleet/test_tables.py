from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.stores.s3_emulator import S3Emulator

import memwal
from memwal.catalog import Catalog, Policy
from memwal.errors import InvalidInputError
from memwal.fleet import DiscoveredTable, find_tables, register_tables

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def make(uri: str, **options: Any) -> memwal.Table:
    return memwal.create(uri, SCHEMA, primary_key="id", **options)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Three tables, one of them without MemWAL, and one that cannot be read."""
    root = tmp_path / "lake"
    make(str(root / "flights.lance"))
    make(str(root / "eu" / "2026" / "trips.lance"))
    lance.write_dataset(SCHEMA.empty_table(), str(root / "plain.lance"))
    (root / "torn.lance" / "_versions").mkdir(parents=True)
    (root / "empty").mkdir()
    return root


def test_tables_are_found_at_any_depth_and_told_apart(lake: Path) -> None:
    found = {Path(table.uri).name: table for table in find_tables(str(lake))}
    assert {name: table.mem_wal for name, table in found.items()} == {
        "flights.lance": True,
        "trips.lance": True,
        "plain.lance": False,
        "torn.lance": False,
    }
    assert found["trips.lance"].uri == str(lake / "eu" / "2026" / "trips.lance")
    assert "TableSetupError" in (found["torn.lance"].problem or "")
    assert found["plain.lance"].problem is None


def test_a_prefix_may_be_a_table_and_may_be_nothing(lake: Path) -> None:
    uri = str(lake / "flights.lance")
    assert find_tables(uri + "/") == [DiscoveredTable(uri=uri, mem_wal=True)]
    assert find_tables(str(lake / "nowhere")) == []


def test_depth_is_limited_and_what_is_hidden_stays_so(lake: Path) -> None:
    make(str(lake / ".trash" / "old.lance"))
    make(str(lake / "_staging" / "new.lance"))
    names = {Path(table.uri).name for table in find_tables(str(lake), depth=1)}
    assert names == {"flights.lance", "plain.lance", "torn.lance"}
    assert len(find_tables(str(lake))) == 4
    with pytest.raises(InvalidInputError, match="depth"):
        find_tables(str(lake), depth=-1)


@pytest.mark.slow
def test_a_bucket_is_searched_too(emulator: S3Emulator) -> None:
    bucket = emulator.create_bucket()
    for key in ("flights.lance", "deep/er/trips.lance"):
        make(f"s3://{bucket}/{key}", storage_options=emulator.storage_options)
    for prefix, expected in (
        (f"s3://{bucket}", ["deep/er/trips.lance", "flights.lance"]),
        (f"s3://{bucket}/deep", ["deep/er/trips.lance"]),
    ):
        found = find_tables(prefix, storage_options=emulator.storage_options)
        assert [table.uri for table in found] == [f"s3://{bucket}/{key}" for key in expected]
        assert all(table.mem_wal for table in found)


def test_new_tables_are_registered_once_and_not_maintained_unasked(
    lake: Path, catalog: Catalog
) -> None:
    catalog.register("known", uri=f"file://{lake / 'flights.lance'}")
    policy = Policy(merge_at_generations=7)
    options: dict[str, Any] = {"policy": policy, "owner": "air", "storage_options_ref": "/o.json"}
    found = register_tables(catalog, find_tables(str(lake)), **options)
    trips = next(table for table in found if table.mem_wal)
    assert {table.name for table in found if not table.mem_wal} == {"plain"}
    assert (trips.name, trips.enabled, trips.owner) == ("trips", False, "air")
    assert (trips.policy, trips.storage_options_ref) == (policy, "/o.json")
    assert register_tables(catalog, find_tables(str(lake)), **options) == []


def test_names_are_fit_for_the_catalog_and_free(catalog: Catalog) -> None:
    uris = ["/a/Daily Trips.lance", "/b/daily-trips.lance", "/c/daily_trips", "/d/__.lance"]
    uris += [f"/e/{'x' * 90}.lance", f"/f/{'x' * 90}.lance"]
    found = [DiscoveredTable(uri=uri, mem_wal=True) for uri in uris]
    added = register_tables(catalog, found, enabled=True)
    assert [table.name for table in added] == [
        "daily-trips",
        "daily-trips-2",
        "daily_trips",
        "table",
        "x" * 63,
        "x" * 58 + "-2",
    ]
    assert all(table.enabled for table in added)
