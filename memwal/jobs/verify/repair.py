"""Repairs that are safe while writers, mergers, collectors and readers are at work, and no others.

Each repair checks the finding again before it changes something, can be repeated, and can be run by
two processes at once. Effects on other processes:

``hint``
    The hint is set to the newest version of a history without gaps. A writer that commits in
    between advances it, and the repair may set it back: that costs a reader a request per version.
    A collector may have trimmed the version before the repair ends: then readers find neither it
    nor the next version, and list.

``bloom``
    One object is replaced as a whole by the filter of the rows, which never change. A reader sees
    the old filter or the new one. A reader that cached a wrong filter keeps it until its process
    ends. If a collector deletes the folder during the repair, one file may remain, in a folder that
    no manifest names: the collector deletes it as an orphan of a flush.

``key-index``
    The pages are replaced first, then their directory, each as a whole. If the index was missing,
    it does not exist for readers of memwal until its directory does. If it was wrong, a reader may
    have the old directory with new pages: it may miss keys as before, but every key in a new page
    points to its row. Collectors as above.

``snapshot``
    A new snapshot is published by compare-and-swap of the details, as by the snapshot job; a newer
    snapshot is not replaced.

``generation``
    The generation is rebuilt from the log, which is kept for as long as the manifest names it; see
    :mod:`memwal.jobs.verify.repairs.rebuild` for the changes that other processes may make during
    the repair. After all repairs, a snapshot is published as above. If the process dies before, the
    next snapshot job publishes one.

``quarantine``
    Rows of a region's log that cannot be stored are put into the quarantine table, and the other
    rows are flushed; see :mod:`memwal.jobs.verify.repairs.set_aside`. The region is claimed for it:
    its present writer is fenced, loses nothing, and claims the region again.

``catchup``
    Entries are only ever lowered, by compare-and-swap on the newest version, after the check was
    made on that version. Readers then read more generations than they need, and the collector keeps
    more. Lance itself raises the entry of an index that covers every fragment in any next commit,
    so an entry cannot be lowered for good by mistake.

``maintained``
    The entry is taken out by compare-and-swap on the newest version. Generations that are flushed
    from then on lack the index, as readers of any version allow; the collector waits for one index
    less, and index builds extend it as they do every index.
``index``
    The index is built again, in one commit that replaces all of its segments, as by the index job;
    see :mod:`memwal.jobs.index.rebuild`. A reader of an older version still meets the bad files.

Not repaired, although it looks easy: a torn entry at the end of a log (a claim may just be writing
its fence after it, and would leave a gap), a torn version of the base table (another process may be
creating it again), the catch-up of an index that does not exist (the next commit drops it).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import ClassVar, Final, TypeAlias

import numpy as np
import pyarrow.compute as pc

from memwal.base_table.commit import update_details
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base, open_dataset
from memwal.errors import MemWalError, ObjectNotFoundError, StoreError
from memwal.format.bloom import FilterBuilder
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import BLOOM_FILTER_NAME, PK_INDEX_DIR, generation_dir
from memwal.jobs.index.rebuild import rebuild_index
from memwal.jobs.table.snapshot import build_snapshot
from memwal.jobs.verify.findings import Finding, FindingSeverity, Repair, VerifyReport
from memwal.jobs.verify.generations import (
    GenerationCheck,
    StoredKeys,
    check_bloom,
    check_generation,
    check_key_index,
    read_keys,
)
from memwal.jobs.verify.indexes import check_index_contents, check_index_files
from memwal.jobs.verify.manifests import check_hint, read_history
from memwal.jobs.verify.merged_rows import check_merged_rows
from memwal.jobs.verify.repairs.rebuild import rebuild_generation
from memwal.jobs.verify.repairs.set_aside import set_aside_unusable_rows
from memwal.jobs.verify.specs import check_indexes, check_snapshot
from memwal.lsm.flush.key_index import NewestKeys, write_key_index
from memwal.lsm.indexes.catchup import unmaintainable_index_names
from memwal.quality.quarantine import Quarantine
from memwal.region.manifest_store import RegionManifestStore, read_manifests
from memwal.storage.location import TableLocation
from memwal.util.records import JsonRecord

logger = logging.getLogger(__name__)

_RepairCall: TypeAlias = Callable[[TableLocation, Finding, datetime], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairAction(JsonRecord):
    """Outcome of the repair of one finding."""

    json_properties: ClassVar[tuple[str, ...]] = ("repair",)

    finding: Finding
    """The finding; its code has a repair."""
    state: str
    """``would`` in a dry run; ``nothing`` if there was nothing to repair any more."""
    text: str
    """The change that the repair makes or made, or the reason why it failed."""

    @property
    def repair(self) -> Repair | None:
        """The repair that the code of the finding names."""
        return self.finding.repair


def repair(
    location: TableLocation,
    report: VerifyReport,
    *,
    dry_run: bool = True,
    quarantine_uri: str | None = None,
    clock: Callable[[], float] = time.time,
) -> tuple[RepairAction, ...]:
    """Run the safe repairs of the ``report`` of a table; findings without one are skipped.

    With ``dry_run``, only return the actions that would be carried out. Returns an action per
    finding that has a repair; the repair of one finding may fix several. A repair that fails is
    reported, and does not stop the others. ``quarantine_uri`` is the address of the quarantine
    table, by default beside the table: as in :class:`memwal.quality.rules.QualityRules`. ``clock``
    returns seconds since the epoch.
    """
    repairs: dict[Repair, _RepairCall] = {
        **_REPAIRS,
        Repair.QUARANTINE: partial(_repair_log, quarantine_uri),
    }
    actions = []
    for finding in report.findings:
        if finding.repair is None:
            continue
        if dry_run:
            actions.append(RepairAction(finding=finding, state="would", text=finding.advice))
            continue
        try:
            now = datetime.fromtimestamp(clock(), UTC)
            done = repairs[finding.repair](location, finding, now)
        except MemWalError as error:
            actions.append(RepairAction(finding=finding, state="failed", text=str(error)))
            continue
        state = "done" if done else "nothing"
        text = finding.advice if done else "it is not wrong any more"
        actions.append(RepairAction(finding=finding, state=state, text=text))
    if any(a.state == "done" and a.finding.repair is Repair.GENERATION for a in actions):
        try:
            # So that readers of snapshots do not ask for the old folders.
            if open_base(location).details.snapshot_ts_millis:
                build_snapshot(location)
        except MemWalError as error:
            logger.warning("the snapshot still names folders that were lost: %s", error)
    return tuple(actions)


def _repair_hint(location: TableLocation, finding: Finding, now: datetime) -> bool:
    if finding.region is None or not any(
        found.repair is Repair.HINT for found in check_hint(location.store, finding.region, now=now)
    ):
        return False
    history = read_history(location.store, finding.region)
    if history.newest is None or any(f.severity is FindingSeverity.ERROR for f in history.findings):
        raise StoreError(
            f"the manifests of region {finding.region} have gaps or cannot be read, so the newest "
            "one is not certain; repair them first"
        )
    RegionManifestStore(location.store, finding.region).refresh_hint(history.newest.version)
    return True


def _repair_bloom(location: TableLocation, finding: Finding, _now: datetime) -> bool:
    folder, _, name = finding.object.rpartition("/")
    keys = _read_keys(location, folder)
    if keys is None:
        return False
    if (
        location.store.exists(finding.object)
        and check_bloom(location, folder, keys, name=name) is None
    ):
        return False
    filters = FilterBuilder(keys.columns.num_rows)
    filters.add(keys.columns.columns)
    content = filters.bloom_filter() if name == BLOOM_FILTER_NAME else filters.sized_filter()
    if content is None:
        # A generation with few keys needs no filter, and a damaged filter is not used.
        return False
    location.store.put(finding.object, content)
    location.store.sync(folder)
    return True


def _repair_key_index(location: TableLocation, finding: Finding, _now: datetime) -> bool:
    folder = finding.object.removesuffix(f"/{PK_INDEX_DIR}")
    keys = _read_keys(location, folder)
    if keys is None or check_key_index(location, folder, keys) is None:
        return False
    order = pc.sort_indices(keys.encoded).to_numpy().astype(np.int64)
    newest = NewestKeys(
        np.arange(len(keys.rows), dtype=np.int64), keys.encoded.take(order), keys.rows[order]
    )
    with lance_errors(f"writing {finding.object}"):
        write_key_index(location, finding.object, newest)
    location.store.sync(folder)
    return True


def _read_keys(location: TableLocation, folder: str) -> StoredKeys | None:
    """Read the stored keys of a generation; None if it is gone."""
    try:
        with lance_errors(f"reading {folder}"):
            dataset = open_dataset(location, folder)
            return read_keys(open_base(location), dataset, everything=False)[1]
    except ObjectNotFoundError:
        return None


def _repair_generation(location: TableLocation, finding: Finding, _now: datetime) -> bool:
    region_id = finding.region
    if region_id is None:
        return False
    latest = RegionManifestStore(location.store, region_id).read_latest()
    named = () if latest is None else latest.flushed
    lost = next((f for f in named if generation_dir(region_id, f.path) == finding.object), None)
    if lost is None:
        return False
    base = open_base(location)
    merged = lost.generation <= base.details.merged.get(region_id, 0)
    results = check_generation(GenerationCheck(base, region_id, lost, merged), rows=True, deep=True)
    wrong = any(isinstance(result, Finding) and result.code == finding.code for result in results)
    return wrong and rebuild_generation(base, region_id, lost)


def _repair_log(
    quarantine_uri: str | None, location: TableLocation, finding: Finding, _now: datetime
) -> bool:
    if finding.region is None:
        return False
    quarantine = Quarantine.of(location, quarantine_uri)
    return set_aside_unusable_rows(open_base(location), finding.region, quarantine) > 0


def _repair_index(location: TableLocation, finding: Finding, _now: datetime) -> bool:
    def is_damaged(base: BaseTable) -> bool:
        findings = chain(check_index_files(base), check_index_contents(base))
        return any(_is_same(finding, findings))

    return rebuild_index(location, finding.object, is_damaged=is_damaged)


def _repair_snapshot(location: TableLocation, finding: Finding, _now: datetime) -> bool:
    base = open_base(location)
    if not any(_is_same(finding, check_snapshot(base, read_manifests(location.store)))):
        return False
    build_snapshot(location)
    return True


def _repair_catchup(location: TableLocation, finding: Finding, _now: datetime) -> bool:
    def change(base: BaseTable) -> IndexDetails | None:
        progress = base.details.catchup.get(finding.object)
        if progress is None:
            return None
        manifests = read_manifests(location.store)
        merged_rows = check_merged_rows(base, manifests, [Quarantine.of(location)])
        found = chain(check_indexes(base), merged_rows)
        if not any(_is_same(finding, found)):
            return None
        lowered = (
            {
                region_id: min(generation, base.details.merged.get(region_id, 0))
                for region_id, generation in progress.items()
            }
            if finding.code == "catchup-ahead"
            else {}
        )
        return replace(base.details, catchup={**base.details.catchup, finding.object: lowered})

    return _change_details(location, change)


def _repair_maintained(location: TableLocation, finding: Finding, _now: datetime) -> bool:
    def change(base: BaseTable) -> IndexDetails | None:
        if finding.object not in unmaintainable_index_names(base):
            return None
        names = tuple(name for name in base.details.maintained_indexes if name != finding.object)
        return replace(base.details, maintained_indexes=names)

    return _change_details(location, change)


def _change_details(
    location: TableLocation, change: Callable[[BaseTable], IndexDetails | None]
) -> bool:
    """Change the details of the latest version; False if ``change`` returns None."""
    changed = False

    def attempt(base: BaseTable) -> IndexDetails:
        nonlocal changed
        details = change(base)
        changed = details is not None
        return base.details if details is None else details

    update_details(location, attempt)
    return changed


def _is_same(finding: Finding, others: Iterable[Finding]) -> Iterable[bool]:
    return (other.code == finding.code and other.object == finding.object for other in others)


_REPAIRS: Final[dict[Repair, _RepairCall]] = {
    Repair.HINT: _repair_hint,
    Repair.BLOOM: _repair_bloom,
    Repair.KEY_INDEX: _repair_key_index,
    Repair.SNAPSHOT: _repair_snapshot,
    Repair.CATCHUP: _repair_catchup,
    Repair.MAINTAINED: _repair_maintained,
    Repair.GENERATION: _repair_generation,
    Repair.INDEX: _repair_index,
}
