"""Maintained indexes of a table: their specs, and building them for a generation.

Lance's vector search does not see the rows of a generation without a vector index; filters and text
search are slow without theirs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance import LanceDataset
from lance.dataset import Index, LanceOperation
from lance.schema import LanceSchema

from memwal.base_table.snapshot import BaseTable, lance_errors, open_dataset
from memwal.boundary.lance_errors import translate_lance_error
from memwal.errors import CorruptDataError, InvalidInputError, MemWalError, ObjectNotFoundError
from memwal.format.paths import MEM_WAL_INDEX_NAME
from memwal.lsm.indexes.catchup import describe_index, segment_location
from memwal.lsm.indexes.kinds import IndexKind, IndexSpec, kind_of, read_index_spec
from memwal.storage.location import TableLocation
from memwal.util.log import warn_once
from memwal.util.memory import release_free_memory

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

logger = logging.getLogger(__name__)

# Specs by table and segment; None for an index that cannot be built. The files of a segment never
# change, so its spec is read once. A large model takes 100 MB, and few indexes have one.
_specs: dict[tuple[str, str], IndexSpec | None] = {}
_specs_lock = threading.Lock()
_MAX_CACHED_SPECS = 64

# Rows of a page of a BTREE. In an index of one page a filter reads all values, as in the column;
# building the index costs a flush more than writing the rows of one page.
FEW_ROWS = 4_096


@dataclass(frozen=True, slots=True)
class MaintainedIndex:
    """Index of the base table that generations carry too."""

    name: str  # in the base table and in generations
    column: str  # path in the version of the base table that was read
    field_id: int  # Lance field id of the column, which stays when the column is renamed
    spec: IndexSpec

    @property
    def kind(self) -> IndexKind:
        """Kind of the index."""
        return self.spec.kind


def maintained_indexes(base: BaseTable) -> tuple[MaintainedIndex, ...]:
    """Return the indexes that generations carry, which the details name, with their specs.

    Where the details name all, generations of memwal also carry kinds that Lance's own writer
    leaves out. Nothing waits for these: they are not among the names of
    :func:`~memwal.lsm.indexes.catchup.maintained_index_names`.

    Parameters are read from the first segment of each index, as all segments have the same, and
    cached. An index that cannot be built here is left out; a warning says so once.
    """
    details = base.details
    indexes = [
        _with_spec(base, description)
        for description in base.dataset.describe_indices()
        if description.name != MEM_WAL_INDEX_NAME
        and (details.maintain_all_indexes or description.name in details.maintained_indexes)
    ]
    return tuple(index for index in indexes if index is not None)


def _with_spec(base: BaseTable, description: IndexDescription) -> MaintainedIndex | None:
    spec = _spec_of(base, description)
    if spec is None:
        return None
    column, field_id = description.field_names[0], description.fields[0]
    return MaintainedIndex(description.name, column, field_id, spec)


def _spec_of(base: BaseTable, description: IndexDescription) -> IndexSpec | None:
    """Return the spec of an index, read unless it is cached; None if it cannot be built.

    A damaged index is not cached: its files may come back, and a copy of the table, whose segments
    have the same UUIDs, may be whole.
    """
    key = base.location.uri, description.segments[0].uuid
    with _specs_lock:
        if key in _specs:
            return _specs[key]
        spec = None
        try:
            spec = _read_spec(base, description)
        except (ObjectNotFoundError, CorruptDataError, InvalidInputError) as error:
            _warn(base, description, error)
            if not isinstance(error, InvalidInputError):
                return None
        if len(_specs) >= _MAX_CACHED_SPECS:
            _specs.clear()
        _specs[key] = spec
        return spec


def index_of(base: BaseTable, name: str) -> MaintainedIndex | None:
    """Return an index with its spec, maintained or not; None if it cannot be built here."""
    description = describe_index(base, name)
    return None if description is None else _with_spec(base, description)


def build_generation_indexes(
    location: TableLocation,
    folder: str,
    schema: LanceSchema,
    indexes: Iterable[MaintainedIndex],
    *,
    rows: int,
) -> int:
    """Build the indexes of a generation, and commit them together as its second version.

    Indexes that answer filters are left out if the generation has few ``rows``.

    ``schema`` is that of the first version. Returns the newest version; no other process commits
    one.

    They are built one after another: in parallel they take hardly less time, since each uses all
    cores for part of its time, and the memory of all of them. Raises MemWalError if the store
    failed. An index that does not accept the rows is left out with a warning, so that the rows are
    flushed anyway.
    """
    paths = {}
    pending = [(field.name(), field) for field in schema.fields()]
    while pending:
        path, field = pending.pop()
        paths[field.id()] = path
        pending += [(f"{path}.{child.name()}", child) for child in field.children()]
    builds = [
        _build(location, folder, index, paths[index.field_id])
        for index in indexes
        if index.field_id in paths and not (rows <= FEW_ROWS and index.kind.column_suffices)
    ]
    segments = [segment for segment in builds if segment is not None]
    if not segments:
        return 1
    with lance_errors(f"committing the indexes of {folder}"):
        indexed = LanceDataset.commit(
            location.child(folder),
            LanceOperation.CreateIndex(segments, []),
            read_version=1,
            **location.lance_arguments(),
        )
    return int(indexed.version)


def _build(
    location: TableLocation, folder: str, index: MaintainedIndex, column: str
) -> Index | None:
    dataset = open_dataset(location, folder, version=1)
    try:
        segment = index.spec.build(dataset, name=index.name, column=column)
        release_free_memory()
        return segment
    except (TypeError, KeyError, NotImplementedError) as error:
        problem: Exception = error
    except (OSError, RuntimeError, ValueError) as error:
        problem = translate_lance_error(error, f"building index {index.name}")
        if not isinstance(problem, InvalidInputError):
            raise problem from error
    logger.warning("generation %s is flushed without index %s: %s", folder, index.name, problem)
    return None


def _read_spec(base: BaseTable, description: IndexDescription) -> IndexSpec:
    if len(description.field_names) != 1:
        raise InvalidInputError(f"it is over {len(description.field_names)} columns")
    try:
        return read_index_spec(segment_location(base, description.segments[0]), description)
    except ObjectNotFoundError as error:
        is_trained = any(segment.fragment_ids for segment in description.segments)
        if is_trained or not kind_of(description).is_vector:
            raise
        raise InvalidInputError(
            "it has no model yet, since the table had too few rows to train one (a codebook "
            "takes 256); the next index build after a merge tries again"
        ) from error


def _warn(base: BaseTable, description: IndexDescription, error: MemWalError) -> None:
    warn_once(
        logger,
        "generations of %s are flushed without index %s (%s): %s; Lance's own vector and text "
        "search does not see their rows until they are merged and indexed",
        str(base.location),
        description.name,
        description.index_type,
        str(error),
    )
