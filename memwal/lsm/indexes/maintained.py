"""Indexes that every generation carries too, and building them.

Native vector search does not see rows of a generation without a vector index, and filters and text
search are slow without theirs.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance.dataset import LanceOperation

from memwal.base_table.snapshot import BaseTable, open_dataset, translate_lance_error
from memwal.errors import CorruptDataError, InvalidInputError, MemWalError, ObjectNotFoundError
from memwal.format.paths import MEM_WAL_INDEX_NAME
from memwal.lsm.indexes.scalar import SCALAR_KINDS, ScalarRecipe, read_scalar_recipe
from memwal.lsm.indexes.vector import VECTOR_KINDS, VectorRecipe, read_vector_recipe
from memwal.util.memory import release_free_memory

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.dataset import Index
    from lance.lance.indices import IndexDescription

    from memwal.storage.location import TableLocation

logger = logging.getLogger(__name__)

# The files of a segment never change, so that its parameters are read once. A large model has a
# hundred megabytes; few indexes have one like that.
_KNOWN_SEGMENTS = 64

Recipe = ScalarRecipe | VectorRecipe


@dataclass(frozen=True, slots=True)
class MaintainedIndex:
    """An index of the base table that every generation carries too.

    Attributes
    ----------
    name : str
        The same in the generation.
    column : str
        Path of the indexed column in the version of the base table that was read.
    field_id : int
        Its Lance field id, by which it is found when the column has another name by now.
    recipe : ScalarRecipe or VectorRecipe
        How to build it with the parameters of the base table's.
    """

    name: str
    column: str
    field_id: int
    recipe: Recipe

    @property
    def kind(self) -> str:
        """Kind of index as pylance calls it, such as ``BTREE``."""
        return self.recipe.kind


def maintained_indexes(base: BaseTable) -> tuple[MaintainedIndex, ...]:
    """Indexes that the table's MemWAL details ask writers to maintain, with their parameters.

    The parameters are those of the first segment of each index: all have the same. They are kept
    for later calls. An index that cannot be built here is left out; a warning says so once.

    Raises
    ------
    StoreAccessError, StoreUnavailableError
        As for any read.
    """
    wanted = base.details.maintained_indexes
    found = []
    for description in base.dataset.describe_indices():
        name = description.name
        if name == MEM_WAL_INDEX_NAME:
            continue
        if not (base.details.maintain_all_indexes or name in wanted):
            continue
        recipe = _recipes.of(base, description)
        if recipe is not None:
            found.append(
                MaintainedIndex(name, description.field_names[0], description.fields[0], recipe)
            )
    return tuple(found)


def build_indexes(
    location: TableLocation,
    folder: str,
    dataset: LanceDataset,
    indexes: Iterable[MaintainedIndex],
) -> None:
    """Build indexes of a data set that was just written, and commit them together.

    One after the other: side by side they are hardly faster, as each uses all cores by itself for
    a part of its time, and take the memory of all.

    Parameters
    ----------
    folder : str
        Where the data set is in the table.

    Raises
    ------
    MemWalError
        What the store failed with. What an index itself cannot take leaves that index out, with a
        warning: the rows come first.
    """
    paths = _paths(dataset)
    builds = [
        _build(location, folder, int(dataset.version), index, paths[index.field_id])
        for index in indexes
        if index.field_id in paths
    ]
    segments = [segment for segment in builds if segment is not None]
    if not segments:
        return
    try:
        dataset.commit(
            dataset.uri,
            LanceOperation.CreateIndex(segments, []),
            read_version=int(dataset.version),
            **location.lance_arguments(),
        )
    except (OSError, ValueError) as error:
        raise translate_lance_error(error, f"committing the indexes of {folder}") from error


def _build(
    location: TableLocation, folder: str, version: int, index: MaintainedIndex, column: str
) -> Index | None:
    dataset = open_dataset(location, folder, version=version)
    try:
        built = index.recipe.build(dataset, name=index.name, column=column)
        release_free_memory()
        return built
    except (TypeError, KeyError, NotImplementedError) as error:
        problem: Exception = error
    except (OSError, RuntimeError, ValueError) as error:
        problem = translate_lance_error(error, f"building index {index.name}")
        if not isinstance(problem, InvalidInputError):
            raise problem from error
    logger.warning("generation %s is flushed without index %s: %s", folder, index.name, problem)
    return None


def _paths(dataset: LanceDataset) -> dict[int, str]:
    """Path of each column and child of a column by its field id."""
    paths = {}
    todo = [(field.name(), field) for field in dataset.lance_schema.fields()]
    while todo:
        path, field = todo.pop()
        paths[field.id()] = path
        todo += [(f"{path}.{child.name()}", child) for child in field.children()]
    return paths


class _Recipes:
    """Recipes by the segment that they were read from; None stands for what cannot be built."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Recipe | None] = OrderedDict()

    def of(self, base: BaseTable, description: IndexDescription) -> Recipe | None:
        segment = description.segments[0].uuid
        with self._lock:
            if segment in self._known:
                self._known.move_to_end(segment)
                return self._known[segment]
            try:
                recipe = _read(base, description)
            except (InvalidInputError, ObjectNotFoundError, CorruptDataError) as error:
                recipe = None
                _warn(base, description, error)
            self._known[segment] = recipe
            while len(self._known) > _KNOWN_SEGMENTS:
                self._known.popitem(last=False)
            return recipe


_recipes = _Recipes()


def _read(base: BaseTable, description: IndexDescription) -> Recipe:
    segment = description.segments[0]
    if len(description.field_names) != 1:
        raise InvalidInputError(f"it is over {len(description.field_names)} columns")
    if segment.base_id is not None:
        raise InvalidInputError("its files are in another table")
    if description.index_type in VECTOR_KINDS:
        try:
            return read_vector_recipe(base.location, description, segment.uuid)
        except ObjectNotFoundError as error:
            if any(part.fragment_ids for part in description.segments):
                raise
            raise InvalidInputError(
                "it has no model yet, since the table had too few rows to train one (a codebook "
                "takes 256); the next index build after a merge tries again"
            ) from error
    if description.index_type in SCALAR_KINDS:
        return read_scalar_recipe(base.location, description, segment)
    if description.index_type == "Json":
        # Lance takes the type of the values from the rows at hand, and a query for another type
        # then fails.
        raise InvalidInputError("its type would be that of each generation's own values")
    raise InvalidInputError("its kind is not known")


def _warn(base: BaseTable, description: IndexDescription, error: MemWalError) -> None:
    logger.warning(
        "generations of %s are flushed without index %s (%s): %s; Lance's own vector and text "
        "search does not see their rows until they are merged and indexed",
        base.location,
        description.name,
        description.index_type,
        error,
    )
