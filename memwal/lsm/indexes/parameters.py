"""Parameters of an index, read from the files of one of its segments in the base table.

Pylance's statistics and descriptions leave out parameters that are in the metadata of the files of
scalar and text indexes, and the model of a vector index: centroids, quantizer and graph. Distances
are comparable between the base table and its generations only if both are computed with the same
model (spec: Vector Index Configuration). Training is also the most expensive step of a build.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from lance.file import LanceFileReader

from memwal.base_table.snapshot import lance_errors
from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.lance_files import Numbers, read_centroids, read_codebook
from memwal.storage.location import TableLocation
from memwal.util.safe_json import read_json

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

QuantizerReader: TypeAlias = Callable[
    [Mapping[str, Any], LanceFileReader, int, str], dict[str, object]
]
"""Reads a quantizer's parameters: storage metadata, auxiliary file, dimension, index name."""

_METRICS: Final = {"L2": "l2", "COSINE": "cosine", "DOT": "dot", "HAMMING": "hamming"}
_HNSW: Final = {
    "max_connections": "m",
    "construction_ef": "ef_construction",
    "max_level": "max_level",
}


def open_index_file(
    location: TableLocation, segment: str, file: str
) -> tuple[LanceFileReader, dict[str, str]]:
    """Open a file of an index segment, which is named by its UUID, and return the file's metadata.

    Raises ObjectNotFoundError if the segment has no such file, and CorruptDataError if the file or
    its metadata cannot be read.
    """
    uri = location.child(f"_indices/{segment}/{file}")
    with lance_errors(f"reading {uri}"):
        reader = LanceFileReader(uri, **location.lance_arguments())
        metadata = reader.metadata().schema.metadata or {}
    try:
        return reader, {key.decode(): value.decode() for key, value in metadata.items()}
    except UnicodeDecodeError as error:
        raise CorruptDataError(
            f"the metadata of {uri} is not text; build the index again"
        ) from error


def no_parameters(
    location: TableLocation, description: IndexDescription, segment: str
) -> dict[str, object]:
    """Return no parameters, for a kind that has none."""
    return {}


def read_detail_parameters(
    location: TableLocation, description: IndexDescription, segment: str, *, names: Sequence[str]
) -> dict[str, object]:
    """Return the parameters of these names from the details that pylance describes."""
    return {name: description.details[name] for name in names}


def read_file_parameters(
    location: TableLocation,
    description: IndexDescription,
    segment: str,
    *,
    file: str,
    names: Mapping[str, str],
) -> dict[str, object]:
    """Read the parameters from the metadata of a file of the segment.

    ``names`` has the name for the plugin by the name in the metadata. A parameter that is not in
    the metadata is left out.
    """
    _, metadata = open_index_file(location, segment, file)
    try:
        return {
            parameter: read_json(metadata[key])
            for key, parameter in names.items()
            if key in metadata
        }
    except ValueError as error:
        raise CorruptDataError(
            f"segment {segment} does not describe its parameters: {error}; build the index again"
        ) from error


def read_text_parameters(
    location: TableLocation, description: IndexDescription, segment: str
) -> dict[str, object]:
    """Read the tokenizer and the format of a text index."""
    _, metadata = open_index_file(location, segment, "metadata.lance")
    try:
        parameters: dict[str, object] = read_json(metadata["params"])
        parameters["format_version"] = int(metadata["format_version"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(
            f"segment {segment} of index {description.name} has no {error}; build it again"
        ) from error
    # Lance takes this one from the type of the column.
    parameters.pop("lance_tokenizer", None)
    parameters["document_granularity"] = description.details["document_granularity"]
    return parameters


def read_vector_parameters(
    location: TableLocation,
    description: IndexDescription,
    segment: str,
    *,
    read_quantizer: QuantizerReader | None,
) -> dict[str, object]:
    """Read the metric and the model of a vector index from the files of one of its segments."""
    details = description.details
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
        dimension = centroids.shape[1]
        parameters = {
            "metric": metric,
            "ivf_centroids": _vectors(centroids.ravel(), dimension),
            "num_partitions": len(centroids),
        }
        if read_quantizer is not None:
            parameters |= read_quantizer(storage, auxiliary, dimension, description.name)
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CorruptDataError(
            f"segment {segment} of index {description.name} does not describe a model: "
            f"{error!r}; build it again"
        ) from error
    graph = details.get("hnsw") or {}
    return parameters | {name: graph[key] for key, name in _HNSW.items() if key in graph}


def read_product_quantizer(
    storage: Mapping[str, Any], auxiliary: LanceFileReader, dimension: int, index: str
) -> dict[str, object]:
    """Read the codebook of a product quantizer."""
    sub_vectors = storage["num_sub_vectors"]
    with lance_errors(f"reading the codebook of {index}"):
        data = auxiliary.read_global_buffer(storage["codebook_position"])
    codebook = read_codebook(data, name=f"the codebook of {index}")
    return {
        "num_sub_vectors": sub_vectors,
        "num_bits": storage["nbits"],
        "skip_transpose": not storage["transposed"],
        "pq_codebook": _vectors(codebook, dimension // sub_vectors),
    }


def read_scalar_quantizer(
    storage: Mapping[str, Any], auxiliary: LanceFileReader, dimension: int, index: str
) -> dict[str, object]:
    """Read the number of bits of a scalar quantizer; Lance takes the bounds from the vectors."""
    return {"num_bits": storage["num_bits"]}


def read_rabit_quantizer(
    storage: Mapping[str, Any], auxiliary: LanceFileReader, dimension: int, index: str
) -> dict[str, object]:
    """Read the number of bits of a RaBitQ quantizer, and its rotation unless it is a matrix."""
    model = {"rabitq_model": json.dumps(storage)} if storage["rotation_type"] == "fast" else {}
    return {"num_bits": storage["num_bits"], **model}


def _vectors(numbers: Numbers, dimension: int) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), dimension)
