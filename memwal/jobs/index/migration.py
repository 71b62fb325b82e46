"""Migrate a vector index to another model while writers and readers go on.

Under MemWAL the centroids and the codebook of an index never change: generations are built with
them. When vectors have drifted, a second index is built beside the old one, with a model of its
own:

1. ``start`` trains and builds the new index, and adds it to the maintained indexes, behind the old
   one. From then on generations carry both.
2. ``switch`` puts the new index first, once it has caught up: readers search a column through the
   first of its maintained indexes.
3. ``finish`` removes the old index from the maintained indexes and drops it, once every generation
   that is stored carries the new one.

Which step a migration has reached is recorded in the table alone: which of the two indexes exist,
and in which order they are maintained. Every step can therefore be repeated, and a step that died
is completed by repeating it. ``abort`` removes the new index again, at any time before ``finish``.

Distances of the two models are never mixed. A search goes through one index of the base table; a
generation without that index is searched through the other one or row by row; and whatever an index
only estimated is ranked again by the vectors themselves. That does not hold for Lance's own
readers: they use whichever index of a column stands first in the manifest, and rank by estimates
unless they are asked to refine.

Writers of this library read the maintained indexes at each flush. Native writers read them once,
when they are opened; what they flush lacks the new index until they are opened again, and therefore
``finish`` waits for such generations to be merged and collected.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import lance

from memwal.base_table.commit import commit_durably, is_conflict
from memwal.base_table.details import update_details
from memwal.base_table.snapshot import BaseTable, open_base, open_dataset, translate_lance_error
from memwal.errors import ConflictError, InvalidInputError, ObjectNotFoundError, TableSetupError
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import generation_dir
from memwal.lsm.indexes.catchup import covers, index_names, maintained_index_names
from memwal.lsm.indexes.partition_balance import PartitionBalance, partition_balance
from memwal.lsm.indexes.segments import describe_index
from memwal.lsm.indexes.vector import VECTOR_KINDS, read_vector_recipe
from memwal.region.manifest_store import read_manifests
from memwal.storage.location import TableLocation

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

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


__all__ = (
    "MigrationStatus",
    "abort_migration",
    "finish_migration",
    "migration_status",
    "start_migration",
    "switch_migration",
)

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
# Parameters that are not part of the model, or that training chooses anew.
_TRAINED = ("ivf_centroids", "pq_codebook", "rabitq_model", "num_partitions", "skip_transpose")


def start_migration(
    location: TableLocation,
    index: str,
    *,
    new: str | None = None,
    num_partitions: int | None = None,
    num_sub_vectors: int | None = None,
) -> MigrationStatus:
    """Train and build an index beside an old one, and have generations carry both.

    A table that maintains all its indexes maintains them by name from then on, since only names
    have an order: one that is created later has to be named too.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    index : str
        The vector index that is to be replaced.
    new : str, optional
        By default :func:`memwal.jobs.index.migration.next_name`.
    num_partitions : int, optional
        Chosen by Lance for the rows there are by default.
    num_sub_vectors : int, optional
        Of a product quantizer; as before by default.

    Raises
    ------
    TableSetupError
        There is no such maintained vector index, the new name belongs to something else, or there
        are no rows to train a model with.
    InvalidInputError
        The number of sub-vectors does not fit the index.
    ConflictError
        Other commits kept getting in between; call again.
    """
    new = successor(index, new)
    for _ in range(_ATTEMPTS):
        base = open_base(location)
        base.require_mem_wal()
        old_description = _require_old(base, index)
        if index not in maintained_index_names(base):
            raise TableSetupError(
                f"index {index} of {location} is not maintained; migrate one that is"
            )
        existing = describe_index(base, new)
        if existing is not None:
            if list(existing.fields) != list(old_description.fields) or (
                existing.index_type not in VECTOR_KINDS
            ):
                raise TableSetupError(
                    f"{new} is an index of {location} over something else; choose another name"
                )
            break
        _build(base, old_description, new, num_partitions, num_sub_vectors)
    else:
        raise ConflictError(
            f"index {new} of {location} was not built in {_ATTEMPTS} attempts; other commits kept "
            "getting in between, try again"
        )

    def maintain(latest: BaseTable) -> IndexDetails:
        names = list(maintained_index_names(latest))
        if new in names and not latest.details.maintain_all_indexes:
            return latest.details
        return _maintaining(latest, _placed(names, new, behind=index))

    update_details(location, maintain)
    return migration_status(location, index, new=new)


def switch_migration(
    location: TableLocation, index: str, *, new: str | None = None
) -> MigrationStatus:
    """Have readers prefer the new index.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    index : str
        The vector index that is to be replaced.
    new : str, optional
        Name of its successor; by default :func:`memwal.jobs.index.migration.next_name`.

    Raises
    ------
    ConflictError
        The new index has not caught up. Nothing was changed.
    TableSetupError
        The migration was not started.
    """
    new = successor(index, new)

    def prefer(latest: BaseTable) -> IndexDetails:
        names = _both(latest, index, new)
        if not covers(latest, new, latest.details.merged):
            raise ConflictError(
                f"index {new} of {location} has not caught up with what is merged; build the "
                "indexes, then switch"
            )
        if names.index(new) < names.index(index):
            return latest.details
        return _maintaining(latest, _placed(names, index, behind=new))

    if migration_status(location, index, new=new).step not in ("finishing", "finished"):
        update_details(location, prefer)
    return migration_status(location, index, new=new)


def finish_migration(
    location: TableLocation, index: str, *, new: str | None = None
) -> MigrationStatus:
    """Drop the old index, when nothing needs it any more.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    index : str
        The vector index that is to be replaced.
    new : str, optional
        Name of its successor; by default :func:`memwal.jobs.index.migration.next_name`.

    Raises
    ------
    ConflictError
        Readers do not prefer the new index, it has not caught up, or a stored generation does not
        carry it; the message tells which. Nothing was changed.
    TableSetupError
        The migration was not started.
    """
    new = successor(index, new)
    status = migration_status(location, index, new=new)
    if status.step == "finished":
        return status
    if status.step != "finishing":
        _both(open_base(location), index, new)
        if status.step != "switched":
            raise ConflictError(
                f"readers of {location} still prefer index {index}; switch to {new} first"
            )
        if status.missing is not None:
            raise ConflictError(f"index {index} of {location} is still needed: {status.missing}")

    def release(latest: BaseTable) -> IndexDetails:
        names = maintained_index_names(latest)
        if index not in names:
            return latest.details
        if new not in names or names.index(index) < names.index(new):
            raise ConflictError(
                f"somebody turned the migration of index {index} of {location} back; look at its "
                "status"
            )
        if not covers(latest, new, latest.details.merged):
            raise ConflictError(
                f"index {new} of {location} has not caught up with what was merged meanwhile; "
                "build the indexes, then finish"
            )
        return _released(latest, index)

    update_details(location, release)
    _drop(location, index)
    return migration_status(location, index, new=new)


def abort_migration(
    location: TableLocation, index: str, *, new: str | None = None
) -> MigrationStatus:
    """Take the new index away again. Readers prefer the old one from then on.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    index : str
        The vector index that is to be replaced.
    new : str, optional
        Name of its successor; by default :func:`memwal.jobs.index.migration.next_name`.

    Raises
    ------
    ConflictError
        The old index is no longer maintained: finish the migration, or start one from the new.
    """
    new = successor(index, new)

    def release(latest: BaseTable) -> IndexDetails:
        if index not in maintained_index_names(latest) or index not in index_names(latest):
            raise ConflictError(
                f"index {index} of {location} is not maintained any more, so that {new} is needed; "
                "finish the migration"
            )
        if new not in latest.details.maintained_indexes:
            return latest.details
        return _released(latest, new)

    update_details(location, release)
    _drop(location, new)
    return migration_status(location, index, new=new)


def _require_old(base: BaseTable, index: str) -> IndexDescription:
    description = describe_index(base, index)
    if description is None or description.index_type not in VECTOR_KINDS:
        raise TableSetupError(f"{base.location} has no vector index {index}")
    return description


def _both(base: BaseTable, index: str, new: str) -> list[str]:
    """The maintained indexes by name, both of the migration among them."""
    names = list(base.details.maintained_indexes)
    if index not in names or new not in names or not {index, new} <= index_names(base):
        raise TableSetupError(
            f"the migration of index {index} of {base.location} to {new} was not started"
        )
    return names


def _placed(names: Sequence[str], name: str, *, behind: str) -> list[str]:
    """Names in their order, but one moved right behind another."""
    others = [other for other in names if other != name]
    at = others.index(behind) + 1
    return [*others[:at], name, *others[at:]]


def _maintaining(base: BaseTable, names: Sequence[str]) -> IndexDetails:
    return replace(base.details, maintained_indexes=tuple(names), maintain_all_indexes=False)


def _released(base: BaseTable, index: str) -> IndexDetails:
    """Details without an index that is about to be dropped."""
    names = [name for name in base.details.maintained_indexes if name != index]
    catchup = {name: covered for name, covered in base.details.catchup.items() if name != index}
    return replace(base.details, maintained_indexes=tuple(names), catchup=catchup)


def _build(
    base: BaseTable,
    old: IndexDescription,
    name: str,
    num_partitions: int | None,
    num_sub_vectors: int | None,
) -> None:
    if base.dataset.count_rows() == 0:
        raise TableSetupError(
            f"{base.location} has no rows to train a model with; merge some first"
        )
    try:
        recipe = read_vector_recipe(base.location, old, old.segments[0].uuid)
    except ObjectNotFoundError as error:
        raise TableSetupError(
            f"index {old.name} of {base.location} was never trained; drop it and build it again"
        ) from error
    dimension = recipe.options["ivf_centroids"].type.list_size
    if num_sub_vectors is not None and (
        "num_sub_vectors" not in recipe.options or dimension % num_sub_vectors
    ):
        raise InvalidInputError(
            f"{num_sub_vectors} sub-vectors do not fit an index of kind {recipe.kind} over vectors "
            f"of {dimension} numbers"
        )
    options: dict[str, Any] = {
        key: value for key, value in recipe.options.items() if key not in _TRAINED
    }
    if num_partitions is not None:
        options["num_partitions"] = num_partitions
    if num_sub_vectors is not None:
        options["num_sub_vectors"] = num_sub_vectors

    def commit(dataset: lance.LanceDataset) -> None:
        dataset.create_index(
            old.field_names[0], recipe.kind, name=name, metric=recipe.metric, **options
        )

    _commit(base, commit, f"building index {name}")


def _drop(location: TableLocation, index: str) -> None:
    for _ in range(_ATTEMPTS):
        base = open_base(location)
        if index not in index_names(base):
            return
        _commit(base, lambda dataset: dataset.drop_index(index), f"dropping index {index}")
    raise ConflictError(
        f"index {index} of {location} was not dropped in {_ATTEMPTS} attempts; other commits kept "
        "getting in between, try again"
    )


def _commit(base: BaseTable, commit: Callable[[lance.LanceDataset], None], doing: str) -> None:
    """Commit; one that met another commit is not repeated here, its caller looks again."""
    try:
        commit_durably(base, commit)
    except ConflictError as error:
        logger.info("%s met another commit, trying again: %s", doing, error)
    except (OSError, RuntimeError, ValueError) as error:
        if is_conflict(error):
            logger.info("%s met another commit, trying again: %s", doing, error)
            return
        raise translate_lance_error(error, doing) from error
