"""Read one share of a load in an executor, at the plan's snapshot or at a later one.

The newest row of each key is determined here, from the keys of the generations, and not in the
driver: a plan stays small however many rows were changed. A Python worker caches these keys, and
what it opened, for its next partitions.

Once files of the plan are gone, its rows are read at a later version of the base table. This is for
plans that no tag protects: of readers that may not write a tag, or that came back when theirs had
expired. A generation is collected when the base table contains it, so a later version has its rows.
That version shows what the plan shows if nothing newer is merged into it. Which of its rows came
from the plan's generations can be told if nothing else wrote or moved rows in between: they are
those in new fragments.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import ConflictError, MemWalError, ObjectNotFoundError, TableSetupError
from memwal.format.paths import TOMBSTONE
from memwal.reader.latest import ROW_ADDRESS, NewestRows, find_newest
from memwal.reader.merged_scan import project
from memwal.reader.sources.generation import GenerationSource, open_generation
from memwal.region.router import Router
from memwal.region.rows import key_column
from memwal.spark.read_tags import keep_protected
from memwal.spark.scan_plan import Moment, PlannedGeneration, ReadPlan, Share, spec_in_force


@dataclass(frozen=True, slots=True)
class LaterMoment:
    """The same rows in other files.

    Attributes
    ----------
    moment : Moment
        With those generations of the plan that this version does not contain.
    fragments : frozenset of int
        What is left of the fragments that the plan read.
    merged_fragments : tuple of int
        Rows of the other generations, and nothing else.
    """

    moment: Moment
    fragments: frozenset[int]
    merged_fragments: tuple[int, ...]


def find_later_moment(plan: ReadPlan) -> LaterMoment | None:
    """Find the newest version that shows what the plan shows.

    A row may be missing there that was deleted after the plan was made: by hand from the base
    table, or by a merge whose deletes came in between.

    Returns
    -------
    LaterMoment or None
        None if the next version already shows something else, or does not tell.

    Raises
    ------
    TableSetupError
        The version of the plan, or one between, is no longer stored.
    """
    moment = plan.moment
    base = open_base(moment.location, version=moment.version)
    if base.digest != moment.digest:
        # Another table is in its place.
        return None
    limits = _limits(plan, base)
    latest = open_base(moment.location).version
    planned = found = before = _contents(base)
    reached = last = base
    for version in range(base.version + 1, latest + 1):
        following = open_base(moment.location, version=version)
        contents = _contents(following)
        merged = following.details.merged != last.details.merged
        if not _shows_the_same(base, following, limits, plan.regions) or not (
            merged or contents.keys() <= before.keys()
        ):
            break
        if any(contents[n].files != old.files for n, old in before.items() if n in contents):
            break
        # A merge deletes in a commit of its own, which may be that of one that shows too much.
        if merged or contents == before:
            reached, found = following, contents
        last, before = following, contents
    if reached is base:
        return None
    progress = reached.details.merged
    return LaterMoment(
        moment=Moment(
            moment.location,
            reached.version,
            reached.digest,
            tuple(g for g in moment.generations if g.number > progress.get(g.region_id, 0)),
        ),
        fragments=frozenset(planned.keys() & found.keys()),
        merged_fragments=tuple(sorted(found.keys() - planned.keys())),
    )


def _limits(plan: ReadPlan, base: BaseTable) -> dict[UUID, int]:
    """The newest generation of each region whose rows the plan shows."""
    limits = dict(base.details.merged)
    for generation in plan.moment.generations:
        limits[generation.region_id] = max(generation.number, limits.get(generation.region_id, 0))
    return limits


def _shows_the_same(
    base: BaseTable,
    later: BaseTable,
    limits: dict[UUID, int],
    regions: frozenset[UUID] | None,
) -> bool:
    """Whether nothing newer is merged, and keys still belong to the regions that they did."""
    return later.details.region_specs == base.details.region_specs and all(
        number <= limits.get(region_id, 0)
        for region_id, number in later.details.merged.items()
        if regions is None or region_id in regions
    )


@dataclass(frozen=True, slots=True)
class _Fragment:
    """What a fragment holds, as far as it can be told without reading it."""

    files: tuple[str, ...]
    deleted: int


def _contents(base: BaseTable) -> dict[int, _Fragment]:
    return {
        int(fragment.fragment_id): _Fragment(
            tuple(file.path for file in fragment.data_files()), fragment.num_deletions
        )
        for fragment in base.dataset.get_fragments()
    }


_OPEN_MOMENTS: Final = 2
_REGIONS_AT_ONCE: Final = 4
# Base rows are compared with the fresh keys this many at a time, or as many as there are fresh
# keys: each comparison hashes all of these. Wide rows are compared sooner, to bound memory.
_COMPARED_ROWS: Final = 65_536
_COMPARED_BYTES: Final = 64 << 20
# Batches of a count hold no values; Spark counts their rows in 32 bits.
_COUNTED_ROWS: Final = 1 << 20


def read_share(plan: ReadPlan, share: Share) -> Iterator[pa.RecordBatch]:
    """Read the rows of a share that count, with the columns of the plan.

    The plan's protection is renewed meanwhile. Where files of the plan are no longer stored, the
    same rows are looked for at a later version.

    Raises
    ------
    ConflictError
        No version that is stored shows what the plan shows.
    """
    location = plan.moment.location
    keep_protected(location, plan.protection)
    rows = _share_rows(plan, share)
    try:
        # The first batch is read now, while the share can still start over.
        first = list(itertools.islice(rows, 1))
    except (ObjectNotFoundError, TableSetupError) as error:
        open_moment.cache_clear()
        first, rows = [], _later_rows(plan, share, error)
    try:
        for batch in itertools.chain(first, rows):
            yield batch
            keep_protected(location, plan.protection)
    except (ObjectNotFoundError, TableSetupError) as error:
        # The next try of the task looks for itself what is left.
        open_moment.cache_clear()
        raise _outdated(plan.moment, error) from error


def _share_rows(plan: ReadPlan, share: Share) -> Iterator[pa.RecordBatch]:
    with lance_errors(f"reading {plan.moment.location}"):
        opened = open_moment(plan.moment)
        for position in share.generations:
            yield from _generation_rows(plan, opened, plan.moment.generations[position])
        if share.fragments:
            yield from _base_rows(plan, opened, share.fragments)


def _later_rows(plan: ReadPlan, share: Share, error: MemWalError) -> Iterator[pa.RecordBatch]:
    """The rows of a share at a later moment; other tasks may read theirs at that of the plan."""
    with lance_errors(f"reading {plan.moment.location}"):
        later = find_later_moment(plan)
        if later is None:
            raise _outdated(plan.moment, error)
        opened = open_moment(later.moment)
        moved = replace(plan, moment=later.moment)
        planned = [plan.moment.generations[position] for position in share.generations]
        left = set(later.moment.generations)
        for generation in planned:
            if generation in left:
                yield from _generation_rows(moved, opened, generation)
        if planned and later.merged_fragments:
            # Rows of other shares' regions are theirs. A share of everything needs no routing.
            regions = {generation.region_id for generation in planned}
            if plan.regions is not None:
                regions &= plan.regions
            everything = len(planned) == len(plan.moment.generations)
            routed = replace(moved, regions=plan.regions if everything else frozenset(regions))
            yield from _base_rows(routed, opened, later.merged_fragments)
        if fragments := tuple(n for n in share.fragments if n in later.fragments):
            yield from _base_rows(moved, opened, fragments)


class _Opened:
    """What this process has open of a moment."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._lock = threading.Lock()
        self._newest: dict[UUID, tuple[list[GenerationSource], NewestRows]] = {}
        self._fresh_keys: pa.Array | None = None
        self.base: BaseTable = open_base(moment.location, version=moment.version)
        if self.base.digest != moment.digest:
            raise TableSetupError(
                f"version {moment.version} of {moment.location} is that of another table by now"
            )
        key = self.base.schema.empty_table().select(list(self.base.primary_key))
        self._key_type = key_column(key, self.base.primary_key).type

    def region(self, region_id: UUID) -> tuple[list[GenerationSource], NewestRows]:
        """Generations of a region, and the newest row of each key among them.

        A key belongs to one region, so that no other one can have a newer row of it.
        """
        with self._lock:
            found = self._newest.get(region_id)
        if found is None:
            sources = [
                open_generation(self.base, region_id, planned.number, planned.path)
                for planned in self._moment.generations
                if planned.region_id == region_id
            ]
            found = sources, find_newest(sources, self.base.primary_key, self._key_type)
            with self._lock:
                self._newest[region_id] = found
        return found

    def fresh_keys(self) -> pa.Array:
        """Keys of all generations: base rows with one of these are outdated."""
        if self._fresh_keys is None:
            regions = list(dict.fromkeys(p.region_id for p in self._moment.generations))
            with ThreadPoolExecutor(_REGIONS_AT_ONCE) as pool:
                keys = [newest.keys for _, newest in pool.map(self.region, regions)]
            self._fresh_keys = pa.concat_arrays(keys)
        return self._fresh_keys


@functools.lru_cache(maxsize=_OPEN_MOMENTS)
def open_moment(moment: Moment) -> _Opened:
    """What this process has open of a moment; the last few are kept."""
    return _Opened(moment)


def _generation_rows(
    plan: ReadPlan, opened: _Opened, planned: PlannedGeneration
) -> Iterator[pa.RecordBatch]:
    sources, newest = opened.region(planned.region_id)
    position = next(at for at, s in enumerate(sources) if s.generation == planned.number)
    live = newest.live_addresses(position)
    if not len(live):
        return
    alive = f"not {TOMBSTONE}"
    scanner = sources[position].dataset.scanner(
        columns=plan.schema.names,
        filter=f"{plan.filter} and {alive}" if plan.filter else alive,
        with_row_address=True,
    )
    for batch in scanner.to_batches():
        kept = _are_among(batch.column(ROW_ADDRESS).to_numpy(), live)
        rows = project(batch if kept.all() else batch.filter(pa.array(kept)), plan.schema)
        if rows.num_rows:
            yield rows


def _are_among(
    addresses: np.ndarray[Any, np.dtype[np.uint64]], live: np.ndarray[Any, np.dtype[np.uint64]]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    at = np.minimum(np.searchsorted(live, addresses), len(live) - 1)
    return np.asarray(live[at] == addresses)


def _base_rows(
    plan: ReadPlan, opened: _Opened, fragments: tuple[int, ...]
) -> Iterator[pa.RecordBatch]:
    base = opened.base
    router = None if plan.regions is None else Router(spec_in_force(base), base.schema)
    region_columns = () if router is None else spec_in_force(base).columns
    compared = bool(plan.moment.generations)
    chosen = [base.dataset.get_fragment(number) for number in fragments]
    if not plan.schema.names and not compared and router is None:
        count = sum(fragment.count_rows(plan.filter) for fragment in chosen)
        yield from _empty_rows(count)
        return
    needed = [*plan.schema.names, *region_columns, *(base.primary_key if compared else ())]
    names = list(dict.fromkeys(needed))
    scanner = base.dataset.scanner(
        columns=names,
        filter=plan.filter,
        fragments=chosen,
        with_row_address=not names,
    )
    for piece in _gathered(scanner.to_batches(), opened if compared else None):
        table = piece
        if compared:
            keys = key_column(table, base.primary_key)
            table = table.filter(pc.invert(pc.is_in(keys, value_set=opened.fresh_keys())))
        for batch in table.to_batches():
            for rows in _of_regions(batch, router, plan.regions):
                if rows.num_rows:
                    yield project(rows, plan.schema)


def _gathered(batches: Iterator[pa.RecordBatch], opened: _Opened | None) -> Iterator[pa.Table]:
    """Batches as they come or, where they are compared, joined to larger pieces."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        # Only now: where the filter lets no row through, no keys are read.
        wanted = 1 if opened is None else max(_COMPARED_ROWS, len(opened.fresh_keys()))
        if rows >= wanted or size >= _COMPARED_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


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
    """Rows without columns."""
    for start in range(0, count, _COUNTED_ROWS):
        rows = pa.nulls(min(_COUNTED_ROWS, count - start))
        yield pa.record_batch([rows], names=["rows"]).select([])


def _outdated(moment: Moment, error: Exception) -> ConflictError:
    return ConflictError(
        f"version {moment.version} of {moment.location}, or a flushed generation that it does not "
        f"contain, is no longer stored ({error}), and newer rows came into the base table since: "
        "nothing protects any more what the data frame reads. Load the table again; if this "
        "happens to data frames in use, load them with a longer protect_seconds and as somebody "
        "who may write tags, or give the collector a longer retention"
    )
