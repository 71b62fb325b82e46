"""Merging and indexing until what had been flushed at a moment is in the base table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from uuid import UUID

from memwal.errors import ConflictError
from memwal.maintenance.index_build import build_indexes
from memwal.maintenance.merge import merge
from memwal.maintenance.results import JobResult, TaskRunner, run_in_process
from memwal.region.discovery import read_manifests
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import open_base

_ROUNDS = 10


def checkpoint(location: TableLocation, *, run: TaskRunner = run_in_process) -> JobResult:
    """Bring every generation that is flushed now into the base table and its maintained indexes.

    Rows that writers have not flushed are not touched: flush the writer first for those.

    Returns
    -------
    JobResult
        The figures of the merges and of the index build together.

    Raises
    ------
    ConflictError
        Some generation could not be merged; the message tells which, and why.
    """
    started = time.monotonic()
    target = {
        region_id: max(flushed.generation for flushed in manifest.flushed)
        for region_id, manifest in read_manifests(location.store).items()
        if manifest.flushed
    }
    results: list[JobResult] = []
    behind = _behind(location, target)
    while behind and len(results) < _ROUNDS:
        results.append(merge(location, regions=behind, run=run))
        behind = _behind(location, target)
    if behind:
        problems = "; ".join(results[-1].problems) or "other mergers kept getting in between"
        raise ConflictError(f"checkpoint of {location} is not complete: {problems}")
    results.append(build_indexes(location, run=run))
    figures: dict[str, int] = {}
    for result in results:
        for name, value in result.figures.items():
            figures[name] = figures.get(name, 0) + value
    return JobResult(
        job="checkpoint",
        table=location.uri,
        version=results[-1].version,
        tasks=sum(result.tasks for result in results),
        commits=sum(result.commits for result in results),
        seconds=time.monotonic() - started,
        figures=figures,
        problems=tuple(problem for result in results for problem in result.problems),
    )


def _behind(location: TableLocation, target: Mapping[UUID, int]) -> list[UUID]:
    """Regions that are not merged up to their target."""
    merged = open_base(location).details.merged
    return [region for region, generation in target.items() if merged.get(region, 0) < generation]
