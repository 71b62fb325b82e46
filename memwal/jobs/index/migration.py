"""Choose the maintained indexes, and migrate a vector index to a newly trained model.

Maintained indexes are carried by generations, and caught up after merges. While MemWAL is enabled,
the centroids and the codebook of an index never change: generations are built with them. When
vectors have drifted, a second index with its own model is built beside the old one, while writers
and readers go on:

1. ``start`` trains and builds the new index, and adds it to the maintained indexes, after the old
   one. From then on generations carry both.
2. ``switch`` puts the new index first, once it has caught up: readers search a column through the
   first of its maintained indexes.
3. ``finish`` removes the old index from the maintained indexes and drops it, once every stored
   generation carries the new one.

The step of a migration is recorded in the table alone: which of the two indexes exist, and in which
order they are maintained. Every step can therefore be repeated, and a step that died is completed
by repeating it. ``abort`` removes the new index again, at any time before ``finish``.

Distances of the two models are never mixed. A search uses one index of the base table; a generation
without that index is searched through the other one or row by row; and every distance that an index
only estimated is computed again from the vectors. That does not hold for Lance's own readers: they
use whichever index of a column is first in the manifest, and rank by estimates unless they are
asked to refine.

Writers of this library read the maintained indexes at each flush. Native writers read them once,
when they are opened; the generations that they flush lack the new index until they are opened
again, and therefore ``finish`` waits until such generations are merged and collected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

import lance

from memwal.base_table.commit import commit_durably, update_details
from memwal.base_table.required_regions import read_regions
from memwal.base_table.snapshot import BaseTable, open_base, open_dataset
from memwal.errors import ConflictError, InvalidInputError, ObjectNotFoundError, TableSetupError
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import generation_dir
from memwal.lsm.indexes.catchup import (
    check_maintainable,
    covers,
    describe_index,
    index_names,
    maintained_index_names,
    segment_location,
)
from memwal.lsm.indexes.kinds import kind_of, read_index_spec
from memwal.lsm.indexes.partition_balance import PartitionBalance, partition_balance
from memwal.storage.location import TableLocation
from memwal.util.concurrency import map_parallel
from memwal.util.retry import retry_lost_races

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

# Parameters that training chooses anew, or that describe the layout of the old codebook.
_TRAINED = ("ivf_centroids", "pq_codebook", "rabitq_model", "num_partitions", "skip_transpose")


def choose_indexes(
    location: TableLocation, *, add: Collection[str] = (), remove: Collection[str] = ()
) -> list[str]:
    """Add and remove maintained indexes, from the next flush on; returns all of them, in order.

    Open writers of this library notice by themselves; native ones have to be opened again. Does
    nothing if the indexes are maintained like that already.

    An index that is added counts as caught up with nothing, so generations that are merged from
    then on stay stored until an index build has extended it; generations that were flushed before
    lack it, and their rows are searched without it. An index that is removed still exists, and is
    extended by index builds as all others are, unless they are limited to maintained ones. Both
    ``add`` and ``remove`` are names of indexes of the base table.

    Raises
    ------
    InvalidInputError
        The table has no such index, one is to be added and removed, one is to be removed from a
        table that maintains all its indexes, or one is of a kind that Lance's own writers cannot
        maintain: BTREE, text and vector indexes are maintained.
    TableSetupError
        There is no table, or MemWAL is not enabled on it.
    ConflictError
        Other processes were always faster; call again.
    """
    both = set(add) & set(remove)
    if both:
        raise InvalidInputError(f"{', '.join(sorted(both))} cannot be added and removed at once")

    def change(base: BaseTable) -> IndexDetails:
        existing = index_names(base)
        unknown = sorted(set(add) - existing)
        if unknown:
            raise InvalidInputError(
                f"{location} has no index {', '.join(unknown)}; build it on the Lance table first, "
                f"or choose one of {', '.join(sorted(existing)) or 'none'}"
            )
        check_maintainable(base, add)
        if base.details.maintain_all_indexes:
            if remove:
                raise InvalidInputError(
                    f"{location} maintains all of its indexes; drop the index from the Lance table"
                )
            return base.details
        before = base.details.maintained_indexes
        names = [name for name in before if name not in remove]
        names += [name for name in dict.fromkeys(add) if name not in before]
        # An index that is added again has to catch up again.
        catchup = {
            name: progress for name, progress in base.details.catchup.items() if name not in remove
        }
        return replace(base.details, maintained_indexes=tuple(names), catchup=catchup)

    return list(maintained_index_names(update_details(location, change)))


class MigrationStep(StrEnum):
    """Last step that a migration has reached."""

    NOT_STARTED = "not started"
    BUILDING = "building"
    """The new index exists, and is not maintained by name yet."""
    STARTED = "started"
    """Both indexes are maintained."""
    SWITCHED = "switched"
    """Readers prefer the new index."""
    FINISHING = "finishing"
    """The old index is no longer maintained, and still exists."""
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStatus:
    """Progress of a migration."""

    old: str
    """Name of the index to replace."""
    new: str
    """Name of its successor."""
    step: MigrationStep
    """Last step that was reached."""
    caught_up: bool
    """True if the new index covers all merged rows."""
    lacking: tuple[tuple[UUID, int], ...] = ()
    """Region and number of each stored generation that does not carry the new index."""
    old_balance: PartitionBalance | None = None
    """Partition balance of the old index; None if it does not exist."""
    new_balance: PartitionBalance | None = None
    """Partition balance of the new index; None if it does not exist."""

    @property
    def missing(self) -> str | None:
        """Obstacle of the next step; None if it can be taken, or there is none."""
        both_maintained = self.step in (MigrationStep.STARTED, MigrationStep.SWITCHED)
        if both_maintained and not self.caught_up:
            return f"index {self.new} has not caught up with what is merged; build the indexes"
        if self.step is MigrationStep.SWITCHED and self.lacking:
            regions = len({region_id for region_id, _ in self.lacking})
            return (
                f"{len(self.lacking)} stored generations of {regions} regions do not carry index "
                f"{self.new}; merge, build the indexes and collect the garbage, and open native "
                "writers again"
            )
        return None


def next_name(index: str) -> str:
    """Return the default name of an index's successor: ``NAME_v2``, or the next number."""
    numbered = re.fullmatch(r"(.+)_v(\d+)", index)
    return f"{numbered[1]}_v{int(numbered[2]) + 1}" if numbered else f"{index}_v2"


class IndexMigration:
    """Migration of one vector index to its successor. Every step can be repeated.

    ``old`` is the vector index to replace, and ``new`` the name of its successor, by default that
    of :func:`next_name`.

    Raises
    ------
    InvalidInputError
        ``new`` is ``old``.
    """

    def __init__(self, location: TableLocation, old: str, *, new: str | None = None) -> None:
        self.location = location
        self.old = old
        self.new = next_name(old) if new is None else new
        if self.new == old:
            raise InvalidInputError(f"the new index cannot be called {old} as well")

    def status(self) -> MigrationStatus:
        """Read the progress of the migration. Opens every stored generation.

        Raises
        ------
        TableSetupError
            Neither index exists, or they are not vector indexes over the same column.
        """
        base = open_base(self.location)
        base.require_mem_wal()
        names = self._existing(base)
        if not names:
            raise TableSetupError(
                f"{self.location} has neither an index {self.old} nor one {self.new}"
            )
        has_old, has_new = self.old in names, self.new in names
        return MigrationStatus(
            old=self.old,
            new=self.new,
            step=self._step(base, names),
            caught_up=has_new and covers(base, self.new, base.details.merged),
            lacking=_generations_without(base, self.new) if has_new else (),
            old_balance=partition_balance(base, self.old) if has_old else None,
            new_balance=partition_balance(base, self.new) if has_new else None,
        )

    def start(
        self, *, num_partitions: int | None = None, num_sub_vectors: int | None = None
    ) -> MigrationStatus:
        """Train and build the new index beside the old one, and have generations carry both.

        A table that maintains all its indexes maintains them by name from then on, since only names
        have an order: an index that is created later has to be named too.

        By default Lance chooses ``num_partitions`` for the number of rows, and ``num_sub_vectors``
        of a product quantizer are as in the old index.

        Raises
        ------
        TableSetupError
            There is no such maintained vector index, the new name belongs to another index, or
            there are no rows to train a model with.
        InvalidInputError
            The number of sub-vectors does not fit the index.
        ConflictError
            Other commits kept getting in between; call again.
        """

        def build(base: BaseTable) -> None:
            if not self._is_built(base):
                self._train(base, num_partitions, num_sub_vectors)

        def maintain(latest: BaseTable) -> IndexDetails:
            if not self._is_built(latest):
                raise ConflictError(
                    f"another process dropped index {self.new} of {self.location}; start again"
                )
            names = list(maintained_index_names(latest))
            if self.new in names and not latest.details.maintain_all_indexes:
                return latest.details
            return _details_with(latest, names, self.new, after=self.old)

        self._retry(build, f"building index {self.new}")
        update_details(self.location, maintain)
        return self.status()

    def switch(self) -> MigrationStatus:
        """Have readers prefer the new index.

        Raises
        ------
        ConflictError
            The new index has not caught up. Nothing was changed.
        TableSetupError
            The migration was not started.
        """

        def prefer(latest: BaseTable) -> IndexDetails:
            names = self._require_both(latest)
            if not covers(latest, self.new, latest.details.merged):
                raise ConflictError(
                    f"index {self.new} of {self.location} has not caught up with what is merged; "
                    "build the indexes, then switch"
                )
            if names.index(self.new) < names.index(self.old):
                return latest.details
            return _details_with(latest, names, self.old, after=self.new)

        if self.status().step not in (MigrationStep.FINISHING, MigrationStep.FINISHED):
            update_details(self.location, prefer)
        return self.status()

    def finish(self) -> MigrationStatus:
        """Drop the old index, once nothing needs it.

        Raises
        ------
        ConflictError
            Readers do not prefer the new index, it has not caught up, or a stored generation does
            not carry it; the message tells which. Nothing was changed.
        TableSetupError
            The migration was not started.
        """
        status = self.status()
        if status.step is MigrationStep.FINISHED:
            return status
        if status.step is not MigrationStep.FINISHING:
            self._require_both(open_base(self.location))
            if status.step is not MigrationStep.SWITCHED:
                raise ConflictError(
                    f"readers of {self.location} still prefer index {self.old}; switch to "
                    f"{self.new} first"
                )
            if status.missing is not None:
                raise ConflictError(
                    f"index {self.old} of {self.location} is still needed: {status.missing}"
                )

        def release_old(latest: BaseTable) -> IndexDetails:
            names = maintained_index_names(latest)
            if self.old not in names:
                return latest.details
            if self.new not in names or names.index(self.old) < names.index(self.new):
                raise ConflictError(
                    f"another process reverted the migration of index {self.old} of "
                    f"{self.location}; look at its status"
                )
            if not covers(latest, self.new, latest.details.merged):
                raise ConflictError(
                    f"index {self.new} of {self.location} has not caught up with what was merged "
                    "meanwhile; build the indexes, then finish"
                )
            return _details_without(latest, self.old)

        update_details(self.location, release_old)
        self._drop(self.old)
        return self.status()

    def abort(self) -> MigrationStatus:
        """Remove the new index again. Readers prefer the old one from then on.

        Raises
        ------
        ConflictError
            The old index is no longer maintained: finish the migration, or start one from the new.
            Or another process has started the migration again.
        """

        def release_new(latest: BaseTable) -> IndexDetails:
            if self.old not in maintained_index_names(latest) or self.old not in self._existing(
                latest
            ):
                raise ConflictError(
                    f"index {self.old} of {self.location} is not maintained any more, so that "
                    f"{self.new} is needed; finish the migration"
                )
            if self.new not in latest.details.maintained_indexes:
                return latest.details
            return _details_without(latest, self.new)

        update_details(self.location, release_new)
        self._drop(self.new)
        return self.status()

    def _step(self, base: BaseTable, names: set[str]) -> MigrationStep:
        maintained = maintained_index_names(base)
        if self.new not in names:
            return MigrationStep.NOT_STARTED
        if self.old not in names:
            return MigrationStep.FINISHED
        if self.old not in maintained:
            is_released = self.new in maintained
            return MigrationStep.FINISHING if is_released else MigrationStep.NOT_STARTED
        if self.new not in maintained or base.details.maintain_all_indexes:
            return MigrationStep.BUILDING
        is_first = maintained.index(self.new) < maintained.index(self.old)
        return MigrationStep.SWITCHED if is_first else MigrationStep.STARTED

    def _require_both(self, base: BaseTable) -> list[str]:
        """Return the names of the maintained indexes, unless the migration was not started."""
        names = list(base.details.maintained_indexes)
        both = {self.old, self.new}
        if not both <= set(names) or not both <= self._existing(base):
            raise TableSetupError(
                f"the migration of index {self.old} of {self.location} to {self.new} was not "
                "started"
            )
        return names

    def _require_old(self, base: BaseTable) -> IndexDescription:
        description = describe_index(base, self.old)
        if description is None or not kind_of(description).is_vector:
            raise TableSetupError(f"{self.location} has no vector index {self.old}")
        return description

    def _is_built(self, base: BaseTable) -> bool:
        """Return whether the new index exists, unless the migration cannot be started."""
        base.require_mem_wal()
        self._require_old(base)
        if self.old not in maintained_index_names(base):
            raise TableSetupError(
                f"index {self.old} of {self.location} is not maintained; migrate one that is"
            )
        return self.new in self._existing(base)

    def _existing(self, base: BaseTable) -> set[str]:
        """Return which of both indexes exist, unless they are not vector indexes of one column."""
        indexes = [index for name in (self.old, self.new) if (index := describe_index(base, name))]
        columns = {tuple(index.fields) for index in indexes}
        if len(columns) > 1 or not all(kind_of(index).is_vector for index in indexes):
            raise TableSetupError(
                f"{self.old} and {self.new} of {self.location} are not vector indexes over the "
                "same column; choose another name"
            )
        return {index.name for index in indexes}

    def _train(
        self, base: BaseTable, num_partitions: int | None, num_sub_vectors: int | None
    ) -> None:
        """Train and build the new index with the parameters of the old one."""
        old = self._require_old(base)
        if base.dataset.count_rows() == 0:
            raise TableSetupError(
                f"{self.location} has no rows to train a model with; merge some first"
            )
        try:
            spec = read_index_spec(segment_location(base, old.segments[0]), old)
        except ObjectNotFoundError as error:
            raise TableSetupError(
                f"index {self.old} of {self.location} was never trained; drop it and build it again"
            ) from error
        kind = spec.kind.pylance_name
        dimension = spec.parameters["ivf_centroids"].type.list_size
        if num_sub_vectors is not None and (
            "num_sub_vectors" not in spec.parameters or dimension % num_sub_vectors
        ):
            raise InvalidInputError(
                f"{num_sub_vectors} sub-vectors do not fit an index of kind {kind} over vectors of "
                f"{dimension} numbers"
            )
        options = {key: value for key, value in spec.parameters.items() if key not in _TRAINED}
        chosen = {"num_partitions": num_partitions, "num_sub_vectors": num_sub_vectors}
        options |= {key: value for key, value in chosen.items() if value is not None}

        def commit(dataset: lance.LanceDataset) -> None:
            dataset.create_index(old.field_names[0], kind, name=self.new, **options)

        commit_durably(base, commit, doing=f"building index {self.new}")

    def _drop(self, index: str) -> None:
        doing = f"dropping index {index}"

        def is_released(base: BaseTable) -> bool:
            return index not in base.details.maintained_indexes

        def drop(base: BaseTable) -> None:
            if index not in self._existing(base):
                return
            # While this process was paused, another one may have started the migration again: in
            # ``base``, or in a version that the commit would follow.
            if not is_released(base):
                raise ConflictError(
                    f"another process maintains index {index} of {self.location} again; look at "
                    "the status of the migration"
                )
            commit_durably(
                base,
                lambda dataset: dataset.drop_index(index),
                doing=doing,
                accept=lambda version: is_released(open_base(self.location, version=version)),
            )

        self._retry(drop, doing)

    def _retry(self, attempt: Callable[[BaseTable], None], doing: str) -> None:
        """Make an attempt on the latest version, and another if its commit lost a race."""
        retry_lost_races(
            lambda: attempt(open_base(self.location)),
            attempts=5,  # each trains anew
            exhausted=ConflictError(
                f"{doing} of {self.location} met other commits in each attempt; try again"
            ),
        )


def _generations_without(base: BaseTable, index: str) -> tuple[tuple[UUID, int], ...]:
    """Return region and number of the stored generations that have no index of this name."""
    location = base.location
    stored = [
        (region_id, flushed)
        for region_id, manifest in sorted(read_regions(location).manifests.items())
        for flushed in manifest.flushed
    ]

    def lacks_index(folder: str) -> bool:
        try:
            dataset = open_dataset(location, folder)
        except ObjectNotFoundError:
            # The collector has deleted the generation since the manifest was read.
            return False
        return index not in {description.name for description in dataset.describe_indices()}

    folders = [generation_dir(region_id, flushed.path) for region_id, flushed in stored]
    lacking = map_parallel(lacks_index, folders)
    return tuple(
        (region_id, flushed.generation)
        for (region_id, flushed), is_lacking in zip(stored, lacking, strict=True)
        if is_lacking
    )


def _details_with(base: BaseTable, names: Sequence[str], name: str, *, after: str) -> IndexDetails:
    """Return the details with these maintained indexes, one moved or added right after another."""
    others = [other for other in names if other != name]
    at = others.index(after) + 1
    maintained = (*others[:at], name, *others[at:])
    return replace(base.details, maintained_indexes=maintained, maintain_all_indexes=False)


def _details_without(base: BaseTable, index: str) -> IndexDetails:
    names = [name for name in base.details.maintained_indexes if name != index]
    catchup = {name: covered for name, covered in base.details.catchup.items() if name != index}
    return replace(base.details, maintained_indexes=tuple(names), catchup=catchup)
