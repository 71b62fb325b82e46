"""How far the migration of a vector index to another model is."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

from memwal.errors import InvalidInputError, ObjectNotFoundError, TableSetupError
from memwal.format.names import generation_dir
from memwal.maintenance.index_balance import PartitionBalance, partition_balance
from memwal.maintenance.index_catchup import covers, index_names, maintained_index_names
from memwal.region.discovery import read_manifests
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import BaseTable, open_base, open_dataset

_READS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStatus:
    """How far a migration is.

    Attributes
    ----------
    old, new : str
        Names of the indexes.
    step : str
        ``not started``; ``building``, the new index is not maintained yet; ``started``, both are
        maintained; ``switched``, readers prefer the new one; ``finishing``, the old one is still
        there; ``finished``.
    caught_up : bool
        Whether the new index covers all that is merged.
    lacking : tuple of (UUID, int)
        Region and number of each stored generation that does not carry the new index.
    old_balance, new_balance : PartitionBalance or None
        Of those that exist.
    """

    old: str
    new: str
    step: str
    caught_up: bool
    lacking: tuple[tuple[UUID, int], ...] = ()
    old_balance: PartitionBalance | None = None
    new_balance: PartitionBalance | None = None

    @property
    def missing(self) -> str | None:
        """What the next step waits for; None when it can be taken, or there is none."""
        if self.step in ("started", "switched") and not self.caught_up:
            return f"index {self.new} has not caught up with what is merged; build the indexes"
        if self.step == "switched" and self.lacking:
            regions = len({region_id for region_id, _ in self.lacking})
            return (
                f"{len(self.lacking)} stored generations of {regions} regions do not carry index "
                f"{self.new}; merge, build the indexes and collect the garbage, and open native "
                "writers again"
            )
        return None


def next_name(index: str) -> str:
    """The name of the index that takes the place of one: with a number at its end, or the next."""
    numbered = re.fullmatch(r"(.+)_v(\d+)", index)
    return f"{numbered[1]}_v{int(numbered[2]) + 1}" if numbered else f"{index}_v2"


def successor(index: str, new: str | None) -> str:
    """The name of the new index: the one that is given, or the next."""
    new = next_name(index) if new is None else new
    if new == index:
        raise InvalidInputError(f"the new index cannot be called {new} as well")
    return new


def migration_status(
    location: TableLocation, index: str, *, new: str | None = None
) -> MigrationStatus:
    """Look how far a migration is. Opens every stored generation.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    index : str
        The vector index that is to be replaced.
    new : str, optional
        Name of its successor; by default :func:`next_name`.

    Raises
    ------
    TableSetupError
        Neither index exists.
    """
    new = successor(index, new)
    base = open_base(location)
    base.require_mem_wal()
    names, maintained = index_names(base), maintained_index_names(base)
    if index not in names and new not in names:
        raise TableSetupError(f"{location} has neither an index {index} nor one {new}")
    if new not in names:
        step = "not started"
    elif index not in names:
        step = "finished"
    elif index not in maintained:
        step = "finishing" if new in maintained else "not started"
    elif new not in maintained or base.details.maintain_all_indexes:
        step = "building"
    else:
        step = "started" if maintained.index(index) < maintained.index(new) else "switched"
    return MigrationStatus(
        old=index,
        new=new,
        step=step,
        caught_up=new in names and covers(base, new, base.details.merged),
        lacking=_lacking(base, new) if new in names else (),
        old_balance=partition_balance(base, index) if index in names else None,
        new_balance=partition_balance(base, new) if new in names else None,
    )


def _lacking(base: BaseTable, index: str) -> tuple[tuple[UUID, int], ...]:
    """Stored generations without an index of this name. They are opened side by side."""
    location = base.location
    stored = [
        (region_id, flushed)
        for region_id, manifest in sorted(read_manifests(location.store).items())
        for flushed in manifest.flushed
    ]

    def lacks(folder: str) -> bool:
        try:
            dataset = open_dataset(location, folder)
        except ObjectNotFoundError:
            # Collected meanwhile.
            return False
        return index not in {description.name for description in dataset.describe_indices()}

    folders = [generation_dir(region_id, flushed.path) for region_id, flushed in stored]
    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        found = list(pool.map(lacks, folders))
    return tuple(
        (region_id, flushed.generation)
        for (region_id, flushed), is_lacking in zip(stored, found, strict=True)
        if is_lacking
    )
