"""Which generations somebody may still read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import lance
import pyarrow as pa
import pytest
from support.data.tables import REGION, MakeTable, folder, rows
from support.faults.collecting import DAY, collect

import memwal
from memwal.base_table.decoding import forget_decoded
from memwal.errors import MemWalError
from memwal.jobs.gc.history import StoredVersions
from memwal.jobs.gc.pins import read_pins
from memwal.jobs.options import GcOptions

AGES_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def now() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=1)


def removable(table: memwal.Table, cutoff: datetime) -> dict[UUID, int]:
    options = GcOptions(grace_seconds=0, retention_seconds=0)
    pins = read_pins(table.location, options, now=cutoff)
    return {region: pins.removable(region) for region in table.region_ids()}


@pytest.fixture
def history(table: memwal.Table) -> memwal.Table:
    """Three generations, each merged by a commit of its own."""
    with table.writer() as writer:
        for key in range(3):
            writer.upsert(rows({key: key}))
            writer.flush()
    table.merge(commit_bytes=1)
    return table


def test_all_that_is_merged_when_only_the_latest_version_counts(history: memwal.Table) -> None:
    assert removable(history, now()) == {REGION: 3}


def test_nothing_while_every_version_counts(history: memwal.Table) -> None:
    """The first version is older than MemWAL on this table, and stands for all after it."""
    assert removable(history, AGES_AGO).get(REGION, 0) == 0


def test_what_the_version_at_the_cutoff_has_merged(history: memwal.Table) -> None:
    stored = StoredVersions.list(history.location).manifests
    dated = {version: info.modified for version, info in stored.items()}
    for version, moment in dated.items():
        merged_then = lance.dataset(history.uri, version=version).count_rows()
        assert removable(history, moment).get(REGION, 0) == merged_then
        assert removable(history, moment + timedelta(microseconds=1)).get(REGION, 0) == merged_then


def test_a_region_without_merges_has_none(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
    assert removable(table, now()).get(REGION, 0) == 0


def test_regions_are_judged_one_by_one(make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    with table.writer() as writer:
        writer.upsert(rows(dict.fromkeys(range(20), 0)))
    first, second = table.region_ids()
    table.merge(regions=[first])
    table.base().dataset.tags.create("kept", table.base().version)
    table.merge()

    assert removable(table, now()) == {first: 1, second: 0}


def test_the_least_of_all_indexes_counts(make_table: MakeTable) -> None:
    table = make_table(maintained_indexes=["id_idx", "n_idx"])
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
    table.merge()
    table.base().dataset.optimize.optimize_indices(index_names=["id_idx"])
    assert removable(table, now()) == {REGION: 0}
    table.base().dataset.optimize.optimize_indices(index_names=["n_idx"])
    assert removable(table, now()) == {REGION: 1}


def test_a_tag_on_a_branch_counts_for_where_the_branch_began(history: memwal.Table) -> None:
    versions = {
        lance.dataset(history.uri, version=version).count_rows(): version
        for version in range(1, history.base().version + 1)
    }
    old = lance.dataset(history.uri, version=versions[1])
    branch = old.create_branch("side")
    branch.tags.create("on-side", ("side", branch.version))

    assert removable(history, now()) == {REGION: 1}


def test_a_protected_version_that_cannot_be_read_is_an_error(history: memwal.Table) -> None:
    base = history.base()
    base.dataset.tags.create("kept", base.version - 1)
    key = f"_versions/{2**64 - 1 - (base.version - 1):020d}.manifest"
    history.location.store.put(key, b"nonsense")

    with pytest.raises(MemWalError):
        removable(history, now())


def test_rows_that_cannot_be_decoded_pin_everything(make_table: MakeTable) -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("kind", kind)])
    table = make_table(schema)
    table.upsert({"id": range(100), "kind": [f"kind {n}" for n in range(100)]})
    table.merge()
    assert removable(table, now()) == {REGION: 1}
    file = max((folder(table) / "data").iterdir(), key=lambda path: path.stat().st_size)
    data = file.read_bytes()
    file.write_bytes(b"\xff" * 900 + data[900:])
    forget_decoded()
    assert removable(table, now()) == {REGION: 0}
    result = collect(table, DAY)
    assert result.metrics["generations_dropped"] == 0
    assert any(file.name in warning for warning in result.warnings)
    file.write_bytes(data)
    assert collect(table, DAY).metrics["generations_dropped"] == 1
