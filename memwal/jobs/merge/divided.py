"""A merge divided into tasks: rewrite the newest rows, match their keys, commit both.

With a quality gate, tasks decide first which rows enter: :mod:`memwal.jobs.merge.screening`.

1. *Rewrite*, by regions and shares of their rows: the newest rows become fragments of the base
   table that no version names yet. Their keys, and the keys to delete, are stored in the folder of
   the run.
2. *Match*, by fragments of the base table: rows with these keys get a deletion file that no version
   names yet. In a table with stable row ids, the rows are written after this only, with the ids of
   the rows that they replace: :mod:`memwal.jobs.merge.kept_ids`.
3. *Commit*: one Lance ``Update`` with the new fragments, the deletions and the merge progress, by
   compare-and-swap on the version that was matched. If another commit was first, only fragments
   that are new or changed since are matched again; the rewritten rows stay.

In a table without a primary key, every row is added: there is nothing to match, and the commit is
an ``Append``.

What a process that pauses, dies or repeats does at each step:

* rewrite, match: nothing names what they write. A task that runs twice writes other fragments,
  key files and deletion files. Only the results that the driver received are committed. What is
  left over is collected by age. If the collector was faster than a paused run, the commit finds
  that a file is missing, and is refused;
* between match and commit: any other commit changes the version, and the commit is refused. The
  driver then reads the progress again. If another merger merged one of the generations, what was
  rewritten is dropped, and the rest is planned anew: rows of a generation must not be committed
  over those of a later one;
* a schema that changed meanwhile: the same, since rows were written with the earlier columns. So it
  is if the commit finds that a file was not written whole, which may be one with rewritten rows. If
  memwal cannot write one of the new columns, the merge ends, and the next one is not divided;
* commit: rows and progress appear together, or neither does. A process that dies or pauses before
  it has merged nothing. If the store does not say whether it happened, the next merge finds the
  progress recorded and commits nothing, or merges the generations;
* after the commit: the region marks (:mod:`memwal.base_table.region_marks`) are behind the
  progress, and the next plan writes them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from uuid import UUID, uuid4

from lance.fragment import FragmentMetadata

from memwal.base_table.snapshot import BaseTable
from memwal.errors import ConflictError, MemWalError
from memwal.jobs.job import Result, SkippedRegion, Task, TaskRunner, run_in_process, task_limit
from memwal.jobs.merge.commit import (
    MergeAttempts,
    MergeCommit,
    MergeOutcome,
    commit_rows,
    progress_of,
)
from memwal.jobs.merge.kept_ids import KeptIds
from memwal.jobs.merge.match import (
    MIN_TASK_ROWS,
    Match,
    MatchTask,
    TaskMatches,
    divide_match,
    run_find_task,
    run_match_task,
)
from memwal.jobs.merge.picker import Part, RegionSelection, divide
from memwal.jobs.merge.rewrite import (
    RewriteTask,
    Rewritten,
    run_rewrite_task,
    run_rows_task,
)
from memwal.jobs.merge.run_files import KeyFile, run_dir
from memwal.jobs.merge.screening import QualityGate
from memwal.jobs.options import MergeOptions
from memwal.jobs.progress import NO_METER, Meter
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import VERSION, span
from memwal.util.memory import MemoryLimit
from memwal.util.retry import LostRaceError, LostWriteError

logger = logging.getLogger(__name__)

_ATTEMPTS = 50
# Keys in memory at a time, as a part of what a task may take: the tables to compare them with take
# several times as much. With fewer, the keys of the base table are read more than once.
_KEY_SHARE = 8
_MIN_KEY_BYTES = 16 << 20
# Memory that tasks may leave behind in a process, however small they are.
_MIN_LEFT_BYTES = 32 << 20

_memory = MemoryLimit()


def merge_divided(
    location: TableLocation,
    selections: Sequence[RegionSelection],
    options: MergeOptions,
    meter: Meter = NO_METER,
) -> MergeOutcome:
    """Merge the pending generations of ``selections`` in one commit, with the progress.

    Each task takes about ``commit_bytes`` of memory; if there are cores for them, ``max_tasks`` run
    at once. Raises MergeContentionError if every attempt met other commits, and ConflictError if
    the table has columns whose values a divided merge would drop. Nothing was merged then.
    """
    merge = _DividedMerge(
        location=location,
        selections=selections,
        guard=options.guard,
        gate=QualityGate.of(options.quality, location),
        options=options,
        meter=meter,
    )
    try:
        return merge.repeat(_ATTEMPTS)
    finally:
        merge.end_run()


def _call_limited(function: Callable[[Task], Result], limit: int, task: Task) -> Result:
    with _memory.hold(limit):
        return function(task)


@dataclass(slots=True, kw_only=True)
class _DividedMerge(MergeAttempts):
    """A merge in tasks, with the rows that they rewrote."""

    options: MergeOptions
    meter: Meter
    rewritten: _Run | None = None

    def run(self, tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
        """Run tasks, and release allocator memory once it exceeds that of a task."""
        limit = max(self.options.commit_bytes, _MIN_LEFT_BYTES)
        return self.options.run(tasks, partial(_call_limited, function, limit))

    def _divide(self, base: BaseTable) -> tuple[Part, ...]:
        """Divide the pending generations among tasks."""
        return divide(self.pending(base), self.options.commit_bytes, task_limit(self.options))

    def commit(self, base: BaseTable) -> MergeCommit:
        """Match what was rewritten with the fragments that are new or changed, and commit both."""
        run = self.rewritten
        # The tasks of a run without parts did not end.
        if run is None or not run.parts or not self.may_commit(run.base, run.selections, base):
            self.end_run()
            if base.primary_key and base.unusable:
                # Updated rows would lose the values of these columns. The next plan is one that
                # keeps them.
                raise ConflictError(
                    f"another client added a column to {self.location} that memwal cannot write: "
                    f"{', '.join(base.unusable)}; merge again, which keeps its values"
                )
            run = self.rewritten = _Run(uuid4(), base)
            run.parts = self._rewrite(base, run.run_id)
        if not run.selections:
            return MergeCommit()
        self._match(base, run)
        self._write_rows(base, run)
        self.check_lease()
        try:
            commit_rows(base, run.fragments, run.matches.matches(), progress_of(run.selections))
        except LostWriteError:
            # A file of the run may not be whole.
            self.end_run()
            raise
        counted = Counter(
            rows_upserted=run.rows_upserted,
            rows_deleted=sum(match.deleted for match in run.matches.matches()),
            bytes_read=run.bytes_read,
            bytes_written=run.bytes_written + sum(part.bytes_written for part in run.parts),
        )
        return MergeCommit(run.selections, 1, counted)

    def end_run(self) -> None:
        """Forget what was rewritten, and delete the folder of the run."""
        run, self.rewritten = self.rewritten, None
        if run is None:
            return
        try:
            self.location.store.delete_folder(run_dir(run.run_id))
        except MemWalError as error:
            logger.warning("the files of merge %s are left: %s", run.run_id, error)

    def _rewrite(self, base: BaseTable, run_id: UUID) -> list[Rewritten]:
        """Rewrite pending generations. All tasks of a region read up to the same generation."""
        numbers = 0
        while True:
            if self.gate is not None:
                self._screen(base, run_id, self.gate)
            tasks = [
                RewriteTask(
                    location=self.location,
                    version=base.version,
                    run_id=run_id,
                    number=numbers + number,
                    part=part,
                    keys_only=base.dataset.has_stable_row_ids and bool(base.primary_key),
                    decisions=None
                    if self.gate is None
                    else {r.region_id: self.gate.decisions[r.region_id] for r in part.regions},
                )
                for number, part in enumerate(self._divide(base))
            ]
            numbers += len(tasks)
            with span("memwal.merge.rewrite", self.location, attributes={VERSION: base.version}):
                parts = self.run(tasks, partial(run_rewrite_task, meter=self.meter))
            for part in parts:
                self.skip(part.skipped)
            if self.gate is not None and any(part.skipped for part in parts):
                # Rows that these generations replaced are to be decided about.
                continue
            if _agree(parts, self.skipped):
                return parts

    def _screen(self, base: BaseTable, run_id: UUID, gate: QualityGate) -> None:
        """Let the gate decide about whole regions, in about as many tasks as there will be."""
        self.check_lease()
        regions = [part.regions for part in self._divide(base) if part.share.number == 0]
        for skipped in gate.screen(base, run_id, regions, self.run):
            self.skip(skipped)

    def _match(self, base: BaseTable, run: _Run) -> None:
        """Match the keys with the fragments that were not matched as they are now."""
        first = not run.matches.by_fragment
        fragments = run.matches.unmatched(base)
        sizes = {number: rows for number, (_, rows) in fragments.items()}
        keys = [part.keys for part in run.parts if part.keys is not None]
        # After it lost a race, the driver compares few rows itself: each task would give other
        # commits time to come first.
        few = not first and sum(sizes.values()) < MIN_TASK_ROWS
        with span("memwal.merge.match", self.location, attributes={VERSION: base.version}):
            done = self._match_fragments(base, run, sizes, keys, here=few)
        run.matches.add(fragments, [match for part in done for match in part.matches])
        run.bytes_read += sum(part.bytes_read for part in done)
        run.bytes_written += sum(part.bytes_written for part in done)

    def _match_fragments(
        self,
        base: BaseTable,
        run: _Run,
        sizes: Mapping[int, int],
        keys: Sequence[KeyFile],
        *,
        here: bool,
    ) -> list[TaskMatches]:
        """Match the keys with some fragments, in one stage, or in two that divide the keys too."""
        if not sizes or not keys:
            return []
        key_bytes = max(self.options.commit_bytes // _KEY_SHARE, _MIN_KEY_BYTES)
        max_tasks = 1 if here else task_limit(self.options)
        run_tasks: TaskRunner = run_in_process if here else self.run
        groups, parts = divide_match(sizes, keys, max_tasks=max_tasks, key_bytes=key_bytes)
        tasks = [
            MatchTask(
                location=self.location,
                version=base.version,
                run_id=run.run_id,
                number=number,
                fragments=group,
                keys=part,
                key_bytes=key_bytes,
            )
            for number, (group, part) in enumerate(product(groups, parts), run.match_tasks)
        ]
        run.match_tasks += len(tasks)
        if len(parts) == 1:
            return run_tasks(tasks, run_match_task)
        found = run_tasks(tasks, run_find_task)
        run.bytes_read += sum(read for _, read in found)
        paths = tuple(path for path, _ in found)
        # One task for each group of fragments, with what was found there by each part of the keys.
        each = len(parts)
        deletions = [
            replace(tasks[at], found=paths[at : at + each]) for at in range(0, len(tasks), each)
        ]
        return run_tasks(deletions, run_match_task)

    def _write_rows(self, base: BaseTable, run: _Run) -> None:
        """Write rows with stable ids, where they were not written with the ids that were matched.

        Raises LostRaceError if a generation cannot be read any more: the merge goes without it.
        """
        if not base.dataset.has_stable_row_ids:
            return
        ids_by_task = run.matches.ids_by_task()
        stale = [part for part in run.parts if part.keys and run.is_stale(part, ids_by_task)]
        tasks = [
            replace(
                part.task,
                part=replace(part.task.part, regions=part.regions),
                version=base.version,
                kept=tuple(ids_by_task.get(part.task.number, ())),
            )
            for part in stale
        ]
        with span("memwal.merge.rows", self.location, attributes={VERSION: base.version}):
            written = self.run(tasks, partial(run_rows_task, meter=self.meter)) if tasks else []
        for part, rows in zip(stale, written, strict=True):
            self.skip(rows.skipped)
            ids = _checksum(ids_by_task.get(part.task.number, ()))
            run.rows[part.task.number] = (ids, rows.fragments)
        run.bytes_written += sum(rows.bytes_written for rows in written)
        if any(rows.skipped for rows in written):
            raise LostRaceError("a generation cannot be read any more")


def _checksum(kept: Sequence[KeptIds]) -> int:
    """Return a checksum of ids that does not depend on the fragments of their rows."""
    return sum(part.checksum for part in kept) % (1 << 64)


def _agree(parts: Sequence[Rewritten], skipped: dict[UUID, SkippedRegion]) -> bool:
    """Return whether no task read a share of a region beyond where the region is skipped from."""
    stops = {region_id: region.generation for region_id, region in skipped.items()}
    return all(
        region.last < stops[region.region_id]
        for part in parts
        if part.task.part.share.of > 1
        for region in part.regions
        if region.region_id in stops
    )


@dataclass(slots=True)
class _Matches:
    """Matches by fragment, with the state of the fragment that they belong to."""

    by_fragment: dict[int, tuple[str, Match | None]] = field(default_factory=dict)

    def unmatched(self, base: BaseTable) -> dict[int, tuple[str, int]]:
        """Forget fragments that are gone or changed; return state and rows of those to match."""
        current = {
            fragment.fragment_id: (str(fragment.metadata.to_json()), fragment.physical_rows)
            for fragment in base.dataset.get_fragments()
        }
        self.by_fragment = {
            number: (state, match)
            for number, (state, match) in self.by_fragment.items()
            if number in current and current[number][0] == state
        }
        return {n: found for n, found in current.items() if n not in self.by_fragment}

    def add(self, fragments: Mapping[int, tuple[str, int]], matches: Sequence[Match]) -> None:
        """Keep the matches in some fragments, by their state."""
        found = {match.fragment: match for match in matches}
        for number, (state, _) in fragments.items():
            self.by_fragment[number] = (state, found.get(number))

    def ids_by_task(self) -> dict[int, list[KeptIds]]:
        """Return the ids that rows keep, by the number of the task that has their keys."""
        ids_by_task: dict[int, list[KeptIds]] = {}
        for match in self.matches():
            for part in match.kept:
                ids_by_task.setdefault(part.keys, []).append(part)
        return ids_by_task

    def matches(self) -> list[Match]:
        """Return the fragments with rows that are to go."""
        return [match for _, match in self.by_fragment.values() if match is not None]


@dataclass(slots=True)
class _Run:
    """Results of the tasks of a merge: rewritten parts, matches, and rows with stable ids."""

    run_id: UUID
    base: BaseTable  # where it began
    parts: Sequence[Rewritten] = ()
    matches: _Matches = field(default_factory=_Matches)
    match_tasks: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    # Of each part in a table with stable row ids: checksum of the ids, and the fragments.
    rows: dict[int, tuple[int, tuple[FragmentMetadata, ...]]] = field(default_factory=dict)

    @property
    def selections(self) -> list[RegionSelection]:
        """Generations that the tasks read, by region."""
        regions = {region.region_id: region for part in self.parts for region in part.regions}
        return list(regions.values())

    @property
    def fragments(self) -> list[FragmentMetadata]:
        """All fragments with new rows."""
        written = [part.fragments for part in self.parts]
        return [f for part in (*written, *(rows for _, rows in self.rows.values())) for f in part]

    @property
    def rows_upserted(self) -> int:
        """Rows of these fragments."""
        return sum(part.rows_upserted for part in self.parts)

    def is_stale(self, part: Rewritten, ids_by_task: Mapping[int, Sequence[KeptIds]]) -> bool:
        """Return whether the rows of a part were not written with the ids that they keep."""
        number = part.task.number
        ids = _checksum(ids_by_task.get(number, ()))
        return number not in self.rows or self.rows[number][0] != ids
