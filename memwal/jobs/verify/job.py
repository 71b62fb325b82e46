"""Verify the invariants of a table, in tasks that may run on other machines.

Writers, mergers, collectors and other clients are at work during the verification. Every check
therefore reads in the order in which a change in between looks right: the base table before the
manifests, a manifest before its log and its generations. Objects that are being collected or
replaced may still look wrong for a moment. Every finding is therefore checked again, on the state
at that time, and counts only if it is found again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from memwal.base_table.region_marks import find_lost_progress, read_marks
from memwal.base_table.required_regions import check_no_regions
from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, NewerFormatError
from memwal.format.paths import generation_dir, parse_generation_name, region_dir
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.job import run_in_process, shares, task_limit
from memwal.jobs.options import GcOptions, VerifyOptions
from memwal.jobs.progress import Unit, run_tasks
from memwal.jobs.verify.base_table import (
    ReadableBase,
    check_blobs,
    check_files,
    check_older_versions,
    check_refs,
    check_repeated_keys,
    open_newest,
)
from memwal.jobs.verify.damage import Unreadable, damage_as_unreadable
from memwal.jobs.verify.findings import Finding, VerifyReport, worst_first
from memwal.jobs.verify.generations import GenerationCheck, check_generation
from memwal.jobs.verify.indexes import check_index_contents, check_index_files
from memwal.jobs.verify.manifests import (
    StoredManifests,
    check_hint,
    check_history,
    read_history,
    read_newest,
)
from memwal.jobs.verify.merged_rows import check_added_rows, check_merged_rows
from memwal.jobs.verify.specs import (
    Routers,
    check_indexes,
    check_known,
    check_merged,
    check_places,
    check_progress_kept,
    check_shared_keys,
    check_snapshot,
    check_specs,
    check_stale_indexes,
    check_values,
    count_misplaced,
    make_routers,
)
from memwal.jobs.verify.wal import check_log
from memwal.lsm.row_schema import RowSchema
from memwal.quality.quarantine import Quarantine
from memwal.region.manifest_store import discover_regions
from memwal.storage.location import TableLocation


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """Part of a verification that one worker runs."""

    location: TableLocation
    regions: tuple[UUID, ...]  # to check; empty for the base table itself
    options: VerifyOptions  # without the runner, which does not go to workers
    now: datetime  # when the verification began, in UTC

    @property
    def all_regions(self) -> bool:
        """True if all regions are checked, so that the base table's records of regions are too."""
        return self.options.regions is None

    @property
    def quarantines(self) -> list[Quarantine]:
        """The quarantine of the table, and the default one: earlier rules may have used it."""
        uris = dict.fromkeys((self.options.quarantine_uri, None))
        return [Quarantine.of(self.location, uri) for uri in uris]


def check_table(task: VerifyTask, base: BaseTable | None) -> Iterator[Finding]:
    """Check the base table and its records of the regions; list the links in its folder."""
    store = task.location.store
    for link in store.list_links(""):
        yield Finding("link-broken" if link.is_broken else "link", link.key, f"to {link.target}")
    if base is None:
        return
    for name, problem in base.unusable.items():
        yield Finding("column-unusable", name, problem)
    yield from check_refs(base)
    yield from check_specs(base)
    yield from check_indexes(base)
    yield from check_progress_kept(base)
    try:
        damaged, unreadable = list(check_files(base)), list(check_index_files(base))
    except NewerFormatError as error:
        # Lance may read its rows, but its files cannot be listed.
        damaged, unreadable = [Finding("newer-format", "base table", str(error))], []
    yield from (*damaged, *unreadable)
    if task.options.deep and not (damaged or unreadable):
        yield from check_index_contents(base)
    if task.all_regions:
        # Read after the base table: merge progress follows the flushes. Damaged manifests are left
        # out.
        newest = {region_id: read_newest(store, region_id) for region_id in discover_regions(store)}
        manifests = {key: manifest for key, manifest in newest.items() if manifest is not None}
        yield from check_known(base, manifests, read_marks(store))
        yield from check_snapshot(base, manifests)
        yield from check_places(base, manifests)
        if not (task.options.quick or damaged):
            yield from check_shared_keys(base, manifests)
            if not base.primary_key:
                yield from check_added_rows(base, manifests, task.quarantines)
    if not task.options.quick:
        yield from check_older_versions(base)
        if not damaged:
            try:
                with damage_as_unreadable(task.location.store, None):
                    yield from list(check_blobs(base))
                    yield from list(check_stale_indexes(base))
                    yield from list(check_repeated_keys(base))
            except Unreadable as error:
                text = f"keys of version {base.version} cannot be read: {error}"
                yield Finding("table-file-damaged", "data", text)


def _has_broken_link(location: TableLocation, region_id: UUID) -> bool:
    """Return whether a broken link is in the folder of a region, is it, or leads to it."""
    folder = f"{region_dir(region_id)}/"
    links = (f"{link.key}/" for link in location.store.list_links("") if link.is_broken)
    return any(link.startswith(folder) or folder.startswith(link) for link in links)


def check_regions(
    task: VerifyTask, newest: ReadableBase, regions: Sequence[UUID]
) -> Iterator[Finding]:
    """Check regions one by one, and then their merged rows together."""
    base = newest.base
    routers = {} if base is None else make_routers(base)
    manifests: dict[UUID, RegionManifest] = {}
    sampled: dict[UUID, set[int]] = {}
    for region_id in regions:
        try:
            history = read_history(task.location.store, region_id)
            if task.all_regions and history.is_empty:
                # Not a requested region: left by a claim that died, or by one under way.
                continue
            yield from _check_region(task, newest, history)
            if history.newest is not None and base is not None:
                manifests[region_id] = history.newest
                sampled[region_id] = _sample_generations(task, history.newest)
                chosen = sampled[region_id]
                yield from _check_generations(task, base, routers, history.newest, chosen)
        except CorruptDataError:
            # Files behind a broken link cannot be checked; the link itself is a finding.
            if not _has_broken_link(task.location, region_id):
                raise
            manifests.pop(region_id, None)
    if base is not None and base.primary_key and not task.options.quick:
        yield from check_merged_rows(base, manifests, task.quarantines, sampled=sampled)


def _check_region(
    task: VerifyTask, newest: ReadableBase, history: StoredManifests
) -> Iterator[Finding]:
    location, base = task.location, newest.base

    def merged_now() -> Mapping[UUID, int]:
        # Read now, after the manifests: a generation was merged before a manifest dropped it.
        latest = open_newest(location)
        if latest.base is None or latest.findings:
            # The record of a torn version is unknown.
            return {history.region_id: 1 << 64}
        return {**latest.base.details.merged, **find_lost_progress(latest.base)}

    yield from check_history(history, merged_now)
    yield from check_hint(location.store, history.region_id, now=task.now)
    manifest = history.newest
    if manifest is None:
        return
    collected = 0 if history.settled_manifest is None else history.settled_manifest.replay_after
    rows = not task.options.quick
    row_schema = None if base is None else RowSchema.of(base)
    yield from check_log(
        location.store, manifest, collected=collected, rows=rows, row_schema=row_schema
    )
    yield from _check_orphans(task, history)
    if base is not None:
        yield from check_merged(base, manifest)
        yield from check_values(base, manifest)


def _check_orphans(task: VerifyTask, history: StoredManifests) -> Iterator[Finding]:
    store, region_id = task.location.store, history.region_id
    named = {flushed.path for manifest in history.manifests for flushed in manifest.flushed}
    for name in store.list_folders(region_dir(region_id)):
        if parse_generation_name(name) is None or name in named:
            continue
        folder = generation_dir(region_id, name)
        written = [info.modified for info in store.list(folder)]
        # A younger folder may be of a flush under way, or its manifest version was trimmed.
        if written and max(written) + _ORPHAN_GRACE <= task.now:
            text = f"{len(written)} objects, the newest of {max(written):%Y-%m-%d %H:%M} UTC"
            yield Finding("orphan-folder", folder, text, region=region_id)


def _sample_generations(task: VerifyTask, manifest: RegionManifest) -> set[int]:
    """Select the generations whose rows are read."""
    numbers = [flushed.generation for flushed in manifest.flushed]
    sample = task.options.sample_generations
    if task.options.quick:
        return set()
    if sample is None or sample >= len(numbers):
        return set(numbers)
    # Every attempt of a run selects the same generations, and each run others.
    seed = f"{manifest.region_id}/{task.now:%Y%m%d%H%M%S%f}"
    return set(random.Random(seed).sample(numbers, sample))  # noqa: S311


def _check_generations(
    task: VerifyTask,
    base: BaseTable,
    routers: Routers,
    manifest: RegionManifest,
    sampled: Collection[int],
) -> Iterator[Finding]:
    merged = base.details.merged.get(manifest.region_id, 0)
    for flushed in manifest.flushed:
        check = GenerationCheck(base, manifest.region_id, flushed, flushed.generation <= merged)
        rows, deep = flushed.generation in sampled, task.options.deep
        for result in check_generation(check, rows=rows, deep=deep):
            if isinstance(result, Finding):
                yield result
            elif count := count_misplaced(base, routers, manifest, result):
                yield check.finding("rows-misplaced", f"{count} of {result.num_rows} rows")


_MAX_ATTEMPTS: Final = 3
_ORPHAN_GRACE: Final = GcOptions().orphan_grace
_PAUSE_SECONDS: Final = 0.2


def verify(
    location: TableLocation,
    options: VerifyOptions = VerifyOptions(),
    *,
    clock: Callable[[], float] = time.time,
) -> VerifyReport:
    """Check a table, and change nothing. ``clock`` returns seconds since the epoch.

    Raises
    ------
    TableSetupError
        There is no table, or it has regions without having MemWAL.
    StoreAccessError, StoreUnavailableError
        The store failed, so nothing is known about the table.
    """
    started = time.monotonic()
    now = datetime.fromtimestamp(clock(), UTC)
    sent = replace(options, run=run_in_process, progress=None)
    if options.regions is None:
        regions = discover_regions(location.store)
    else:
        regions = sorted(set(options.regions))
    # One task is for the base table.
    parts = [(), *shares(regions, task_limit(options))]
    tasks = [VerifyTask(location, part, sent, now) for part in parts]
    outcomes: list[tuple[int, tuple[Finding, ...]]] = run_tasks(
        options,
        tasks,
        run_verify_task,
        job="verify",
        step="verifying",
        unit=Unit.REGIONS,
    )
    return VerifyReport(
        table=location.uri,
        version=max(version for version, _ in outcomes),
        regions=len(regions),
        tasks=len(tasks),
        seconds=time.monotonic() - started,
        findings=worst_first(finding for _, findings in outcomes for finding in findings),
    )


def run_verify_task(task: VerifyTask) -> tuple[int, tuple[Finding, ...]]:
    """Run a task. Returns the version of the base table that was read, and the findings."""
    first = open_newest(task.location)
    if task.all_regions and first.base is not None and first.base.index is None:
        check_no_regions(first.base, task.regions)

    def check(newest: ReadableBase, regions: Sequence[UUID]) -> list[Finding]:
        if task.regions:
            return list(check_regions(task, newest, regions))
        return [*newest.findings, *check_table(task, newest.base)]

    findings = check(first, task.regions)
    for _ in range(_MAX_ATTEMPTS - 1):
        if not findings:
            break
        time.sleep(_PAUSE_SECONDS)
        suspect = {finding.region for finding in findings}
        regions = [region_id for region_id in task.regions if region_id in suspect]
        again = check(open_newest(task.location), regions or task.regions)
        confirmed = {finding.identity for finding in again}
        findings = [finding for finding in findings if finding.identity in confirmed]
    return first.base.version if first.base is not None else 0, tuple(findings)
