"""The base table goes back behind generations that were merged into it, by other clients."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lance
import lancedb
import pytest
from lancedb import LsmWriteSpec
from lancedb.table import Table as LanceTable
from support.data.copied import copied_table
from support.data.merging import DIVIDED
from support.data.tables import REGION, base_state, generations, keys, rows, state
from support.oracles.native import collect_all
from support.stores.faulty_store import FaultyStores, Killed

import memwal
from memwal import RegionSpec
from memwal.base_table.snapshot import open_base
from memwal.errors import ProgressLostError, TableSetupError
from memwal.jobs.merge.commit import merge_commit
from memwal.jobs.merge.divided import merge_divided
from memwal.jobs.merge.job import plan_merge
from memwal.jobs.options import MergeOptions


def by_lancedb(table: memwal.Table) -> LanceTable:
    path = Path(table.uri)
    return lancedb.connect(str(path.parent)).open_table(path.name.removesuffix(".lance"))


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """Return a table with two merged generations: the first inserts, the second replaces."""

    def make(uri: str) -> None:
        lance.write_dataset(rows({0: 0}), uri)
        table = memwal.enable(uri, primary_key=["id"], region_spec="unsharded")
        for values in ({1: 1, 2: 1, 3: 1}, {1: 2, 2: 2, 3: 2}):
            table.upsert(rows(values))
            table.merge()

    return copied_table("to lose its progress", tmp_path / "t.lance", make)


def restore(table: memwal.Table, *, merged: int) -> None:
    """Restore the newest version with this merge progress, with pylance."""
    versions = range(table.base().version, 0, -1)
    found = (open_base(table.location, version=version) for version in versions)
    base = next(b for b in found if b.details.merged.get(REGION, 0) == merged)
    base.dataset.restore()


def upsert_directly(table: memwal.Table, values: dict[int, int | None]) -> None:
    builder = by_lancedb(table).merge_insert("id")
    builder.when_matched_update_all().when_not_matched_insert_all().execute(rows(values))


def set_by_lancedb(table: memwal.Table) -> None:
    by_lancedb(table).set_lsm_write_spec(LsmWriteSpec.unsharded())


def set_by_memwal(table: memwal.Table) -> None:
    memwal.enable(table.uri, region_spec="unsharded")


JOBS: dict[str, Callable[[memwal.Table], object]] = {
    "merge": lambda t: t.merge(),
    "divided merge": lambda t: t.merge(**DIVIDED),
    "checkpoint": lambda t: t.checkpoint(),
    "collect": lambda t: t.collect_garbage(dry_run=False),
    "index": lambda t: t.build_indexes(),
    "compact": lambda t: t.compact(),
    "reshard": lambda t: memwal.add_region_spec(t.uri, RegionSpec.bucket("id", 2)),
}


@pytest.fixture(params=[set_by_lancedb, set_by_memwal])
def went_back(table: memwal.Table, request: pytest.FixtureRequest) -> memwal.Table:
    """Return the table after an unset, plain writes, and a set."""
    by_lancedb(table).unset_lsm_write_spec()
    upsert_directly(table, {1: 9})
    by_lancedb(table).delete("id = 2")
    request.param(table)
    return memwal.open(table.uri)


WANTED = {0: 0, 1: 9, 3: 2}


def test_merged_generations_stay_merged_for_reads(went_back: memwal.Table) -> None:
    assert generations(went_back) == [1, 2]
    assert state(went_back) == WANTED
    assert state(went_back.fresh()) == WANTED
    assert state(went_back.lookup(keys(1, 2, 3)).to_table()) == {1: 9, 3: 2}
    assert went_back.count_rows() == 3
    plan = went_back.explain()
    assert [(o.region_id, o.generations) for o in plan.newer] == [(REGION, (1, 2))]
    assert not plan.merged


@pytest.mark.parametrize("view", ["now", "at_most"])
def test_a_merge_that_ends_after_a_read_opened_the_table(
    faults: FaultyStores, table: memwal.Table, view: str
) -> None:
    """The version that the read has opened lacks what the marks then say is merged."""
    store = faults.of(table.location)
    table.upsert(rows({1: 7, 9: 9}))
    table.upsert(rows({1: 8}))
    wanted = state(table)
    table.build_snapshot()
    rule = store.act("list", table.merge, key="_memwal_regions*")
    assert state(table if view == "now" else table.at_most(3600)) == wanted
    assert rule.hits == 1


def test_new_writes_are_seen(went_back: memwal.Table) -> None:
    with went_back.writer() as writer:
        writer.upsert(rows({3: 5, 4: 4}))
        writer.delete(keys(1))
        wanted = {0: 0, 3: 5, 4: 4}
        assert state(writer) == wanted
        writer.flush()
        assert state(went_back) == wanted
    assert base_state(went_back) == WANTED


def test_status_and_verify_tell(went_back: memwal.Table) -> None:
    status = went_back.status()
    (region,) = status.regions
    assert (region.merged_generation, region.merged_before) == (0, 2)
    assert status.backlog_generations == 0
    assert status.lost_progress is not None
    report = went_back.verify()
    assert [(f.code, f.region) for f in report.findings] == [("progress-lost", REGION)]


@pytest.mark.few(3)
@pytest.mark.parametrize("job", JOBS)
def test_jobs_are_held(went_back: memwal.Table, job: str) -> None:
    went_back.upsert(rows({4: 4}))
    version = went_back.base().version
    with pytest.raises(ProgressLostError):
        JOBS[job](went_back)
    assert went_back.base().version == version
    assert generations(went_back) == [1, 2, 3]
    assert state(went_back) == {**WANTED, 4: 4}


def test_an_older_base_table_is_put_in_place(table: memwal.Table, tmp_path: Path) -> None:
    """The folders of the regions stay, as on a disk of their own."""
    backup = tmp_path / "backup"
    shutil.copytree(table.uri, backup)
    table.upsert(rows({1: 3}))
    table.merge()
    for name in ("data", "_versions", "_transactions", "_deletions"):
        shutil.rmtree(Path(table.uri, name), ignore_errors=True)
        if (backup / name).exists():
            shutil.copytree(backup / name, Path(table.uri, name))
    assert state(memwal.open(table.uri)) == {0: 0, 1: 2, 2: 2, 3: 2}
    with pytest.raises(ProgressLostError):
        table.merge()


class TestMergeUnderWay:
    """A merge was planned before the base table went back."""

    @pytest.fixture
    def planned(self, table: memwal.Table) -> memwal.Table:
        table.upsert(rows({4: 3}))
        return table

    @pytest.mark.parametrize("divided", [False, True])
    def test_is_refused(self, planned: memwal.Table, divided: bool) -> None:
        location = planned.location
        plan = plan_merge(location, MergeOptions(divide_bytes=0) if divided else MergeOptions())
        restore(planned, merged=1)
        with pytest.raises(ProgressLostError):
            if divided:
                merge_divided(location, plan.selections, MergeOptions())
            else:
                merge_commit(location, plan.selections, attempts=3)
        assert planned.base().details.merged == {REGION: 1}
        assert state(planned) == {0: 0, 1: 1, 2: 1, 3: 1, 4: 3}

    def test_meets_the_restore_at_its_commit(
        self, planned: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The restore lands after the rows were read, and before they are committed."""
        merge_insert = lance.LanceDataset.merge_insert

        def restored_before(dataset: lance.LanceDataset, on: list[str]) -> object:
            monkeypatch.setattr(lance.LanceDataset, "merge_insert", merge_insert)
            restore(planned, merged=1)
            return merge_insert(dataset, on)

        monkeypatch.setattr(lance.LanceDataset, "merge_insert", restored_before)
        with pytest.raises(ProgressLostError):
            planned.merge()
        assert planned.base().details.merged == {REGION: 1}
        assert base_state(planned) == {0: 0, 1: 1, 2: 1, 3: 1}

    @pytest.mark.parametrize("divided", [False, True])
    def test_meets_the_restore_between_two_attempts(
        self, planned: memwal.Table, divided: bool
    ) -> None:
        """Another merger has merged the first generation, which the restore takes back."""
        planned.upsert(rows({5: 4}))
        options = MergeOptions(divide_bytes=0) if divided else MergeOptions()
        location, selections = planned.location, plan_merge(planned.location, options).selections
        first = [replace(region, generations=region.generations[:1]) for region in selections]
        assert merge_commit(location, first, attempts=3).commits
        went_back = False

        def go_back() -> None:
            nonlocal went_back
            if not went_back:
                went_back = True
                restore(planned, merged=2)

        if divided:
            merge_divided(location, selections, replace(options, guard=go_back))
        else:
            merge_commit(location, selections, attempts=5, guard=go_back)
        assert went_back
        assert state(planned) == base_state(planned) == {0: 0, 1: 2, 2: 2, 3: 2, 4: 3, 5: 4}

    def test_meets_the_restore_between_two_commits(self, planned: memwal.Table) -> None:
        planned.upsert(rows({5: 4}))
        checks = 0

        def go_back() -> None:
            nonlocal checks
            checks += 1
            if checks == 2:
                restore(planned, merged=2)

        with pytest.raises(ProgressLostError):
            planned.merge(commit_bytes=1, guard=go_back)
        assert checks == 2
        assert planned.base().details.merged == {REGION: 2}

    @pytest.mark.parametrize("divided", [False, True])
    def test_finds_that_mem_wal_was_taken_away(self, planned: memwal.Table, divided: bool) -> None:
        location = planned.location
        plan = plan_merge(location, MergeOptions(divide_bytes=0) if divided else MergeOptions())
        by_lancedb(planned).unset_lsm_write_spec()
        version = planned.base().version
        with pytest.raises(TableSetupError):
            if divided:
                merge_divided(location, plan.selections, MergeOptions())
            else:
                merge_commit(location, plan.selections, attempts=3)
        assert planned.base().version == version

    @pytest.mark.parametrize("is_marked", [False, True])
    def test_died_between_two_commits_before_the_restore(
        self, faults: FaultyStores, planned: memwal.Table, is_marked: bool
    ) -> None:
        planned.upsert(rows({5: 4}))
        checks = 0

        def die() -> None:
            nonlocal checks
            checks += 1
            if checks == 2:
                raise Killed

        if not is_marked:
            faults.of(planned.location).kill("create", "_memwal_regions*")
        with pytest.raises(Killed):
            planned.merge(commit_bytes=1, guard=die)
        assert planned.base().details.merged == {REGION: 3}
        restore(planned, merged=2)
        if is_marked:
            # The restore has taken back what was merged.
            assert state(planned) == {0: 0, 1: 2, 2: 2, 3: 2, 5: 4}
            with pytest.raises(ProgressLostError):
                planned.merge()
            assert planned.base().details.merged == {REGION: 2}
        else:
            planned.merge()
            assert state(planned) == base_state(planned) == {0: 0, 1: 2, 2: 2, 3: 2, 4: 3, 5: 4}


class TestBeforeAnyMerge:
    """No mark is ahead of the base table; its older versions tell that MemWAL was away."""

    @pytest.fixture
    def table(self, tmp_path: Path) -> memwal.Table:
        uri = str(tmp_path / "t.lance")
        lance.write_dataset(rows({0: 0}), uri)
        table = memwal.enable(uri, primary_key=["id"], region_spec="unsharded")
        table.upsert(rows({1: 1, 2: 1}))
        return table

    @pytest.fixture
    def anew(self, table: memwal.Table) -> memwal.Table:
        by_lancedb(table).unset_lsm_write_spec()
        upsert_directly(table, {1: 9})
        set_by_lancedb(table)
        return table

    def test_is_told_and_held(self, anew: memwal.Table) -> None:
        assert anew.status().lost_progress is not None
        assert [f.code for f in anew.verify().findings] == ["progress-lost"]
        with pytest.raises(ProgressLostError):
            anew.merge()
        assert base_state(anew) == {0: 0, 1: 9}

    @pytest.mark.parametrize("discard", [False, True])
    def test_a_decision_lasts(self, anew: memwal.Table, discard: bool) -> None:
        assert anew.restore(dry_run=True).warnings
        anew.restore(discard_pending=discard)
        assert anew.status().lost_progress is None
        by_lancedb(anew).add(rows({7: 7}))
        by_lancedb(anew).optimize()
        anew.merge()
        assert base_state(anew) == ({0: 0, 1: 9, 7: 7} if discard else {0: 0, 1: 1, 2: 1, 7: 7})
        collect_all(anew)
        assert anew.verify().clean

    def test_the_next_time_it_is_held_again(self, anew: memwal.Table) -> None:
        anew.restore()
        by_lancedb(anew).unset_lsm_write_spec()
        upsert_directly(anew, {2: 9})
        set_by_lancedb(anew)
        with pytest.raises(ProgressLostError):
            anew.merge()

    def test_without_a_change_of_rows_nothing_is_held(self, table: memwal.Table) -> None:
        by_lancedb(table).unset_lsm_write_spec()
        set_by_lancedb(table)
        assert table.status().lost_progress is None
        table.merge()
        assert base_state(table) == {0: 0, 1: 1, 2: 1}

    def test_a_table_that_is_enabled_once(self, table: memwal.Table) -> None:
        lance.write_dataset(rows({5: 5}), table.uri, mode="append")
        assert table.status().lost_progress is None
        table.merge()
        assert base_state(table) == {0: 0, 1: 1, 2: 1, 5: 5}
