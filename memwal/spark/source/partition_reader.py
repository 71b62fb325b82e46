"""Read one partition of a load in an executor, at the plan's snapshot or at a later one.

The newest row of each key is determined here, from the keys of the generations, and not in the
driver: a plan stays small however many rows were changed. A Python worker caches these keys and
its open data sets for its next partitions.

When files of the plan are gone, its rows are read at a later version of the base table. This is for
plans that no tag protects: of readers that may not write a tag, or that resumed when theirs had
expired. A generation is collected when the base table contains it, so a later version has its rows.
That version shows the rows of the plan if nothing newer is merged into it. If no other writer added
or moved rows in between, the rows of the plan's generations are the rows in new fragments.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, data_files, lance_errors, open_base
from memwal.errors import ConflictError, MemWalError, ObjectNotFoundError, TableSetupError
from memwal.lsm.indexes.unusable import unusable_indexes
from memwal.lsm.region_places import router_in_force
from memwal.reader.latest import NewestRows, find_newest
from memwal.reader.merged_scan import live_rows, project, without_keys
from memwal.reader.sources.generation import GenerationSource, open_generation, open_memtable
from memwal.reader.sources.log_tails import read_tail
from memwal.reader.unreadable_indexes import scan_batches
from memwal.region.router import Router
from memwal.region.rows import key_column
from memwal.spark.source.read_tags import renew_if_due
from memwal.spark.source.scan_plan import LoadPlan, PartitionPlan, PinnedSnapshot, spec_in_force


@dataclass(frozen=True, slots=True)
class LaterSnapshot:
    """The rows of a plan in the files of a later version."""

    # With those generations of the plan that this version does not contain.
    snapshot: PinnedSnapshot
    fragments: frozenset[int]  # Fragments of the plan that this version still has.
    merged_fragments: tuple[int, ...]  # With the rows of the merged generations, and no others.


def find_later_snapshot(plan: LoadPlan) -> LaterSnapshot | None:
    """Find the newest version that shows the same rows as the plan.

    A row may be missing there that was deleted after the plan was made: by hand from the base
    table, or by a merge whose deletes came in between. Returns None if the next version already
    shows something else, or does not tell. Raises TableSetupError if the version of the plan, or
    one between, is no longer stored.
    """
    snapshot = plan.snapshot
    base = open_base(snapshot.location, version=snapshot.version)
    if base.digest != snapshot.digest or not base.primary_key:
        # Another table is in its place; or the rows of a region cannot be told from those of others
        # once they are merged.
        return None
    limits = _limits(plan, base)
    latest = open_base(snapshot.location).version
    planned_fragments = later_fragments = previous_fragments = _fragments(base)
    later = previous = base
    for version in range(base.version + 1, latest + 1):
        following = open_base(snapshot.location, version=version)
        fragments = _fragments(following)
        is_merge = following.details.merged != previous.details.merged
        if following.details.region_specs != base.details.region_specs or not _is_within(
            following.details.merged, limits, plan.regions
        ):
            # Something newer is merged, or keys belong to other regions.
            break
        if not (is_merge or fragments.keys() <= previous_fragments.keys()):
            # Rows that no merge added.
            break
        if any(
            # Other files in a fragment of the same number.
            fragments[n][0] != files
            for n, (files, _) in previous_fragments.items()
            if n in fragments
        ):
            break
        # A merge deletes in a commit of its own, which may belong to a merge that shows too much.
        if is_merge or fragments == previous_fragments:
            later, later_fragments = following, fragments
        previous, previous_fragments = following, fragments
    if later is base:
        return None
    progress = later.details.merged
    return LaterSnapshot(
        snapshot=PinnedSnapshot(
            snapshot.location,
            later.version,
            later.digest,
            tuple(g for g in snapshot.generations if g.generation > progress.get(g.region_id, 0)),
            snapshot.logs,
            snapshot.rivals,
        ),
        fragments=frozenset(planned_fragments.keys() & later_fragments.keys()),
        merged_fragments=tuple(sorted(later_fragments.keys() - planned_fragments.keys())),
    )


def _limits(plan: LoadPlan, base: BaseTable) -> dict[UUID, int]:
    """Return the newest generation of each region whose rows the plan shows.

    Generations that the filter rules out count as well: none of their rows passes it, so merging
    them changes nothing that the plan shows.
    """
    limits = dict(base.details.merged)
    numbers = [(stored.region_id, stored.generation) for stored in plan.snapshot.generations]
    numbers += [(omitted.region_id, n) for omitted in plan.pruned for n in omitted.generations]
    for region_id, number in numbers:
        limits[region_id] = max(number, limits.get(region_id, 0))
    return limits


def _is_within(
    merged: Mapping[UUID, int], limits: Mapping[UUID, int], regions: frozenset[UUID] | None
) -> bool:
    """Return whether nothing newer than the limits is merged of these regions, or of any."""
    return all(
        number <= limits.get(region_id, 0)
        for region_id, number in merged.items()
        if regions is None or region_id in regions
    )


def _fragments(base: BaseTable) -> dict[int, tuple[tuple[str, ...], int]]:
    """Return the files and the number of deletions of each fragment."""
    return {
        int(fragment.fragment_id): (
            tuple(file.path for file in data_files(fragment.metadata)),
            fragment.num_deletions,
        )
        for fragment in base.dataset.get_fragments()
    }


_OPEN_SNAPSHOTS: Final = 2
_PARALLEL_REGIONS: Final = 4
# Batches of a count hold no values; Spark counts their rows in 32 bits.
_COUNTED_ROWS: Final = 1 << 20


def read_partition(plan: LoadPlan, partition: PartitionPlan) -> Iterator[pa.RecordBatch]:
    """Read the newest row of each key of a partition, with the columns of the plan.

    The plan's protection is renewed during the read. If files of the plan are no longer stored, the
    same rows are read at a later version; ConflictError is raised if no stored version shows them.
    """
    location = plan.snapshot.location
    renew_if_due(location, plan.protection)
    rows = _planned_rows(plan, partition)
    try:
        # The first batch is read now, while the partition can still start over.
        first = list(itertools.islice(rows, 1))
    except (ObjectNotFoundError, TableSetupError) as error:
        open_pinned.cache_clear()
        first, rows = [], _later_rows(plan, partition, error)
    try:
        for batch in itertools.chain(first, rows):
            yield batch
            renew_if_due(location, plan.protection)
    except (ObjectNotFoundError, TableSetupError) as error:
        # The next attempt of the task looks for a later version by itself.
        open_pinned.cache_clear()
        raise _no_longer_stored(plan.snapshot, error) from error


def _planned_rows(plan: LoadPlan, partition: PartitionPlan) -> Iterator[pa.RecordBatch]:
    with lance_errors(f"reading {plan.snapshot.location}"):
        opened = open_pinned(plan.snapshot)
        for position in partition.generations:
            stored = plan.snapshot.generations[position]
            yield from _generation_rows(plan, opened, stored.region_id, stored.generation)
        for region_id in partition.logs:
            yield from _log_rows(plan, opened, region_id)
        if partition.fragments:
            yield from _base_rows(plan, opened, partition.fragments)


def _later_rows(
    plan: LoadPlan, partition: PartitionPlan, error: MemWalError
) -> Iterator[pa.RecordBatch]:
    """Read a partition at a later snapshot; other tasks may read theirs at the plan's."""
    with lance_errors(f"reading {plan.snapshot.location}"):
        later = find_later_snapshot(plan)
        if later is None:
            raise _no_longer_stored(plan.snapshot, error)
        opened = open_pinned(later.snapshot)
        later_plan = replace(plan, snapshot=later.snapshot)
        planned = [plan.snapshot.generations[position] for position in partition.generations]
        unmerged = set(later.snapshot.generations)
        for generation in planned:
            if generation in unmerged:
                yield from _generation_rows(
                    later_plan, opened, generation.region_id, generation.generation
                )
        for region_id in partition.logs:
            yield from _log_rows(later_plan, opened, region_id)
        if planned and later.merged_fragments:
            # Other partitions read the rows of their regions. A partition that has all generations
            # needs no routing.
            regions = {generation.region_id for generation in planned}
            if plan.regions is not None:
                regions &= plan.regions
            has_all = len(planned) == len(plan.snapshot.generations)
            routed = replace(later_plan, regions=plan.regions if has_all else frozenset(regions))
            yield from _base_rows(routed, opened, later.merged_fragments)
        if fragments := tuple(n for n in partition.fragments if n in later.fragments):
            yield from _base_rows(later_plan, opened, fragments)


class _OpenSnapshot:
    """Data sets and keys of a snapshot that this process has open."""

    def __init__(self, snapshot: PinnedSnapshot) -> None:
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._newest: dict[frozenset[UUID], tuple[list[GenerationSource], NewestRows]] = {}
        self._fresh_keys: pa.Array | None = None
        self.base: BaseTable = open_base(snapshot.location, version=snapshot.version)
        if self.base.digest != snapshot.digest:
            raise TableSetupError(
                f"version {snapshot.version} of {snapshot.location} belongs to another table by now"
            )
        empty = self.base.schema.empty_table()
        self._key_type = key_column(empty, self.base.primary_key).type

    def region(self, region_id: UUID) -> tuple[list[GenerationSource], NewestRows]:
        """Open the generations and the log of a region; find the newest row of each key in them.

        A key belongs to one region, so that no other one can have a newer row of it. If clients
        made several regions for the same rows, the sources of all of them are opened.
        """
        group = next((g for g in self._snapshot.rivals if region_id in g), frozenset([region_id]))
        with self._lock:
            newest = self._newest.get(group)
        if newest is None:
            sources = [
                open_generation(self.base, stored.region_id, stored.generation, stored.path)
                for stored in self._snapshot.generations
                if stored.region_id in group
            ]
            for log in self._snapshot.logs:
                if log.region_id in group:
                    rows = read_tail(self.base, log).rows
                    sources += [open_memtable(self.base, log.region_id, part) for part in rows]
            sources.sort(key=lambda source: source.generation)
            newest = sources, find_newest(sources, self.base.primary_key, self._key_type)
            with self._lock:
                self._newest[group] = newest
        return newest

    def fresh_keys(self) -> pa.Array:
        """Return the keys of all generations and logs: base rows with these keys are outdated."""
        if self._fresh_keys is None:
            with ThreadPoolExecutor(_PARALLEL_REGIONS) as pool:
                regions = pool.map(self.region, self._snapshot.region_ids)
                keys = [newest.keys for _, newest in regions]
            self._fresh_keys = pa.concat_arrays(keys)
        return self._fresh_keys


@functools.lru_cache(maxsize=_OPEN_SNAPSHOTS)
def open_pinned(snapshot: PinnedSnapshot) -> _OpenSnapshot:
    """Open a snapshot, or return it from the cache of this process."""
    return _OpenSnapshot(snapshot)


def _generation_rows(
    plan: LoadPlan, opened: _OpenSnapshot, region_id: UUID, generation: int
) -> Iterator[pa.RecordBatch]:
    sources, newest = opened.region(region_id)
    position = next(
        at
        for at, source in enumerate(sources)
        if (source.region_id, source.generation) == (region_id, generation)
    )
    live = newest.live_addresses(position)
    if not len(live):
        return
    names = plan.schema.names
    for batch in live_rows(sources[position], live, names, plan.filter, with_row_address=False):
        if batch.num_rows:
            yield project(batch, plan.schema)


def _log_rows(plan: LoadPlan, opened: _OpenSnapshot, region_id: UUID) -> Iterator[pa.RecordBatch]:
    sources, _ = opened.region(region_id)
    for source in sources:
        if not source.is_flushed and source.region_id == region_id:
            yield from _generation_rows(plan, opened, region_id, source.generation)


def _base_rows(
    plan: LoadPlan, opened: _OpenSnapshot, fragments: tuple[int, ...]
) -> Iterator[pa.RecordBatch]:
    base = opened.base
    router = None if plan.regions is None else router_in_force(base, spec_in_force(base))
    region_columns = () if router is None else spec_in_force(base).columns
    has_fresh_keys = bool(plan.snapshot.region_ids and base.primary_key)
    planned = [base.dataset.get_fragment(number) for number in fragments]
    if not plan.schema.names and not has_fresh_keys and router is None:
        counted = base.dataset.scanner(
            columns=[],
            filter=plan.filter,
            fragments=planned,
            with_row_id=True,
            use_scalar_index=not unusable_indexes(base),
        )
        yield from _empty_rows(counted.count_rows() if planned else 0)
        return
    key_columns = base.primary_key if has_fresh_keys else ()
    columns = list(dict.fromkeys([*plan.schema.names, *region_columns, *key_columns]))
    batches = scan_batches(
        base.dataset,
        columns=columns,
        filter=plan.filter,
        fragments=planned,
        with_row_address=not columns,
        use_scalar_index=not unusable_indexes(base),
    )
    if has_fresh_keys:
        batches = without_keys(batches, base.primary_key, opened.fresh_keys)
    for batch in batches:
        for rows in _of_regions(batch, router, plan.regions):
            if rows.num_rows:
                yield project(rows, plan.schema)


def _of_regions(
    batch: pa.RecordBatch, router: Router | None, regions: frozenset[UUID] | None
) -> Iterator[pa.RecordBatch]:
    if router is None or regions is None:
        yield batch
        return
    for assignment, rows in router.route(batch):
        if assignment.region_id in regions:
            yield rows


def _empty_rows(count: int) -> Iterator[pa.RecordBatch]:
    """Return batches without columns, with ``count`` rows together."""
    for start in range(0, count, _COUNTED_ROWS):
        rows = pa.nulls(min(_COUNTED_ROWS, count - start))
        yield pa.record_batch([rows], names=["rows"]).select([])


def _no_longer_stored(snapshot: PinnedSnapshot, error: Exception) -> ConflictError:
    return ConflictError(
        f"version {snapshot.version} of {snapshot.location}, or a flushed generation that it does "
        f"not contain, is no longer stored ({error}), and newer rows were merged into the base "
        "table since: the protection of the data frame has ended. Load the table again; if this "
        "happens to data frames in use, load them with a longer protect_seconds and as a user who "
        "may write tags, or give the collector a longer retention"
    )
