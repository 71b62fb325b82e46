"""Which generations a merge selects, in which task and commit, and why not the others."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.jobs.merge.picker import (
    Candidate,
    MergeMethod,
    MergePicker,
    MergePlan,
    PickReason,
    RegionSelection,
    divide,
    pending_candidates,
    still_pending,
)
from memwal.jobs.options import MergeOptions

A, B, C = (UUID(int=number) for number in range(1, 4))


def candidates(*sizes: Sequence[int]) -> list[RegionSelection]:
    """Regions A, B, ... with generations of these sizes, numbered from 1."""
    return [
        RegionSelection(
            UUID(int=region),
            tuple(Candidate(n, f"gen-{n}", size, 60.0 * n) for n, size in enumerate(of_region, 1)),
        )
        for region, of_region in enumerate(sizes, start=1)
    ]


def selected(plan: MergePlan) -> dict[UUID, list[int]]:
    """Numbers of the selected generations by region."""
    return {
        selection.region_id: [generation.number for generation in selection.generations]
        for part in plan.parts
        for selection in part.regions
    }


def reasons(plan: MergePlan) -> dict[tuple[UUID, int], PickReason]:
    return {(d.region_id, d.generation): d.reason for d in plan.decisions}


class TestCandidates:
    def manifest(self, *numbers: int) -> RegionManifest:
        flushed = tuple(
            FlushedGeneration(region_id=A, generation=number, path=f"gen-{number}")
            for number in numbers
        )
        return RegionManifest(region_id=A, version=1, writer_epoch=1, flushed=flushed)

    def test_are_ascending_and_above_the_merge_progress(self) -> None:
        region = pending_candidates(self.manifest(4, 2, 3, 1), 2, size=lambda flushed: 10)
        assert region.region_id == A
        assert [generation.number for generation in region.generations] == [3, 4]

    def test_merged_generations_are_not_measured(self) -> None:
        measured = []
        pending_candidates(
            self.manifest(1, 2),
            1,
            size=lambda flushed: 0,
            age=lambda flushed: measured.append(flushed.generation),
        )
        assert measured == [2]


def test_a_candidate_is_never_left_out_without_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memwal.jobs.merge.picker.split_all", lambda *limits: ())
    with pytest.raises(KeyError):
        MergePicker(MergeOptions()).pick(candidates([10]), seed=0)


def picker_of(**limits: Any) -> MergePicker:
    return MergePicker(MergeOptions(**limits))


class TestWithoutABudget:
    def test_everything_is_selected_for_one_task(self) -> None:
        plan = picker_of().pick(candidates([1, 2], [3]), seed=0)
        assert selected(plan) == {A: [1, 2], B: [1]}
        assert len(plan.parts) == 1
        assert {d.commit for d in plan.decisions} == {1}

    def test_nothing_pending_makes_no_task(self) -> None:
        plan = picker_of(max_tasks=4).pick(candidates([], []), seed=0)
        assert plan == MergePlan((), ())
        divided = picker_of(divide_bytes=0).pick(candidates([]), seed=0)
        assert (divided.parts, divided.to_dict()["commits"]) == ((), 0)

    def test_the_order_is_that_of_the_candidates_whatever_the_seed(self) -> None:
        picker = picker_of(commit_bytes=5)
        plans = [picker.pick(candidates([3, 3], [3], [3]), seed=seed) for seed in range(8)]
        assert all(plan == plans[0] for plan in plans)


class TestRegions:
    def test_that_are_not_included_or_skipped_say_so(self) -> None:
        plan = picker_of(regions=[A, B], skip_regions=[B]).pick(candidates([1], [1], [1]), seed=0)
        assert selected(plan) == {A: [1]}
        assert reasons(plan) == {
            (A, 1): PickReason.SELECTED,
            (B, 1): PickReason.REGION_SKIPPED,
            (C, 1): PickReason.REGION_NOT_INCLUDED,
        }

    def test_that_are_left_out_use_no_budget(self) -> None:
        picker = picker_of(run_bytes=5, skip_regions=[A])
        plan = picker.pick(candidates([5], [5]), seed=0)
        assert selected(plan) == {B: [1]}


class TestRunBytes:
    def test_take_the_oldest_of_every_region_first(self) -> None:
        for seed in range(16):
            plan = picker_of(run_bytes=4).pick(candidates([1] * 3, [1] * 3, [1] * 3), seed=seed)
            assert sorted(map(len, selected(plan).values())) == [1, 1, 2]

    def test_every_region_comes_first_for_some_seed(self) -> None:
        picker = picker_of(run_bytes=1)
        plans = [picker.pick(candidates([1], [1], [1]), seed=seed) for seed in range(64)]
        assert {region for plan in plans for region in selected(plan)} == {A, B, C}

    def test_the_same_seed_gives_the_same_plan(self) -> None:
        regions, picker = candidates([1, 2], [2, 1], [3]), picker_of(run_bytes=4)
        assert picker.pick(regions, seed=0.7) == picker.pick(regions, seed=0.7)

    @pytest.mark.parametrize("run_bytes", [1, 9])
    def test_one_generation_is_selected_however_large(self, run_bytes: int) -> None:
        plan = picker_of(run_bytes=run_bytes).pick(candidates([10, 10]), seed=0)
        assert selected(plan) == {A: [1]}
        assert reasons(plan) == {
            (A, 1): PickReason.OVERSIZED,
            (A, 2): PickReason.RUN_BYTES,
        }


class TestCommits:
    def test_another_region_fills_up_what_the_first_leaves(self) -> None:
        plan = picker_of(commit_bytes=5).pick(candidates([3, 3], [2]), seed=0)
        commits = {(d.region_id, d.generation): d.commit for d in plan.decisions}
        assert commits == {(A, 1): 1, (A, 2): 2, (B, 1): 1}

    def test_a_generation_larger_than_a_commit_goes_alone(self) -> None:
        plan = picker_of(commit_bytes=5).pick(candidates([2, 9, 2]), seed=0)
        assert [d.commit for d in plan.decisions] == [1, 2, 3]
        assert [d.reason for d in plan.decisions] == [
            PickReason.SELECTED,
            PickReason.OVERSIZED,
            PickReason.SELECTED,
        ]


class TestStillPending:
    def test_leaves_out_what_is_merged_and_what_is_behind_a_stop(self) -> None:
        selections = [RegionSelection(c.region_id, c.generations) for c in candidates([1] * 4, [1])]
        pending = still_pending(selections, {A: 1, B: 1}, stops={A: 4})
        assert [(s.region_id, [g.number for g in s.generations]) for s in pending] == [(A, [2, 3])]

    def test_is_equal_when_nothing_changed(self) -> None:
        selections = [RegionSelection(c.region_id, c.generations) for c in candidates([1, 1], [1])]
        assert still_pending(selections, {}) == selections


@given(
    sizes=st.lists(st.lists(st.integers(0, 20), max_size=5), max_size=5),
    commit_bytes=st.integers(1, 30),
    run_bytes=st.none() | st.integers(1, 60),
    max_tasks=st.integers(1, 4),
    skip=st.sets(st.sampled_from([A, B, C])),
    seed=st.floats(0, 1),
)
def test_every_plan_keeps_the_rules(
    sizes: list[list[int]],
    commit_bytes: int,
    run_bytes: int | None,
    max_tasks: int,
    skip: set[UUID],
    seed: float,
) -> None:
    regions = candidates(*sizes)
    picker = picker_of(
        commit_bytes=commit_bytes, run_bytes=run_bytes, max_tasks=max_tasks, skip_regions=skip
    )
    plan = picker.pick(regions, seed=seed)

    # One decision for each candidate, in order, which says the same as the tasks.
    assert [(d.region_id, d.generation) for d in plan.decisions] == [
        (region.region_id, generation.number)
        for region in regions
        for generation in region.generations
    ]
    taken = [d for d in plan.decisions if d.reason.selected]
    decided = defaultdict(list)
    for decision in taken:
        decided[decision.region_id].append(decision.generation)
    assert decided == selected(plan)
    assert all((d.task is None) == (not d.reason.selected) for d in plan.decisions)

    # Ascending without gaps, and each region in one task only.
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in selected(plan).values())
    assert sum(len(part.regions) for part in plan.parts) == len(selected(plan))
    assert len(plan.parts) == bool(taken)

    # At least one generation, and no more than fit unless it is that one.
    eligible = [r for r in regions if r.generations and r.region_id not in skip]
    assert bool(taken) == bool(eligible)
    if run_bytes is None:
        assert selected(plan).keys() == {region.region_id for region in eligible}
    elif sum(d.bytes for d in taken) > run_bytes:
        assert len(taken) == 1

    # Within a task, a region's commits ascend; a commit fits, or has a generation that does not.
    commits = defaultdict(list)
    for decision in taken:
        commits[decision.task, decision.commit].append(decision.bytes)
    for in_commit in commits.values():
        assert sum(in_commit) <= commit_bytes or max(in_commit) == sum(in_commit)
    for region_id in decided:
        order = [d.commit or 0 for d in taken if d.region_id == region_id]
        assert order == sorted(order)


class TestDivided:
    def test_from_so_many_bytes_on(self) -> None:
        picker = picker_of(divide_bytes=10, commit_bytes=4)
        backlog = candidates([5, 5], [1])

        plan = picker.pick(backlog, seed=0)

        assert {s.region_id: len(s.generations) for s in plan.selections} == {A: 2, B: 1}
        assert {decision.commit for decision in plan.decisions} == {1}
        told = plan.to_dict()
        assert (told["method"], told["tasks"], told["commits"]) == ("divided", len(plan.parts), 1)

    def test_the_reason_of_an_undivided_merge(self) -> None:
        def method(*sizes: int, **options: Any) -> MergeMethod:
            picker = picker_of(**{"divide_bytes": 10, "commit_bytes": 40, **options})
            return picker.pick(candidates([*sizes]), seed=0).method

        assert method(9) is MergeMethod.SMALL
        assert method(11) is MergeMethod.SINGLE
        assert method(11, max_tasks=2) is MergeMethod.DIVIDED
        assert method(41) is MergeMethod.DIVIDED
        assert method(9, max_tasks=4) is MergeMethod.SMALL

    @pytest.mark.parametrize(
        ("mebibytes", "rows", "method"),
        [
            (64, (2_000, 2_000), MergeMethod.DIVIDED),
            # Not wide, not many bytes, of rows that nobody counted.
            (64, (4_000, 10_000), MergeMethod.SMALL),
            (8, (1, 1), MergeMethod.SMALL),
            (64, (1, None), MergeMethod.SMALL),
        ],
    )
    def test_wide_rows_are_merged_by_a_divided_merge(
        self, mebibytes: int, rows: tuple[int | None, ...], method: MergeMethod
    ) -> None:
        generations = tuple(
            Candidate(number, f"gen-{number}", mebibytes << 19, rows=count)
            for number, count in enumerate(rows, start=1)
        )
        plan = MergePicker(MergeOptions()).pick([RegionSelection(A, generations)], seed=0)
        assert plan.method is method

    def test_within_a_budget(self) -> None:
        picker = picker_of(divide_bytes=0, run_bytes=3, commit_bytes=1, skip_regions=[B])
        plan = picker.pick(candidates([2, 2], [1]), seed=0)
        assert [len(selection.generations) for selection in plan.selections] == [1]
        assert [d.reason for d in plan.decisions] == [
            PickReason.SELECTED,
            PickReason.RUN_BYTES,
            PickReason.REGION_SKIPPED,
        ]


MIB = 1 << 20


class TestParts:
    @pytest.mark.parametrize(
        ("region_bytes", "part_bytes", "workers", "parts"),
        [
            # As many as the bytes need, so that each worker gets as many.
            (160 * MIB, 40 * MIB, 4, 4),
            (200 * MIB, 40 * MIB, 4, 8),
            (201 * MIB, 40 * MIB, 7, 6),
            # As many as workers that have enough to do.
            (31 * MIB, 1 << 30, 4, 1),
            (64 * MIB, 1 << 30, 4, 2),
            (512 * MIB, 1 << 30, 4, 4),
            (3, 1, 1, 3),
        ],
    )
    def test_of_a_region(
        self, region_bytes: int, part_bytes: int, workers: int, parts: int
    ) -> None:
        found = divide(candidates([region_bytes]), part_bytes, workers)
        assert [(part.share.number, part.share.of) for part in found] == [
            (number, parts) for number in range(parts)
        ]

    @pytest.mark.parametrize(
        ("sizes", "part_mebibytes", "shares", "whole"),
        [
            ((50, 50, 60), 1024, 1, [50, 50, 60]),
            ((40, 40, 80), 1024, 2, [80]),
            # Both small regions in one part would take too much memory.
            ((40, 40, 80), 70, 2, [40, 40]),
        ],
    )
    def test_of_three_regions(
        self, sizes: tuple[int, ...], part_mebibytes: int, shares: int, whole: list[int]
    ) -> None:
        """One that is a little larger than the others stays whole."""
        found = divide(candidates(*([size * MIB] for size in sizes)), part_mebibytes * MIB, 3)
        assert max(part.share.of for part in found) == shares
        left = [part.bytes // MIB for part in found if part.share.of == 1]
        assert sorted(left) == whole


def test_json_has_plain_values_and_the_reason_of_each() -> None:
    plan = picker_of(run_bytes=1, skip_regions=[B]).pick(candidates([1, 1], [1]), seed=0).to_dict()
    decisions = plan.pop("decisions")
    assert plan == {
        "candidates": 3,
        "selected": 1,
        "bytes": 1,
        "method": "small",
        "tasks": 1,
        "commits": 1,
    }
    assert decisions[0] == {
        "region_id": str(A),
        "generation": 1,
        "bytes": 1,
        "age_seconds": 60.0,
        "selected": True,
        "reason": "selected",
        "task": 1,
        "commit": 1,
    }
    assert [d["reason"] for d in decisions[1:]] == ["run_bytes", "region_skipped"]
