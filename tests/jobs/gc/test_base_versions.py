"""What tags and branches hold: read at them, before and after every collection, by two readers."""

import shutil
from datetime import UTC, datetime, timedelta

import lance
import pytest
from lance.mem_wal import LsmScanner
from support.data.tables import (
    REGION,
    SCHEMA,
    MakeTable,
    flush,
    generations,
    region_folders,
    rows,
    state,
)
from support.faults.collecting import DAY, collect
from support.oracles.native import snapshots
from support.stores.faulty_store import FaultyStores

import memwal
from memwal.base_table.snapshot import open_base
from memwal.errors import TableSetupError
from memwal.jobs.gc import Reason, collect_garbage
from memwal.jobs.gc.pins import read_pins
from memwal.jobs.options import GcOptions
from memwal.storage.location import TableLocation

State = dict[int, int | None]


def everywhere(table: memwal.Table, *, times: int = 3) -> None:
    """Collect until nothing changes any more."""
    for step in range(times):
        assert collect(table, DAY * (step + 1)).warnings == ()


def native_at(table: memwal.Table, dataset: lance.LanceDataset) -> State:
    """What Lance's scanner shows of a version and all that was flushed and not merged in it."""
    version = int(dataset.version)
    base = (
        open_base(table.location, version=version)
        if dataset.uri == table.base().dataset.uri
        else open_base(memwal.open(dataset.uri).location, version=version)
    )
    return state(LsmScanner.from_snapshots(dataset, snapshots(table, base)).to_table())


@pytest.fixture
def merged_singly(table: memwal.Table) -> memwal.Table:
    """Four generations, each merged by a commit of its own."""
    flush(table, {1: 1}, {2: 2}, {1: 11}, {3: 3})
    table.merge(commit_bytes=1)
    return table


def version_with(table: memwal.Table, merged: int) -> int:
    """The first version in which so many generations are merged."""
    return next(
        version
        for version in range(2, table.base().version + 1)
        if max(open_base(table.location, version=version).details.merged.values(), default=0)
        == merged
    )


class TestTags:
    def test_are_read_as_before_by_both_readers(self, merged_singly: memwal.Table) -> None:
        table = merged_singly
        version = version_with(table, 2)
        table.base().dataset.tags.create("kept", version)
        tagged = lance.dataset(table.uri, version="kept")
        ours, native = state(table.at("kept")), native_at(table, tagged)
        assert ours == {1: 1, 2: 2}
        assert native == {1: 11, 2: 2, 3: 3}, "with the generations that were merged later"

        everywhere(table)

        assert generations(table) == [3, 4]
        assert state(table.at("kept")) == ours
        assert native_at(table, lance.dataset(table.uri, version="kept")) == native
        table.base().dataset.cleanup_old_versions(
            older_than=timedelta(0), error_if_tagged_old_versions=False
        )
        everywhere(table)
        assert native_at(table, lance.dataset(table.uri, version="kept")) == native
        assert state(table) == {1: 11, 2: 2, 3: 3}

        table.base().dataset.tags.delete("kept")
        everywhere(table)
        assert region_folders(table) == set()

    def test_the_oldest_of_many_decides(self, merged_singly: memwal.Table) -> None:
        table = merged_singly
        for merged in (1, 2, 3, 4):
            table.base().dataset.tags.create(f"t{merged}", version_with(table, merged))
        everywhere(table)
        for oldest in (1, 2, 3, 4):
            everywhere(table)
            assert generations(table) == list(range(oldest + 1, 5))
            table.base().dataset.tags.delete(f"t{oldest}")

    def test_hold_what_a_restored_version_needs_once_more(
        self, merged_singly: memwal.Table
    ) -> None:
        """Progress went back there, below that of an older version that has a tag as well."""
        table = merged_singly
        table.base().dataset.tags.create("older", version_with(table, 3))
        lance.dataset(table.uri, version=version_with(table, 1)).restore()
        table.base().dataset.tags.create("restored", table.base().version)
        native = native_at(table, lance.dataset(table.uri, version="restored"))
        assert native == {1: 11, 2: 2, 3: 3}
        table.restore(merge_again=True)
        table.merge()

        everywhere(table)

        assert generations(table) == [2, 3, 4]
        assert native_at(table, lance.dataset(table.uri, version="restored")) == native

    def test_from_before_mem_wal_hold_nothing(self, merged_singly: memwal.Table) -> None:
        table = merged_singly
        assert open_base(table.location, version=1).index is None
        table.base().dataset.tags.create("before", 1)
        table.base().dataset.tags.create("after", version_with(table, 3))
        everywhere(table)
        assert generations(table) == [4]

    def test_made_after_a_drop_still_hold_the_folders(self, merged_singly: memwal.Table) -> None:
        """Within the grace period, on a version that was out of use for longer than that."""
        table = merged_singly
        version = version_with(table, 2)
        dropped = collect(table, 620).metrics
        assert dropped["generations_dropped"] == 4
        assert dropped["folders"] == 0
        before = region_folders(table)

        table.base().dataset.tags.create("late", version)
        result = collect(table, 2 * DAY, explain=True)

        held = {d.what: d for d in result.decisions if d.reason is Reason.TAG}
        assert {name.rpartition("_")[2] for name in held} == {"3", "4"}
        assert region_folders(table) == set(held)
        assert len(before - set(held)) == 2
        table.base().dataset.tags.delete("late")
        everywhere(table)
        assert region_folders(table) == set()


class TestBranches:
    def test_are_read_as_before(self, merged_singly: memwal.Table) -> None:
        table = merged_singly
        version = version_with(table, 2)
        lance.dataset(table.uri, version=version).create_branch("side")
        side = table.base().dataset.checkout_version(("side", None))
        side.insert(rows({77: 77}))

        def branch() -> lance.LanceDataset:
            return table.base().dataset.checkout_version(("side", None))

        plain = state(branch().to_table())
        assert plain == {1: 1, 2: 2, 77: 77}

        everywhere(table)

        assert generations(table) == [3, 4]
        assert state(branch().to_table()) == plain
        stats = table.base().dataset.cleanup_old_versions(
            older_than=timedelta(0), error_if_tagged_old_versions=False
        )
        assert stats.old_versions > 0
        everywhere(table)
        assert generations(table) == [3, 4]
        assert state(branch().to_table()) == plain
        assert state(table) == {1: 11, 2: 2, 3: 3}

    def test_of_branches_and_their_tags_hold_by_where_the_first_began(
        self, merged_singly: memwal.Table
    ) -> None:
        table = merged_singly
        side = lance.dataset(table.uri, version=version_with(table, 3)).create_branch("side")
        side.insert(rows({77: 77}))
        side = table.base().dataset.checkout_version(("side", None))
        sub = side.create_branch("deeper/sub")
        sub.tags.create("on-sub", ("deeper/sub", sub.version))
        everywhere(table)
        assert generations(table) == [4]
        with pytest.raises(OSError, match="referenced"):
            table.base().dataset.branches.delete("side")

        table.base().dataset.tags.delete("on-sub")
        table.base().dataset.branches.delete("deeper/sub")
        everywhere(table)
        assert generations(table) == [4]
        table.base().dataset.branches.delete("side")
        everywhere(table)
        assert region_folders(table) == set()

    def test_keep_nothing_of_a_tag_with_the_same_version_number(
        self, merged_singly: memwal.Table
    ) -> None:
        """Versions of a branch are counted on from those of the line it left."""
        table = merged_singly
        newest = table.base().version
        side = table.base().dataset.create_branch("side")
        side.insert(rows({77: 77}))
        side = table.base().dataset.checkout_version(("side", None))
        side.tags.create("on-side", ("side", side.version))
        assert side.version == newest + 1
        flush(table, {5: 5})
        table.merge()
        everywhere(table)
        assert generations(table) == [5], "merged after the branch began"

    @pytest.mark.parametrize("name", ["side", "deeper/side"])
    def test_that_are_opened_as_tables_are_left_alone(
        self, merged_singly: memwal.Table, name: str
    ) -> None:
        """Their progress is that of the main line, and what they had flushed would look merged."""
        merged_singly.base().dataset.create_branch(name)
        branch = TableLocation(f"{merged_singly.uri}/tree/{name}")
        for dry_run in (True, False):
            with pytest.raises(TableSetupError, match=name):
                collect_garbage(branch, GcOptions(dry_run=dry_run))


class TestRequests:
    def test_each_manifest_that_is_kept_by_name_is_read_once(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table()
        for turn in range(12):
            flush(table, {turn: turn})
            table.merge()
            table.base().dataset.tags.create(f"tag-{turn}", table.base().version)
        base = table.base()
        store = faults.of(table.location)
        store.clear()
        options, later = GcOptions(retention_seconds=0), _later()

        pins = read_pins(table.location, options, now=later, base=base)

        assert pins.removable(REGION) == 1
        assert store.count("get", "_versions/*") == 11, store.calls
        assert store.count("list", "_versions") == 1
        assert store.count("get", "_refs/*") == 12
        assert len(store.calls) == 26, store.calls
        store.clear()
        read_pins(table.location, options, now=later, base=base)
        assert store.count("get", "_versions/*") == 0, "a manifest never changes"

    def test_no_old_manifest_is_read_without_tags_and_retention(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table()
        flush(table, {1: 1})
        table.merge()
        base = table.base()
        store = faults.of(table.location)
        store.clear()
        read_pins(table.location, GcOptions(), now=_later(), base=base)
        assert store.count("get") == 0

    def test_a_table_made_anew_is_not_the_old_one(self, make_table: MakeTable) -> None:
        """What is remembered of a manifest is of that object, not of its name."""
        table = make_table()
        flush(table, {1: 1}, {2: 2})
        table.merge(commit_bytes=1)
        table.base().dataset.tags.create("t", table.base().version - 1)
        flush(table, {3: 3})
        table.merge()
        options = GcOptions(retention_seconds=0)
        assert read_pins(table.location, options, now=_later()).removable(REGION) == 1
        shutil.rmtree(table.uri)
        again = memwal.create(table.uri, SCHEMA, primary_key=["id"], region_spec="unsharded")
        for turn in range(3):
            flush(again, {turn: turn})
            again.merge()
        again.base().dataset.tags.create("t", again.base().version - 1)
        options = GcOptions(retention_seconds=0)
        assert read_pins(again.location, options, now=_later()).removable(REGION) == 2


def _later() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)
