"""Pick the flushed generations of a merge: candidates, selection and reasons.

All decisions are here, without I/O; :mod:`memwal.jobs.merge.job` reads the candidates and
:mod:`memwal.jobs.merge.commit` makes the commits. Names:

* *candidate*: a flushed generation above the merge progress of its region;
* *selection*: candidates of one region that are merged together, ascending without gaps;
* *plan*: the parts that tasks merge, and one decision for each candidate.

Three rules hold whatever the limits are:

1. a generation is selected only with or after all earlier candidates of its region: a newer row
   must never be merged before an older one of the same key;
2. one run selects at least one generation, however large, so that every backlog gets merged;
3. one commit of the run moves the progress of a region at a time: a divided merge makes one for all
   regions, and a merge that is not divided has one task.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappush, heapreplace
from operator import itemgetter
from typing import ClassVar
from uuid import UUID

from memwal.base_table.region_marks import (
    UNMARKED,
    RegionMark,
    check_progress,
    lost_progress,
)
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.jobs.job import ReasonCode, SkippedRegion, task_limit
from memwal.jobs.options import MergeOptions
from memwal.util.records import JsonObject, JsonRecord

_CandidateKey = tuple[UUID, int]
"""Region and number of a candidate."""

# Starting a smaller part on another worker takes longer than merging it.
_MIN_PART_BYTES = 32 << 20
# Rows from which a divided merge is the quicker one, if there are that many bytes.
_WIDE_ROW_BYTES = 16 << 10
# Smaller parts that each worker gets at most.
_SMALL_PARTS = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A flushed generation that the base table does not have."""

    number: int
    path: str  # name of its folder
    bytes: int  # size in memory as its writer recorded it, or the size of its data files
    # Time since its flush; None unless it was looked up to explain a plan.
    age_seconds: float | None = None
    rows: int | None = None  # with those that are replaced; None if its writer did not record it

    @property
    def reading(self) -> str:
        """Beginning of the message if reading it fails."""
        return f"reading generation {self.number} in the folder {self.path}"


@dataclass(frozen=True, slots=True)
class RegionSelection:
    """Generations of one region, ascending, without gaps in the manifest's list."""

    region_id: UUID
    generations: tuple[Candidate, ...]
    mark: RegionMark = UNMARKED  # in force when the merge was planned

    @property
    def last(self) -> int:
        """Number of the newest generation."""
        return self.generations[-1].number

    @property
    def bytes(self) -> int:
        """Size in memory of all generations."""
        return sum(generation.bytes for generation in self.generations)


def pending_candidates(
    manifest: RegionManifest,
    merged: int,
    *,
    size: Callable[[FlushedGeneration], int],
    age: Callable[[FlushedGeneration], float | None] | None = None,
    mark: RegionMark = UNMARKED,
) -> RegionSelection:
    """Return the merge candidates of a region: flushed, above its merge progress, ascending.

    ``merged`` is the newest generation of the region that the base table has, or 0. ``size`` and
    ``age`` return the bytes of a generation, and the seconds since its flush.
    """
    flushed = sorted(manifest.flushed, key=lambda generation: generation.generation)
    return RegionSelection(
        manifest.region_id,
        tuple(
            Candidate(
                generation.generation,
                generation.path,
                size(generation),
                age(generation) if age is not None else None,
                generation.rows,
            )
            for generation in flushed
            if generation.generation > merged
        ),
        mark,
    )


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the rows of a region, in the order in which they were written.

    It is number ``number``, from 0, of ``of`` parts of about as many bytes.
    """

    number: int = 0
    of: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that one task merges: those of whole regions, or a share of those of one region."""

    regions: tuple[RegionSelection, ...]
    share: Share = Share()

    @property
    def bytes(self) -> int:
        """Size in memory of its rows, before the newest row of each key is found."""
        return sum(region.bytes for region in self.regions) // self.share.of


class PickReason(ReasonCode):
    """Reason for selecting a candidate, or for leaving it out of a plan."""

    SELECTED = "selected", "fits the limits"
    OVERSIZED = "oversized", "larger than a limit: goes alone"
    RUN_BYTES = "run_bytes", "the run is full (run_bytes)"
    REGION_NOT_INCLUDED = "region_not_included", "its region is not among the regions to merge"
    REGION_SKIPPED = "region_skipped", "its region is to be skipped"
    REGION_HELD = "region_held", "another region has rows of the same keys"

    @property
    def selected(self) -> bool:
        """True for a candidate that the merge takes."""
        return self in (PickReason.SELECTED, PickReason.OVERSIZED)


class MergeMethod(ReasonCode):
    """Method of a merge, with the reason for it as text."""

    DIVIDED = "divided", "tasks write and match the rows, and one commit adds them all"
    SMALL = "small", "less than divide_bytes: Lance merges the rows, commit by commit"
    SINGLE = "single", "one worker and one commit: Lance merges the rows"
    UNUSABLE_COLUMNS = (
        "unusable_columns",
        "Lance merges the rows, and keeps values of other columns",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PickDecision(JsonRecord):
    """Decision about one candidate."""

    json_properties: ClassVar[tuple[str, ...]] = ("selected",)

    region_id: UUID
    """Region of the candidate."""
    generation: int
    """Number of the generation."""
    bytes: int
    """Size in memory as its writer recorded it, or the size of its data files."""
    age_seconds: float | None
    """Time since its flush."""
    reason: PickReason
    """Reason for selecting it or leaving it out."""
    task: int | None = None
    """Number of its task, from 1; None when left out."""
    commit: int | None = None
    """Number of its commit, from 1, provided that none meets other commits again and again; None
    when left out."""

    @property
    def selected(self) -> bool:
        """True if the merge takes the candidate."""
        return self.reason.selected


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Selection of a merge, and the decision about every candidate."""

    parts: tuple[Part, ...]
    """Regions and shares of each task. A merge that is not divided has one task; its regions are in
    the order in which they go into commits."""
    decisions: tuple[PickDecision, ...]
    """By region in the order of the candidates, ascending within a region."""
    method: MergeMethod = MergeMethod.SMALL
    """Method of the merge, with the reason for it."""
    held: tuple[SkippedRegion, ...] = ()
    """Regions that are left out because another region has rows of the same keys."""

    @property
    def selections(self) -> tuple[RegionSelection, ...]:
        """Regions of all tasks, each once."""
        regions = (region for part in self.parts for region in part.regions)
        return tuple({region.region_id: region for region in regions}.values())

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON, with sums in place of the tasks."""
        selected = [decision for decision in self.decisions if decision.selected]
        return {
            "candidates": len(self.decisions),
            "selected": len(selected),
            "bytes": sum(decision.bytes for decision in selected),
            "method": self.method.value,
            "tasks": len(self.parts),
            "commits": len({decision.commit for decision in selected}),
            "decisions": [decision.to_dict() for decision in self.decisions],
        }


@dataclass(frozen=True, slots=True)
class MergePicker:
    """Selects generations within the limits of a merge: its sizes, its tasks and its regions.

    Of ``options``, the runner and the guard are not used. ``held`` are regions to leave out, each
    with the reason. ``method`` is for tables that only one method can merge.
    """

    options: MergeOptions
    held: tuple[SkippedRegion, ...] = ()
    method: MergeMethod | None = None

    def excluded_regions(self, region_ids: Iterable[UUID]) -> dict[UUID, PickReason]:
        """Return the regions of ``region_ids`` without a selectable generation, and why."""
        included = None if self.options.regions is None else frozenset(self.options.regions)
        skipped = frozenset(self.options.skip_regions)
        held = frozenset(UUID(region.region_id) for region in self.held)
        reasons = {}
        for region_id in region_ids:
            if included is not None and region_id not in included:
                reasons[region_id] = PickReason.REGION_NOT_INCLUDED
            elif region_id in skipped:
                reasons[region_id] = PickReason.REGION_SKIPPED
            elif region_id in held:
                reasons[region_id] = PickReason.REGION_HELD
        return reasons

    def pick(self, candidates: Sequence[RegionSelection], *, seed: float) -> MergePlan:
        """Select generations and divide them into tasks. Pure: the same input, the same plan.

        ``candidates`` has an element for each region that has any. ``seed`` draws the order of the
        regions when ``run_bytes`` bounds the run. Use a new one for each run: with a fixed order
        and a budget smaller than one round, the last regions would starve.
        """
        excluded = self.excluded_regions(region.region_id for region in candidates)
        selections = [
            region
            for region in candidates
            if region.generations and region.region_id not in excluded
        ]
        omitted = {
            (region.region_id, generation.number): excluded[region.region_id]
            for region in candidates
            if region.region_id in excluded
            for generation in region.generations
        }
        if self.options.run_bytes is not None:
            selections, over_budget = _select_within_budget(
                selections, self.options.run_bytes, seed
            )
            omitted |= over_budget
        commit_bytes, max_tasks = self.options.commit_bytes, task_limit(self.options)
        method = self._method(selections, max_tasks)
        if method is MergeMethod.DIVIDED:
            parts = divide(selections, commit_bytes, max_tasks)
            commits = [[list(part.regions)] for part in parts]
            limit = self.options.run_bytes
        else:
            parts = (Part(tuple(selections)),) if selections else ()
            commits = [list(split_all(part.regions, commit_bytes)) for part in parts]
            limit = min(commit_bytes, self.options.run_bytes or commit_bytes)
        places = {
            (region.region_id, generation.number): (task, commit)
            # Of a region that is divided, the first share counts.
            for task, commits_of in reversed([*enumerate(commits, start=1)])
            for commit, regions in enumerate(commits_of, start=1)
            for region in regions
            for generation in region.generations
        }
        decisions = self._decisions(candidates, omitted, places, limit)
        return MergePlan(parts, tuple(decisions), method, self.held)

    def _method(self, selections: Sequence[RegionSelection], max_tasks: int) -> MergeMethod:
        if self.method is not None:
            return self.method
        total = sum(region.bytes for region in selections)
        if _is_wide(selections, total):
            return MergeMethod.DIVIDED
        if total < self.options.divide_bytes:
            return MergeMethod.SMALL
        # In one commit, a single worker is faster by Lance's own merge.
        if max_tasks == 1 and total <= self.options.commit_bytes:
            return MergeMethod.SINGLE
        return MergeMethod.DIVIDED

    def _decisions(
        self,
        candidates: Iterable[RegionSelection],
        omitted: Mapping[_CandidateKey, PickReason],
        places: Mapping[_CandidateKey, tuple[int, int]],
        limit: int | None,
    ) -> Iterator[PickDecision]:
        """Yield the decision about each candidate.

        ``places`` has the task and the commit of each one that is selected; one that is larger than
        ``limit`` goes alone. Raises KeyError for a candidate that has none, and that no step of the
        selection has ``omitted`` with its reason.
        """
        for region in candidates:
            for generation in region.generations:
                key = (region.region_id, generation.number)
                task, commit = places.get(key, (None, None))
                if task is None:
                    reason = omitted[key]
                else:
                    fits = limit is None or generation.bytes <= limit
                    reason = PickReason.SELECTED if fits else PickReason.OVERSIZED
                yield PickDecision(
                    region_id=region.region_id,
                    generation=generation.number,
                    bytes=generation.bytes,
                    age_seconds=generation.age_seconds,
                    reason=reason,
                    task=task,
                    commit=commit,
                )


def _is_wide(selections: Iterable[RegionSelection], total: int) -> bool:
    """Return whether a divided merge needs less memory and time, since the rows are wide.

    It reads few of them at a time, and compares keys only. Lance's own merge holds all of them
    several times, and copies them as often.
    """
    rows = [generation.rows for region in selections for generation in region.generations]
    known = [count for count in rows if count is not None]
    return (
        total >= _MIN_PART_BYTES
        and len(known) == len(rows)
        and total >= _WIDE_ROW_BYTES * sum(known)
    )


def _select_within_budget(
    selections: Sequence[RegionSelection], max_bytes: int, seed: float
) -> tuple[list[RegionSelection], dict[_CandidateKey, PickReason]]:
    """Select generations round-robin over the regions, oldest first, up to ``max_bytes``.

    The region order is random: with a fixed order and a budget smaller than one round, the last
    regions would starve. Selects at least one generation, however large. Also returns the reason
    for each generation that it leaves out.
    """
    order = random.Random(seed).sample(range(len(selections)), len(selections))  # noqa: S311
    rounds = max((len(selection.generations) for selection in selections), default=0)
    counts = [0] * len(selections)
    total = 0
    for number, region in ((number, region) for number in range(rounds) for region in order):
        if number >= len(selections[region].generations):
            continue
        total += selections[region].generations[number].bytes
        if total > max_bytes and any(counts):
            break
        counts[region] = number + 1
    omitted = {
        (selection.region_id, generation.number): PickReason.RUN_BYTES
        for selection, count in zip(selections, counts, strict=True)
        for generation in selection.generations[count:]
    }
    selected = [
        replace(selection, generations=selection.generations[:count])
        for selection, count in zip(selections, counts, strict=True)
        if count
    ]
    return selected, omitted


def divide(
    selections: Sequence[RegionSelection], part_bytes: int, max_parts: int
) -> tuple[Part, ...]:
    """Divide selections into parts of up to ``part_bytes``, of about the same size.

    A region that is larger is divided by its rows. There are as many parts as the bytes need,
    rounded up to a multiple of ``max_parts``, so that each worker gets as many; and up to
    ``max_parts`` if each of them has enough to do. Each worker gets a few parts that are smaller
    than that at most: a smaller ``part_bytes`` saves no memory, and starting a part has a price.
    """
    sizes = [selection.bytes for selection in selections]
    total = sum(sizes)
    part_bytes = max(part_bytes, min(_MIN_PART_BYTES, -(-total // (max_parts * _SMALL_PARTS))))
    count = max(-(-total // part_bytes), min(max_parts, total // _MIN_PART_BYTES), 1)
    if count > max_parts:
        count = -(-count // max_parts) * max_parts
    limit = max(-(-total // count), 1)
    # Each share of a region reads the keys of all later rows: one that is a little too large stays
    # whole.
    most = min(limit + limit // 4, part_bytes)
    parts: list[Part] = []
    whole: list[tuple[int, RegionSelection]] = []
    for selection, size in zip(selections, sizes, strict=True):
        if size > most:
            shares = -(-size // limit)
            parts += [Part((selection,), Share(number, shares)) for number in range(shares)]
        else:
            whole.append((size, selection))
    return (*parts, *_pack(whole, max(count - len(parts), 1), part_bytes))


def _pack(
    sized: Sequence[tuple[int, RegionSelection]], count: int, part_bytes: int
) -> Iterator[Part]:
    """Bin-pack regions, each with its bytes, into about ``count`` parts. Does not keep the order.

    There are more parts if a region of up to ``part_bytes`` would not fit into any.
    """
    # Bytes, number and regions of each part, the smallest part first.
    groups: list[tuple[int, int, list[RegionSelection]]] = []
    for size, selection in sorted(sized, key=itemgetter(0), reverse=True):
        if len(groups) < count or groups[0][0] + size > part_bytes:
            heappush(groups, (size, len(groups), [selection]))
        else:
            taken, number, group = groups[0]
            group.append(selection)
            heapreplace(groups, (taken + size, number, group))
    for _, _, group in sorted(groups, key=itemgetter(1)):
        yield Part(tuple(group))


def split_commit(
    selections: Sequence[RegionSelection], commit_bytes: int
) -> tuple[list[RegionSelection], list[RegionSelection]]:
    """Split off the selections of the next commit; returns them, and the remaining ones.

    The commit gets at least one generation, however large, and never a later generation of a
    region before an earlier one.
    """
    commit: list[RegionSelection] = []
    remaining: list[RegionSelection] = []
    size = 0
    for selection in selections:
        count = 0
        for generation in selection.generations:
            if size and size + generation.bytes > commit_bytes:
                break
            size += generation.bytes
            count += 1
        if count == len(selection.generations):
            commit.append(selection)
            continue
        if count:
            commit.append(replace(selection, generations=selection.generations[:count]))
        remaining.append(replace(selection, generations=selection.generations[count:]))
    return commit, remaining


def split_all(
    selections: Sequence[RegionSelection], commit_bytes: int
) -> Iterator[list[RegionSelection]]:
    """Yield the commits of a task, provided that none conflicts."""
    while selections:
        commit, selections = split_commit(selections, commit_bytes)
        yield commit


def still_pending(
    selections: Sequence[RegionSelection],
    merged: Mapping[UUID, int],
    *,
    stops: Mapping[UUID, int] | None = None,
) -> list[RegionSelection]:
    """Return the generations of a selection beyond the merge progress of a version.

    ``stops`` are those of :func:`stop_before`. Raises ProgressLostError if the base table went back
    since the merge was planned: the generations before the selected ones are not in it any more.
    """
    check_progress(lost_progress({s.region_id: s.mark for s in selections}, merged))
    pending = _select(selections, lambda region, n: n > merged.get(region, 0))
    return stop_before(pending, stops or {})


def stop_before(
    selections: Iterable[RegionSelection], stops: Mapping[UUID, int]
) -> list[RegionSelection]:
    """Return a selection without generations that cannot be merged, and without later ones.

    ``stops`` has the first such generation of a region.
    """
    return _select(selections, lambda region, n: region not in stops or n < stops[region])


def _select(
    selections: Iterable[RegionSelection], wanted: Callable[[UUID, int], bool]
) -> list[RegionSelection]:
    selected = [
        replace(s, generations=tuple(g for g in s.generations if wanted(s.region_id, g.number)))
        for s in selections
    ]
    return [selection for selection in selected if selection.generations]
