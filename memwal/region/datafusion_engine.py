"""Evaluation of a region expression by DataFusion, which is imported only when needed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from datafusion import SessionConfig, SessionContext, udf

from memwal.boundary.lance_errors import first_line
from memwal.errors import InvalidInputError
from memwal.region.hashing import murmur3_multi

_HASHES: Final = {"murmur3": 1, "murmur3_multi": None}


class Engine:
    """Evaluates one checked expression.

    :func:`memwal.expressions.region_sql.tokenize` accepted the tokens, and the types are those of
    ``col0``, ``col1``, ... Raises InvalidInputError if DataFusion does not accept the expression.
    """

    def __init__(self, tokens: Sequence[str], types: Sequence[pa.DataType]) -> None:
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
            frame = self._context.create_dataframe([[batch]])
            batches = frame.select(frame.parse_sql_expr(self._sql).alias("value")).collect()
        except Exception as error:
            raise self._refusal(error) from error
        values = [batch.column(0) for batch in batches]
        return pa.concat_arrays(values) if values else pa.nulls(0, self.result_type)

    def _type_of(self, sql: str) -> pa.DataType:
        try:
            frame = self._context.create_dataframe([[pa.RecordBatch.from_pylist([], self._schema)]])
            return frame.select(frame.parse_sql_expr(sql).alias("value")).schema().field(0).type
        except Exception as error:
            raise self._refusal(error) from error

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
