"""What is not found is not taken for empty: a disk that is not mounted, a folder that is gone."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import lancedb
import pytest
from lancedb import LsmWriteSpec
from support.data.tables import (
    REGION,
    MakeTable,
    base_state,
    folder,
    generations,
    keys,
    listing,
    manifest,
    manifest_versions,
    merged,
    rows,
    state,
)
from support.faults.collecting import collect
from support.oracles import native
from support.stores.faulty_store import FaultyStores

import memwal
from memwal.base_table.region_marks import RegionMark, write_marks
from memwal.errors import CorruptDataError, RegionLostError
from memwal.format.paths import (
    MEM_WAL_DIR,
    generation_dir,
    manifest_dir,
    manifest_key,
    region_dir,
    wal_dir,
)
from memwal.format.region_manifest import RegionManifest
from memwal.lsm.wal.claim import seal_region
from memwal.reader.sources import snapshot
from memwal.region.manifest_store import RegionManifestStore, forget_manifests
from memwal.region.router import bucket_region_id

WANTED = dict.fromkeys(range(10), 0) | dict.fromkeys(range(5), 1)
del WANTED[9]

# What is taken away of a table.
PARTS: dict[str, Callable[[memwal.Table], str]] = {
    "all regions": lambda _: MEM_WAL_DIR,
    "region": lambda _: region_dir(REGION),
    "manifests": lambda _: manifest_dir(REGION),
    "newest manifest": lambda table: manifest_key(REGION, manifest(table).version),
    "log": lambda _: wal_dir(REGION),
    "generation": lambda table: generation_dir(REGION, manifest(table).flushed[-1].path),
}

VERBS: dict[str, Callable[[memwal.Table], Any]] = {
    "scan": lambda table: table.scan().to_table(),
    "fresh scan": lambda table: table.fresh().scan().to_table(),
    "lookup": lambda table: table.lookup(keys(9, 3)).to_table(),
    "explain": lambda table: table.scan().explain(),
    "status": lambda table: table.status(),
    "upsert": lambda table: table.upsert(rows({100: 1})),
    "merge": lambda table: table.merge(),
    "explain merge": lambda table: table.explain_merge(),
    "snapshot": lambda table: table.build_snapshot(),
    "copy": lambda table: table.copy_to(f"{table.uri}-copy"),
    "recover": lambda table: table.recover(min_age_seconds=0),
    "checkpoint": lambda table: table.checkpoint(),
    "applied": lambda table: table.applied("source"),
}

# Verbs that do not read it, and what they rely on is there.
INDIFFERENT = {
    "log": {
        *("scan", "lookup", "explain", "status", "merge", "explain merge", "snapshot"),
        *("recover", "checkpoint", "applied"),
    },
    "generation": set(VERBS) - {"scan", "fresh scan", "lookup", "copy"},
}
CASES = [
    (part, verb) for part in PARTS for verb in VERBS if verb not in INDIFFERENT.get(part, set())
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a merged generation, one that is not merged, and rows in the log."""
    path = tmp_path_factory.mktemp("absence") / "table"
    table = memwal.create(str(path), rows({}).schema, primary_key=["id"], region_spec="unsharded")
    table.upsert(rows(dict.fromkeys(range(10), 0)))
    table.merge()
    with table.writer() as writer:
        writer.upsert(rows(dict.fromkeys(range(5), 1)))
        writer.delete(keys(9))
    writer = table.writer()
    writer.upsert(rows({7: 7}))
    writer.abort()
    # Superseded marks are deleted.
    table.merge(skip_regions=[REGION])
    return path


@pytest.fixture
def table(template: Path, tmp_path: Path) -> memwal.Table:
    path = tmp_path / "table"
    shutil.copytree(template, path)
    return memwal.open(str(path))


@contextmanager
def away(table: memwal.Table, key: str) -> Iterator[None]:
    """Take a part of a table away, and put an empty folder in its place if it is a folder."""
    path = folder(table) / key
    aside = path.parents[len(Path(key).parts) - 1].parent / "aside"
    path.rename(aside)
    if aside.is_dir():
        path.mkdir()
    yield
    if aside.is_dir():
        # Nothing was put there, over which the disk would be mounted.
        path.rmdir()
    aside.rename(path)


@pytest.mark.parametrize(("part", "verb"), CASES)
def test_what_is_missing_is_an_error(table: memwal.Table, part: str, verb: str) -> None:
    before = listing(folder(table))
    with away(table, PARTS[part](table)), pytest.raises(CorruptDataError, match=str(REGION)):
        VERBS[verb](table)

    assert listing(folder(table)) == before
    assert state(table) == WANTED
    assert state(table.fresh()) == WANTED | {7: 7}


@pytest.mark.parametrize("verb", ["scan", "fresh scan", "lookup"])
def test_a_region_that_is_back_when_it_is_missed(
    table: memwal.Table, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, looks = snapshot.read_manifests, []

    def read_manifests(*given: Any, **named: Any) -> dict[UUID, RegionManifest]:
        looks.append(given)
        with away(table, MEM_WAL_DIR) if len(looks) == 1 else nullcontext():
            return read(*given, **named)

    wanted = VERBS[verb](table)
    forget_manifests(table.location.store)
    monkeypatch.setattr(snapshot, "read_manifests", read_manifests)
    assert VERBS[verb](table).sort_by("id").equals(wanted.sort_by("id"))
    assert len(looks) == 2


@pytest.mark.parametrize("was_found", [False, True])
def test_a_region_that_was_claimed_since_a_first_read(
    make_table: MakeTable, was_found: bool
) -> None:
    """The marks that the process listed for this version of the base table do not have it."""
    table = make_table()
    assert state(table) == {}
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    if was_found:
        assert state(table.fresh()) == {1: 1}
    with away(table, MEM_WAL_DIR):
        for verb in ("scan", "fresh scan", "lookup"):
            with pytest.raises(RegionLostError, match=str(REGION)):
                VERBS[verb](table)
    writer.abort()


@pytest.mark.parametrize("part", [part for part in PARTS if part != "generation"])
def test_a_collection_deletes_nothing_of_what_is_left(table: memwal.Table, part: str) -> None:
    table.merge()
    before = listing(folder(table) / MEM_WAL_DIR)
    with away(table, PARTS[part](table)):
        if part == "all regions":
            with pytest.raises(RegionLostError, match=str(REGION)):
                collect(table, 86400 * 30)
        else:
            assert str(REGION) in "".join(collect(table, 86400 * 30).warnings)

    left = listing(folder(table) / MEM_WAL_DIR)
    assert left.keys() >= {key for key in before if "/wal/" in key or "_gen_2" in key}
    assert state(table) == WANTED


def test_a_recovery_reports_a_log_that_is_lost(table: memwal.Table) -> None:
    with away(table, wal_dir(REGION)):
        assert str(REGION) in "".join(table.recover(min_age_seconds=0).warnings)
    assert table.recover(min_age_seconds=0).metrics["recovered_rows"] == 1


def test_a_status_shows_a_log_that_is_lost(table: memwal.Table) -> None:
    """Also one whose entries are all flushed: what was written since, nobody knows."""
    with table.writer() as writer:
        writer.flush()
    with away(table, wal_dir(REGION)):
        (region,) = table.status().regions
        assert region.missing_wal_entry is not None
        with pytest.raises(CorruptDataError):
            table.upsert(rows({1: 2}))
        with pytest.raises(CorruptDataError):
            table.copy_to(f"{table.uri}-copy")


def test_a_version_of_the_base_table_is_read_without_regions(table: memwal.Table) -> None:
    version = table.base().version
    with away(table, MEM_WAL_DIR):
        assert state(table.at(version).scan().to_table()) == base_state(table)


def test_a_read_of_the_region_snapshot(table: memwal.Table) -> None:
    """Its generations are not found, and neither is the region."""
    table.build_snapshot()
    stale = table.at_most(timedelta(hours=1))
    with away(table, MEM_WAL_DIR):
        with pytest.raises(RegionLostError):
            stale.scan().to_table()
        with pytest.raises(RegionLostError):
            stale.lookup(keys(9, 3)).to_table()
    assert state(stale.scan().to_table()) == WANTED


def test_regions_that_are_sealed_abandoned_and_trimmed_are_no_loss(table: memwal.Table) -> None:
    with table.writer(replay=False) as writer:
        writer.claim()
    seal_region(table.location.store, REGION)
    table.merge()
    for days in (30, 60):
        collect(table, 86400 * days)
    assert min(manifest_versions(table)) > 1, "the history is trimmed"

    assert state(table) == state(table.fresh()) == WANTED
    assert table.status().regions[0].sealed
    assert table.recover(min_age_seconds=0).warnings == ()
    assert table.verify(quick=True).clean


def test_the_worst_story(make_table: MakeTable) -> None:
    """Rows that were acknowledged and flushed, a disk that is away, and comes back."""
    table = make_table()
    table.upsert(rows(dict.fromkeys(range(20), 0)))
    table.merge()
    with table.writer() as writer:
        writer.upsert(rows(dict.fromkeys(range(10), 1)))
        writer.delete(keys(18, 19))
    wanted = dict.fromkeys(range(18), 0) | dict.fromkeys(range(10), 1)
    with away(table, MEM_WAL_DIR):
        with pytest.raises(RegionLostError):
            table.upsert(rows({100: 1}))
        with pytest.raises(RegionLostError):
            table.merge()
        with pytest.raises(RegionLostError):
            collect(table, 86400 * 30)
        assert [finding.code for finding in table.verify().findings] == ["region-lost"]

    assert merged(table) == 1
    assert state(table) == wanted
    table.merge()
    collect(table, 86400 * 30)
    collect(table, 86400 * 60)
    assert state(table) == wanted
    assert table.verify().clean


class TestClaim:
    def test_of_a_new_region_makes_nothing_where_a_disk_belongs(
        self, make_table: MakeTable
    ) -> None:
        table = make_table(region_spec=memwal.RegionSpec.identity("id"))
        table.upsert(rows({1: 1}))
        with away(table, MEM_WAL_DIR), pytest.raises(RegionLostError):
            table.upsert(rows({2: 2}))

        table.upsert(rows({2: 2}))
        assert state(table) == {1: 1, 2: 2}

    def test_of_new_regions_at_the_same_time(
        self, make_table: MakeTable, quick_faults: FaultyStores
    ) -> None:
        """The mark of the other one is there, and its manifest was before."""
        table = make_table(buckets=2)
        store = quick_faults.of(table.location)
        with (
            store.pause("list", "_memwal_regions").holding(
                table.upsert, rows({1: 1, 2: 2, 3: 3, 4: 4})
            ) as slow,
            table.writer(region_ids=[bucket_region_id(0)]) as writer,
        ):
            writer.claim()
        assert slow.exception() is None
        assert state(table) == {1: 1, 2: 2, 3: 3, 4: 4}

    def test_of_a_region_that_another_client_named(self, make_table: MakeTable) -> None:
        table = make_table()
        named = uuid4()
        shard = native.writer(table, named)
        native.put(shard, table, rows({1: 1}))
        shard.close()
        table.merge()
        with away(table, region_dir(named)), pytest.raises(RegionLostError, match=str(named)):
            table.upsert(rows({1: 2}))
        table.upsert(rows({1: 2}))
        assert state(table) == {1: 2}

    def test_without_a_mark_but_with_progress(self, table: memwal.Table) -> None:
        shutil.rmtree(folder(table) / "_memwal_regions")
        with away(table, region_dir(REGION)), pytest.raises(RegionLostError):
            table.upsert(rows({1: 1}))

    def test_that_was_never_merged(self, make_table: MakeTable) -> None:
        table = make_table()
        table.upsert(rows({1: 1}))
        with away(table, region_dir(REGION)):
            for verb in ("upsert", "scan", "merge", "status"):
                with pytest.raises(RegionLostError):
                    VERBS[verb](table)
        assert state(table) == {1: 1}

    def test_of_another_region_goes_on(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        for _ in range(2):
            table.upsert(rows(dict.fromkeys(range(20), 0)))
        lost, other = bucket_region_id(0), bucket_region_id(1)
        with away(table, region_dir(lost)):
            with table.writer(region_ids=[other]) as writer:
                assert writer.claim() is None
            with pytest.raises(RegionLostError, match=str(lost)):
                table.scan().to_table()


def test_an_older_manifest_than_what_was_merged(
    table: memwal.Table, template: Path, tmp_path: Path
) -> None:
    """A region's folder of a backup beside a newer base table."""
    table.merge()
    shutil.rmtree(folder(table) / region_dir(REGION))
    backup = memwal.open(str(template))
    old = manifest(backup)
    first = RegionManifestStore(table.location.store, REGION)
    table.location.store.create(
        manifest_key(REGION, 1),
        RegionManifestStore(backup.location.store, REGION).read(1).encode(),
    )
    assert first.read_latest() is not None
    assert old.current_generation == 3
    for verb in ("scan", "lookup", "upsert", "merge", "status", "snapshot", "copy"):
        with pytest.raises(CorruptDataError, match=str(REGION)):
            VERBS[verb](table)


def test_an_earlier_incarnation_of_a_region(table: memwal.Table) -> None:
    write_marks(table.location.store, {REGION: RegionMark(era=2, first=1 << 32, merged=1)})

    for verb in ("scan", "fresh scan", "lookup", "upsert", "merge", "status", "snapshot", "copy"):
        with pytest.raises(CorruptDataError, match=str(1 << 32)):
            VERBS[verb](table)
    assert table.verify().findings[0].code == "region-earlier"
    assert str(REGION) in "".join(collect(table, 86400 * 30).warnings)
    assert generations(table) == [1, 2]


def test_a_region_that_is_merged_between_the_reads_is_not_lost(
    table: memwal.Table, quick_faults: FaultyStores
) -> None:
    """Its manifest, as it was read first, is older than the progress that is read after it."""
    store = quick_faults.of(table.location)
    table = memwal.open(table.uri)

    def flush_and_merge() -> None:
        native_free = memwal.open(table.uri)
        native_free.upsert(rows({8: 8}))
        native_free.merge()

    store.act("get", flush_and_merge, key="_mem_wal/*/manifest/*.binpb", after=True)

    assert state(table.scan().to_table()) in (WANTED | {7: 7, 8: 8}, WANTED)


def pylance_table(path: Path) -> memwal.Table:
    """A table in which only Lance's own writer wrote; a merge plan of ours has seen it."""
    table = memwal.create(str(path), rows({}).schema, primary_key=["id"], region_spec="unsharded")
    shard = native.writer(table)
    native.put(shard, table, rows(dict.fromkeys(range(5), 0)))
    shard.close()
    return table


def lancedb_table(path: Path) -> memwal.Table:
    """A table that LanceDB made and wrote to."""
    made = lancedb.connect(str(path)).create_table("t", rows(dict.fromkeys(range(5), 0)))
    made.set_unenforced_primary_key("id")
    made.set_lsm_write_spec(LsmWriteSpec.unsharded())
    upsert = made.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    upsert.execute(rows({1: 1}))
    made.close_lsm_writers()
    return memwal.open(str(path / "t.lance"))


@pytest.mark.parametrize("make", [pylance_table, lancedb_table])
@pytest.mark.parametrize("part", ["all regions", "region", "manifests", "log"])
def test_of_other_clients(make: Callable[[Path], memwal.Table], part: str, tmp_path: Path) -> None:
    table = make(tmp_path / "table")
    table.merge()
    wanted = dict.fromkeys(range(5), 0) | ({1: 1} if make is lancedb_table else {})
    with away(table, PARTS[part](table)):
        with pytest.raises(CorruptDataError, match=str(REGION)):
            table.upsert(rows({1: 2}))
        with pytest.raises(CorruptDataError, match=str(REGION)):
            table.fresh().scan().to_table()
        for verb in ("scan", "merge", "status") if part != "log" else ():
            with pytest.raises(CorruptDataError, match=str(REGION)):
                VERBS[verb](table)

    assert state(table.fresh()) == wanted
    table.upsert(rows({1: 2}))
    assert state(table) == wanted | {1: 2}


def test_a_read_costs_one_listing_for_a_version(
    table: memwal.Table, quick_faults: FaultyStores
) -> None:
    store = quick_faults.of(table.location)

    def listings(read: Callable[[], Any]) -> int:
        store.clear()
        read()
        return store.count("list", "_memwal_regions*")

    assert listings(lambda: table.scan().to_table()) == 1
    assert listings(lambda: table.scan().to_table()) == 0
    assert listings(lambda: table.lookup(keys(1)).to_table()) == 0
    table.merge()
    assert listings(lambda: table.scan().to_table()) == 1
    assert listings(table.status) == 1
    assert listings(lambda: table.at_most(timedelta(0)).scan().to_table()) == 0
