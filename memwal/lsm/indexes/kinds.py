"""Registry of index kinds: their names in Lance and pylance, and how memwal builds and uses them.

Adding a scalar kind takes one entry of ``KINDS`` and one of the test's table. No other module
compares the names of kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lance import LanceDataset
from lance.dataset import Index
from lance.indices import IndexConfig

from memwal.errors import InvalidInputError
from memwal.lsm.indexes.parameters import (
    QuantizerReader,
    no_parameters,
    read_detail_parameters,
    read_file_parameters,
    read_product_quantizer,
    read_rabit_quantizer,
    read_scalar_quantizer,
    read_text_parameters,
    read_vector_parameters,
)
from memwal.storage.location import TableLocation

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

ParameterReader: TypeAlias = Callable[[TableLocation, "IndexDescription", str], dict[str, object]]
"""Reads the parameters of an index from one of its segments, which is named by its UUID.

Raises
------
InvalidInputError
    The index has a parameter that is not supported.
ObjectNotFoundError
    The segment has no file with parameters: a vector index was never trained.
CorruptDataError
    The segment's files or details are not those of such an index.
"""


class Family(Enum):
    """Queries that an index answers: conditions on values, full text, or nearest vectors."""

    SCALAR = "scalar"
    TEXT = "text"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexKind:
    """Kind of index, and its use in memwal."""

    lance_name: str  # ``IndexDescription.index_type``, such as ``BTree``
    # In pylance's ``create_scalar_index`` and ``create_index``, such as ``BTREE``.
    pylance_name: str
    family: Family = Family.SCALAR
    # Name of the plugin that takes the parameters as an ``IndexConfig``. None: the parameters are
    # arguments of ``create_index_uncommitted``.
    plugin: str | None = None
    read_parameters: ParameterReader = no_parameters
    refusal: str | None = None  # why generations cannot carry such an index; None if they can
    commit_only: bool = False  # whether pylance builds it only together with a commit
    # Whether it can be built in parts that Lance can join with the existing segments. Not so for a
    # scalar quantizer: it takes its bounds from the vectors at hand.
    parallel: bool = True
    # Parameter that all parts must share. An index without it is not built in parts: a random
    # rotation that is stored as a matrix cannot be passed to pylance.
    parallel_parameter: str | None = None
    # Whether a part is not a complete index before ``merge_existing_index_segments``.
    parts_need_merge: bool = False
    # Rows of a part as a multiple of those of a text or vector index. A BTREE takes millions of
    # rows per second, a text or vector index one or two hundred thousand.
    part_rows_factor: int = 16
    # Whether a MemTable builds an index over its rows with the same parameters. Keys and vectors
    # are found in a MemTable without one.
    memtable_index: bool = False
    # Whether lookups by primary key use it. It must find values exactly, and many at once.
    finds_keys: bool = False
    # Whether Lance's own writer can maintain it. If the details name an index of another kind, that
    # writer and LanceDB cannot write to the table any more.
    lance_maintains: bool = False
    # Version of the index from which on it holds row addresses in a table with stable row ids while
    # older clients suppose row ids; None if there is none. See memwal.lsm.indexes.unusable.
    address_version: int | None = None
    # Whether the distances that it returns are those of the stored vectors.
    exact_distances: bool = False
    # Whether a filter over few rows costs as little without it, and every reader answers the filter
    # then by reading the column. Generations of few rows carry none.
    column_suffices: bool = False

    @property
    def is_text(self) -> bool:
        """Return whether it answers full-text queries."""
        return self.family is Family.TEXT

    @property
    def is_vector(self) -> bool:
        """Return whether it finds nearest vectors."""
        return self.family is Family.VECTOR


def _vector(
    name: str,
    read_quantizer: QuantizerReader | None = None,
    *,
    parallel: bool = True,
    parallel_parameter: str | None = None,
) -> IndexKind:
    return IndexKind(
        lance_name=name,
        pylance_name=name,
        family=Family.VECTOR,
        read_parameters=partial(read_vector_parameters, read_quantizer=read_quantizer),
        parallel=parallel,
        parallel_parameter=parallel_parameter,
        part_rows_factor=1,
        lance_maintains=True,
        exact_distances=read_quantizer is None,
    )


BTREE: Final = IndexKind(
    lance_name="BTree",
    pylance_name="BTREE",
    plugin="btree",
    read_parameters=partial(
        read_file_parameters, file="page_lookup.lance", names={"batch_size": "zone_size"}
    ),
    lance_maintains=True,
    finds_keys=True,
    address_version=1,
    column_suffices=True,
)

KINDS: Final = (
    BTREE,
    IndexKind(lance_name="Bitmap", pylance_name="BITMAP", column_suffices=True),
    IndexKind(lance_name="LabelList", pylance_name="LABEL_LIST", column_suffices=True),
    IndexKind(lance_name="NGram", pylance_name="NGRAM", column_suffices=True),
    IndexKind(
        lance_name="ZoneMap",
        pylance_name="ZONEMAP",
        plugin="zonemap",
        read_parameters=partial(
            read_file_parameters, file="zonemap.lance", names={"rows_per_zone": "rows_per_zone"}
        ),
        column_suffices=True,
    ),
    IndexKind(
        lance_name="BloomFilter",
        pylance_name="BLOOMFILTER",
        plugin="bloomfilter",
        read_parameters=partial(
            read_file_parameters,
            file="bloomfilter.lance",
            names={
                "bloomfilter_item": "number_of_items",
                "bloomfilter_probability": "probability",
            },
        ),
        column_suffices=True,
    ),
    IndexKind(
        lance_name="RTree",
        pylance_name="RTREE",
        plugin="rtree",
        read_parameters=partial(
            read_file_parameters, file="page_data.lance", names={"page_size": "page_size"}
        ),
    ),
    IndexKind(
        lance_name="MinHashLsh",
        pylance_name="MINHASHLSH",
        plugin="minhashlsh",
        read_parameters=partial(
            read_detail_parameters, names=("num_hashes", "num_bands", "shingle_size", "tokenizer")
        ),
    ),
    IndexKind(lance_name="Fm", pylance_name="FM", plugin="fm", commit_only=True, parallel=False),
    IndexKind(
        lance_name="Json",
        pylance_name="JSON",
        # Lance takes the type of the values from the rows at hand, and a query for another type
        # then fails.
        refusal="its type would be that of each generation's own values",
        parallel=False,
    ),
    IndexKind(
        lance_name="Inverted",
        pylance_name="INVERTED",
        family=Family.TEXT,
        read_parameters=read_text_parameters,
        parts_need_merge=True,
        part_rows_factor=1,
        memtable_index=True,
        lance_maintains=True,
    ),
    _vector("IVF_FLAT"),
    _vector("IVF_PQ", read_product_quantizer),
    _vector("IVF_SQ", read_scalar_quantizer, parallel=False),
    _vector("IVF_RQ", read_rabit_quantizer, parallel_parameter="rabitq_model"),
    _vector("IVF_HNSW_FLAT"),
    _vector("IVF_HNSW_PQ", read_product_quantizer),
    _vector("IVF_HNSW_SQ", read_scalar_quantizer, parallel=False),
)

_BY_LANCE_NAME: Final = {kind.lance_name: kind for kind in KINDS}


def kind_of(description: IndexDescription) -> IndexKind:
    """Return the kind of an index; a kind that is not registered is one that is refused."""
    name = description.index_type
    return _BY_LANCE_NAME.get(name) or IndexKind(
        lance_name=name, pylance_name=name, refusal="its kind is not known", parallel=False
    )


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
        """True if this index can be built in parts, since each part has all of its parameters.

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
