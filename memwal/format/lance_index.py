"""Parameters that stand inside the files of Lance's indexes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memwal.errors import CorruptDataError
from memwal.format._messages import parse_message
from memwal.format._proto import lance_index_pb2

_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("<f2"),
    2: np.dtype("<f4"),
    3: np.dtype("<f8"),
    4: np.dtype("u1"),
}

Numbers = npt.NDArray[Any]


def read_codebook(data: bytes, *, name: str) -> Numbers:
    """Numbers of a codebook as it stands in a vector index, one sub-vector's after another's.

    Parameters
    ----------
    data : bytes
        The codebook's buffer.
    name : str
        What error messages call it.

    Returns
    -------
    numpy.ndarray, one-dimensional

    Raises
    ------
    CorruptDataError
        The bytes are no tensor, or one of a type that Lance's vector indexes do not use.
    """
    return _numbers(parse_message(lance_index_pb2.Tensor, data, name=name), name)


def read_centroids(data: bytes, *, name: str) -> Numbers:
    """Centroids of a vector index as they stand in its inverted file.

    Parameters
    ----------
    data : bytes
        The inverted file's buffer.
    name : str
        What error messages call it.

    Returns
    -------
    numpy.ndarray, shape (partitions, dimension)

    Raises
    ------
    CorruptDataError
        The bytes are no inverted file with centroids.
    """
    tensor = parse_message(lance_index_pb2.InvertedFile, data, name=name).centroids
    numbers = _numbers(tensor, name)
    shape = tuple(tensor.shape)
    if len(shape) != 2 or not numbers.size or shape[0] * shape[1] != numbers.size:
        raise CorruptDataError(
            f"{name} has {numbers.size} numbers in the shape {shape}, which are no centroids; "
            "build the index again"
        )
    return numbers.reshape(shape)


def _numbers(tensor: lance_index_pb2.Tensor, name: str) -> Numbers:
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None or len(tensor.data) % dtype.itemsize:
        raise CorruptDataError(
            f"{name} holds {len(tensor.data)} bytes of type {tensor.data_type}, which is no array "
            "of numbers; look at the index it belongs to"
        )
    return np.frombuffer(tensor.data, dtype)
