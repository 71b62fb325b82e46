"""What goes and, for what stays, why and until when: every reason in a table of its own."""

import json
import pickle
from datetime import datetime

import lance
import pytest
from support.data.tables import REGION, MakeTable, flush, later, log, manifest, manifests, rows
from support.faults.collecting import DAY, GRACE, HOUR, collect, drop

import memwal
from memwal.format.paths import manifest_key, region_dir
from memwal.jobs.gc import Decision, GarbageKind, Reason, collect_garbage
from memwal.jobs.gc.decision import METRICS


def explain(table: memwal.Table, seconds: float = 0.0, **options: object) -> list[Decision]:
    options.setdefault("dry_run", True)
    return list(collect(table, seconds, explain=True, **options).decisions)


def reasons(decisions: list[Decision], kind: GarbageKind) -> dict[str, Reason]:
    """Reason of each thing of a kind; generations by their number."""
    return {
        d.what.rpartition("_gen_")[2] if "_gen_" in d.what else d.what: d.reason
        for d in decisions
        if d.kind is kind
    }


class TestGenerations:
    def test_an_index_that_is_behind_is_named(self, make_table: MakeTable) -> None:
        table = make_table(maintained_indexes=["id_idx", "n_idx"])
        flush(table, {1: 1})
        table.merge()
        table.base().dataset.optimize.optimize_indices(index_names=["id_idx"])
        (decision,) = [d for d in explain(table, DAY) if d.kind is GarbageKind.GENERATION]
        assert decision.reason is Reason.INDEX_BEHIND
        assert "n_idx" in decision.message
        assert decision.region_id == str(REGION)

    def test_a_tag_and_its_version_are_named(self, table: memwal.Table) -> None:
        flush(table, {1: 1}, {2: 2})
        table.merge(commit_bytes=1)
        version = next(
            v
            for v in range(1, table.base().version)
            if lance.dataset(table.uri, version=v).count_rows() == 1
        )
        table.base().dataset.tags.create("monthly", version)
        decisions = {d.what[-1]: d for d in explain(table, DAY) if d.kind is GarbageKind.GENERATION}
        assert decisions["1"].delete
        assert (decisions["2"].delete, decisions["2"].reason) == (False, Reason.TAG)
        assert "monthly" in decisions["2"].message
        assert str(version) in decisions["2"].message
        assert decisions["2"].until is None

    def test_a_branch_is_named(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        table.merge()
        table.base().dataset.create_branch("trial")
        flush(table, {2: 2})
        table.merge()
        decisions = {d.what[-1]: d for d in explain(table, DAY) if d.kind is GarbageKind.GENERATION}
        assert decisions["1"].delete
        assert decisions["2"].reason is Reason.BRANCH
        assert "trial" in decisions["2"].message

    def test_the_retention_says_until_when(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        table.merge()
        (decision,) = [
            d
            for d in explain(table, HOUR, retention_seconds=10_800)
            if d.kind is GarbageKind.GENERATION
        ]
        assert decision.reason is Reason.RETENTION
        assert decision.until is not None
        until = datetime.fromisoformat(decision.until)
        ahead = until.timestamp() - later(0)()
        assert ahead <= 3 * HOUR
        done = collect(table, ahead + 5, retention_seconds=10_800)
        assert done.metrics["generations_dropped"] == 1

    def test_sizes_are_told(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        (decision,) = [d for d in explain(table) if d.kind is GarbageKind.GENERATION]
        assert decision.objects > 3
        assert decision.bytes > 1000


class TestFolders:
    def test_a_dropped_one_stays_for_the_grace_period(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        table.merge()
        drop(table)
        (decision,) = [d for d in explain(table) if d.kind is GarbageKind.FOLDER]
        assert (decision.delete, decision.reason) == (False, Reason.GRACE)
        assert decision.until is not None
        until = datetime.fromisoformat(decision.until).timestamp()
        assert 0 < until - later(0)() <= GRACE.total_seconds()
        assert reasons(explain(table, 2 * HOUR), GarbageKind.FOLDER) == {"1": Reason.UNNEEDED}

    def test_one_that_nobody_named_stays_for_the_age_guard(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        table.location.store.put(f"{region_dir(REGION)}/0badf00d_gen_2/data/x.lance", b"12345")
        (decision,) = [d for d in explain(table) if d.kind is GarbageKind.ORPHAN]
        assert (decision.reason, decision.bytes) == (Reason.TOO_YOUNG, 5)
        assert decision.until is not None
        metrics = collect(table, DAY + HOUR).metrics
        assert (metrics["orphaned_folders"], metrics["folders"]) == (1, 1)
        assert metrics["bytes_orphaned_folders"] == metrics["bytes"] == 5

    def test_what_another_try_to_flush_left_is_an_orphan(self, table: memwal.Table) -> None:
        """Its number is that of a generation that is named by another folder, or was."""
        flush(table, {1: 1})
        table.location.store.put(f"{region_dir(REGION)}/0badf00d_gen_1/data/x.lance", b"12345")
        assert reasons(explain(table, HOUR), GarbageKind.ORPHAN) == {"1": Reason.TOO_YOUNG}
        assert reasons(explain(table, DAY + HOUR), GarbageKind.ORPHAN) == {"1": Reason.UNNEEDED}
        assert manifest(table).flushed[0].path != "0badf00d_gen_1"


class TestLog:
    def test_each_part_has_its_reason(self, table: memwal.Table) -> None:
        flush(table, {1: 1}, {2: 2})
        table.merge()
        drop(table)
        flush(table, {3: 3})
        writer = table.writer()
        for key in (4, 5):
            writer.upsert(rows({key: key}))
        writer.abort()
        positions = sorted(log(table))
        reason_of = reasons(explain(table, 2 * HOUR), GarbageKind.LOG)
        assert list(reason_of.values()) == [
            Reason.UNNEEDED,
            Reason.GENERATION_KEPT,
            Reason.REPLAY,
            Reason.NEWEST_ENTRY,
        ]
        numbers = [n for what in reason_of for n in range(*_range(what))]
        assert numbers == positions

    def test_young_entries_say_until_when(self, table: memwal.Table) -> None:
        flush(table, {1: 1}, {2: 2})
        table.merge()
        drop(table)
        decisions = {d.reason: d for d in explain(table) if d.kind is GarbageKind.LOG}
        assert decisions.keys() == {Reason.GRACE, Reason.NEWEST_ENTRY}
        assert decisions[Reason.GRACE].until is not None


def _range(what: str) -> tuple[int, int]:
    first, _, last = what.partition("..")
    return int(first), int(last or first) + 1


class TestManifests:
    def test_the_ones_that_bound_the_log_stay(self, table: memwal.Table) -> None:
        flush(table, {1: 1}, {2: 2})
        table.merge()
        drop(table)
        stored = sorted(manifests(table).list_versions())
        reason_of = reasons(explain(table, 2 * HOUR), GarbageKind.MANIFESTS)
        assert reason_of == {
            f"{stored[0]}..{stored[-2]}": Reason.UNNEEDED,
            str(stored[-1]): Reason.MANIFEST_NEEDED,
        }


class TestRegion:
    def test_that_cannot_be_read_says_so(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        table.merge()
        newest = max(manifests(table).list_versions())
        table.location.store.put(manifest_key(REGION, newest), b"\xff\xff")
        result = collect(table, DAY, explain=True)
        (decision,) = [d for d in result.decisions if d.kind is GarbageKind.REGION]
        assert (decision.delete, decision.reason) == (False, Reason.UNREADABLE)
        assert len(result.warnings) == 1
        assert set(result.metrics.values()) == {0}


class TestResult:
    @pytest.fixture
    def collected_twice(self, make_table: MakeTable) -> memwal.Table:
        table = make_table(maintained_indexes=["id_idx"])
        flush(table, {1: 1}, {2: 2})
        table.checkpoint()
        drop(table)
        return table

    def test_bytes_are_told_by_kind_and_in_all(self, collected_twice: memwal.Table) -> None:
        result = collect(collected_twice, DAY, explain=True)
        assert tuple(result.metrics) == METRICS
        kinds = {name: n for name, n in result.metrics.items() if name.startswith("bytes_")}
        assert result.metrics["bytes"] == sum(kinds.values()) > 0
        assert kinds["bytes_folders"] == sum(
            d.bytes for d in result.decisions if d.kind is GarbageKind.FOLDER and d.delete
        )

    def test_a_dry_run_decides_as_a_real_one(self, collected_twice: memwal.Table) -> None:
        planned = explain(collected_twice, DAY)
        done = explain(collected_twice, DAY, dry_run=False)
        assert [d for d in planned if d.delete] == [d for d in done if d.delete]

    def test_is_json_and_can_be_pickled(self, collected_twice: memwal.Table) -> None:
        result = collect(collected_twice, DAY, explain=True, dry_run=True)
        stored = json.loads(json.dumps(result.to_dict()))
        assert stored["metrics"] == result.metrics
        assert {d["kind"] for d in stored["decisions"]} >= {"folder", "log entries"}
        assert all(set(d) == set(Decision.__slots__) for d in stored["decisions"])
        assert pickle.loads(pickle.dumps(result)) == result

    def test_has_no_decisions_unless_asked(self, collected_twice: memwal.Table) -> None:
        assert collect_garbage(collected_twice.location).decisions == ()
