"""Which generations somebody may still read: by tables, indexes, tags, branches and their age."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from uuid import UUID

from memwal.maintenance.index_build import caught_up, maintained_index_names
from memwal.table_index.base_table import BaseTable, open_base, translate_lance_error


def removable_generations(base: BaseTable, *, cutoff: datetime) -> dict[UUID, int]:
    """Newest generation of each region that nothing needs any more.

    A generation is needed until it is merged in the latest version, every maintained index covers
    it, and every version that may still be read has it merged too: tagged ones, the ones that
    branches start from, and all that were the latest at ``cutoff`` or later.

    Parameters
    ----------
    base : BaseTable
        The table at its latest version.
    cutoff : datetime
        In UTC. Versions that were replaced before then are not protected for their age.

    Raises
    ------
    MemWalError
        What is in use cannot be read. Nothing may be deleted then.
    """
    limits: dict[UUID, int] = dict(base.details.merged)
    for name in maintained_index_names(base):
        _lower(limits, caught_up(base, name))
    try:
        oldest = _latest_at(base.dataset.versions(), cutoff)
        kept = _kept_for_ever(base)
    except (OSError, ValueError, RuntimeError) as error:
        raise translate_lance_error(error, f"listing what {base.location} keeps") from error
    for version in {oldest, *kept} - {base.version}:
        old = open_base(base.location, version=version)
        # One from before MemWAL was enabled needs no generation itself; but as the oldest recent
        # version it stands for the ones after it, which had nothing merged.
        if old.index is not None or version == oldest:
            _lower(limits, old.details.merged)
    return limits


def _kept_for_ever(base: BaseTable) -> set[int]:
    """Versions that are tagged, or that branches start from.

    Progress only grows from one version to the next. For a branch, with its tags and the branches
    that start from it, the version of the main line that it started from therefore stands.
    """
    dataset = base.dataset
    tagged = {int(tag["version"]) for tag in dataset.tags.list().values() if not tag["branch"]}
    forks = {
        int(branch["parent_version"])
        for branch in dataset.branches.list().values()
        if not branch["parent_branch"]
    }
    return tagged | forks


def _latest_at(versions: Iterable[Mapping[str, object]], moment: datetime) -> int:
    """The version that was the latest at a moment, or the oldest one that is left."""
    dated = sorted((int(str(v["version"])), _utc(v["timestamp"])) for v in versions)
    older = [version for version, timestamp in dated if timestamp <= moment]
    return older[-1] if older else dated[0][0]


def _utc(timestamp: object) -> datetime:
    """Lance gives local times without a zone."""
    if not isinstance(timestamp, datetime):
        raise TypeError(f"not a time: {timestamp!r}")
    return timestamp.astimezone(UTC)


def _lower(limits: dict[UUID, int], other: Mapping[UUID, int]) -> None:
    for region_id, generation in limits.items():
        limits[region_id] = min(generation, other.get(region_id, 0))
