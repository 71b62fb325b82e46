"""Compact small fragments of the base table, and fragments with many deleted rows.

Every merge leaves new fragments, and old ones with holes. Lance plans and rewrites; this module
decides when a rewrite is worth it, in pieces of which each fits between other commits. A process
that dies before a commit leaves files that no version names, which the clean-up of old versions
deletes after a week; a process that repeats it plans anew. A rewrite and a merge that touch the
same fragments exclude each other, and the second committer tries again with less: both shrink until
they get through. Files that were written in vain are deleted at once. Where merges are frequent and
touch all fragments, however small, shrinking is not enough: see :mod:`memwal.fleet.exclusive`.

A commit remaps the indexes over the fragments that it replaces. Lance withdraws the catch-up of the
indexes then, and the next index build records it again, with nothing to add.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import lance
from lance.optimize import Compaction, CompactionOptions, CompactionTask, RewriteResult

from memwal.base_table.commit import commit_durably, is_conflict
from memwal.base_table.snapshot import (
    DEFAULT_TARGET_ROWS,
    BaseTable,
    open_base,
    open_dataset,
    small_fragment_ids,
    translate_lance_error,
)
from memwal.errors import InvalidInputError, ObjectNotFoundError, StoreError
from memwal.format.paths import DATA_DIR
from memwal.jobs.job import Guard, JobResult, TaskRunner, run_in_process
from memwal.storage.location import TableLocation

logger = logging.getLogger(__name__)

DEFAULT_MIN_FRAGMENTS = 8
DEFAULT_COMMIT_BYTES = 1 << 30

DEFAULT_ATTEMPTS = 8

_SHRINK = 4
_CONFLICT_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Fragments of one version that become one, or a few full ones."""

    location: TableLocation
    version: int
    plan: CompactionTask


def compact(
    location: TableLocation,
    *,
    min_fragments: int = DEFAULT_MIN_FRAGMENTS,
    target_rows: int = DEFAULT_TARGET_ROWS,
    commit_bytes: int = DEFAULT_COMMIT_BYTES,
    max_commits: int | None = None,
    attempts: int = DEFAULT_ATTEMPTS,
    guard: Guard | None = None,
    run: TaskRunner = run_in_process,
) -> JobResult:
    """Rewrite small fragments, and those of which a tenth or more is deleted.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    min_fragments : int, default 8
        Nothing is done until so many fragments are worth it.
    target_rows : int, default 1,048,576
        A fragment with fewer rows is small.
    commit_bytes : int, default 1 GiB
        Size on storage of what one commit replaces at most. Smaller ones get in each other's way
        less; each remaps the indexes.
    max_commits : int, optional
        It ends after so many, whatever is left.
    attempts : int, default 8
        It gives up when so many rewrites met other commits.
    guard : callable, optional
        Called right before each commit; what it raises stops the job.
    run : callable
        Runs the rewrites of a commit.

    Returns
    -------
    JobResult
        Figures ``fragments_removed`` and ``fragments_added``, and ``rewrites_lost`` where some met
        other commits; a problem when it gave up for that.

    Raises
    ------
    InvalidInputError
        A limit is too small; the message names it.
    """
    if (
        min(
            min_fragments,
            target_rows,
            commit_bytes,
            attempts,
            1 if max_commits is None else max_commits,
        )
        < 1
    ):
        raise InvalidInputError(
            "min_fragments, target_rows, commit_bytes, max_commits and attempts must be at least 1"
        )
    started = time.monotonic()
    tasks = commits = failures = 0
    figures = {"fragments_removed": 0, "fragments_added": 0}
    budget = commit_bytes
    problems: tuple[str, ...] = ()
    base = open_base(location)
    # What is there now, and not what merges add meanwhile: with that it might never end.
    small = small_fragment_ids(base, target_rows=target_rows)
    while (
        len(small) >= min_fragments
        and commits != max_commits
        and (rewrites := _plan(base, target_rows, budget, small))
    ):
        tasks += len(rewrites)
        done: list[RewriteResult] = run(rewrites, run_rewrite_task)
        if guard is not None:
            guard()
        committed = _are_as_planned(rewrites) and _commit(base, done)
        base = open_base(location)
        if not committed:
            failures += 1
            _discard(base, done)
            figures["rewrites_lost"] = failures
            if failures == attempts:
                problems = (f"{failures} rewrites of {location} met other commits; run it again",)
                break
            budget = max(budget // _SHRINK, 1)
            time.sleep(random.uniform(0, _CONFLICT_WAIT_SECONDS * failures))  # noqa: S311
        else:
            commits += 1
            for result in done:
                figures["fragments_removed"] += result.metrics.fragments_removed
                figures["fragments_added"] += result.metrics.fragments_added
    return JobResult(
        job="compact",
        table=location.uri,
        version=base.version,
        tasks=tasks,
        commits=commits,
        seconds=time.monotonic() - started,
        figures=figures,
        problems=problems,
    )


def run_rewrite_task(task: RewriteTask) -> RewriteResult:
    """Write the new fragments; no version names them yet."""
    dataset = open_dataset(task.location, version=task.version)
    try:
        return task.plan.execute(dataset)
    except (OSError, RuntimeError, ValueError) as error:
        raise translate_lance_error(error, f"rewriting fragments of {task.location}") from error


def _plan(
    base: BaseTable, target_rows: int, budget: int, wanted: Collection[int]
) -> tuple[RewriteTask, ...]:
    """Rewrites of the fragments that are wanted, and of what Lance puts together with them."""

    def tasks(options: CompactionOptions) -> list[CompactionTask]:
        return [
            task
            for task in Compaction.plan(base.dataset, options).tasks
            if any(fragment.id in wanted for fragment in task.fragments)
        ]

    options: CompactionOptions = {"target_rows_per_fragment": target_rows}
    # One task is more than the budget allows: it goes alone.
    found = tasks({**options, "max_source_bytes": budget}) or tasks(options)[:1]
    return tuple(RewriteTask(base.location, base.version, task) for task in found)


def _are_as_planned(rewrites: Sequence[RewriteTask]) -> bool:
    """Whether nobody has touched the fragments since.

    A commit that is bound to fail writes the indexes of the whole table first, and leaves them.
    """
    fragments = open_base(rewrites[0].location).dataset.get_fragments()
    there = {fragment.fragment_id: fragment.metadata for fragment in fragments}
    planned = (fragment for task in rewrites for fragment in task.plan.fragments)
    return all(there.get(fragment.id) == fragment for fragment in planned)


def _commit(base: BaseTable, rewrites: Sequence[RewriteResult]) -> bool:
    """Put the new fragments in the place of the old ones; False when somebody else touched them."""

    def commit(dataset: lance.LanceDataset) -> None:
        Compaction.commit(dataset, list(rewrites))

    try:
        # Lance reserves the numbers of the new fragments in a version of its own.
        commit_durably(base, commit, once=False)
    except (OSError, RuntimeError, ValueError) as error:
        if _landed(base, rewrites):
            return True
        if is_conflict(error):
            logger.info(
                "compaction of %s met another commit, trying again: %s", base.location, error
            )
            return False
        raise translate_lance_error(error, f"compacting {base.location}") from error
    return True


def _discard(base: BaseTable, rewrites: Sequence[RewriteResult]) -> None:
    """Delete the new fragments, which no version has.

    Otherwise a table in which many are lost would grow until Lance takes them, after a week.
    """
    keys = [f"{DATA_DIR}/{name}" for rewrite in rewrites for name in _new_files(rewrite)]
    try:
        base.location.store.delete_many(keys)
    except StoreError as error:
        logger.info("files of a rewrite that was lost stay: %s", error)


def _landed(base: BaseTable, rewrites: Sequence[RewriteResult]) -> bool:
    """Whether new fragments came to be although their commit was said to have failed.

    Their files tell: their numbers are given by the commit, and the old ones may be gone for
    something else that somebody did. Others may have replaced them since.
    """
    ours = {name for rewrite in rewrites for name in _new_files(rewrite)}
    for version in range(base.version + 1, open_base(base.location).version + 1):
        with suppress(ObjectNotFoundError):
            dataset = open_dataset(base.location, version=version)
            if not ours.isdisjoint(_files(dataset.get_fragments())):
                return True
    return False


def _new_files(rewrite: RewriteResult) -> Iterator[str]:
    for fragment in json.loads(rewrite.json())["new_fragments"]:
        yield from (file["path"] for file in fragment["files"])


def _files(fragments: Iterable[lance.LanceFragment]) -> set[str]:
    return {file.path for fragment in fragments for file in fragment.data_files()}
