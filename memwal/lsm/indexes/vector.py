"""Vector indexes of generations, with the centroids and the codebook of the base table's index.

Distances are comparable between the base table and its generations only when both are computed with
the same model (spec: Vector Index Configuration). Training is also the most expensive step of a
build.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from memwal.base_table.snapshot import lance_errors
from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.lance_manifest import Numbers, read_centroids, read_codebook
from memwal.lsm.indexes.files import open_index_file
from memwal.storage.location import TableLocation
from memwal.util.safe_json import read_json

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.dataset import Index
    from lance.file import LanceFileReader
    from lance.lance.indices import IndexDescription

VECTOR_KINDS: Final = frozenset(
    {
        "IVF_FLAT",
        "IVF_PQ",
        "IVF_SQ",
        "IVF_RQ",
        "IVF_HNSW_FLAT",
        "IVF_HNSW_PQ",
        "IVF_HNSW_SQ",
    }
)

_METRICS: Final = {"L2": "l2", "COSINE": "cosine", "DOT": "dot", "HAMMING": "hamming"}
_HNSW: Final = {
    "max_connections": "m",
    "construction_ef": "ef_construction",
    "max_level": "max_level",
}


@dataclass(frozen=True, slots=True, eq=False)
class VectorRecipe:
    """How to build a vector index like one of the base table.

    Attributes
    ----------
    kind : str
        As pylance calls it, such as ``IVF_PQ``.
    metric : str
    options : mapping
        Further arguments of ``create_index_uncommitted``, the model among them.
    """

    kind: str
    metric: str
    options: Mapping[str, Any]

    def build(
        self,
        dataset: LanceDataset,
        *,
        name: str,
        column: str,
        fragment_ids: Sequence[int] | None = None,
    ) -> Index:
        """Write the index of a data set, or of some fragments; the caller commits it."""
        if fragment_ids is None:
            fragment_ids = [part.fragment_id for part in dataset.get_fragments()]
        return dataset.create_index_uncommitted(
            column,
            self.kind,
            name=name,
            metric=self.metric,
            # The name may be taken: by the index that this is to become a part of.
            replace=True,
            fragment_ids=list(fragment_ids),
            **self.options,
        )


def read_vector_recipe(
    location: TableLocation, description: IndexDescription, segment: str
) -> VectorRecipe:
    """Read the model of a vector index from the files of one of its segments.

    Raises
    ------
    InvalidInputError
        The index has a metric that is not known here.
    ObjectNotFoundError
        The index was never trained, or is of a form without these files.
    CorruptDataError
        The files are not those of a vector index.
    """
    kind, details = description.index_type, description.details
    metric = _METRICS.get(details.get("metric_type", ""))
    if metric is None:
        raise InvalidInputError(f"its metric {details.get('metric_type')!r} is not known")
    index, metadata = open_index_file(location, segment, "index.idx")
    auxiliary, storage_metadata = open_index_file(location, segment, "auxiliary.idx")
    try:
        storage = read_json(read_json(storage_metadata["storage_metadata"])[0])
        with lance_errors(f"reading segment {segment}"):
            inverted_file = index.read_global_buffer(int(metadata["lance:ivf"]))
        centroids = read_centroids(inverted_file, name=f"the inverted file of {description.name}")
        options = {
            "ivf_centroids": _vectors(centroids.ravel(), centroids.shape[1]),
            "num_partitions": len(centroids),
            **_stored_options(kind, storage, auxiliary, centroids.shape[1], description.name),
        }
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CorruptDataError(
            f"segment {segment} of index {description.name} does not describe a model: "
            f"{error!r}; build it again"
        ) from error
    graph = details.get("hnsw") or {}
    options |= {ours: graph[theirs] for theirs, ours in _HNSW.items() if theirs in graph}
    return VectorRecipe(kind=kind, metric=metric, options=options)


def _stored_options(
    kind: str, storage: Mapping[str, Any], auxiliary: LanceFileReader, dimension: int, name: str
) -> dict[str, Any]:
    """How vectors are stored: what the auxiliary file of an index of this kind says."""
    if kind.endswith("_PQ"):
        parts = storage["num_sub_vectors"]
        with lance_errors(f"reading the codebook of {name}"):
            data = auxiliary.read_global_buffer(storage["codebook_position"])
        codebook = read_codebook(data, name=f"the codebook of {name}")
        return {
            "num_sub_vectors": parts,
            "num_bits": storage["nbits"],
            "skip_transpose": not storage["transposed"],
            "pq_codebook": _vectors(codebook, dimension // parts),
        }
    if kind.endswith("_SQ"):
        return {"num_bits": storage["num_bits"]}
    if kind.endswith("_RQ"):
        model = {"rabitq_model": json.dumps(storage)} if storage["rotation_type"] == "fast" else {}
        return {"num_bits": storage["num_bits"], **model}
    return {}


def _vectors(numbers: Numbers, dimension: int) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), dimension)
