"""The rows of an old plan at a later version of the base table, once some of its files are gone.

For plans that nothing protects: of readers who may not write a tag, or who came back when theirs
had ended. A generation is collected when the base table contains it, so that a later version has
its rows. That version shows what the plan shows if nothing newer is merged into it; and which of
its rows came from the plan's generations can be told if nothing else wrote or moved rows in
between: they are those in new fragments.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from memwal.spark.read_plan import Moment, ReadPlan
from memwal.table_index.base_table import BaseTable, open_base


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
