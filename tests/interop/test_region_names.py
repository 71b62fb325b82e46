"""Regions whose ids another client has chosen: adopted, or refused before a row is acknowledged."""

import uuid
from pathlib import Path
from typing import Any
from uuid import UUID

import lance
import lancedb
import pyarrow as pa
import pytest
from lancedb import LsmWriteSpec
from support.data.merging import Merge
from support.data.tables import SCHEMA, base_state, keys, rows, state
from support.oracles.native import everything

import memwal
from memwal import resharding
from memwal.errors import InvalidInputError, RegionLostError, RegionSealedError, TableSetupError
from memwal.format.paths import MEM_WAL_DIR
from memwal.format.region_manifest import RegionStatus
from memwal.jobs.job import JobResult
from memwal.jobs.merge import commit as merge_commits
from memwal.jobs.merge.picker import Candidate, RegionSelection
from memwal.jobs.verify import verify
from memwal.lsm.region_places import RegionPlaces, router_in_force
from memwal.lsm.wal.claim import claim_region, seal_region
from memwal.region.manifest_store import discover_regions, read_manifests
from memwal.region.router import UNSHARDED_ID, bucket_region_id
from memwal.region.spec import RegionSpec
from memwal.spark.source.partition_reader import read_partition
from memwal.spark.source.scan_plan import ReadOptions, plan_load
from memwal.writer import open_regions

ONE_REGION = {
    "unsharded": ({"unsharded": True}, ()),
    "one bucket": ({"bucket_column": "id", "num_buckets": 1}, (("bucket", bytes(4)),)),
}
BUCKETS = {"bucket_column": "id", "num_buckets": 4}
IDENTITY = {"identity_column": "id"}
FIRST: dict[int, int | None] = {1: 0, 2: 0}


def table_of_lance(folder: Path, **spec: Any) -> memwal.Table:
    """A table that pylance made."""
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = SCHEMA.set(0, SCHEMA.field(0).with_metadata(key))
    uri = str(folder / "theirs.lance")
    lance.write_dataset(rows(FIRST).cast(schema), uri).initialize_mem_wal(**spec)
    return memwal.open(uri)


def put(table: memwal.Table, region_id: UUID, values: dict[int, int | None]) -> UUID:
    """Upsert and flush with Lance's writer, into a region of any name."""
    native = lance.dataset(table.uri)
    with native.mem_wal_writer(str(region_id)) as writer:
        writer.put(rows(values).cast(native.schema))
    return region_id


def regions(table: memwal.Table) -> set[UUID]:
    return set(discover_regions(table.location.store))


@pytest.mark.parametrize("kind", ONE_REGION)
def test_the_only_region_is_adopted(tmp_path: Path, kind: str, merge: Merge) -> None:
    table = table_of_lance(tmp_path, **ONE_REGION[kind][0])
    theirs = put(table, uuid.uuid4(), {1: 1, 2: 1})
    with table.writer() as writer:
        writer.upsert(rows({1: 2, 3: 2}))
        writer.delete(keys(2))
        assert set(writer.claims()) == {theirs}
    assert regions(table) == {theirs}
    assert state(table) == {1: 2, 3: 2}
    assert everything(table)
    assert table.lookup([1, 2, 3]).to_table().column("n").to_pylist() == [2, 2]
    put(table, theirs, {1: 3})
    merge(table)
    assert base_state(table) == {1: 3, 3: 2}
    table.upsert(rows({3: 4}))
    assert regions(table) == {theirs}
    assert verify(table.location).findings == ()
    assert theirs in table.region_ids()


def test_a_region_that_records_its_values_is_adopted(tmp_path: Path) -> None:
    """As the specification has it: a random id, and the values in the manifest."""
    table = memwal.create(tmp_path / "t.lance", SCHEMA, primary_key="id", region_spec="bucket:id:4")
    (assignment, part), *_ = router_in_force(table.base()).route(rows({1: 1}))
    theirs = uuid.uuid4()
    store = table.location.store
    claim_region(store, theirs, spec_id=1, region_fields=assignment.field_values)
    table.upsert(part)
    assert regions(table) == {theirs}
    table.upsert(rows(dict.fromkeys(range(20), 2)))
    assert regions(table) - {theirs} == {bucket_region_id(n) for n in range(4)} - {
        assignment.region_id
    }
    assert state(table) == dict.fromkeys(range(20), 2)
    assert table.lookup(list(range(20))).to_table().num_rows == 20


@pytest.mark.parametrize("spec", [BUCKETS, IDENTITY], ids=["buckets", "identity"])
def test_a_region_of_unknown_rows_is_refused(tmp_path: Path, spec: dict[str, Any]) -> None:
    table = table_of_lance(tmp_path, **spec)
    theirs = put(table, uuid.uuid4(), {1: 1, 2: 1})
    with pytest.raises(TableSetupError, match=str(theirs)):
        table.writer()
    assert regions(table) == {theirs}
    assert {f.code for f in verify(table.location).findings} == {"region-place-unknown"}
    memwal.retire_region(table.uri, theirs)
    assert base_state(table) == {1: 1, 2: 1}
    table.upsert(rows({1: 2, 2: 2}))
    table.merge()
    assert base_state(table) == {1: 2, 2: 2}
    assert verify(table.location).findings == ()


def test_identity_regions_of_lancedb_are_not_unknown(tmp_path: Path) -> None:
    database = lancedb.connect(str(tmp_path))
    theirs = database.create_table("theirs", rows(FIRST))
    theirs.set_unenforced_primary_key("id")
    theirs.set_lsm_write_spec(LsmWriteSpec.identity("id"))
    upsert = theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    upsert.execute(rows({1: 1}))
    theirs.close_lsm_writers()
    table = memwal.open(str(tmp_path / "theirs.lance"))
    before = regions(table)
    table.upsert(rows({1: 2, 2: 2}))
    assert before < regions(table)
    assert len(regions(table)) == 2
    assert verify(table.location).findings == ()


def two_regions(table: memwal.Table) -> tuple[UUID, UUID]:
    """Two regions of pylance that have a key in common."""
    return put(table, uuid.uuid4(), {1: 1, 2: 1}), put(table, uuid.uuid4(), {1: 2, 3: 2})


@pytest.mark.parametrize("kind", ONE_REGION)
def test_two_regions_for_the_same_rows_are_refused(tmp_path: Path, kind: str) -> None:
    table = table_of_lance(tmp_path, **ONE_REGION[kind][0])
    first, second = two_regions(table)
    with pytest.raises(TableSetupError, match=rf"{first}.*{second}|{second}.*{first}"):
        table.writer()
    found = {(f.code, f.region) for f in verify(table.location).findings}
    assert {code for code, _ in found} == {"region-values-repeated", "key-in-two-regions"}
    assert {("key-in-two-regions", region) for region in (first, second)} < found
    # Every read shows one row of the key, and the same.
    shown = state(table)
    assert shown.keys() == {1, 2, 3}
    looked_up = table.lookup([1, 2, 3]).to_table()
    assert state(looked_up) == shown


def test_partitions_of_spark_show_what_a_scan_shows(tmp_path: Path) -> None:
    table = table_of_lance(tmp_path, unsharded=True)
    first, _ = two_regions(table)
    with table.writer(region=first) as writer:
        writer.upsert(rows({3: 7}))
        for fresh in (False, True):
            options = ReadOptions(uri=table.uri, partitions=3, fresh=fresh)
            plan = plan_load(table.location, options, columns=None)
            batches = [b for part in plan.partitions for b in read_partition(plan, part)]
            shown = state(table.fresh() if fresh else table)
            assert state(pa.Table.from_batches(batches, plan.schema)) == shown
        assert shown.keys() == {1, 2, 3}
        writer.abort()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_merge_holds_regions_that_share_a_key(
    tmp_path: Path, merge: Merge, order: tuple[int, int]
) -> None:
    table = table_of_lance(tmp_path, unsharded=True)
    both = two_regions(table)
    result = merge(table)
    assert {region.region_id for region in result.skipped_regions} == {str(r) for r in both}
    assert all(str(other) in str(result.warnings) for other in both)
    assert base_state(table) == FIRST
    # A person knows which rows are older.
    older, newer = (both[n] for n in order)
    memwal.retire_region(table.uri, older)
    merge(table)
    newest = {1: both.index(newer) + 1, 2: 1, 3: 2}
    assert base_state(table) == newest
    assert verify(table.location).findings == ()
    table.upsert(rows({1: 9}))
    assert regions(table) == set(both)
    assert read_manifests(table.location.store)[older].status == RegionStatus.SEALED
    assert state(table)[1] == 9


def test_two_mergers_of_regions_that_share_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them planned before the other region was flushed; both insert the key."""
    table = table_of_lance(tmp_path, unsharded=True)
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    selections = []
    for number in (1, 2):
        region_id = put(table, uuid.uuid4(), {7: number})
        (generation,) = read_manifests(table.location.store)[region_id].flushed
        found = Candidate(generation.generation, generation.path, 0)
        selections.append(RegionSelection(region_id, (found,)))
    first, second = selections
    merge_insert = lance.LanceDataset.merge_insert

    def late(dataset: lance.LanceDataset, on: list[str]) -> Any:
        monkeypatch.setattr(lance.LanceDataset, "merge_insert", merge_insert)
        merge_commits.merge_commit(table.location, [second], attempts=5)
        return merge_insert(dataset, on)

    monkeypatch.setattr(lance.LanceDataset, "merge_insert", late)
    merge_commits.merge_commit(table.location, [first], attempts=5)
    assert base_state(table) == {**FIRST, 7: 1}


def test_regions_without_a_key_in_common_are_merged(tmp_path: Path, merge: Merge) -> None:
    table = table_of_lance(tmp_path, unsharded=True)
    put(table, uuid.uuid4(), {1: 1})
    put(table, uuid.uuid4(), {2: 2, 5: 2})
    assert not merge(table).warnings
    assert base_state(table) == {1: 1, 2: 2, 5: 2}


def test_a_plan_names_the_regions_that_are_held(tmp_path: Path) -> None:
    table = table_of_lance(tmp_path, unsharded=True)
    first, _ = two_regions(table)
    assert {decision.reason.value for decision in table.explain_merge().decisions} == {
        "region_held"
    }
    # A scheduler names the regions that are due: that decides nothing.
    (held,) = table.merge(regions=[first]).skipped_regions
    assert held.region_id == str(first)
    assert base_state(table) == FIRST


def test_a_region_that_is_sealed_and_not_merged(tmp_path: Path) -> None:
    """Rows of a new region could be merged before those of the sealed one."""
    table = table_of_lance(tmp_path, unsharded=True)
    theirs = put(table, uuid.uuid4(), {1: 1})
    seal_region(table.location.store, theirs)
    with pytest.raises(TableSetupError, match=str(theirs)):
        table.writer()
    assert regions(table) == {theirs}
    table.merge()
    table.upsert(rows({1: 2}))
    assert state(table) == {1: 2, 2: 0}


def test_two_regions_are_retired_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process died between the seal and the merge of the first one."""
    table = table_of_lance(tmp_path, unsharded=True)
    both = two_regions(table)
    with monkeypatch.context() as patched:
        patched.setattr(resharding, "merge", lambda *_: JobResult(job="merge", table="", version=0))
        for region_id in both:
            memwal.retire_region(table.uri, region_id)
    with pytest.raises(TableSetupError):
        table.writer()
    assert len(table.merge().skipped_regions) == 2
    memwal.retire_region(table.uri, both[1])
    memwal.retire_region(table.uri, both[0])
    assert base_state(table) == {1: 1, 2: 1, 3: 2}
    table.upsert(rows({1: 9}))
    assert state(table) == {1: 9, 2: 1, 3: 2}


def test_regions_that_are_written_by_hand_share_a_key(tmp_path: Path, merge: Merge) -> None:
    table = table_of_lance(tmp_path)
    both = two_regions(table)
    assert {region.region_id for region in merge(table).skipped_regions} == {str(r) for r in both}
    memwal.retire_region(table.uri, both[1])
    merge(table)
    assert base_state(table) == {1: 1, 2: 1, 3: 2}


def test_a_writer_of_a_region_by_name(tmp_path: Path) -> None:
    table = table_of_lance(tmp_path, unsharded=True)
    first, second = two_regions(table)
    with table.writer(region=second) as writer:
        writer.upsert(rows({3: 9}))
    assert regions(table) == {first, second}
    assert state(table)[3] == 9
    divided = table_of_lance(tmp_path / "divided", **BUCKETS)
    with pytest.raises(TableSetupError):
        divided.writer(region=second)


def test_another_client_makes_a_region_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the regions and the first manifest of our own."""
    table = table_of_lance(tmp_path, unsharded=True)
    theirs = uuid.uuid4()
    writer = table.writer()
    make = open_regions.RegionWriter

    def late(*arguments: Any, **options: Any) -> Any:
        put(table, theirs, {1: 1})
        return make(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(open_regions, "RegionWriter", late)
        with pytest.raises(RegionSealedError, match=str(theirs)):
            writer.upsert(rows({1: 2}))
    writer.abort()
    assert state(table) == {1: 1, 2: 0}
    sealed = read_manifests(table.location.store)[UNSHARDED_ID]
    assert sealed.status == RegionStatus.SEALED
    table.upsert(rows({1: 2}))
    assert state(table) == {1: 2, 2: 0}
    assert regions(table) == {UNSHARDED_ID, theirs}


@pytest.mark.parametrize(("merged", "others"), [(False, False), (True, True)])
def test_an_adopted_region_that_is_gone_is_not_begun_anew(
    tmp_path: Path, merged: bool, others: bool
) -> None:
    """Its disk may not be mounted: a new region would get rows of the same keys."""
    table = table_of_lance(tmp_path, unsharded=True)
    theirs = put(table, uuid.uuid4(), {1: 1})
    table.upsert(rows({1: 2}))
    if merged:
        table.merge()
    away = tmp_path / "away"
    folder = Path(table.uri) / MEM_WAL_DIR / str(theirs)
    folder.rename(away)
    if others:
        # Something is left of the regions: only this one is missing.
        (folder.parent / "file").touch()
    for _ in range(2):
        with pytest.raises(RegionLostError, match=str(theirs)):
            table.upsert(rows({1: 3}))
    assert regions(table) == set()
    away.rename(folder)
    table.upsert(rows({1: 4}))
    assert regions(table) == {theirs}
    assert state(table) == {1: 4, 2: 0}


def test_retiring_a_region_that_does_not_exist(tmp_path: Path) -> None:
    table = table_of_lance(tmp_path, unsharded=True)
    with pytest.raises(InvalidInputError):
        memwal.retire_region(table.uri, uuid.uuid4())
    region_id = put(table, uuid.uuid4(), {1: 1})
    memwal.retire_region(table.uri, region_id)
    memwal.retire_region(table.uri, region_id)
    assert base_state(table) == {1: 1, 2: 0}


def test_places_of_regions_of_several_specs(tmp_path: Path) -> None:
    """A change of the spec merges the regions of the earlier one first."""
    table = table_of_lance(tmp_path, unsharded=True)
    theirs = put(table, uuid.uuid4(), {1: 1})
    memwal.add_region_spec(table.uri, RegionSpec.bucket("id", 2))
    table.upsert(rows({1: 2, 2: 2}))
    assert theirs in regions(table)
    manifests = read_manifests(table.location.store)
    places = RegionPlaces(table.base())
    assert places.rivals(filter(places.is_pending, manifests.values())) == []
    assert verify(table.location).findings == ()
    assert pa.types.is_int64(table.schema.field("id").type)
