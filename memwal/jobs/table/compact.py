"""Compact small fragments of the base table, and fragments with many deleted rows.

Every merge adds fragments, and deletes rows of older ones. :mod:`memwal.base_table.fragments`
plans, and Lance rewrites; this module decides when a rewrite is worth it, and in which commits,
small enough to fit between commits of merges. A process that dies before a commit leaves files that
no version names, which the clean-up of old versions deletes after a week; a process that repeats it
plans anew. A rewrite and a merge that touch the same fragments conflict, and the second committer
retries with less: both shrink until they succeed. Files of a lost rewrite are deleted at once.
Where merges are frequent and touch all fragments, however small, shrinking is not enough: see
:mod:`memwal.fleet.exclusive`.

A commit remaps the indexes over the fragments that it replaces, and Lance then forgets their
catch-up. The job records it again by compare-and-swap on the latest version: the merge progress,
for an index that covers every fragment, and its earlier catch-up, for one that covers the fragments
where those rows now are. If the process dies before, or another one has moved the rows again, an
index stays behind until the next index build, which readers and collections allow. A process that
is paused before finds that in the version that it compares with.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import lance
import pyarrow as pa
from lance.optimize import Compaction, CompactionTask, RewriteResult

from memwal.base_table.commit import commit_details, commit_durably, update_details
from memwal.base_table.fragments import (
    FragmentLimits,
    FragmentSizes,
    SmallRuns,
    fragment_sizes,
    plan_rewrites,
    small_runs,
    sparse_fragment_ids,
)
from memwal.base_table.required_regions import check_not_held
from memwal.base_table.snapshot import BaseTable, data_files, lance_errors, open_base, open_dataset
from memwal.errors import ConflictError, MemWalError, ObjectNotFoundError, StoreError
from memwal.format.lance_manifest import has_narrow_dictionaries
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import DATA_DIR
from memwal.inputs.dictionaries import divide_by_values
from memwal.jobs.job import JobResult
from memwal.jobs.options import CompactOptions
from memwal.jobs.progress import Unit, run_tasks
from memwal.lsm.indexes.catchup import CarriedCatchUp, with_carried_coverage
from memwal.storage.location import TableLocation
from memwal.util.retry import MAX_LOST_WRITES, LostRaceError, LostWriteError, conflict_delay

logger = logging.getLogger(__name__)

_SHRINK = 4
_CONFLICT_WAIT_SECONDS = 0.2
# Id of no fragment: another process has moved its rows, and their places are unknown.
_GONE = -1


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Fragments of one version to rewrite into one, or into a few full ones."""

    location: TableLocation
    version: int
    plan: CompactionTask
    fragments: frozenset[int]
    rows: int


def compact(location: TableLocation, options: CompactOptions = CompactOptions()) -> JobResult:
    """Join small fragments if there are ``min_fragments``, and rewrite each with many deleted rows.

    Rewritten rows count as progress before their commit.

    Returns
    -------
    JobResult
        Metrics ``fragments_removed`` and ``fragments_added``, and ``rewrites_lost`` if some met
        other commits; a warning if the job gave up because of that.
    """
    started = time.monotonic()
    tasks = commits = failures = lost_writes = 0
    metrics = {"fragments_removed": 0, "fragments_added": 0}
    budget = options.commit_bytes
    warnings: tuple[str, ...] = ()
    limits = options.fragment_limits()
    base = _open_base(location, options)
    base.check_changeable()
    check_not_held(base)
    sizes = fragment_sizes(base)
    # Of this version only: with the fragments that merges add during the job, it might never end.
    chosen, small = _choose(base, sizes, limits, options.min_fragments)
    carried = CarriedCatchUp.of(base)
    while (
        chosen
        and commits != options.max_commits
        and (rewrites := _plan(base, sizes, limits, budget, chosen, small))
    ):
        # The plan of the next round is of another version.
        small = None
        tasks += len(rewrites)
        results: list[RewriteResult | None] = run_tasks(
            options,
            rewrites,
            run_rewrite_task,
            job="compact",
            step="compacting",
            unit=Unit.ROWS,
        )
        refused = [task for task, done in zip(rewrites, results, strict=True) if done is None]
        if refused:
            warnings = (_refusal(base),)
            chosen -= frozenset().union(*(task.fragments for task in refused))
        rewritten = [done for done in results if done is not None]
        if not rewritten:
            continue
        rewrites = tuple(task for task in rewrites if task not in refused)
        if options.guard is not None:
            options.guard()
        try:
            committed = _are_unchanged(base, rewrites) and _commit(base, rewritten)
        except LostWriteError as error:
            _discard(base, rewritten)
            lost_writes += 1
            if lost_writes == MAX_LOST_WRITES:
                raise
            logger.warning("%s; trying again", error)
            base = _open_base(location, options)
            sizes = fragment_sizes(base)
            continue
        base = _open_base(location, options)
        sizes = fragment_sizes(base)
        if not committed:
            failures += 1
            _discard(base, rewritten)
            metrics["rewrites_lost"] = failures
            if failures == options.attempts:
                warnings += (f"{failures} rewrites of {location} met other commits; run it again",)
                break
            budget = max(budget // _SHRINK, 1)
            time.sleep(conflict_delay(failures, _CONFLICT_WAIT_SECONDS))
        else:
            commits += 1
            for result in rewritten:
                metrics["fragments_removed"] += result.metrics.fragments_removed
                metrics["fragments_added"] += result.metrics.fragments_added
            new = [_new_fragments(base, result) for result in rewritten]
            moved = list(zip((task.fragments for task in rewrites), new, strict=True))
            carried = {name: catch_up.after(moved) for name, catch_up in carried.items()}
            # Where new fragments are small, their rows took much less space than before. They are
            # joined again; each time there are fewer, so that the job ends.
            chosen |= frozenset().union(*new).intersection(sizes.ids[sizes.small(limits)].tolist())
    if commits:
        base = _record_catch_up(base, options, carried)
    return JobResult(
        job="compact",
        table=location.uri,
        version=base.version,
        tasks=tasks,
        commits=commits,
        seconds=time.monotonic() - started,
        metrics=metrics,
        warnings=warnings,
    )


def _open_base(location: TableLocation, options: CompactOptions) -> BaseTable:
    """Return the latest version, in which the MemWAL index covers no fragment.

    It has no rows to cover. In a table with stable row ids, Lance's ``merge_insert`` may add the
    fragments that it writes to each index whose columns it leaves as they are, and so to this one,
    which has none. Lance would then refuse to join them with others.
    """
    base = open_base(location)
    while base.index is not None and base.index.covers_some:
        if options.guard is not None:
            options.guard()
        # If another commit was first, the latest version decides.
        with suppress(LostRaceError):
            commit_details(base, base.details)
        base = open_base(location)
    return base


def _record_catch_up(
    base: BaseTable, options: CompactOptions, carried: Mapping[str, CarriedCatchUp]
) -> BaseTable:
    """Record the catch-up of the indexes, which Lance forgot in the commits; return the table."""

    def recorded(latest: BaseTable) -> IndexDetails:
        return with_carried_coverage(latest, carried)

    if recorded(base) == base.details:
        return base
    if options.guard is not None:
        options.guard()
    try:
        return update_details(base.location, recorded)
    except ConflictError as error:
        # The next index build records it.
        logger.info("%s", error)
        return base


def run_rewrite_task(task: CompactTask) -> RewriteResult | None:
    """Write the new fragments, which no version names yet.

    None if a dictionary has too many values for one file: Lance would write one that cannot be
    decoded.
    """
    stored = open_dataset(task.location, version=task.version, as_stored=True)
    with lance_errors(f"rewriting fragments of {task.location}"):
        return task.plan.execute(stored) if _fit_together(task, stored) else None


def _fit_together(task: CompactTask, stored: lance.LanceDataset) -> bool:
    """Return whether the values of each narrow dictionary fit into one file."""
    narrow = _narrow_columns(stored)
    if not narrow:
        return True
    dataset = open_dataset(task.location, version=task.version)
    fragments = [f for f in dataset.get_fragments() if f.fragment_id in task.fragments]
    reader = dataset.scanner(columns=narrow, fragments=fragments).to_reader()
    schema = pa.schema([stored.schema.field(name) for name in narrow])
    files = divide_by_values(reader, schema)
    for _ in next(files, ()):
        pass
    return next(files, None) is None


def _narrow_columns(stored: lance.LanceDataset) -> list[str]:
    return [f.name() for f in stored.lance_schema.fields() if has_narrow_dictionaries(repr(f))]


def _refusal(base: BaseTable) -> str:
    columns = ", ".join(_narrow_columns(base.stored))
    return (
        f"some fragments of {base.location} are not joined: column {columns} is stored as a "
        "dictionary whose indices cannot number the values of all their rows; store the rows in a "
        "table that memwal creates, where such a column has plain values"
    )


def _choose(
    base: BaseTable, sizes: FragmentSizes, limits: FragmentLimits, min_fragments: int | None
) -> tuple[frozenset[int], SmallRuns | None]:
    """Return the ids of the fragments that are worth a rewrite, and the runs of small ones."""
    sparse = sparse_fragment_ids(sizes, limits)
    if min_fragments is None:
        return sparse, None
    small = small_runs(base, sizes, limits)
    chosen = small.ids | sparse
    return chosen if len(chosen) >= min_fragments else sparse, small


def _plan(
    base: BaseTable,
    sizes: FragmentSizes,
    limits: FragmentLimits,
    budget: int,
    chosen: frozenset[int],
    small: SmallRuns | None,
) -> tuple[CompactTask, ...]:
    """Plan rewrites of the chosen fragments, as many as fit into a commit of ``budget`` bytes."""
    planned: list[CompactTask] = []
    for rewrite in plan_rewrites(base, sizes, limits, chosen, small=small):
        budget -= rewrite.stored
        # A task larger than the budget goes alone.
        if planned and budget < 0:
            break
        planned.append(
            CompactTask(base.location, base.version, rewrite.task, rewrite.fragments, rewrite.rows)
        )
    return tuple(planned)


def _new_fragments(base: BaseTable, rewrite: RewriteResult) -> frozenset[int]:
    """Return the ids that the new fragments got in their commit; ``_GONE`` if one is gone again."""
    files = frozenset(_new_files(rewrite))
    found = frozenset(
        part.fragment_id
        for part in base.dataset.get_fragments()
        if any(file.path in files for file in data_files(part.metadata))
    )
    return found if len(found) == rewrite.metrics.fragments_added else found | {_GONE}


def _are_unchanged(base: BaseTable, rewrites: Sequence[CompactTask]) -> bool:
    """Return whether the fragments are as they were when the rewrite was planned.

    Checked before the commit: one that must fail writes index files of the whole table first, and
    leaves them behind.
    """
    newest = open_base(base.location, seen=base)
    if newest is base:
        return True
    latest, planned = (
        {part.fragment_id: part.metadata for part in table.dataset.get_fragments()}
        for table in (newest, base)
    )
    return all(latest.get(n) == planned[n] for rewrite in rewrites for n in rewrite.fragments)


def _commit(base: BaseTable, rewrites: Sequence[RewriteResult]) -> bool:
    """Replace the old fragments by the new ones; False if another commit changed the old ones."""

    def commit(dataset: lance.LanceDataset) -> None:
        Compaction.commit(dataset, list(rewrites))

    try:
        # Lance reserves the ids of the new fragments in a version of its own.
        commit_durably(base, commit, doing=f"compacting {base.location}", once=False)
    except MemWalError as error:
        if _was_committed(base, rewrites):
            return True
        if isinstance(error, LostRaceError):
            logger.info("%s; trying again", error)
            return False
        raise
    return True


def _discard(base: BaseTable, rewrites: Sequence[RewriteResult]) -> None:
    """Delete the new fragments, which no version names.

    Otherwise a table with many lost rewrites would grow until Lance deletes the files after a week.
    """
    keys = [f"{DATA_DIR}/{name}" for rewrite in rewrites for name in _new_files(rewrite)]
    try:
        base.location.store.delete_many(keys)
    except StoreError as error:
        logger.info("files of a lost rewrite were not deleted: %s", error)


def _was_committed(base: BaseTable, rewrites: Sequence[RewriteResult]) -> bool:
    """Return whether new fragments were committed although their commit raised.

    Recognized by their files, in any version since: the commit assigns the fragment ids, the old
    fragments may be gone for another reason, and a later commit may have replaced the new ones.
    """
    ours = {name for rewrite in rewrites for name in _new_files(rewrite)}
    for version in range(base.version + 1, open_base(base.location).version + 1):
        with suppress(ObjectNotFoundError):
            fragments = open_dataset(base.location, version=version).get_fragments()
            if any(file.path in ours for part in fragments for file in data_files(part.metadata)):
                return True
    return False


def _new_files(rewrite: RewriteResult) -> Iterator[str]:
    for fragment in json.loads(rewrite.json())["new_fragments"]:
        yield from (file["path"] for file in fragment["files"])
