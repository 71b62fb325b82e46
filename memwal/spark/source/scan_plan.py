"""Options of a load, and its plan: made once in the driver, and divided into partitions."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

import pyarrow as pa
from lance.fragment import LanceFragment

from memwal.base_table.refs import ReadTag
from memwal.base_table.snapshot import BaseTable, data_files
from memwal.errors import InvalidInputError, ObjectNotFoundError, TableSetupError
from memwal.format.memwal_index import StoredRegionSpec
from memwal.format.region_manifest import FlushedGeneration
from memwal.lsm.region_places import RegionPlaces
from memwal.lsm.wal.follow import UnflushedLog
from memwal.reader.predicate import parenthesize_filter
from memwal.reader.scan import check_filter, output_schema
from memwal.reader.sources.generation import retry_if_collected
from memwal.reader.sources.log_tails import find_tails
from memwal.reader.sources.plan import (
    OmittedGenerations,
    ReadPlan,
    plan_read,
    plan_version,
    ruled_out_regions,
)
from memwal.region.spec import RegionSpec
from memwal.region.spec_fields import is_pending
from memwal.spark.options.values import (
    STORAGE_FILE,
    parse_boolean,
    parse_names,
    parse_positive,
    parse_seconds,
    parse_text,
    parse_uuids,
    parse_values,
)
from memwal.spark.source.read_tags import (
    DEFAULT_PROTECT_SECONDS,
    SESSION,
    is_still_newest,
    protect,
    unprotect,
)
from memwal.storage.location import TableLocation

DEFAULT_PARTITION_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a load."""

    uri: str
    """Address of the table; ``path``, the argument of ``load()``."""
    columns: tuple[str, ...] | None = None
    """Columns in this order, as a JSON list or separated by commas; all by default, empty if rows
    are only counted."""
    filter: str | None = None
    """SQL predicate in the dialect of Lance, over any columns of the table. Timestamps in it are
    UTC."""
    version: int | None = None
    """Read the base table alone, of this version."""
    tag: str | None = None
    """Read the base table alone, of the version of this tag."""
    regions: frozenset[UUID] | None = None
    """Only rows of these regions, separated by commas."""
    fresh: bool = False
    """Whether to see the rows that any writer acknowledged before the load, flushed or not."""
    partitions: int | None = None
    """Maximum number of partitions; it overrides the next option."""
    target_partition_bytes: int = DEFAULT_PARTITION_BYTES
    """Approximate number of stored bytes that one partition reads, by default 128 MiB. Neither a
    fragment nor the flushed generations of a region are ever split."""
    omit_unsupported: bool = False
    """Leave out columns of types that Spark does not have; otherwise they are an error."""
    truncate_nanoseconds: bool = False
    """Cut times to the microseconds that Spark has; otherwise a more precise value is an error."""
    protect_seconds: int = DEFAULT_PROTECT_SECONDS
    """How long the snapshot of the load stays stored while it is not read: 6 hours by default, at
    most 30 days; each query and each task restarts the time. It needs a tag on the table, and
    permission to write one. 0 places no tag."""
    storage_options_file: Path | None = None
    """JSON object of storage options, as Lance takes them; read by the driver."""
    changes_after: str | None = None
    """Read the changes after a token of :meth:`memwal.Table.changes`, after ``start``, which is
    everything, or after ``now``. A stream needs it, and takes it at its first start."""
    changes_until: str | None = None
    """Token with which the changes of a load end; by default all that are flushed, and with
    ``fresh`` all that are acknowledged."""
    consumer: str | None = None
    """Name of a consumer that keeps the versions and generations that a stream needs, within the
    limits of the table's policy, instead of ``protect_seconds``. A new checkpoint begins after its
    token; a consumer that is not there is made, and begins at ``changes_after``, ``start`` or
    ``now``. One query has it at a time.
    """
    maxRowsPerTrigger: int | None = None
    """Approximate limit of the changes of a batch of a stream. At least 65,536 rows of a fragment,
    or a generation, or all keys that were removed from the base table are taken together."""


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a load, whose names Spark passes in lower case.

    InvalidInputError names an option that is unknown, missing or wrong.
    """
    if "version" in options and "tag" in options:
        raise InvalidInputError("give a version or a tag, not both")
    uri, parsed = parse_values(options, _PARSERS)
    if "changes_after" in options:
        others = [name for name in ("version", "tag", "regions") if name in options]
        if others:
            raise InvalidInputError(f"changes are read of the whole table: leave {others[0]} out")
    elif others := [name for name in ("changes_until", "consumer", _MAX_ROWS) if name in options]:
        raise InvalidInputError(f"{others[0]} needs changes_after")
    if _MAX_ROWS in parsed:
        parsed["maxRowsPerTrigger"] = parsed.pop(_MAX_ROWS)
    return ReadOptions(uri=uri, **parsed)  # type: ignore[arg-type]


_MAX_ROWS: Final = "maxrowspertrigger"
_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "columns": parse_names,
    "filter": parse_text,
    "version": parse_positive,
    "tag": parse_text,
    "regions": parse_uuids,
    "fresh": parse_boolean,
    "partitions": parse_positive,
    "target_partition_bytes": parse_positive,
    "omit_unsupported": parse_boolean,
    "truncate_nanoseconds": parse_boolean,
    "protect_seconds": parse_seconds,
    STORAGE_FILE: Path,
    "changes_after": parse_text,
    "changes_until": parse_text,
    "consumer": parse_text,
    _MAX_ROWS: parse_positive,
}
# Approximate sizes where none was recorded.
DEFAULT_ROW_BYTES: Final = 256
_DEFAULT_GENERATION_BYTES: Final = 16 << 20
# Attempts to place a tag on a version that is still the newest.
_MAX_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class PinnedSnapshot:
    """A version of the base table and the generations to read with it, as a task gets them."""

    location: TableLocation
    version: int
    # Of the version; it tells the version from one of another table in the same place.
    digest: bytes
    generations: tuple[FlushedGeneration, ...]  # Oldest first within each region.
    # Parts of the logs that hold rows of a fresh load, at most one of each region.
    logs: tuple[UnflushedLog, ...] = ()
    # Groups of regions that may have rows of the same keys.
    rivals: tuple[frozenset[UUID], ...] = ()

    @property
    def region_ids(self) -> list[UUID]:
        """Regions of the generations and of the logs, each once."""
        of_generations = [stored.region_id for stored in self.generations]
        return list(dict.fromkeys([*of_generations, *(log.region_id for log in self.logs)]))


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Fragments, generations and logs that one Spark partition reads."""

    fragments: tuple[int, ...] = ()  # Ids of fragments of the base table.
    # Positions in :attr:`PinnedSnapshot.generations`; all of a region or none.
    generations: tuple[int, ...] = ()
    logs: tuple[UUID, ...] = ()  # Regions whose logs are read.


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Read plan of a load, divided into partitions and pickled. It holds no rows and no keys."""

    snapshot: PinnedSnapshot
    schema: pa.Schema  # Columns to return, in the types of the table.
    filter: str | None  # In parentheses.
    # Return only rows of these regions, by the newest region spec in force.
    regions: frozenset[UUID] | None
    # At least one; every fragment and generation is in exactly one.
    partitions: tuple[PartitionPlan, ...]
    pruned: tuple[OmittedGenerations, ...]  # Generations that the filter rules out.
    truncate: bool  # Cut times to microseconds.
    protection: ReadTag | None = None  # Tag that keeps the snapshot stored.


def plan_load(
    location: TableLocation,
    options: ReadOptions,
    *,
    columns: Collection[str] | None,
    session: str = SESSION,
) -> LoadPlan:
    """Plan a read of the table as it is now, or as it was at a version or a tag, and protect it."""
    if options.fresh and (options.tag is not None or options.version is not None):
        raise InvalidInputError(
            "a fresh load sees what was acknowledged before it; leave out fresh, or version and tag"
        )
    plan = partial(retry_if_collected, partial(_plan, location, options, columns))
    if options.tag is not None:
        # The user's tag protects the version.
        return plan()[0]
    planned, tag = plan_protected(
        location,
        plan,
        seconds=options.protect_seconds,
        session=session,
        is_newest=options.version is None,
    )
    return replace(planned, protection=tag)


Planned = TypeVar("Planned")


def plan_protected(
    location: TableLocation,
    plan: Callable[[], tuple[Planned, BaseTable]],
    *,
    seconds: int,
    session: str,
    is_newest: bool,
) -> tuple[Planned, ReadTag | None]:
    """Plan a read and protect its version; a plan of the newest version is made again if it is not.

    Raises ObjectNotFoundError if the version is gone, TableSetupError if versions follow too fast.
    """
    for attempts_left in reversed(range(_MAX_ATTEMPTS)):
        planned, base = plan()
        try:
            tag, is_new = protect(base, seconds=seconds, session=session)
        except ObjectNotFoundError:
            if not attempts_left or not is_newest:
                raise
            continue
        if tag is None or not is_newest or not attempts_left or is_still_newest(base):
            return planned, tag
        if is_new:
            unprotect(location, tag)
    raise TableSetupError(f"{location} changes faster than a load can be planned; try again")


def _plan(
    location: TableLocation, options: ReadOptions, columns: Collection[str] | None
) -> tuple[LoadPlan, BaseTable]:
    # In parentheses, Lance reads all of it; without, it ignores text after a whole predicate.
    predicate = parenthesize_filter(options.filter)
    version = options.tag if options.version is None else options.version
    if version is None:
        plan = plan_read(location, regions=options.regions, filter=predicate)
    else:
        plan = plan_version(location, version, options.regions)
    base = plan.base
    base.check_supported()
    schema = output_schema(base, list(columns) if columns is not None else None)
    if predicate is not None:
        check_filter(base, predicate)
    if options.regions is not None:
        spec_in_force(base)
    logs: tuple[UnflushedLog, ...] = ()
    if options.fresh:
        manifests = plan.snapshot.manifests
        left_out = ruled_out_regions(plan.snapshot, plan.filter, manifests)
        logs = tuple(find_tails(base, {k: m for k, m in manifests.items() if k not in left_out}))
    snapshot = PinnedSnapshot(location, base.version, base.digest, plan.generations, logs)
    read = [plan.snapshot.manifests[region_id] for region_id in snapshot.region_ids]
    rivals = [
        frozenset(manifest.region_id for manifest in group)
        for group in RegionPlaces(base).rivals(read)
    ]
    load = LoadPlan(
        snapshot=replace(snapshot, rivals=tuple(rivals)),
        schema=schema,
        filter=predicate,
        regions=options.regions,
        partitions=_divide(plan, logs, options, one_group=bool(rivals)),
        pruned=plan.pruned,
        truncate=options.truncate_nanoseconds,
    )
    return load, base


def spec_in_force(base: BaseTable) -> RegionSpec:
    """Return the newest region spec that rows are routed by; TableSetupError if there is none."""
    stored = _newest_spec(base)
    if stored is None:
        raise TableSetupError(
            f"{base.location} has no region spec that tells which rows a region has; leave the "
            "option regions out"
        )
    names = {field_id: name for name, field_id in base.field_ids().items()}
    return RegionSpec.from_stored(stored, names)


def _newest_spec(base: BaseTable) -> StoredRegionSpec | None:
    stored = [spec for spec in base.details.region_specs if not is_pending(spec)]
    return max(stored, key=lambda spec: spec.spec_id, default=None)


def _divide(
    plan: ReadPlan, logs: Sequence[UnflushedLog], options: ReadOptions, *, one_group: bool
) -> tuple[PartitionPlan, ...]:
    """Divide fragments, generations (``one_group``: as one) and logs into partitions."""
    groups = [[*range(len(plan.generations))]] if one_group else _group_generations(plan)
    sizes = [generation_bytes(stored) for stored in plan.generations]
    fragments = plan.base.dataset.get_fragments()
    balanced = balance_partitions(
        [
            *((fragment_bytes(part), True, int(part.fragment_id)) for part in fragments),
            *((sum(sizes[at] for at in group), False, n) for n, group in enumerate(groups)),
        ],
        partitions=options.partitions,
        target_bytes=options.target_partition_bytes,
    )
    parts = [
        replace(partition, generations=tuple(at for n in partition.generations for at in groups[n]))
        for partition in balanced
    ]
    # A log goes where the generations of its region are.
    partition_of = {
        plan.generations[at].region_id: number
        for number, part in enumerate(parts)
        for at in part.generations
    }
    for at, log in enumerate(logs):
        number = partition_of.get(log.region_id, at % len(parts))
        parts[number] = replace(parts[number], logs=(*parts[number].logs, log.region_id))
    return tuple(parts)


def _group_generations(plan: ReadPlan) -> list[list[int]]:
    """Return positions of the generations that one partition has to read: those of a region.

    Once they are merged, only the region distinguishes their rows, and only if all the regions are
    of the spec in force.
    """
    newest = _newest_spec(plan.base)
    manifests = plan.snapshot.manifests
    is_routed = newest is not None and all(
        manifests[stored.region_id].spec_id == newest.spec_id for stored in plan.generations
    )
    groups: dict[UUID | None, list[int]] = {}
    for at, stored in enumerate(plan.generations):
        groups.setdefault(stored.region_id if is_routed else None, []).append(at)
    return list(groups.values())


def generation_bytes(stored: FlushedGeneration) -> int:
    """Return the bytes of a flushed generation, approximate if none were recorded."""
    rows = (stored.rows or 0) * DEFAULT_ROW_BYTES
    return stored.memory_bytes or rows or _DEFAULT_GENERATION_BYTES


def fragment_bytes(fragment: LanceFragment) -> int:
    """Return the bytes of a fragment of the base table, approximate if none were recorded."""
    sizes = [file.file_size_bytes for file in data_files(fragment.metadata)]
    if all(sizes):
        return sum(sizes)
    return int(fragment.physical_rows) * DEFAULT_ROW_BYTES


def balance_partitions(
    items: list[tuple[int, bool, int]], *, partitions: int | None, target_bytes: int
) -> tuple[PartitionPlan, ...]:
    """Spread fragments (bytes, True, id) and regions evenly, the largest first."""
    total = sum(size for size, _, _ in items)
    count = max(1, min(partitions or math.ceil(total / target_bytes), len(items)))
    numbers: list[tuple[list[int], list[int]]] = [([], []) for _ in range(count)]
    loads = [(0, at) for at in range(count)]
    for size, is_fragment, number in sorted(items, reverse=True):
        load, at = heapq.heappop(loads)
        fragments, generations = numbers[at]
        (fragments if is_fragment else generations).append(number)
        heapq.heappush(loads, (load + size, at))
    return tuple(
        PartitionPlan(tuple(sorted(fragments)), tuple(sorted(generations)))
        for fragments, generations in numbers
    )
