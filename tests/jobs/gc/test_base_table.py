"""What belongs to no region: index files, staged files, old versions of the base table."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import lance
import pytest
from support.data.tables import MakeTable, age, flush, folder, state
from support.faults.collecting import DAY, HOUR, collect
from support.stores.faulty_store import FaultyStores

import memwal
from memwal.base_table.commit import update_details
from memwal.base_table.refs import list_refs
from memwal.base_table.region_snapshot import read_snapshot
from memwal.errors import MemWalError
from memwal.format.memwal_index import IndexDetails
from memwal.jobs.gc import GarbageKind, Reason
from memwal.jobs.gc.base_table import collect_index_files
from memwal.jobs.gc.collector import GcContext
from memwal.jobs.gc.pins import Pins
from memwal.jobs.options import GcOptions, SnapshotOptions
from memwal.jobs.table.snapshot import build_snapshot

WEEK = GcOptions().index_grace_seconds


def indexes(table: memwal.Table) -> set[str]:
    """Folders of the table's indexes."""
    return set(table.location.store.list_folders("_indices"))


def leave_index(table: memwal.Table) -> str:
    """The rest of an index build that died."""
    name = str(uuid4())
    table.location.store.put(f"_indices/{name}/page_data.lance", b"x" * 100)
    table.location.store.put(f"_indices/{name}/part/page_data.lance", b"x" * 20)
    return name


@pytest.fixture
def indexed(make_table: MakeTable) -> memwal.Table:
    """A table whose index was extended twice, so that older versions name other files."""
    table = make_table(maintained_indexes=["id_idx"])
    for turn in range(3):
        flush(table, {turn: turn})
        table.merge()
        table.build_indexes()
    return table


class TestIndexFiles:
    def test_the_file_of_a_region_snapshot_stays_while_a_version_names_it(
        self, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=5, maintained_indexes=["id_idx"])
        flush(table, {key: key for key in range(20)})
        build_snapshot(table.location, SnapshotOptions(inline_regions=4))
        table.merge()
        table.build_indexes()
        # Lance has given the index of the MemWAL details other identities since: only the pointer
        # names the folder, after a clean-up of the other versions.
        for path in sorted((folder(table) / "_versions").glob("*.manifest"))[1:]:
            path.unlink()
        collect(table, WEEK + DAY)
        assert read_snapshot(table.location.store, table.base().details) is not None

    def test_that_no_version_names_go_when_they_are_old(self, indexed: memwal.Table) -> None:
        before = indexes(indexed)
        assert len(before) >= 3
        name = leave_index(indexed)
        assert collect(indexed, WEEK - HOUR).metrics["index_files"] == 0
        assert name in indexes(indexed)

        metrics = collect(indexed, WEEK + HOUR).metrics

        assert (metrics["index_files"], metrics["bytes_index_files"]) == (2, 120)
        assert indexes(indexed) == before
        assert not (folder(indexed) / "_indices" / name).exists()

    def test_that_an_old_version_names_stay(self, indexed: memwal.Table) -> None:
        before = indexes(indexed)
        collect(indexed, 100 * DAY)
        assert indexes(indexed) == before
        for version in (v["version"] for v in indexed.base().dataset.versions()):
            old = lance.dataset(indexed.uri, version=version)
            if any(index.name == "id_idx" for index in old.describe_indices()):
                assert old.to_table(filter="id = 0").num_rows == min(1, old.count_rows())

    @pytest.mark.parametrize("branch", ["side", "deep/er/side"])
    def test_that_only_a_branch_names_stay(self, indexed: memwal.Table, branch: str) -> None:
        """Its first version shares them; versions of the main line are cleaned up."""
        base = indexed.base().dataset
        side = base.create_branch(branch)
        side.insert(indexed.scan().to_table().slice(0, 0))
        shared = {
            segment.uuid
            for index in base.describe_indices()
            if index.name == "id_idx"
            for segment in index.segments
        }
        flush(indexed, {9: 9})
        indexed.merge()
        lance.dataset(indexed.uri).optimize.optimize_indices(num_indices_to_merge=100)
        now = {s.uuid for i in indexed.base().dataset.describe_indices() for s in i.segments}
        assert not {str(uuid) for uuid in shared} & {str(uuid) for uuid in now}
        for path in (folder(indexed) / "_versions").glob("*.manifest"):
            # As if the version that the branch started from had been cleaned up.
            if path.name != min(p.name for p in path.parent.glob("*.manifest")):
                path.unlink()
        decisions = collect_index_files(rehearsal(indexed, 100 * DAY))
        assert not {str(uuid) for uuid in shared} & {decision.what for decision in decisions}

    def test_of_a_build_that_commits_meanwhile_stay(
        self, faults: FaultyStores, indexed: memwal.Table
    ) -> None:
        """The versions are read after the files were listed."""
        store = faults.of(indexed.location)
        flush(indexed, {9: 9})
        indexed.merge()
        pause = store.pause("list", "_versions")

        def unnamed() -> set[str]:
            decisions = collect_index_files(rehearsal(indexed, 100 * DAY))
            return {decision.what for decision in decisions}

        with pause.holding(unnamed) as running:
            indexed.build_indexes()
        assert running.result() == set()

    def test_are_left_where_too_many_versions_would_have_to_be_read(
        self, indexed: memwal.Table
    ) -> None:
        name = leave_index(indexed)
        found = collect_index_files(rehearsal(indexed, 100 * DAY), max_versions=3)
        decisions = {d.what: d for d in found}
        assert decisions[name].reason is Reason.TOO_MANY_VERSIONS
        assert not any(decision.delete for decision in decisions.values())

    def test_are_left_where_a_version_cannot_be_read(self, indexed: memwal.Table) -> None:
        name = leave_index(indexed)
        oldest = max((folder(indexed) / "_versions").glob("*.manifest"))
        oldest.write_bytes(b"torn")
        result = collect(indexed, 100 * DAY)
        assert name in indexes(indexed)
        assert len(result.warnings) == 1

    def test_cost_two_listings_where_there_is_nothing(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table(maintained_indexes=["id_idx"])
        store = faults.of(table.location)
        store.clear()
        assert list(collect_index_files(rehearsal(table, 0))) == []
        assert store.count("*") <= 5, store.calls

    def test_and_lances_own_clean_up_do_not_meet(self, indexed: memwal.Table) -> None:
        name = leave_index(indexed)
        named = {str(s.uuid) for i in indexed.base().dataset.describe_indices() for s in i.segments}
        age(indexed, WEEK + HOUR, pattern="_indices/**/*")
        result = collect(indexed, version_retention_seconds=0, grace_seconds=0)
        assert result.warnings == ()
        assert result.metrics["base_versions"] > 3
        assert name not in indexes(indexed)
        assert indexes(indexed) <= named
        again = collect(indexed, WEEK + HOUR, version_retention_seconds=0, grace_seconds=0)
        assert again.metrics["index_files"] == 0
        assert state(indexed) == {0: 0, 1: 1, 2: 2}


class TestStagedFiles:
    NAMES = (
        "_versions/18446744073709551000.manifest-0b5d6f4e-9c1d-4a3d-8a53-0b5d6f4e9c1d",
        "_versions/.tmpAbCdEf",
        "_versions/18446744073709551000.manifest#1",
        "_versions/.0123456789abcdef.tmp",
        "data/part.lance#2",
        "_refs/.tmpAbCdEf",
    )

    @pytest.fixture
    def littered(self, table: memwal.Table) -> memwal.Table:
        flush(table, {1: 1})
        table.merge()
        for name in self.NAMES:
            path = folder(table) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"torn")
        return table

    def there(self, table: memwal.Table) -> set[str]:
        return {name for name in self.NAMES if (folder(table) / name).exists()}

    def test_go_when_they_are_old_and_are_counted(self, littered: memwal.Table) -> None:
        table = littered
        assert collect(table, DAY - HOUR).metrics["staging_files"] == 0
        assert self.there(table) == set(self.NAMES)
        planned = collect(table, DAY + HOUR, dry_run=True).metrics
        assert self.there(table) == set(self.NAMES)

        metrics = collect(table, DAY + HOUR).metrics

        assert self.there(table) == set()
        assert metrics["staging_files"] == planned["staging_files"] == len(self.NAMES)
        assert metrics["bytes_staging_files"] == 4 * len(self.NAMES)
        assert state(table) == {1: 1}

    def test_are_no_tags(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        tags = folder(table) / "_refs" / "tags"
        tags.mkdir(parents=True)
        for name in ("kept.json#1", ".tmpAbCdEf"):
            (tags / name).write_bytes(b"torn")
        assert list_refs(table.location) == []
        (tags / "kept.json").write_bytes(b"torn")
        (ref,) = list_refs(table.location)
        assert (ref.name, ref.version) == ("kept", None)

    def test_say_until_when_they_stay(self, littered: memwal.Table) -> None:
        result = collect(littered, explain=True)
        staged = [d for d in result.decisions if d.kind is GarbageKind.STAGING]
        assert {decision.what for decision in staged} == set(self.NAMES)
        assert {decision.reason for decision in staged} == {Reason.TOO_YOUNG}
        assert all(decision.until is not None for decision in staged)

    def test_nothing_else_in_the_folder_of_versions_goes(self, table: memwal.Table) -> None:
        names = ("_versions/notes.txt", "_versions/x.manifest-1", "_versions/12.manifest.lock/x")
        for name in names:
            table.location.store.put(name, b"x")
        collect(table, 100 * DAY)
        assert all(table.location.store.exists(name) for name in names)

    def test_a_commit_that_slept_for_longer_fails_and_changes_nothing(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        """Its staged manifest is gone when it wakes."""
        flush(table, {1: 1})
        version = table.base().version
        store = faults.of(table.location)
        pause = store.pause("get", "_versions/*.manifest?*")
        change = lambda base: with_region_count(base.details)  # noqa: E731
        with pause.holding(update_details, table.location, change) as committing:
            collect(table, 2 * DAY)
        error = committing.exception()
        assert error is None or isinstance(error, MemWalError)
        assert table.base().version == version + (error is None)
        assert state(table) == {1: 1}


class TestBaseVersions:
    def test_stay_unless_asked_for(self, indexed: memwal.Table) -> None:
        versions = len(indexed.base().dataset.versions())
        collect(indexed, 100 * DAY)
        assert len(indexed.base().dataset.versions()) == versions

    def test_go_with_the_retention_and_without_tags(self, indexed: memwal.Table) -> None:
        dataset = indexed.base().dataset
        tagged = int(dataset.version) - 2
        dataset.tags.create("kept", tagged)
        before = len(dataset.versions())
        none = collect(indexed, version_retention_seconds=0, retention_seconds=3600)
        assert none.metrics["base_versions"] == 0
        time.sleep(0.01)
        planned = collect(indexed, version_retention_seconds=0, grace_seconds=0, dry_run=True)
        assert len(indexed.base().dataset.versions()) == before

        done = collect(indexed, version_retention_seconds=0, grace_seconds=0)

        assert planned.metrics["base_versions"] == done.metrics["base_versions"] == before - 2
        remaining = {int(v["version"]) for v in indexed.base().dataset.versions()}
        assert remaining == {tagged, indexed.base().version}
        assert state(indexed) == {0: 0, 1: 1, 2: 2}
        assert lance.dataset(indexed.uri, version="kept").count_rows() == 2


def with_region_count(details: IndexDetails) -> IndexDetails:
    return replace(details, num_regions=7)


def rehearsal(table: memwal.Table, seconds: float) -> GcContext:
    """A dry run, so many seconds from now."""
    now = datetime.now(UTC) + timedelta(seconds=seconds)
    return GcContext(location=table.location, options=GcOptions(), now=now, pins=Pins(()), marks={})
