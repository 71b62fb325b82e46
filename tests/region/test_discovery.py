"""Which regions a table has."""

from uuid import UUID, uuid4

import pytest
from support.stores.faulty_store import FaultyStore

from memwal.errors import CorruptDataError, StoreUnavailableError
from memwal.format.paths import manifest_key
from memwal.format.region_manifest import RegionManifest
from memwal.region.manifest_store import RegionManifestStore, discover_regions, read_manifests


def add_region(store: FaultyStore) -> UUID:
    region_id = uuid4()
    RegionManifestStore(store, region_id).commit(
        RegionManifest(region_id=region_id, version=1, writer_epoch=1)
    )
    return region_id


def test_an_empty_table_has_none(store: FaultyStore) -> None:
    assert discover_regions(store) == []
    assert read_manifests(store) == {}


def test_all_are_found_in_order(store: FaultyStore) -> None:
    made = sorted(add_region(store) for _ in range(40))

    assert discover_regions(store) == made
    assert list(read_manifests(store)) == made


def test_folders_with_other_names_are_not_regions(store: FaultyStore) -> None:
    region_id = add_region(store)
    for name in ("tmp", str(uuid4()).upper(), uuid4().hex, f"{uuid4()}x"):
        store.create(f"_mem_wal/{name}/manifest/x", b"")

    assert discover_regions(store) == [region_id]


def test_a_claim_that_died_before_its_manifest_is_left_out(store: FaultyStore) -> None:
    region_id, dead = add_region(store), uuid4()
    store.create(f"_mem_wal/{dead}/manifest/version_hint.json", b"{}")

    assert set(discover_regions(store)) == {region_id, dead}
    assert list(read_manifests(store)) == [region_id]


def test_only_the_wanted_regions_are_read(store: FaultyStore) -> None:
    first, second = add_region(store), add_region(store)
    store.clear()

    assert list(read_manifests(store, [second, uuid4()])) == [second]
    assert not [key for _, key in store.calls if str(first) in key]
    assert read_manifests(store, []) == {}


def test_a_region_that_cannot_be_read_is_not_left_out(store: FaultyStore) -> None:
    """A read without one region's generations would show deleted and outdated rows."""
    add_region(store)
    damaged = add_region(store)
    store.put(manifest_key(damaged, 1), b"\x00\x01")

    with pytest.raises(CorruptDataError):
        read_manifests(store)

    store.fail("get", f"*{damaged}/manifest/*.binpb")
    with pytest.raises(StoreUnavailableError):
        read_manifests(store)


def test_what_was_met_a_moment_ago_takes_two_requests(store: FaultyStore) -> None:
    region_id = add_region(store)
    first = read_manifests(store)
    store.clear()

    assert read_manifests(store, [region_id]) == first
    assert len(store.calls) == 2


def test_what_was_met_before_is_not_believed(store: FaultyStore) -> None:
    region_id = add_region(store)
    manifests = RegionManifestStore(store, region_id)
    read_manifests(store)

    later = [
        RegionManifest(region_id=region_id, version=version, writer_epoch=version)
        for version in (2, 3, 4)
    ]
    manifests.commit(later[0])
    assert read_manifests(store) == {region_id: later[0]}

    # Both it and its successor are trimmed before the next look.
    manifests.commit(later[1])
    manifests.commit(later[2])
    for version in (1, 2, 3):
        store.delete(manifest_key(region_id, version))
    assert read_manifests(store) == {region_id: later[2]}


def test_a_table_that_was_made_anew_is_read_anew(store: FaultyStore) -> None:
    region_id = add_region(store)
    old = RegionManifestStore(store, region_id)
    old.commit(RegionManifest(region_id=region_id, version=2, writer_epoch=2))
    read_manifests(store)

    store.delete_folder("_mem_wal")
    assert read_manifests(store, [region_id]) == {}
    again = RegionManifest(region_id=region_id, version=1, writer_epoch=7)
    old.commit(again)
    assert read_manifests(store) == {region_id: again}
