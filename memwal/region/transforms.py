"""The region transforms of the spec: each computes one region value per row.

Spec: Region Transform. ``bucket`` hashes as Lance does, not with the spec's ``murmur3``. Every
other transform equals the expression in the spec.

The newest specification allows the names ``identity``, ``bucket`` and ``unsharded`` only. A new
spec of another transform is therefore stored as its expression, with the name in a parameter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Final, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.expressions.date_parts import PART_TYPES, DatePart, date_part, has_date_parts
from memwal.format.values import is_binary, is_text
from memwal.region.hashing import (
    BUCKETABLE_TYPES,
    HASHABLE_TYPES,
    bucket,
    is_bucketable,
    is_hashable,
    murmur3_multi,
)
from memwal.region.values import VALUE_TYPES, type_name

MAX_BUCKETS: Final = 1024
"""Maximum number of buckets with which Lance sets a table up."""

MAX_WIDTH: Final = 2**63 - 1
"""Maximum width of ``truncate``."""

NUM_BUCKETS: Final = "num_buckets"
WIDTH: Final = "width"


class Transform(ABC):
    """Computes a region value from source columns."""

    __slots__ = ()

    num_columns: ClassVar[int | None] = 1
    """Number of source columns; None for one or more."""
    source_types: ClassVar[str]
    """Supported types, for messages."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """Name in the spec; None for an expression."""

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters, as in a stored spec."""
        return {}

    def expressions(self, num_columns: int) -> tuple[str, ...]:
        """Return the SQL expressions that equal the transform, for columns of different types.

        Empty if the transform is stored by its name.
        """
        return ()

    def expression(self, types: Sequence[pa.DataType]) -> str | None:
        """Return the SQL expression to store for columns of these types; None to store the name."""
        return next(iter(self.expressions(len(types))), None)

    @property
    def num_values(self) -> int | None:
        """Number of values, which start at 0; None if the values depend on the data."""
        return None

    @abstractmethod
    def value_type(self, types: Sequence[pa.DataType]) -> pa.DataType | None:
        """Return the type of the values for source columns of these types; None if unsupported.

        A column that was dropped from the table has the null type.
        """

    @abstractmethod
    def apply(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the value of each row."""

    def arguments(self, columns: str) -> str:
        """Return the text in parentheses when the transform is shown."""
        return ", ".join((columns, *self.parameters.values()))


@dataclass(frozen=True, slots=True)
class Identity(Transform):
    """The value of the column itself."""

    name = "identity"
    source_types = VALUE_TYPES

    def value_type(self, types: Sequence[pa.DataType]) -> pa.DataType | None:
        return types[0] if pt.is_null(types[0]) or type_name(types[0]) is not None else None

    def apply(self, columns: Sequence[pa.Array]) -> pa.Array:
        return columns[0]


@dataclass(frozen=True, slots=True)
class CalendarPart(Transform):
    """``date_part(part, col0)``: see :mod:`memwal.expressions.date_parts`."""

    part: DatePart
    source_types = PART_TYPES

    @property
    def name(self) -> str:
        return self.part

    def expressions(self, num_columns: int) -> tuple[str, ...]:
        return (f"date_part('{self.part}', col0)",)

    def value_type(self, types: Sequence[pa.DataType]) -> pa.DataType | None:
        return pa.int32() if pt.is_null(types[0]) or has_date_parts(types[0]) else None

    def apply(self, columns: Sequence[pa.Array]) -> pa.Array:
        if pt.is_null(columns[0].type):
            return pa.nulls(len(columns[0]), pa.int32())
        return date_part(self.part, columns[0])


@dataclass(frozen=True, slots=True)
class _Buckets(Transform):
    """Transform into the numbers of a fixed number of buckets."""

    num_buckets: int

    def __post_init__(self) -> None:
        if not _is_int(self.num_buckets) or not 1 <= self.num_buckets <= MAX_BUCKETS:
            raise InvalidInputError(
                f"num_buckets must be an integer between 1 and {MAX_BUCKETS}, "
                f"got {self.num_buckets!r}"
            )

    @property
    def parameters(self) -> dict[str, str]:
        return {NUM_BUCKETS: str(self.num_buckets)}

    @property
    def num_values(self) -> int | None:
        return self.num_buckets


@dataclass(frozen=True, slots=True)
class Bucket(_Buckets):
    """The value's bucket in Lance: see :mod:`memwal.region.hashing`."""

    name = "bucket"
    source_types = BUCKETABLE_TYPES

    def value_type(self, types: Sequence[pa.DataType]) -> pa.DataType | None:
        return pa.int32() if pt.is_null(types[0]) or is_bucketable(types[0]) else None

    def apply(self, columns: Sequence[pa.Array]) -> pa.Array:
        if pt.is_null(columns[0].type):
            return pa.array(np.zeros(len(columns[0]), dtype=np.int32))
        return pa.array(bucket(columns[0], self.num_buckets))


@dataclass(frozen=True, slots=True)
class MultiBucket(_Buckets):
    """``abs(murmur3_multi(col0, col1, ...)) % N``; null if every column is null.

    The absolute value is computed in 64 bits, since that of the smallest 32-bit integer needs more
    than 32.
    """

    name = "multi_bucket"
    num_columns = None
    source_types = HASHABLE_TYPES

    def expressions(self, num_columns: int) -> tuple[str, ...]:
        columns = ", ".join(f"col{number}" for number in range(num_columns))
        return (f"abs(murmur3_multi({columns})) % {self.num_buckets}",)

    def value_type(self, types: Sequence[pa.DataType]) -> pa.DataType | None:
        return pa.int32() if all(is_hashable(data_type) for data_type in types) else None

    def apply(self, columns: Sequence[pa.Array]) -> pa.Array:
        hashes = murmur3_multi(columns)
        if hashes.null_count:
            present = hashes.is_valid().to_numpy(zero_copy_only=False)
            numbers = np.abs(hashes.fill_null(0).to_numpy().astype(np.int64)) % self.num_buckets
            return pa.array(numbers.astype(np.int32), mask=~present)
        numbers = np.abs(hashes.to_numpy().astype(np.int64)) % self.num_buckets
        return pa.array(numbers.astype(np.int32))


@dataclass(frozen=True, slots=True)
class Truncate(Transform):
    """``left(col0, W)`` of text, ``col0 - (col0 % W)`` of integers and decimals.

    The remainder has the sign of the number, so numbers are rounded towards zero: with width 10,
    both -5 and 5 become 0. The width counts characters of text, and bytes of binary.
    """

    width: int
    name = "truncate"
    source_types = "integers, decimals, string, binary and their large forms"

    def __post_init__(self) -> None:
        if not _is_int(self.width) or not 1 <= self.width <= MAX_WIDTH:
            raise InvalidInputError(
                f"width must be an integer between 1 and {MAX_WIDTH}, got {self.width!r}"
            )

    @property
    def parameters(self) -> dict[str, str]:
        return {WIDTH: str(self.width)}

    def expressions(self, num_columns: int) -> tuple[str, ...]:
        digits = min(2 * self.width, MAX_WIDTH)
        return (
            f"left(col0, {self.width})",
            f"col0 - (col0 % {self.width})",
            f"decode(left(encode(col0, 'hex'), {digits}), 'hex')",
        )

    def expression(self, types: Sequence[pa.DataType]) -> str | None:
        text, number, binary = self.expressions(1)
        if is_binary(types[0]):
            return binary
        return text if is_text(types[0]) else number

    def value_type(self, types: Sequence[pa.DataType]) -> pa.DataType | None:
        (data_type,) = types
        fits = (
            pt.is_null(data_type)
            or pt.is_integer(data_type)
            or (pt.is_decimal(data_type) and data_type.scale >= 0)
            or is_text(data_type)
            or is_binary(data_type)
        )
        return data_type if fits else None

    def apply(self, columns: Sequence[pa.Array]) -> pa.Array:
        (column,) = columns
        data_type = column.type
        if pt.is_null(data_type):
            return column
        if is_text(data_type):
            return pc.utf8_slice_codeunits(column, 0, self.width)
        if is_binary(data_type):
            # Arrow fails at widths near the largest integer.
            longest = pc.max(pc.binary_length(column)).as_py() or 0
            return pc.binary_slice(column, 0, min(self.width, longest))
        if pt.is_integer(data_type):
            return self._integers(column)
        return self._decimals(column)

    def _integers(self, column: pa.Array) -> pa.Array:
        wide = np.int64 if pt.is_signed_integer(column.type) else np.uint64
        numbers = column.fill_null(0).to_numpy().astype(wide)
        # The result of fmod has the sign of the number, as SQL's %; that of numpy's % has the sign
        # of the width.
        truncated = numbers - np.fmod(numbers, wide(self.width))
        return pa.array(
            truncated.astype(column.type.to_pandas_dtype()),
            mask=column.is_null().to_numpy(zero_copy_only=False),
        )

    def _decimals(self, column: pa.Array) -> pa.Array:
        data_type = column.type
        if self.width >= 10 ** (data_type.precision - data_type.scale):
            # Every number of this type is smaller than the width.
            return pc.if_else(column.is_valid(), pa.scalar(Decimal(0)).cast(data_type), column)
        options = pc.RoundToMultipleOptions(
            pa.scalar(Decimal(self.width)).cast(data_type), "towards_zero"
        )
        return pc.round_to_multiple(column, options=options)


@dataclass(frozen=True, slots=True)
class Unsharded(Transform):
    """One region for all rows, without a value."""

    name = "unsharded"
    num_columns = 0
    source_types = ""

    @property
    def num_values(self) -> int | None:
        return 1

    def value_type(self, types: Sequence[pa.DataType]) -> pa.DataType | None:
        return pa.int32()

    def apply(self, columns: Sequence[pa.Array]) -> pa.Array:
        raise InvalidInputError("rows that are not divided have no region value")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
