"""Vector query and its options, validated against the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.format.values import find_column
from memwal.reader.base_indexes import find_index
from memwal.reader.predicate import SqlFilter

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

_REFINE: Final = 2
# Of a multivector, an index finds some vectors and estimates the distances of the others.
_REFINE_MULTI: Final = 10
_FLAT_METRIC: Final = "l2"
# Squared length from which on rows nearby may have one that is beyond float32.
_LONG: Final = float(np.finfo(np.float32).max) / 16
_METRICS: Final = {
    "l2": "l2",
    "euclidean": "l2",
    "cosine": "cosine",
    "dot": "dot",
    "hamming": "hamming",
}


class SearchOptions(TypedDict, total=False):
    """Options of a search for vectors, as keywords.

    Attributes
    ----------
    k : int, default 10
        Maximum number of rows.
    filter : str, optional
        SQL predicate over any columns.
    columns : sequence of str, optional
        Columns to return; all by default.
    metric : str, optional
        ``l2``, ``cosine``, ``dot`` or ``hamming``; by default that of the index, or ``l2``
        without an index. With another metric than the index has, the index is not used.
    nprobes : int, optional
        Index partitions to search in each source; Lance decides by default.
    refine_factor : int, default 2, of multivectors 10
        Candidates per row that are ranked again by their vectors. More candidates find more
        of the nearest rows and read as many more vectors.
    ef : int, optional
        Candidates that a graph index keeps.
    """

    k: int
    filter: SqlFilter | None
    columns: Sequence[str] | None
    metric: str | None
    nprobes: int | None
    refine_factor: int | None
    ef: int | None


class VectorQuery:
    """Query for the nearest vectors, checked against the table.

    Without a ``column``, it is the only column of vectors.
    """

    def __init__(
        self,
        base: BaseTable,
        vector: npt.ArrayLike | pa.Array,
        column: str | None,
        options: SearchOptions,
    ) -> None:
        unknown = options.keys() - SearchOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"a search has no option {', '.join(sorted(unknown))}")
        self.k = options.get("k", 10)
        if self.k < 1:
            raise InvalidInputError(f"k is {self.k}; ask for at least one row")
        self.column = column or only_vector_column(base)
        # The base table's index on the column, of any metric.
        self.index = find_index(
            base.dataset.describe_indices(),
            self.column,
            lambda kind: kind.is_vector,
            preferred=base.details.maintained_indexes,
        )
        # Shape (dimension,), of a column of multivectors (vectors, dimension).
        self.vector = parse_query_vector(base, self.column, vector)
        # Whether rows have several vectors each.
        self.is_multi = self.vector.ndim == 2
        factor = options.get("refine_factor")
        if factor is None:
            factor = _REFINE_MULTI if self.is_multi else _REFINE
        if factor < 1:
            raise InvalidInputError(f"refine_factor is {factor}; it is at least 1")
        self.candidates = self.k * factor  # Number of candidates from each source.
        self.metric = canonical_metric(options.get("metric") or index_metric(self.index))
        self.filter = options.get("filter")  # Applied before ranking.
        lance_options = {"nprobes": options.get("nprobes"), "ef": options.get("ef")}
        self.options = {name: value for name, value in lance_options.items() if value is not None}

    @property
    def usable_index(self) -> IndexDescription | None:
        """The base table's index, if it has the metric of the query.

        None also for a vector that is as long as the vectors that an index cannot hold.
        """
        index = self.index
        if index is None or self.metric != canonical_metric(index_metric(index)) or self._is_long:
            return None
        return index

    @property
    def _is_long(self) -> bool:
        """Return whether rows near the vector may be missing in an index: their length overflows.

        Rows whose length overflows are farther away from other vectors than most rows.
        """
        if self.metric != _FLAT_METRIC:
            return False
        numbers = np.asarray(self.vector, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            return bool((np.vecdot(numbers, numbers) > _LONG).any())


def index_metric(index: IndexDescription | None) -> str:
    """Return the metric of an index, or ``l2`` without an index."""
    return str(index.details.get("metric_type", _FLAT_METRIC)) if index else _FLAT_METRIC


def canonical_metric(name: str) -> str:
    """Return the name of a metric that Lance and ``nearest_rows`` of a MemTable accept."""
    metric = _METRICS.get(name.lower())
    if metric is None:
        raise InvalidInputError(f"there is no metric {name}; choose one of {', '.join(_METRICS)}")
    return metric


def only_vector_column(base: BaseTable) -> str:
    """Return the only column of vectors; InvalidInputError if there is none, or more than one."""
    columns: list[str] = [
        field.name for field in base.schema if _is_vector(field.type) or _is_multivector(field.type)
    ]
    if len(columns) != 1:
        raise InvalidInputError(
            f"the table has {len(columns)} columns of vectors"
            f"{': ' + ', '.join(columns) if columns else ''}; name one as column"
        )
    return columns[0]


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
    return kind.value_type.value_type if pt.is_list(kind) else kind.value_type


def parse_query_vector(
    base: BaseTable, column: str, vector: npt.ArrayLike | pa.Array
) -> npt.NDArray[np.number]:
    """Convert a query vector to the element type of a column."""
    _, kind = find_column(base.schema, column) or ((), None)
    if kind is None or not (_is_vector(kind) or _is_multivector(kind)):
        raise InvalidInputError(
            f"column {column} is {kind if kind is not None else 'not in the table'}; vectors are "
            "fixed-size lists of float16, float32, float64 or uint8, multivectors lists of such "
            "lists of floats"
        )
    values: object = vector
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
