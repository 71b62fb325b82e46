"""Restore the base table to a version, and decide about what it lost."""

from contextlib import suppress
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support.data.copied import copied_table
from support.data.tables import (
    REGION,
    SCHEMA,
    base_state,
    collect_now,
    flush,
    generations,
    rows,
    state,
)
from support.oracles.native import collect_all
from support.stores.faulty_store import REGION_MANIFEST, FaultyStores, Killed

import memwal
from memwal.base_table.commit import commit_details, commit_strictly
from memwal.base_table.region_marks import find_lost_progress, read_marks
from memwal.base_table.snapshot import open_base
from memwal.errors import InvalidInputError, ProgressLostError
from memwal.jobs.table import restore as module

MARK = "_memwal_regions/*"


def version_of(table: memwal.Table, merged: int) -> int:
    """The newest version with this merge progress."""
    for version in range(table.base().version, 0, -1):
        if open_base(table.location, version=version).details.merged.get(REGION, 0) == merged:
            return version
    raise AssertionError(f"no version has merged {merged}")


def restore_by_pylance(table: memwal.Table, merged: int = 1) -> None:
    lance.dataset(table.uri, version=version_of(table, merged)).restore()


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """Return a table with two merged generations, and one that is pending."""

    def make(uri: str) -> None:
        table = memwal.create(uri, SCHEMA, primary_key=["id"], region_spec="unsharded")
        for values in ({1: 1, 2: 1}, {1: 2, 3: 2}):
            table.upsert(rows(values))
            table.merge()
        table.upsert(rows({4: 4}))

    return copied_table("to be restored", tmp_path / "table", make)


RESTORED = {1: 1, 2: 1, 4: 4}
MERGED = {1: 2, 2: 1, 3: 2, 4: 4}


def check(table: memwal.Table, wanted: dict[int, int]) -> None:
    """Nothing is held any more, and jobs change nothing that a reader sees."""
    assert not find_lost_progress(table.base())
    assert state(table) == wanted
    assert not table.verify().errors
    table.upsert(rows({5: 5}))
    table.checkpoint()
    assert not table.verify().errors
    collect_all(table)
    assert base_state(table) == wanted | {5: 5}
    assert table.verify().clean


class TestDecide:
    """Another client restored a version."""

    def test_keep_the_rows(self, table: memwal.Table) -> None:
        restore_by_pylance(table)
        version = table.base().version
        found = table.restore(dry_run=True)
        assert found.metrics == {
            "lost_regions": 1,
            "lost_generations": 1,
            "pending_generations": 1,
            "unflushed_regions": 0,
        }
        assert found.warnings
        assert table.base().version == version
        with pytest.raises(ProgressLostError):
            table.merge()

        table.restore()
        assert table.base().details.merged == {REGION: 2}
        check(table, RESTORED)

    def test_discard_what_is_pending(self, table: memwal.Table) -> None:
        restore_by_pylance(table)
        with table.writer() as writer:
            writer.upsert(rows({6: 6}))
            table.restore(discard_pending=True)
        assert table.base().details.merged == {REGION: 3}
        check(table, {1: 1, 2: 1, 6: 6})

    def test_merge_again(self, table: memwal.Table) -> None:
        restore_by_pylance(table)
        assert state(table) == RESTORED
        table.restore(merge_again=True)
        assert table.base().details.merged == {REGION: 1}
        assert generations(table) == [1, 2, 3]
        check(table, MERGED)

    def test_merge_again_what_was_collected(self, table: memwal.Table) -> None:
        collect_all(table)
        restore_by_pylance(table)
        before = read_marks(table.location.store)
        with pytest.raises(InvalidInputError):
            table.restore(merge_again=True)
        assert read_marks(table.location.store) == before
        assert find_lost_progress(table.base()) == {REGION: 2}
        table.restore()
        check(table, RESTORED)

    @pytest.mark.parametrize("merge_again", [False, True])
    def test_without_a_loss_nothing_changes(self, table: memwal.Table, merge_again: bool) -> None:
        newest, marks = table.base().version, read_marks(table.location.store)
        for version in (None, newest):
            assert table.restore(version, merge_again=merge_again).commits == 0
        assert (table.base().version, read_marks(table.location.store)) == (newest, marks)

    def test_an_unset_and_a_set(self, table: memwal.Table) -> None:
        lance.dataset(table.uri).drop_index("__lance_mem_wal")
        memwal.enable(table.uri, region_spec="unsharded")
        assert state(table) == MERGED
        table.restore()
        check(table, MERGED)

    @pytest.mark.few(1)
    @pytest.mark.parametrize("view", ["now", "at_most"])
    def test_a_read_that_began_before_the_rows_were_kept(
        self, faults: FaultyStores, table: memwal.Table, view: str
    ) -> None:
        """It has opened the base table, and pauses before it reads the marks."""
        store = faults.of(table.location)
        table.build_snapshot()
        lance.dataset(table.uri).drop_index("__lance_mem_wal")
        lance.dataset(table.uri).delete("id = 2")
        memwal.enable(table.uri, region_spec="unsharded")
        wanted = {key: value for key, value in MERGED.items() if key != 2}
        assert state(table) == wanted
        table.build_snapshot()
        rule = store.act("list", table.restore, key="_memwal_regions*")
        assert state(table if view == "now" else table.at_most(3600)) == wanted
        assert rule.hits == 1
        check(table, wanted)


class TestRestore:
    def test_rows_of_a_version(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({6: 6}))
            table.restore(version_of(table, 1))
            writer.upsert(rows({7: 7}))
        assert table.base().details.merged == {REGION: 2}
        check(table, RESTORED | {6: 6, 7: 7})

    def test_a_tag_and_merge_again(self, table: memwal.Table) -> None:
        table.base().dataset.tags.create("good", version_of(table, 1))
        lance.dataset(table.uri).delete("id = 2")
        table.restore("good", merge_again=True)
        table.base().dataset.tags.delete("good")
        check(table, MERGED)

    def test_specs_and_settings_stay(self, table: memwal.Table) -> None:
        good = version_of(table, 1)
        table.set_writer_defaults(max_memtable_age=7)
        memwal.add_region_spec(table.uri, memwal.RegionSpec.bucket("id", 2))
        before = table.base().details
        table.restore(good)
        after = table.base().details
        assert after.region_specs == before.region_specs
        assert after.writer_config_defaults == before.writer_config_defaults
        check(table, {1: 1, 2: 1})

    def test_a_sealed_region_is_not_merged_again(self, table: memwal.Table) -> None:
        good = version_of(table, 1)
        table = memwal.add_region_spec(table.uri, memwal.RegionSpec.bucket("id", 2))
        flush(table, {1: 9}, [2])
        # An older row would count as newer than one of another region.
        with pytest.raises(InvalidInputError):
            table.restore(good, merge_again=True)
        assert state(table) == {1: 9, 3: 2, 4: 4}
        table.restore(good)
        check(table, {1: 9})

    def test_a_dry_run(self, table: memwal.Table) -> None:
        before = table.base().version, read_marks(table.location.store)
        found = table.restore(version_of(table, 1), dry_run=True)
        assert found.metrics["lost_generations"] == 1
        assert (table.base().version, read_marks(table.location.store)) == before
        assert state(table) == MERGED

    def test_what_cannot_be_restored(self, table: memwal.Table) -> None:
        with pytest.raises(InvalidInputError):
            table.restore(1)  # Before MemWAL was enabled.
        good = version_of(table, 1)
        table.base().dataset.add_columns(pa.field("more", pa.int64()))
        with pytest.raises(InvalidInputError):
            table.restore(good)
        assert not find_lost_progress(table.base())


class TestFaults:
    @pytest.mark.few(2)
    @pytest.mark.parametrize("step", range(6))
    @pytest.mark.parametrize("again", [False, True])
    def test_dies_at_any_write_and_is_repeated(
        self, quick_faults: FaultyStores, table: memwal.Table, again: bool, step: int
    ) -> None:
        """What is visible is one of the two states, and the repetition ends in the wanted one."""
        store = quick_faults.of(table.location)
        good = version_of(table, 1)
        store.fail("create", "*", Killed(), skip=step)
        with suppress(Killed):
            table.restore(good, merge_again=again)
        store.clear()
        assert state(table) in (RESTORED, MERGED)
        if find_lost_progress(table.base()):
            with pytest.raises(ProgressLostError):
                table.merge()
        table.restore(good, merge_again=again)
        check(table, MERGED if again else RESTORED)

    def test_keeps_after_another_process_merged_again(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It read the marks, and pauses before its commit."""
        restore_by_pylance(table)

        def pause(*arguments: object, **options: object) -> int:
            monkeypatch.setattr(module, "commit_details", commit_details)
            table.restore(merge_again=True)
            return commit_details(*arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "commit_details", pause)
        table.restore()
        assert table.base().details.merged == {REGION: 1}
        check(table, MERGED)

    @pytest.mark.parametrize("discard", [False, True])
    def test_a_region_spec_added_during_a_decision_stays(
        self, faults: FaultyStores, table: memwal.Table, discard: bool
    ) -> None:
        """It is added while the logs are looked at."""
        bucket = memwal.RegionSpec.bucket("id", 2)

        def add() -> None:
            memwal.add_region_spec(table.uri, bucket)

        rule = faults.of(table.location).act("*", add, key=f"_mem_wal/{REGION}/wal*")
        table.restore(discard_pending=discard)
        assert rule.hits == 1
        specs = table.base().details.region_specs
        assert [spec.spec_id for spec in specs] == [1, 2]
        check(memwal.open(table.uri), MERGED)

    def test_settings_changed_during_a_decision_stay(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are changed right before its commit."""
        restore_by_pylance(table)

        def pause(*arguments: object, **options: object) -> int:
            monkeypatch.setattr(module, "commit_details", commit_details)
            table.set_writer_defaults(max_memtable_age=7)
            return commit_details(*arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "commit_details", pause)
        table.restore()
        assert table.writer_defaults == {"max_memtable_age": 7}
        check(table, RESTORED)

    def test_changes_between_the_commits_of_a_restore_stay(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So do region specs that were there before the restore, which its first commit undoes."""
        good = version_of(table, 1)
        table = memwal.add_region_spec(table.uri, memwal.RegionSpec.bucket("id", 2))
        before = table.base().details

        def pause(*arguments: object) -> int:
            version = commit_strictly(*arguments)  # type: ignore[arg-type]
            assert table.base().details.region_specs != before.region_specs
            table.set_writer_defaults(max_memtable_age=7)
            return version

        monkeypatch.setattr(module, "commit_strictly", pause)
        table.restore(good)
        assert table.base().details.region_specs == before.region_specs
        assert table.writer_defaults == {"max_memtable_age": 7}
        check(table, {1: 1, 2: 1})

    def test_a_region_spec_added_between_the_commits_of_a_restore_stays(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table.merge()
        good = table.base().version
        lance.dataset(table.uri).delete("id = 2")

        def pause(*arguments: object) -> int:
            version = commit_strictly(*arguments)  # type: ignore[arg-type]
            memwal.add_region_spec(table.uri, memwal.RegionSpec.bucket("id", 2))
            return version

        monkeypatch.setattr(module, "commit_strictly", pause)
        table.restore(good)
        specs = table.base().details.region_specs
        assert [spec.spec_id for spec in specs] == [1, 2]
        check(memwal.open(table.uri), MERGED)

    def test_merges_again_after_another_process_kept(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is about to write its marks."""
        restore_by_pylance(table)
        write_marks = module.write_marks

        def pause(*arguments: object) -> None:
            monkeypatch.setattr(module, "write_marks", write_marks)
            table.restore()
            write_marks(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "write_marks", pause)
        table.restore(merge_again=True)
        assert table.base().details.merged == {REGION: 2}
        check(table, RESTORED)

    @pytest.mark.parametrize(
        ("operation", "key"), [("list", f"_memwal_regions/{REGION}*"), ("create", REGION_MANIFEST)]
    )
    def test_a_collection_from_before_drops_nothing_that_is_merged_again(
        self, faults: FaultyStores, table: memwal.Table, operation: str, key: str
    ) -> None:
        """It pauses before it reads the mark, or before it replaces the manifest."""
        store = faults.of(table.location)
        good = version_of(table, 1)

        def decide() -> None:
            lance.dataset(table.uri, version=good).restore()
            table.restore(merge_again=True)

        rule = store.act(operation, decide, key=key)
        collect_now(table, foreign_claim_seconds=0)
        assert rule.hits == 1
        check(table, MERGED)
