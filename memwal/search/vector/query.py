"""Vector query and its options, validated against the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError

_METRICS: Final = {
    "l2": "l2",
    "euclidean": "l2",
    "cosine": "cosine",
    "dot": "dot",
    "hamming": "hamming",
}


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """Validated query for the nearest vectors.

    Attributes
    ----------
    column : str
    vector : array of numbers, shape (dimension,)
        Of a column of multivectors, shape (vectors, dimension).
    k : int
        Number of candidates from each source.
    metric : str
    options : mapping of str to Any
        Options of Lance: ``nprobes``, ``ef``.
    filter : str or None
        Applied before ranking.
    """

    column: str
    vector: Any
    k: int
    metric: str
    options: dict[str, Any]
    filter: str | None

    @property
    def is_multi(self) -> bool:
        """Return whether rows have several vectors each."""
        return bool(np.ndim(self.vector) == 2)


class VectorOptions(TypedDict, total=False):
    """Options of a vector search; see :func:`memwal.search.vector.search.nearest`."""

    metric: str | None
    nprobes: int | None
    refine_factor: int | None
    ef: int | None


def canonical_metric(name: str) -> str:
    """Return the name of a metric that Lance and ``nearest_rows`` of a MemTable accept.

    Raises
    ------
    InvalidInputError
        There is no such metric.
    """
    metric = _METRICS.get(name.lower())
    if metric is None:
        raise InvalidInputError(f"there is no metric {name}; choose one of {', '.join(_METRICS)}")
    return metric


def only_vector_column(base: BaseTable) -> str:
    """Return the only column of vectors.

    Raises
    ------
    InvalidInputError
        There is none, or more than one.
    """
    found: list[str] = [
        field.name for field in base.schema if _is_vector(field.type) or _is_multivector(field.type)
    ]
    if len(found) != 1:
        raise InvalidInputError(
            f"the table has {len(found)} columns of vectors"
            f"{': ' + ', '.join(found) if found else ''}; name one as column"
        )
    return found[0]


def _is_vector(kind: pa.DataType) -> bool:
    return bool(
        pt.is_fixed_size_list(kind)
        and (pt.is_floating(kind.value_type) or kind.value_type == pa.uint8())
    )


def _is_multivector(kind: pa.DataType) -> bool:
    return bool(
        pt.is_list(kind) and _is_vector(kind.value_type) and pt.is_floating(_element_type(kind))
    )


def _element_type(kind: pa.DataType) -> pa.DataType:
    """Return the element type of vectors or multivectors."""
    return kind.value_type.value_type if pt.is_list(kind) else kind.value_type


def _column_type(schema: pa.Schema, path: str) -> pa.DataType | None:
    if path in schema.names:
        return schema.field(path).type
    found: pa.DataType = pa.struct(list(schema))
    for name in path.split("."):
        if not pt.is_struct(found) or found.get_field_index(name) < 0:
            return None
        found = found.field(name).type
    return found


def parse_query_vector(base: BaseTable, column: str, vector: npt.ArrayLike | pa.Array) -> Any:
    """Convert a query vector to the element type of a column.

    Raises
    ------
    InvalidInputError
        The column has no vectors, or the query does not fit them.
    """
    kind = _column_type(base.schema, column)
    if kind is None or not (_is_vector(kind) or _is_multivector(kind)):
        raise InvalidInputError(
            f"column {column} is {kind if kind is not None else 'not in the table'}; vectors are "
            "fixed-size lists of float16, float32, float64 or uint8, multivectors lists of such "
            "lists of floats"
        )
    values: Any = vector
    if isinstance(vector, pa.Array | pa.ChunkedArray):
        values = vector.to_pylist()
    try:
        original = np.asarray(values)
        # A number that is too large becomes infinite, and is refused below.
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = original.astype(_element_type(kind).to_pandas_dtype())
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"the query is not a vector of numbers: {error}") from error
    if numbers.dtype == np.uint8 and not np.array_equal(numbers, original):
        raise InvalidInputError("the query holds numbers that are no bytes, from 0 to 255")
    if _is_multivector(kind):
        dimension = kind.value_type.list_size
        numbers = numbers[None] if numbers.ndim == 1 else numbers
        if numbers.ndim != 2 or numbers.shape[1] != dimension or not len(numbers):
            raise InvalidInputError(
                f"the query has shape {numbers.shape}; column {column} has multivectors, which "
                f"are searched with one or more vectors of {dimension}"
            )
    elif numbers.shape != (kind.list_size,):
        raise InvalidInputError(
            f"the query has shape {numbers.shape}; column {column} has vectors of {kind.list_size}"
        )
    if numbers.dtype != np.uint8 and not np.isfinite(numbers).all():
        raise InvalidInputError("the query holds numbers that are not finite")
    return numbers
