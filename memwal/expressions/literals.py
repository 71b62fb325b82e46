"""SQL literals of Arrow values, for predicates that Lance parses."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError


def quoted(*names: str) -> str:
    """Return a column, or a child of a column by the names that lead to it, as SQL has it."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def literals(column: pa.ChunkedArray | pa.Array) -> list[str]:
    """Return the SQL literals of values that are not null.

    Raises InvalidInputError for a type that has none: other than integers, bool, text and binary.
    """
    kind = column.type
    if pt.is_boolean(kind):
        return ["true" if value else "false" for value in column.to_pylist()]
    if pt.is_integer(kind):
        # The parser reads the digits of the smallest integer as a float.
        smallest = -(1 << 63)
        return [
            f"cast('{value}' as bigint)" if value == smallest else str(value)
            for value in column.to_pylist()
        ]
    if pt.is_string(kind) or pt.is_large_string(kind):
        return ["'" + value.replace("'", "''") + "'" for value in column.to_pylist()]
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return ["X'" + value.hex() + "'" for value in column.to_pylist()]
    raise InvalidInputError(f"a value of type {kind} has no literal")
