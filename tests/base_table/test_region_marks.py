"""What is known of regions outside of their folders, and who writes it when."""

import shutil
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import lance
import pytest
from support.data.tables import (
    REGION,
    MakeTable,
    folder,
    generations,
    merged,
    rows,
    state,
)
from support.faults.collecting import collect
from support.oracles import native
from support.stores.faulty_store import FaultyStore, FaultyStores, Killed

import memwal
from memwal.base_table.region_marks import (
    RegionMark,
    raise_marks,
    read_mark,
    read_marks,
    write_marks,
)
from memwal.errors import InvalidInputError, StoreAccessError
from memwal.format.paths import (
    REGION_MARKS_DIR,
    parse_region_mark_key,
    region_mark_key,
    region_marks_dir,
)
from memwal.lsm.wal.claim import claim_region
from memwal.region.manifest_store import RegionManifestStore

MARK = f"{REGION_MARKS_DIR}/*"
SMALL = {"divide_bytes": 1 << 40}
DIVIDED = {"divide_bytes": 0, "max_tasks": 2}


def names(store: FaultyStore, region_id: UUID = REGION) -> list[str]:
    """Names of a region's marks."""
    return sorted(info.key.rpartition("/")[2] for info in store.list(region_marks_dir(region_id)))


class TestKeys:
    def test_there_and_back(self) -> None:
        key = region_mark_key(REGION, 2, 1 << 32, 7)

        assert parse_region_mark_key(key) == (REGION, (2, 1 << 32, 7))

    @pytest.mark.parametrize("name", ["1-1", "0-1-1", "1-0-1", "01-1-1", "1-1-1.tmp", "1-1--1"])
    def test_other_names_are_no_marks(self, name: str) -> None:
        assert parse_region_mark_key(f"{region_marks_dir(REGION)}/{name}") is None

    @pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, -1), (1, 1, 1 << 63)])
    def test_numbers_out_of_range_are_refused(self, numbers: tuple[int, int, int]) -> None:
        with pytest.raises(InvalidInputError):
            region_mark_key(REGION, *numbers)


class TestMarks:
    def test_the_largest_holds(self, store: FaultyStore) -> None:
        other = uuid4()
        for mark in (RegionMark(1, 1, 9), RegionMark(2, 1 << 32, 3), RegionMark(1, 1, 10)):
            write_marks(store, {REGION: mark, other: RegionMark()})

        assert read_marks(store) == {REGION: RegionMark(2, 1 << 32, 3), other: RegionMark()}
        assert read_mark(store, REGION) == RegionMark(2, 1 << 32, 3)
        assert read_mark(store, uuid4()) is None

    def test_twice_is_once(self, store: FaultyStore) -> None:
        for _ in range(2):
            write_marks(store, {REGION: RegionMark(merged=3)})

        assert names(store) == ["1-1-3"]

    def test_only_what_is_behind_is_raised(self, store: FaultyStore) -> None:
        new, ahead, behind = uuid4(), uuid4(), uuid4()
        marks = {ahead: RegionMark(2, 5, 9), behind: RegionMark(2, 5, 7)}
        write_marks(store, marks)
        store.clear()

        found = raise_marks(store, marks, {new: 0, ahead: 8, behind: 8})

        assert found == {new: RegionMark(), ahead: RegionMark(2, 5, 9), behind: RegionMark(2, 5, 8)}
        assert read_marks(store) == found
        assert store.count("create", MARK) == 2

    def test_superseded_ones_are_deleted(self, store: FaultyStore) -> None:
        for number in range(4):
            write_marks(store, {REGION: RegionMark(merged=number)})

        assert read_marks(store, delete_superseded=True) == {REGION: RegionMark(merged=3)}
        assert names(store) == ["1-1-3"]


class TestClaim:
    def test_the_first_marks_the_region_after_its_manifest(self, store: FaultyStore) -> None:
        claim_region(store, REGION)

        created = [key for operation, key in store.calls if operation == "create"]
        assert [key.endswith("1-1-0") for key in created] == [False, False, True]
        assert names(store) == ["1-1-0"]

    def test_a_later_one_writes_no_other(self, store: FaultyStore) -> None:
        claim_region(store, REGION)
        write_marks(store, {REGION: RegionMark(era=4)})

        claim_region(store, REGION)

        assert names(store) == ["1-1-0", "4-1-0"]

    def test_that_died_before_the_mark_leaves_it_to_the_next(self, store: FaultyStore) -> None:
        store.kill("create", MARK)
        with pytest.raises(Killed):
            claim_region(store, REGION)
        assert RegionManifestStore(store, REGION).read_latest() is not None

        claim_region(store, REGION)

        assert names(store) == ["1-1-0"]

    def test_paused_before_the_mark_sets_nothing_back(self, store: FaultyStore) -> None:
        with store.pause("create", MARK).holding(claim_region, store, REGION):
            claim_region(store, REGION)
            write_marks(store, {REGION: RegionMark(2, 9, 1)})

        assert read_mark(store, REGION) == RegionMark(2, 9, 1)

    def test_without_the_right_to_mark_accepts_no_row(
        self, make_table: MakeTable, quick_faults: FaultyStores
    ) -> None:
        table = make_table()
        quick_faults.of(table.location).fail("create", MARK, StoreAccessError("forbidden"))
        with table.writer() as writer, pytest.raises(StoreAccessError):
            writer.upsert(rows({1: 1}))

        assert state(table) == {}


@pytest.mark.parametrize("how", [SMALL, DIVIDED], ids=["small", "divided"])
class TestMerge:
    def test_marks_what_it_merged(self, make_table: MakeTable, how: dict[str, int]) -> None:
        table = make_table()
        for number in range(3):
            table.upsert(rows({number: number}))
        table.merge(**how)

        assert read_marks(table.location.store) == {REGION: RegionMark(merged=3)}

    def test_that_died_before_the_mark_leaves_it_to_the_next(
        self, make_table: MakeTable, how: dict[str, int], quick_faults: FaultyStores
    ) -> None:
        table = make_table()
        table.upsert(rows({1: 1}))
        quick_faults.of(table.location).kill("create", MARK)
        with pytest.raises(Killed):
            table.merge(**how)
        assert merged(table) == 1
        assert read_marks(table.location.store) == {REGION: RegionMark()}

        table.merge(**how)

        assert names(table.location.store) == ["1-1-0", "1-1-1"]
        table.merge(**how)
        assert names(table.location.store) == ["1-1-1"]

    def test_of_an_earlier_era_changes_nothing(
        self, make_table: MakeTable, how: dict[str, int], quick_faults: FaultyStores
    ) -> None:
        table = make_table()
        table.upsert(rows({1: 1}))
        pause = quick_faults.of(table.location).pause("create", MARK)
        with pause.holding(table.merge, **how):
            write_marks(table.location.store, {REGION: RegionMark(era=2)})

        assert read_marks(table.location.store) == {REGION: RegionMark(era=2)}


def test_the_plan_marks_regions_of_other_clients(make_table: MakeTable) -> None:
    table = make_table()
    shard = native.writer(table)
    native.put(shard, table, rows({1: 1}))
    assert read_marks(table.location.store) == {}

    table.merge()

    assert read_marks(table.location.store) == {REGION: RegionMark()}
    shard.close()


def test_a_collection_marks_before_it_drops(
    make_table: MakeTable, quick_faults: FaultyStores
) -> None:
    table = make_table()
    table.upsert(rows({1: 1}))
    table.merge()
    shutil.rmtree(folder(table) / REGION_MARKS_DIR)
    quick_faults.of(table.location).kill("create", MARK)
    with pytest.raises(Killed):
        collect(table, 7 * 86400)
    assert generations(table) == [1]

    collect(table, 7 * 86400)

    assert generations(table) == []
    assert read_marks(table.location.store) == {REGION: RegionMark(merged=1)}


def test_a_copy_has_the_marks(make_table: MakeTable, tmp_path: Path) -> None:
    table = make_table()
    table.upsert(rows({1: 1}))
    table.merge()

    copy = table.copy_to(str(tmp_path / "copy.lance"))

    target = memwal.open(copy.table)
    assert read_marks(target.location.store) == {REGION: RegionMark(merged=1)}


def test_clients_of_lance_pass_over_marks(make_table: MakeTable) -> None:
    table = make_table()
    table.upsert(rows({1: 1}))
    table.merge()
    dataset = lance.dataset(table.uri)

    dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    dataset.optimize.compact_files()

    assert read_marks(table.location.store) == {REGION: RegionMark(merged=1)}
    assert state(lance.dataset(table.uri).to_table()) == {1: 1}
