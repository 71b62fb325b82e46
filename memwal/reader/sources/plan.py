"""Read plan: the base-table version and the generations that a read uses, and those it leaves out.

:func:`plan_read` and :func:`plan_fresh` open a snapshot. :func:`plan_snapshot` goes from it to its
regions, from these to their generations, and leaves out generations by the filter or the keys.
:func:`plan_version` lists the base table alone. They read no rows. Every reader starts with one of
them: a scan opens the sources that the plan lists, ``explain()`` prints the plan, and Spark divides
it into partitions. A new reason to leave out a generation belongs into :func:`ruled_out_regions` or
:func:`_rule_out_by_keys`, and nowhere else.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from memwal.base_table.region_marks import UNMARKED
from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.format.bloom import hash_keys
from memwal.format.paths import region_dir
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.lsm.memtable.indexes import ClaimedRows, UnflushedRows
from memwal.lsm.wal.position import WritePosition
from memwal.reader.sources.key_index import which_might_hold
from memwal.reader.sources.pruning import KeyBuilder, RegionPruner
from memwal.reader.sources.snapshot import TableSnapshot, open_snapshot, open_version
from memwal.region.manifest_store import read_manifests
from memwal.storage.location import TableLocation
from memwal.util.clock import boot_seconds
from memwal.util.records import plain_value

logger = logging.getLogger(__name__)

UnflushedByRegion = Mapping[UUID, Sequence[UnflushedRows]]
"""Unflushed rows by region, of a writer of this process or of the logs."""

# More keys are tested faster with one filter after the other.
_FEW_KEYS: Final = 64

_LOST: Final = (
    "was merged before the base table went back; memwal recover TABLE --after-restore decides"
)

Consistency = Literal["fresh", "strong", "flushed", "eventual", "version"]


@dataclass(frozen=True, slots=True)
class OmittedGenerations:
    """Generations of a region that a read leaves out."""

    region_id: UUID
    """The region."""
    generations: tuple[int, ...]
    """Empty if only its log is left out, by a fresh read."""
    reason: str
    """Why the read does not need them, in words."""

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.generations))
        what = f"generations {numbers}" if numbers else "log"
        return f"region {self.region_id}, {what}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A source that a read uses."""

    kind: Literal["memtable", "generation", "base"]
    """Kind of the source."""
    region_id: UUID | None
    """None for the base table."""
    generation: int
    """0 for the base table."""
    rows: int | None
    """Stored rows, superseded ones and tombstones included; None if not recorded."""

    def __str__(self) -> str:
        rows = "" if self.rows is None else f", {self.rows} rows"
        if self.kind == "base":
            return f"base table{rows}"
        return f"{self.kind} {self.generation} of region {self.region_id}{rows}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """Everything that a read uses and leaves out. Printing it explains the read."""

    snapshot: TableSnapshot
    """Pinned version of the base table, and the manifests that were read before it."""
    consistency: Consistency
    """Whether the read sees the unflushed rows of all writers, those of a writer of this process,
    all flushed rows, those flushed up to ``snapshot_time``, or the base table alone."""
    filter: str | None = None
    """Predicate that ruled generations out. Rows of the sources still have to be filtered by it."""
    generations: tuple[FlushedGeneration, ...] = ()
    """Flushed generations that the read uses: none of them is in the base table. Oldest first."""
    memtables: tuple[tuple[UUID, UnflushedRows], ...] = ()
    """MemTables that the read uses, with their regions."""
    merged: tuple[FlushedGeneration, ...] = ()
    """Generations that the base table contains and that are still stored. Until an index of the
    base table has caught up, the generation's own index answers for its rows (spec: Indexed Read
    Plan)."""
    pruned: tuple[OmittedGenerations, ...] = ()
    """Generations that the read may leave out, such as generations that the filter rules out."""
    newer: tuple[OmittedGenerations, ...] = ()
    """Generations that a read of a version does not see, since that version does not contain them;
    generations that were merged into the base table before it went back to an older state.
    """
    base_plan: str = ""
    """How Lance reads the base table; empty unless the plan was made by ``explain()``."""

    @property
    def base(self) -> BaseTable:
        """Pinned version of the base table."""
        return self.snapshot.base

    @property
    def table(self) -> str:
        """URI of the table."""
        return self.base.location.uri

    @property
    def version(self) -> int:
        """Version of the base table."""
        return self.base.version

    @property
    def snapshot_time(self) -> datetime | None:
        """When the manifests were read, with eventual consistency."""
        return self.snapshot.snapshot_time

    @property
    def sources(self) -> tuple[PlannedSource, ...]:
        """Sources that the read uses, newest first."""
        sources = [
            PlannedSource("generation", stored.region_id, stored.generation, stored.rows)
            for stored in self.generations
        ]
        sources += [
            PlannedSource("memtable", region_id, rows.generation, rows.snapshot.view.rows)
            for region_id, rows in self.memtables
        ]
        sources.sort(key=lambda source: source.generation)
        return (
            *reversed(sources),
            PlannedSource("base", None, 0, self.base.dataset.count_rows()),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the plan in the types of JSON: ids and times as text."""
        return {
            "table": self.table,
            "version": self.version,
            "consistency": self.consistency,
            "snapshot_time": self.snapshot_time and self.snapshot_time.isoformat(),
            "sources": plain_value(self.sources),
            "pruned": plain_value(self.pruned),
            "newer": plain_value(self.newer),
            "base_plan": self.base_plan,
        }

    def __str__(self) -> str:
        since = f", regions as of {self.snapshot_time}" if self.snapshot_time else ""
        lines = [f"{self.table}, version {self.version} ({self.consistency}{since})", "read:"]
        lines += [f"  {source}" for source in self.sources]
        for title, omissions in (
            ("left out:", self.pruned),
            ("newer than the version:", self.newer),
        ):
            lines += [title] * bool(omissions)
            lines += [f"  {omitted}" for omitted in omissions]
        lines += ["base table:", *(f"  {line}" for line in self.base_plan.splitlines())]
        return "\n".join(lines)


def plan_read(
    location: TableLocation,
    claims: Mapping[UUID, ClaimedRows] | None = None,
    *,
    regions: Collection[UUID] | None = None,
    filter: str | None = None,
    keys: KeyBuilder | None = None,
    reuse: bool = True,
) -> ReadPlan:
    """Plan a read (spec: MemTable Collection).

    The order makes it right beside any writer, merger or collector that runs at the same time:
    MemTables (which the caller took before), then region manifests, then the base table. A MemTable
    that was flushed between these steps is in a manifest as well, a generation that was merged
    between them is in the base table as well, and a row that is seen twice is the same row. The
    other way round, rows would be missed.

    ``claims`` are those of a writer of this process: with them the read sees the rows that it
    acknowledged. Where another writer has claimed since, the log is read in place of the MemTables:
    they may have rows that never got into it, and numbers beyond the generation of newer rows.

    Only generations of ``regions`` matter. Generations in which no row can pass the ``filter`` are
    left out, and so are generations that have none of the ``keys``, as far as this process knows.
    ``keys`` and ``reuse`` are those of :func:`memwal.reader.sources.snapshot.open_snapshot`.

    TableSetupError: no table, or regions in a table on which MemWAL is not enabled.
    """
    began = boot_seconds()
    snapshot = open_snapshot(location, regions=regions, keys=keys, reuse=reuse)
    if claims is None:
        return plan_snapshot(snapshot, filter=filter, keys=keys)
    unflushed = _held(claims, snapshot)
    lost = snapshot.manifests.keys() & (claims.keys() - unflushed.keys())
    if lost:
        others = snapshot.manifests.keys() - lost
        unflushed = _with_tails(snapshot, unflushed, left_out=others, began=began)
    return plan_snapshot(snapshot, unflushed, filter=filter, keys=keys)


def plan_fresh(
    location: TableLocation,
    claims: Mapping[UUID, ClaimedRows],
    *,
    at_least: WritePosition | None = None,
    filter: str | None = None,
    keys: KeyBuilder | None = None,
    reuse: bool = True,
) -> ReadPlan:
    """Plan a read that also sees the unflushed rows that other writers acknowledged.

    It reads the logs, behind the position up to which the manifests say that they are flushed, and
    these must have the entries of ``at_least``, else PositionNotReachedError is raised. Logs of
    regions in which no row can pass the ``filter`` are left out. The MemTables of a writer's own
    ``claims`` replace the logs of the regions that it still holds. The other parameters, the order
    and the errors are those of :func:`plan_read`.

    ObjectNotFoundError is raised if a region was flushed and merged, or its log was collected,
    between the steps: plan again.
    """
    # Other reads import nothing about logs.
    from memwal.reader.sources.log_tails import OldManifestError

    def plan(*, unchecked: bool) -> ReadPlan:
        began = boot_seconds()
        snapshot = open_snapshot(location, keys=keys, reuse=reuse, unchecked=unchecked)
        left_out = ruled_out_regions(snapshot, filter, snapshot.manifests)
        unflushed = _with_tails(
            snapshot,
            _held(claims, snapshot),
            at_least,
            left_out=left_out,
            began=began,
            unchecked=unchecked,
        )
        return plan_snapshot(snapshot, unflushed, filter=filter, keys=keys, left_out=left_out)

    if reuse:
        with suppress(OldManifestError):
            return plan(unchecked=True)
    return plan(unchecked=False)


def plan_snapshot(
    snapshot: TableSnapshot,
    memtables: UnflushedByRegion | None = None,
    *,
    filter: str | None = None,
    keys: KeyBuilder | None = None,
    left_out: Mapping[UUID, str] | None = None,
) -> ReadPlan:
    """Plan a read of a snapshot, and of the unflushed rows of ``memtables``.

    ``left_out`` are the regions whose logs a fresh read left out, with the reasons. By default the
    read is not fresh, and leaves out regions that the ``filter`` rules out.
    """
    progress, in_base = snapshot.progress, snapshot.base.details.merged
    unmerged: dict[UUID, list[FlushedGeneration]] = {}
    merged: list[FlushedGeneration] = []
    lost: list[tuple[UUID, int]] = []
    for region_id, manifest in snapshot.manifests.items():
        stored = manifest.flushed
        number = progress.get(region_id, 0)
        unmerged[region_id] = [s for s in stored if s.generation > number]
        # Of generations before the first one, a person decided that the base table goes without.
        first = snapshot.marks.get(region_id, UNMARKED).first
        last = in_base.get(region_id, 0)
        merged += [s for s in stored if first <= s.generation <= last]
        lost += [(region_id, s.generation) for s in stored if last < s.generation <= number]
    unflushed = [
        (region_id, rows)
        for region_id, tables in (memtables or {}).items()
        for rows in tables
        if rows.generation > progress.get(region_id, 0)
        and _is_unflushed(rows, snapshot.manifests.get(region_id))
    ]
    with_rows = [*(key for key, stored in unmerged.items() if stored), *dict(unflushed)]
    reasons = ruled_out_regions(snapshot, filter, with_rows) if left_out is None else left_out
    hidden = _by_region(
        [(key, s.generation) for key in reasons for s in unmerged.get(key, ())]
        + [(key, rows.generation) for key, rows in unflushed if key in reasons]
    )
    pruned = [OmittedGenerations(key, hidden.get(key, ()), why) for key, why in reasons.items()]
    unmerged = {key: stored for key, stored in unmerged.items() if key not in reasons}
    if keys is not None:
        pruned += _rule_out_by_keys(snapshot.base, unmerged, keys)
    generations = itertools.chain.from_iterable(unmerged.values())
    consistency: Consistency = "flushed" if snapshot.snapshot_time is None else "eventual"
    if memtables is not None:
        consistency = "strong" if left_out is None else "fresh"
    return ReadPlan(
        snapshot=snapshot,
        consistency=consistency,
        filter=filter,
        generations=tuple(sorted(generations, key=lambda s: s.generation)),
        memtables=tuple(found for found in unflushed if found[0] not in reasons),
        merged=tuple(merged),
        pruned=tuple(pruned),
        newer=tuple(OmittedGenerations(*group, _LOST) for group in _by_region(lost).items()),
    )


def _with_tails(
    snapshot: TableSnapshot,
    own: UnflushedByRegion,
    at_least: WritePosition | None = None,
    *,
    left_out: Container[UUID],
    began: float,
    unchecked: bool = False,
) -> UnflushedByRegion:
    """Return the unflushed rows of all regions: a writer's ``own`` ones, and those of the logs.

    Logs of regions that are ``left_out`` are read only if they have a position of ``at_least``.
    """
    from memwal.reader.sources.log_tails import read_tails

    wanted = [entry for entry in (at_least.entries if at_least else ()) if entry[0] not in own]
    needed = {region_id for region_id, _ in wanted}
    others = {
        key: manifest
        for key, manifest in snapshot.manifests.items()
        if key not in own and (key in needed or key not in left_out)
    }
    tails = read_tails(
        snapshot.base,
        others,
        wanted,
        began=began,
        unchecked=unchecked,
        own=[snapshot.manifests[region_id] for region_id in own],
    )
    return {**own, **{region_id: followed.rows for region_id, followed in tails.items()}}


def _held(claims: Mapping[UUID, ClaimedRows], snapshot: TableSnapshot) -> UnflushedByRegion:
    """Return the MemTables that have all unflushed rows of their regions.

    A writer whose claim is still the newest has them: no other process wrote there before its
    manifest was read, which was after its MemTables were taken. Of other regions it may have rows
    that were superseded since.
    """
    return {
        region_id: claim.memtables
        for region_id, claim in claims.items()
        if (manifest := snapshot.manifests.get(region_id)) is not None
        and manifest.writer_epoch == claim.epoch
    }


def plan_version(
    location: TableLocation, version: int | str, regions: Collection[UUID] | None = None
) -> ReadPlan:
    """Plan a read of the base table alone at a version or tag; warn of generations not in it."""
    base = open_version(location, version)
    unmerged = [
        (s.region_id, s.generation)
        for manifest in read_manifests(location.store, regions).values()
        for s in manifest.flushed
        if s.generation > base.details.merged.get(s.region_id, 0)
    ]
    newer = tuple(
        OmittedGenerations(region_id, numbers, f"not in version {base.version} of the base table")
        for region_id, numbers in _by_region(unmerged).items()
    )
    if newer:
        logger.warning(
            "version %d of %s is read without %d generations of %d regions that were merged later "
            "or not at all",
            base.version,
            location,
            len(unmerged),
            len(newer),
        )
    return ReadPlan(snapshot=TableSnapshot(base, {}), consistency="version", newer=newer)


def ruled_out_regions(
    snapshot: TableSnapshot, filter: str | None, regions: Iterable[UUID]
) -> dict[UUID, str]:
    """Find the regions in which no row can pass a filter, each with the reason.

    A region may be left out only if it hides no row of the base table that the read returns; see
    :mod:`memwal.reader.sources.pruning`. Neither its generations nor its log need to be read then.
    """
    if filter is None:
        return {}
    pruner = RegionPruner(snapshot.base, filter)
    reasons = {}
    for region_id in regions:
        manifest = snapshot.manifests.get(region_id)
        reason = pruner.reason_against(manifest) if manifest is not None else None
        if reason is not None:
            reasons[region_id] = reason
    return reasons


def _rule_out_by_keys(
    base: BaseTable, unmerged: dict[UUID, list[FlushedGeneration]], keys: KeyBuilder
) -> list[OmittedGenerations]:
    """Remove, and return, the generations whose read Bloom filters have none of the keys."""
    regions = [key for key, stored in unmerged.items() if stored]
    if not regions:
        return []
    try:
        columns = keys(base).select(list(base.primary_key)).combine_chunks()
    except (InvalidInputError, KeyError):
        # The lookup names their fault.
        return []
    if not 0 < columns.num_rows <= _FEW_KEYS:
        return []
    hashes = hash_keys(columns.columns)
    omitted = []
    for region_id in regions:
        stored = unmerged[region_id]
        names = [s.path for s in stored]
        might = which_might_hold(base, region_dir(region_id), names, hashes)
        unmerged[region_id] = list(itertools.compress(stored, might))
        numbers = tuple(s.generation for s in itertools.compress(stored, ~might))
        if numbers:
            omitted.append(OmittedGenerations(region_id, numbers, "its Bloom filter has no key"))
    return omitted


def _by_region(generations: Sequence[tuple[UUID, int]]) -> dict[UUID, tuple[int, ...]]:
    """Group generations by region, oldest first and each once."""
    numbers: dict[UUID, set[int]] = {}
    for region_id, number in generations:
        numbers.setdefault(region_id, set()).add(number)
    return {region_id: tuple(sorted(group)) for region_id, group in numbers.items()}


def _is_unflushed(rows: UnflushedRows, manifest: RegionManifest | None) -> bool:
    """Return whether no flushed generation has the rows of a MemTable.

    Once the manifest has moved past the generation, a writer flushed it: the one that holds the
    MemTable, after the reader took it, or one that fenced that writer, replayed its log and then
    wrote newer rows beside.
    """
    return manifest is None or rows.generation >= manifest.current_generation
