"""Flush rows that wait in the logs of regions that no living writer has.

A recovery of a region is a claim, a replay, and a flush of the replayed rows; it never appends. A
process that pauses, dies or repeats at each step:

* before the claim: nothing happened;
* after the claim's manifest, or after its sentinel: the rows stay in the log, for the next claim by
  any process. A writer that lived after all is fenced, claims the region back, and loses nothing:
  see :mod:`memwal.lsm.wal.log`;
* while it flushes: generations that the manifest names are flushed, the rest is replayed by the
  next claim, and a folder that no manifest names is collected as an orphan;
* after a pause in which another process claimed the region: the flush finds another epoch in the
  manifest and ends with RegionFencedError. The region is not recovered by this run, nor in need of
  it;
* a second recovery finds no rows, and claims nothing.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from memwal.base_table.required_regions import TableRegions, read_regions
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import ConflictError, MemWalError, RegionFencedError
from memwal.format.region_manifest import RegionManifest, RegionStatus
from memwal.jobs.job import Guard, JobResult, RegionsTask, guarded, shares, task_limit
from memwal.jobs.options import RecoverOptions
from memwal.jobs.progress import Unit, run_tasks
from memwal.jobs.unflushed import find_unflushed, has_no_writer, seconds_unchanged
from memwal.lsm.flush.generation import write_generation
from memwal.lsm.indexes.maintained import maintained_indexes
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.claim import Claim, ClaimedRegion, claim_region, claimed_folders
from memwal.lsm.wal.log import lost_log_error
from memwal.lsm.wal.replay import replay
from memwal.region.manifest_store import read_each
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore
from memwal.util.clock import in_seconds
from memwal.util.log import safe_error_text
from memwal.util.retry import MAX_LOST_WRITES, retry_lost_races
from memwal.writer.region_writer.options import WriterOptions, WriterSettings

logger = logging.getLogger(__name__)


Recovered = tuple[Counter[str], list[str]]
"""Numbers of regions, and of their generations and rows; a warning for each other region."""


def recover(
    location: TableLocation,
    options: RecoverOptions = RecoverOptions(),
    *,
    clock: Callable[[], float] = time.time,
) -> JobResult:
    """Flush the rows that wait in the logs of regions without a living writer.

    A region whose rows were written a short time ago, or whose manifest was changed then, may have
    a living writer, and is left to it; one that another client claimed last, for a day, unless the
    options say how old rows must be. A region that cannot be recovered is skipped, and is among
    the warnings. ``clock`` returns seconds since the epoch.

    Returns
    -------
    JobResult
        Metrics ``recovered_regions``, their ``recovered_generations`` and ``recovered_rows``, and
        ``unflushed_regions``, which were left to a writer that may live.
    """
    started = time.monotonic()
    found = read_regions(location, options.regions)
    base = found.base
    unflushed = _unflushed_regions(found, options, now=clock())
    regions = [region for region, has_no_writer in unflushed.items() if has_no_writer]
    tasks = [RegionsTask(location, share) for share in shares(regions, task_limit(options))]
    outcomes: list[Recovered] = run_tasks(
        options,
        tasks,
        guarded(run_recover_task, options.guard),
        job="recover",
        step="recovering",
        unit=Unit.REGIONS,
    )
    metrics = sum((counted for counted, _ in outcomes), Counter())
    return JobResult(
        job="recover",
        table=location.uri,
        version=base.version,
        tasks=len(tasks),
        seconds=time.monotonic() - started,
        metrics={
            "recovered_regions": metrics["regions"],
            "recovered_generations": metrics["generations"],
            "recovered_rows": metrics["rows"],
            "unflushed_regions": len(unflushed) - len(regions),
        },
        warnings=tuple(warning for _, warnings in outcomes for warning in warnings),
    )


def _unflushed_regions(
    found: TableRegions, options: RecoverOptions, *, now: float
) -> dict[UUID, bool]:
    """Return the regions with unflushed rows, and whether they are to be recovered."""
    base, manifests = found.base, found.manifests
    store, min_age = base.location.store, options.min_age_seconds

    def look(manifest: RegionManifest) -> bool | None:
        unflushed = find_unflushed(store, manifest)
        if unflushed is None:
            # Without a log, nothing tells the unflushed rows: let the claim find that.
            lost = lost_log_error(store, manifest.region_id, manifest.last_logged, newest=0)
            return None if lost is None or manifest.status != RegionStatus.ACTIVE else True
        unchanged = seconds_unchanged(store, manifest, unflushed, now=now)
        if min_age is None:
            return has_no_writer(base, manifest, unchanged)
        return unchanged >= in_seconds(min_age)

    answers = read_each(store, look, manifests.values())
    looks = dict(zip(manifests, answers, strict=True))
    return {region: answer for region, answer in looks.items() if answer is not None}


def run_recover_task(task: RegionsTask, *, guard: Guard | None = None) -> Recovered:
    """Recover some regions, one after the other."""
    base = open_base(task.location)
    metrics, warnings = Counter[str](), []
    for region_id in task.regions:
        if guard is not None:
            guard()
        try:
            # As a writer does, so that nothing goes into a table that is put in this one's place.
            store = task.location.store.hold(claimed_folders(region_id))
            claim = claim_region(
                store,
                region_id,
                merged=base.details.merged.get(region_id, 0),
                recovers=True,
            )
            # A writer may have written a new column before the claim.
            base = open_base(task.location, seen=base)
            metrics.update(flush_log(base, store, claim), regions=1)
        except MemWalError as error:
            if type(error) is RegionFencedError:
                logger.info("region %s was claimed meanwhile: %s", region_id, error)
                continue
            warnings.append(f"region {region_id} is not recovered: {safe_error_text(error)}")
    return metrics, warnings


def flush_log(
    base: BaseTable, store: ObjectStore, claim: Claim, *, skip_unusable: bool = False
) -> Counter[str]:
    """Flush all rows of a claimed region that only its log has.

    Returns the number of ``generations``, and that of their ``rows``, with superseded ones.

    ``base`` was opened after the claim, so that it has all columns of the entries. ``store`` is the
    one of the claim, which may hold the folders of the region. With ``skip_unusable``, rows that
    cannot be stored are left out: the caller has put them into quarantine. Afterwards no claim
    replays the entries before this one.

    Raises RegionFencedError if another writer claimed the region, which then replays the rows, and
    MemWalError if an entry is damaged, or the store failed; flushed generations stay.
    """
    region_id = claim.manifest.region_id
    settings = WriterSettings.of(WriterOptions(), base.details.writer_config_defaults)
    claimed = ClaimedRegion(store, claim.manifest)
    indexes = maintained_indexes(base)
    done = Counter[str]()
    for generation in replay(
        store,
        claim,
        row_schema=RowSchema.of(base),
        max_bytes=settings.max_memtable_bytes,
        skip_unusable=skip_unusable,
    ):
        if not generation.rows:
            claimed.skip_generation(generation)
            continue
        # Lance makes folders that do not exist: it must not make those of a table that was moved.
        claimed.check_held()
        write = partial(
            write_generation,
            base,
            region_id,
            generation.generation,
            generation.contents,
            indexes,
        )
        retry_lost_races(
            partial(claimed.publish_generation, generation, write),
            attempts=MAX_LOST_WRITES,
            exhausted=ConflictError(f"region {region_id} was changed in every attempt to flush it"),
        )
        done.update(generations=1, rows=generation.rows)
    if not done:
        # There are only entries without rows, which no reader has to read again.
        claimed.skip_generation(_Rest(claim.manifest.current_generation, claim.next_position - 1))
    return done


@dataclass(frozen=True, slots=True)
class _Rest:
    """Entries without rows at the end of a log, the sentinel of the claim among them."""

    generation: int
    last_position: int
