"""Region values from a SQL expression (spec: Region Expression).

:mod:`memwal.expressions.region_sql` checks every word of the expression before DataFusion plans it.
Columns are first converted to their widest type, integers to 64 bits and floats to doubles without
-0, so that the result does not change when a column gets a wider type.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.boundary.lance_errors import first_line
from memwal.errors import InvalidInputError
from memwal.expressions.date_parts import has_date_parts
from memwal.expressions.region_sql import MAX_COLUMNS, tokenize
from memwal.format.values import is_binary, is_text
from memwal.region.hashing import is_hashable, murmur3_multi
from memwal.region.transforms import Transform
from memwal.region.values import VALUE_TYPES, type_name
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    from datafusion import DataFrame

_HASHES: Final = {"murmur3": 1, "murmur3_multi": None}

# Small numbers, and the limits of the narrower types.
_PROBES: Final = (0, 1, 2, 5, 10, 100, 127, 128, 255, 256, 32_767, 65_536, 2**31 - 1, 2**31, 2**40)


@dataclass(frozen=True, slots=True)
class Expression(Transform):
    """A SQL expression over ``col0``, ``col1``, ..."""

    sql: str
    # Type that the result is cast to; a value that does not fit is an error.
    result_type: pa.DataType
    num_sources: int
    name = None
    num_columns = None
    source_types = (
        "bool, integers, float, double, dates, times, timestamp (without zone, in UTC or with a "
        "fixed offset), string and binary"
    )
    _tokens: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type_name(self.result_type) is None:
            raise InvalidInputError(
                f"a region value cannot have type {self.result_type}; it can be one of: "
                f"{VALUE_TYPES}"
            )
        if not 1 <= self.num_sources <= MAX_COLUMNS:
            raise InvalidInputError(
                f"a region expression has 1 to {MAX_COLUMNS} source columns, got {self.num_sources}"
            )
        tokens = tokenize(self.sql, num_columns=self.num_sources)
        object.__setattr__(self, "_tokens", tuple(token.text for token in tokens))

    def expressions(self, num_columns: int) -> tuple[str, ...]:
        return (self.sql,)

    def arguments(self, columns: str) -> str:
        return f"{self.sql!r} over {columns} as {type_name(self.result_type)}"

    def value_type(self, types: Sequence[pa.DataType]) -> pa.DataType | None:
        """Plan the expression, and try it out to refuse one that breaks a rule of the spec.

        Raises InvalidInputError if DataFusion refuses the expression; or the expression has another
        result type, fails for nulls, or depends on the width of a number.
        """
        if not all(_is_usable(data_type) for data_type in types):
            return None
        engine = _engine(self._tokens, tuple(_wide(data_type) for data_type in types))
        _check_result_type(self, engine.result_type)
        self._check_nulls(types)
        self._check_width(types)
        return self.result_type

    def apply(self, columns: Sequence[pa.Array]) -> pa.Array:
        wide = [_widened(column) for column in columns]
        engine = _engine(self._tokens, tuple(column.type for column in wide))
        values = engine.evaluate(wide)
        try:
            return values.cast(self.result_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"the region expression {self.sql!r} gives a value that is no "
                f"{type_name(self.result_type)}: {error}"
            ) from error

    def _check_nulls(self, types: Sequence[pa.DataType]) -> None:
        """Check requirements 4 and 5: null and a dropped column have a defined result."""
        try:
            self.apply([pa.nulls(1, data_type) for data_type in types])
            self.apply([pa.nulls(1) for _ in types])
        except InvalidInputError as error:
            raise InvalidInputError(
                f"the region expression {self.sql!r} fails where its columns are null or were "
                f"dropped: {error}"
            ) from error

    def _check_width(self, types: Sequence[pa.DataType]) -> None:
        """Check the part of requirement 3 that widening does not cover: unsigned against signed."""
        if not any(pt.is_uint64(data_type) for data_type in types):
            return
        signed = [pa.int64() if pt.is_uint64(t) else t for t in types]
        for number in _PROBES:
            if self._probe(types, number) != self._probe(signed, number):
                raise InvalidInputError(
                    f"the region expression {self.sql!r} gives another value for {number} as an "
                    "unsigned number than as a signed one; cast the column to bigint in it"
                )

    def _probe(self, types: Sequence[pa.DataType], number: int) -> object:
        columns = [
            pa.array([number], t) if pt.is_int64(t) or pt.is_uint64(t) else pa.nulls(1, t)
            for t in types
        ]
        try:
            return self.apply(columns)[0].as_py()
        except InvalidInputError:
            # A failure is a result too, which must be the same for both types.
            return InvalidInputError


def _is_usable(data_type: pa.DataType) -> bool:
    if pt.is_timestamp(data_type):
        # The rules of a named zone change, and with them its calendar.
        return has_date_parts(data_type)
    return is_hashable(data_type)


def _wide(data_type: pa.DataType) -> pa.DataType:
    if pt.is_integer(data_type) and not pt.is_uint64(data_type):
        return pa.int64()
    return pa.float64() if pt.is_floating(data_type) else data_type


def _widened(column: pa.Array) -> pa.Array:
    wide = _wide(column.type)
    if pt.is_floating(wide):
        column = column.cast(wide)
        # Adding 0 turns -0 into 0; every NaN becomes the same one.
        return pc.if_else(pc.is_nan(column), float("nan"), pc.add(column, 0.0))
    return column if column.type == wide else column.cast(wide)


def _check_result_type(expression: Expression, actual: pa.DataType) -> None:
    """Check requirement 6: the result is of the same kind as the declared type."""
    declared = expression.result_type
    kinds = (_is_whole, pt.is_boolean, _is_text, _is_binary, pt.is_decimal)
    alike = actual == declared or any(kind(actual) and kind(declared) for kind in kinds)
    if not alike and not pt.is_null(actual):
        raise InvalidInputError(
            f"the region expression {expression.sql!r} gives {actual}, which is no "
            f"{type_name(declared)}; declare the type it has, or cast in the expression"
        )


def _is_whole(data_type: pa.DataType) -> bool:
    # The common type of unsigned and signed 64-bit integers is a decimal without places.
    return bool(pt.is_integer(data_type) or (pt.is_decimal(data_type) and data_type.scale == 0))


def _is_text(data_type: pa.DataType) -> bool:
    return is_text(data_type) or bool(pt.is_string_view(data_type))


def _is_binary(data_type: pa.DataType) -> bool:
    return is_binary(data_type) or bool(pt.is_binary_view(data_type))


class Engine:
    """Evaluates one checked expression by DataFusion.

    :func:`memwal.expressions.region_sql.tokenize` accepted the tokens, and the types are those of
    ``col0``, ``col1``, ... Raises InvalidInputError if DataFusion does not accept the expression.
    """

    def __init__(self, tokens: Sequence[str], types: Sequence[pa.DataType]) -> None:
        # Imported only when needed.
        with requires_extra("expressions"):
            from datafusion import SessionConfig, SessionContext
        self._text = " ".join(tokens)
        self._schema = pa.schema([(f"col{n}", data_type) for n, data_type in enumerate(types)])
        # One partition, so that rows keep their order.
        self._context = SessionContext(SessionConfig().with_target_partitions(1))
        self._sql = self._with_hashes(list(tokens))
        self.result_type = self._type_of(self._sql)

    def evaluate(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the value of each row.

        Raises InvalidInputError if the expression fails for a row, such as a division by 0.
        """
        batch = pa.RecordBatch.from_arrays(list(columns), schema=self._schema)
        try:
            with self._frame(batch) as frame:
                batches = frame.select(frame.parse_sql_expr(self._sql).alias("value")).collect()
        except Exception as error:
            raise self._refusal(error) from error
        values = [batch.column(0) for batch in batches]
        return pa.concat_arrays(values) if values else pa.nulls(0, self.result_type)

    def _type_of(self, sql: str) -> pa.DataType:
        try:
            with self._frame(pa.RecordBatch.from_pylist([], self._schema)) as frame:
                return frame.select(frame.parse_sql_expr(sql).alias("value")).schema().field(0).type
        except Exception as error:
            raise self._refusal(error) from error

    @contextmanager
    def _frame(self, batch: pa.RecordBatch) -> Iterator[DataFrame]:
        """Register rows as a table of the context, which would keep them for good."""
        name = f"rows_{uuid.uuid4().hex}"
        try:
            yield self._context.create_dataframe([[batch]], name)
        finally:
            self._context.deregister_table(name)

    def _with_hashes(self, tokens: list[str]) -> str:
        """Return the expression with a separate function for each call of a hash.

        A user-defined function has fixed argument types, so each call needs its own. The result is
        cast to 64 bits, since the absolute value of the smallest 32-bit integer has more than 32.
        """
        at = next((n for n, token in enumerate(tokens) if token in _HASHES), None)
        if at is None:
            return " ".join(tokens)
        arguments, end = _arguments(tokens, at + 1)
        expected = _HASHES[tokens[at]]
        if not all(arguments) or (expected is not None and len(arguments) != expected):
            raise InvalidInputError(
                f"{tokens[at]} in the region expression {self._text!r} takes "
                f"{'one column' if expected else 'one column or more'}"
            )
        inner = [self._with_hashes(argument) for argument in arguments]
        from datafusion import udf

        name = f"hash_{uuid.uuid4().hex}"
        types = [self._type_of(argument) for argument in inner]
        hash_columns = udf(
            lambda *columns: murmur3_multi(columns), types, pa.int32(), "immutable", name
        )
        self._context.register_udf(hash_columns)
        call = f"cast({name}({', '.join(inner)}) as bigint)"
        return self._with_hashes([*tokens[:at], call, *tokens[end:]])

    def _refusal(self, error: Exception) -> InvalidInputError:
        return InvalidInputError(
            f"the region expression {self._text!r} has no value: {first_line(error)}"
        )


_engine = lru_cache(maxsize=64)(Engine)


def _arguments(tokens: Sequence[str], start: int) -> tuple[list[list[str]], int]:
    """Return the arguments of the call whose "(" is at ``start``, and the end of the call."""
    arguments: list[list[str]] = [[]]
    depth = 0
    for position in range(start, len(tokens)):
        word = tokens[position]
        depth += (word == "(") - (word == ")")
        if depth == 0:
            return arguments, position + 1
        if depth == 1 and word == ",":
            arguments.append([])
        elif depth > 1 or word != "(":
            arguments[-1].append(word)
    raise InvalidInputError("the parentheses of a region expression do not match")
