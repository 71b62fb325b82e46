"""Index specs: the kind and the parameters of an index of the base table, and building one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance import LanceDataset
from lance.dataset import Index
from lance.indices import IndexConfig

from memwal.errors import InvalidInputError
from memwal.lsm.indexes.kinds import IndexKind, kind_of
from memwal.storage.location import TableLocation

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription


@dataclass(frozen=True, slots=True, eq=False)
class IndexSpec:
    """Kind and parameters of an index, enough to build another one like it."""

    kind: IndexKind
    # By the names that pylance gives them; of a vector index the metric and the model are among
    # them.
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def index_type(self) -> str | IndexConfig:
        """Second argument of pylance's ``create_index_uncommitted``."""
        if self.kind.plugin is None:
            return self.kind.pylance_name
        return IndexConfig(self.kind.plugin, dict(self.parameters))

    @property
    def parallel(self) -> bool:
        """Whether parts of this index have all of its parameters, so that it can be built in parts.

        Segments of other parts could never be joined with the existing ones.
        """
        shared = self.kind.parallel_parameter
        return self.kind.parallel and (shared is None or shared in self.parameters)

    def build(
        self,
        dataset: LanceDataset,
        *,
        name: str,
        column: str,
        fragment_ids: Sequence[int] | None = None,
    ) -> Index | None:
        """Write the index of a data set, or a part over some fragments; the caller commits it.

        A part of a text index is not a complete index. The caller joins it with others, or
        completes it with ``merge_existing_index_segments``. Returns None if pylance has committed
        it already.
        """
        if self.kind.commit_only:
            dataset.create_scalar_index(column, self.index_type, name=name)
            return None
        is_part = fragment_ids is not None
        if fragment_ids is None:
            fragment_ids = [fragment.fragment_id for fragment in dataset.get_fragments()]
        segment = dataset.create_index_uncommitted(
            column,
            self.index_type,
            name=name,
            # The name is taken when this becomes a part of an existing index.
            replace=True,
            fragment_ids=list(fragment_ids),
            **(self.parameters if self.kind.plugin is None else {}),
        )
        if self.kind.parts_need_merge and not is_part:
            # Lance built one part of a distributed build; merging it alone completes it.
            return dataset.merge_existing_index_segments([segment])
        return segment


def read_index_spec(
    location: TableLocation, description: IndexDescription, segment: str | None = None
) -> IndexSpec:
    """Read the spec of an index of the base table.

    All segments have the same parameters: by default the files of the first one are read. Raises
    InvalidInputError if generations cannot carry an index of this kind, and the errors of
    :data:`memwal.lsm.indexes.kinds.ParameterReader`.
    """
    kind = kind_of(description)
    if kind.refusal is not None:
        raise InvalidInputError(kind.refusal)
    if segment is None:
        segment = description.segments[0].uuid
    return IndexSpec(kind, kind.read_parameters(location, description, segment))
