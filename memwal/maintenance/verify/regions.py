"""What is looked at of single regions."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from uuid import UUID

import pyarrow as pa

from memwal.format.names import generation_dir, parse_generation_name, region_dir
from memwal.format.region_manifest import RegionManifest
from memwal.maintenance.garbage import DEFAULT_ORPHAN_AGE
from memwal.maintenance.verify.base_versions import NewestBase, open_newest
from memwal.maintenance.verify.divisions import check_values, count_misplaced
from memwal.maintenance.verify.findings import Finding
from memwal.maintenance.verify.generations import GenerationCheck, check_generation
from memwal.maintenance.verify.logs import check_log
from memwal.maintenance.verify.manifests import (
    History,
    check_hint,
    check_history,
    read_history,
)
from memwal.maintenance.verify.merged_rows import check_merged_rows
from memwal.maintenance.verify.plan import Depth, VerifyTask
from memwal.maintenance.verify.progress import check_merged
from memwal.table_index.base_table import BaseTable


def look_at_regions(
    task: VerifyTask, newest: NewestBase, regions: Sequence[UUID]
) -> Iterator[Finding]:
    """Check regions: each by itself, and their merged rows together."""
    base = newest.base
    manifests: dict[UUID, RegionManifest] = {}
    chosen: dict[UUID, set[int]] = {}
    for region_id in regions:
        history = read_history(task.location.store, region_id)
        if task.all_regions and history.is_empty:
            # Nobody asked for it: a claim that died, or one that is on its way.
            continue
        yield from _look_at_region(task, newest, history)
        if history.newest is not None and base is not None:
            manifests[region_id] = history.newest
            chosen[region_id] = _chosen(task, history.newest)
            yield from _look_at_generations(task, base, history.newest, chosen[region_id])
    if base is not None and task.depth is Depth.FULL:
        yield from check_merged_rows(base, manifests, chosen=chosen)


def _look_at_region(task: VerifyTask, newest: NewestBase, history: History) -> Iterator[Finding]:
    location, base = task.location, newest.base

    def merged_now() -> Mapping[UUID, int]:
        # As it is now: what a manifest dropped was merged before that.
        latest = open_newest(location)
        if latest.base is None or latest.findings:
            # Nobody knows what a version that is torn said.
            return {history.region_id: 1 << 64}
        return latest.base.details.merged

    yield from check_history(history, merged_now)
    yield from check_hint(location.store, history.region_id, now=task.now)
    manifest = history.newest
    if manifest is None:
        return
    collected = 0 if history.settled is None else history.settled.replay_after
    rows = task.depth is Depth.FULL
    yield from check_log(location.store, manifest, collected=collected, rows=rows)
    yield from _orphans(task, history)
    if base is not None:
        yield from check_merged(base, manifest)
        yield from check_values(base, manifest)


def _orphans(task: VerifyTask, history: History) -> Iterator[Finding]:
    store, region_id = task.location.store, history.region_id
    named = {flushed.path for manifest in history.manifests for flushed in manifest.flushed}
    for name in store.list_folders(region_dir(region_id)):
        if parse_generation_name(name) is None or name in named:
            continue
        folder = generation_dir(region_id, name)
        written = [info.modified for info in store.list(folder)]
        # A younger one may be a flush on its way, or the manifest that named it is trimmed.
        if written and max(written) + DEFAULT_ORPHAN_AGE <= task.now:
            text = f"{len(written)} objects, the newest of {max(written):%Y-%m-%d %H:%M} UTC"
            yield Finding.of("orphan-folder", folder, text, region=region_id)


def _chosen(task: VerifyTask, manifest: RegionManifest) -> set[int]:
    """Generations whose rows are read."""
    numbers = [flushed.generation for flushed in manifest.flushed]
    if task.depth is Depth.QUICK:
        return set()
    if task.sample is None or task.sample >= len(numbers):
        return set(numbers)
    # The same for every look at it, and others with each run.
    seed = f"{manifest.region_id}/{task.now:%Y%m%d%H%M%S%f}"
    return set(random.Random(seed).sample(numbers, task.sample))  # noqa: S311


def _look_at_generations(
    task: VerifyTask, base: BaseTable, manifest: RegionManifest, chosen: Collection[int]
) -> Iterator[Finding]:
    merged = base.details.merged.get(manifest.region_id, 0)
    for flushed in manifest.flushed:
        check = GenerationCheck(base, manifest.region_id, flushed, flushed.generation <= merged)
        for found in check_generation(check, rows=flushed.generation in chosen):
            if isinstance(found, pa.Table):
                yield from _misplaced(check, manifest, found)
            else:
                yield found


def _misplaced(
    check: GenerationCheck, manifest: RegionManifest, rows: pa.Table
) -> Iterator[Finding]:
    count = count_misplaced(check.base, manifest, rows)
    if count:
        yield check.finding("rows-misplaced", f"{count} of {rows.num_rows} rows")
