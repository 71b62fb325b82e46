"""Nodes of a parsed predicate, and SQL literals for predicates that Lance parses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.expressions.date_parts import DatePart

Operator = Literal[
    "=",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "in",
    "not in",
    "is null",
    "is not null",
    "starts with",
    "does not start with",
]

ComparedPart = DatePart | Literal["date"]
"""Part of a date or timestamp that is compared; ``date`` is everything but the time of day."""

FLIPPED: Final[dict[Operator, Operator]] = {
    "=": "=",
    "!=": "!=",
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
}
"""The comparisons with their sides exchanged."""

_NEGATED: Final[dict[Operator, Operator]] = {
    "=": "!=",
    "!=": "=",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
    "in": "not in",
    "not in": "in",
    "is null": "is not null",
    "is not null": "is null",
    "starts with": "does not start with",
    "does not start with": "starts with",
}

_SHOWN_VALUES: Final = 3


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal in a predicate."""

    kind: str  # integer, text, bytes, boolean, date, timestamp or null
    value: int | str | bytes | bool | None  # dates and timestamps as text, as in the predicate

    def __str__(self) -> str:
        if isinstance(self.value, bytes):
            return f"X'{self.value.hex()}'"
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        return str(self.value).lower()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column, or of a part of its dates, with values."""

    column: str
    operator: Operator
    # One; several for ``in``; none for ``is null`` and ``is not null``.
    values: tuple[Constant, ...] = ()
    part: ComparedPart | None = None

    def negated(self) -> Comparison:
        """Return the comparison that holds where this one is false."""
        return Comparison(self.column, _NEGATED[self.operator], self.values, self.part)

    def __str__(self) -> str:
        subject = self.column if self.part is None else f"{self.part} of {self.column}"
        if "in" not in self.operator.split():
            return " ".join((subject, self.operator, *map(str, self.values)))
        shown = [str(value) for value in self.values[:_SHOWN_VALUES]]
        if len(self.values) > _SHOWN_VALUES:
            shown.append(f"... {len(self.values)} values")
        return f"{subject} {self.operator} ({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a part of its dates, as an operand."""

    name: str
    part: ComparedPart | None = None


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value or condition that the parser does not support, so that nothing is known about it."""


@dataclass(frozen=True, slots=True)
class Not:
    """Negation of a condition."""

    part: Truth


@dataclass(frozen=True, slots=True)
class Junction:
    """Conditions joined by ``and`` (if ``both``) or ``or``."""

    both: bool
    parts: tuple[Truth, ...]


Truth = Comparison | Not | Junction | Opaque | Constant
Value = Column | Constant | Opaque


def quoted(*names: str) -> str:
    """Return a column, or a child of a column by the names that lead to it, as SQL has it."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def literals(column: pa.ChunkedArray | pa.Array) -> list[str]:
    """Return the SQL literals of integers, bools, texts or binary values that are not null."""
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
