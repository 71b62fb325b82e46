"""Vector indexes of generations, with the centroids and the codebook of the base table's.

Distances are comparable between the base table and its generations only when both are computed
with the same model (spec: Vector Index Configuration); training is also what takes most time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.lance_index import read_centroids, read_codebook
from memwal.storage.location import TableLocation
from memwal.writer.index_files import open_index_file

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.dataset import Index
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
        storage = json.loads(json.loads(storage_metadata["storage_metadata"])[0])
        inverted_file = index.read_global_buffer(int(metadata["lance:ivf"]))
    except (KeyError, IndexError, json.JSONDecodeError) as error:
        raise CorruptDataError(
            f"segment {segment} of index {description.name} has no {error}; build it again"
        ) from error
    centroids = read_centroids(inverted_file, name=f"the inverted file of {description.name}")
    dimension = centroids.shape[1]
    options: dict[str, Any] = {
        "ivf_centroids": pa.FixedSizeListArray.from_arrays(pa.array(centroids.ravel()), dimension),
        "num_partitions": len(centroids),
    }
    if kind.endswith("_PQ"):
        parts = storage["num_sub_vectors"]
        codebook = read_codebook(
            auxiliary.read_global_buffer(storage["codebook_position"]),
            name=f"the codebook of {description.name}",
        )
        options["num_sub_vectors"] = parts
        options["num_bits"] = storage["nbits"]
        options["skip_transpose"] = not storage["transposed"]
        options["pq_codebook"] = pa.FixedSizeListArray.from_arrays(
            pa.array(codebook), dimension // parts
        )
    elif kind.endswith("_SQ"):
        options["num_bits"] = storage["num_bits"]
    elif kind.endswith("_RQ"):
        options["num_bits"] = storage["num_bits"]
        if storage["rotation_type"] == "fast":
            options["rabitq_model"] = json.dumps(storage)
    graph = details.get("hnsw") or {}
    options |= {ours: graph[theirs] for theirs, ours in _HNSW.items() if theirs in graph}
    return VectorRecipe(kind=kind, metric=metric, options=options)
