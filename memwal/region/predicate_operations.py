"""What operators and functions of SQL make of columns and constants.

What they make of anything else is not known here: ``Opaque``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, get_args
from typing import cast as as_type

from memwal.region.date_parts import DatePart
from memwal.region.predicate_terms import (
    FLIPPED,
    Column,
    Comparison,
    Constant,
    Junction,
    Not,
    Opaque,
    Operator,
    Truth,
    Value,
)

_INTEGER_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "integer": 32, "bigint": 64}
_TIME_TYPES: Final = ("date", "timestamp")
_WILDCARDS: Final = re.compile(r"[%_\\]")


def compared(left: Truth | Value, operator: Operator, right: Truth | Value) -> Truth:
    """A comparison of a column with a constant, whichever of them comes first."""
    if isinstance(left, Constant) and isinstance(right, Column):
        left, operator, right = right, FLIPPED[operator], left
    if isinstance(left, Column) and isinstance(right, Constant) and right.kind != "null":
        return Comparison(left.name, operator, (right,), left.part)
    return Opaque()


def _begins(left: Truth | Value, prefix: Truth | Value) -> Truth:
    if isinstance(left, Column) and left.part is None and isinstance(prefix, Constant):
        return Comparison(left.name, "starts with", (prefix,))
    return Opaque()


def only(found: Truth) -> Truth:
    """What holds if this does, and of whose opposite nothing is known."""
    return Junction(True, (found, Opaque()))


def known(found: Truth, *, value: bool) -> Truth:
    """``is true`` or ``is false``, which are never unknown."""
    wanted = found if value else Not(found)
    if isinstance(found, Comparison):
        if found.operator in ("is null", "is not null"):
            return wanted
        return Junction(True, (wanted, Comparison(found.column, "is not null")))
    return only(wanted)


def cast(found: Truth | Value, name: str) -> Value:
    """A value as another type, named as in SQL."""
    if isinstance(found, Column) and found.part is None and name == "date":
        return Column(found.name, "date")
    if isinstance(found, Constant):
        if isinstance(found.value, int) and found.kind == "integer" and name in _INTEGER_BITS:
            end = 1 << (_INTEGER_BITS[name] - 1)
            return found if -end <= found.value < end else Opaque()
        if found.kind in ("text", name) and name in _TIME_TYPES:
            return Constant(name, found.value)
        if found.kind == "date" and name == "timestamp":
            return Constant(name, found.value)
    return Opaque()


def called(name: str, arguments: Sequence[Truth | Value]) -> Truth | Value:
    """What a function gives."""
    match name, arguments:
        case "starts_with", [text, prefix]:
            return _begins(text, prefix)
        case (("date_part" | "datepart"), [Constant("text", str(part)), Column(column, None)]):
            wanted = part.casefold()
            if wanted in get_args(DatePart):
                return Column(column, as_type("DatePart", wanted))
    return Opaque()


def negative(found: Truth | Value) -> Value:
    """A number with the other sign."""
    if isinstance(found, Constant) and found.kind == "integer" and isinstance(found.value, int):
        return Constant("integer", -found.value)
    return Opaque()


def like(left: Truth | Value, pattern: Truth | Value) -> Truth:
    """A column like a pattern, as far as its beginning tells."""
    if not isinstance(pattern, Constant) or not isinstance(pattern.value, str):
        return Opaque()
    prefix = _WILDCARDS.split(pattern.value, maxsplit=1)[0]
    rest = pattern.value[len(prefix) :]
    if not rest:
        return compared(left, "=", pattern)
    begins = _begins(left, Constant("text", prefix))
    return only(begins) if rest.strip("%") else begins
