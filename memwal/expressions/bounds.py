"""Bounds on a column's values, derived from comparisons with constants."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import ge, gt, le, lt
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from memwal.expressions.date_parts import UNITS_PER_SECOND, DatePart, date_part, has_date_parts
from memwal.expressions.predicate import Comparison, Constant, Operator
from memwal.format.values import is_text

_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII
)
_SECONDS_PER_DAY: Final = 86_400
_ORDERS: Final = {"<": lt, "<=": le, ">": gt, ">=": ge}
_INT64: Final = np.iinfo(np.int64)

ValueTest = tuple[Operator, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """Conditions that all hold for the values of a column.

    A *plain value* is a Python value; dates are days and timestamps counts of their unit, since the
    epoch.
    """

    data_type: pa.DataType  # of the column
    conditions: tuple[ValueTest, ...]  # operator and plain values
    # Conditions on parts of a date: the part, and operator and integers.
    parts: tuple[tuple[DatePart, ValueTest], ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # those of the predicate that led to these conditions

    @classmethod
    def of(cls, data_type: pa.DataType, comparisons: Sequence[Comparison]) -> ColumnBounds:
        """Derive conditions from the comparisons whose constants have the same meaning in SQL."""
        conditions: list[ValueTest] = []
        parts: list[tuple[DatePart, ValueTest]] = []
        used = []
        for comparison in comparisons:
            before = len(conditions) + len(parts)
            if comparison.part is None:
                conditions += _conditions(comparison, data_type)
            elif comparison.part == "date":
                conditions += _day_conditions(comparison, data_type)
            elif has_date_parts(data_type) and not is_text(data_type):
                part_conditions = _conditions(comparison, pa.int64())
                parts += [(comparison.part, condition) for condition in part_conditions]
            if len(conditions) + len(parts) > before:
                used.append(comparison)
        return cls(data_type, tuple(conditions), tuple(parts), tuple(used))

    def allows(self, value: object) -> bool:
        """Return whether a plain value, or None for null, meets all conditions."""
        return all(_holds(operator, values, value) for operator, values in self.conditions) and all(
            self._part_holds(part, condition, value) for part, condition in self.parts
        )

    def allows_part(self, part: DatePart, number: int) -> bool:
        """Return whether a part of a date can be ``number``."""
        return all(
            _holds(operator, values, number)
            for condition_part, (operator, values) in self.parts
            if condition_part == part
        )

    def choices(self) -> list[object] | None:
        """Return all plain values that meet the conditions; None if they cannot be enumerated."""
        lists: list[list[object]] = [
            [None] if operator == "is null" else list(dict.fromkeys(values))
            for operator, values in self.conditions
            if operator in ("=", "in", "is null")
        ]
        if not lists:
            return None
        return [value for value in min(lists, key=len) if self.allows(value)]

    def limits(self) -> tuple[Any, Any]:
        """Return the lowest and the highest possible plain value, each None if unbounded."""
        lows: list[Any] = []
        highs: list[Any] = []
        for operator, values in self.conditions:
            if operator in ("=", "in"):
                lows.append(min(values))
                highs.append(max(values))
            elif operator in ("<", "<="):
                less = operator == "<" and isinstance(values[0], int)
                highs.append(values[0] - less if less else values[0])
            elif operator in (">", ">="):
                more = operator == ">" and isinstance(values[0], int)
                lows.append(values[0] + more if more else values[0])
            elif operator == "starts with":
                lows.append(values[0])
        return max(lows, default=None), min(highs, default=None)

    def allows_prefix(self, prefix: str | bytes) -> bool:
        """Return whether a text or binary with this prefix can meet the conditions on prefixes."""
        for operator, values in self.conditions:
            if operator == "starts with" and not (
                prefix.startswith(values[0]) or values[0].startswith(prefix)
            ):
                return False
            if operator == "does not start with" and prefix.startswith(values[0]):
                return False
        return True

    def _part_holds(self, part: DatePart, condition: ValueTest, value: object) -> bool:
        if value is None:
            return False
        number = date_part(part, array_of([value], self.data_type))[0].as_py()
        # A date beyond DataFusion's calendar has no parts: nothing is assumed about it.
        return number is None or _holds(*condition, number)


def array_of(values: Iterable[object], data_type: pa.DataType) -> pa.Array:
    """Convert plain values to an array of the type of a column."""
    if pt.is_date32(data_type):
        return pa.array(values, pa.int32()).view(data_type)
    if pt.is_timestamp(data_type):
        return pa.array(values, pa.int64()).view(data_type)
    return pa.array(values, data_type)


def plain_values(values: pa.Array) -> list[Any]:
    """Convert an array to plain values."""
    if pt.is_date32(values.type):
        values = values.view(pa.int32())
    elif pt.is_timestamp(values.type):
        values = values.view(pa.int64())
    plain: list[Any] = values.to_pylist()
    return plain


def _holds(operator: Operator, values: tuple[Any, ...], value: Any) -> bool:
    if operator == "is null":
        return value is None
    if value is None:
        return False
    match operator:
        case "=" | "in":
            return value in values
        case "!=" | "not in":
            return value not in values
        case "<" | "<=" | ">" | ">=":
            return bool(_ORDERS[operator](value, values[0]))
        case "starts with":
            return bool(value.startswith(values[0]))
        case "does not start with":
            return not value.startswith(values[0])
    return True


def _conditions(comparison: Comparison, data_type: pa.DataType) -> list[ValueTest]:
    """Return the condition of a comparison; none if SQL may interpret its constants otherwise."""
    if "start" in comparison.operator and not is_text(data_type):
        return []
    values = tuple(_plain_constant(constant, data_type) for constant in comparison.values)
    return [] if None in values else [(comparison.operator, values)]


def _day_conditions(comparison: Comparison, data_type: pa.DataType) -> list[ValueTest]:
    if pt.is_date32(data_type):
        return _conditions(comparison, data_type)
    if not pt.is_timestamp(data_type) or data_type.tz not in (None, "UTC"):
        return []
    days = [_plain_constant(constant, pa.date32()) for constant in comparison.values]
    if not days or None in days:
        return []
    day_length = _SECONDS_PER_DAY * UNITS_PER_SECOND[data_type.unit]
    low: ValueTest = (">=", (min(days) * day_length,))
    high: ValueTest = ("<", ((max(days) + 1) * day_length,))
    match comparison.operator:
        case "=" | "in":
            return [low, high]
        case "<":
            return [("<", low[1])]
        case "<=":
            return [high]
        case ">":
            return [(">=", high[1])]
        case ">=":
            return [low]
    return []


def _plain_constant(constant: Constant, data_type: pa.DataType) -> Any:
    """Return the plain value of a constant; None if SQL may interpret it otherwise."""
    kind, value = constant.kind, constant.value
    if value is None:
        return None
    if pt.is_boolean(data_type):
        return value if kind == "boolean" else None
    if pt.is_integer(data_type):
        if kind != "integer":
            return None
        ends = np.iinfo(data_type.to_pandas_dtype())
        fits = max(ends.min, _INT64.min) <= int(value) <= min(ends.max, _INT64.max)
        return int(value) if fits else None
    if pt.is_decimal(data_type):
        fits = kind == "integer" and abs(int(value)) < 10 ** (data_type.precision - data_type.scale)
        return Decimal(int(value)) if fits else None
    if is_text(data_type):
        return value if kind == "text" else None
    if pt.is_binary(data_type) or pt.is_large_binary(data_type):
        return value if kind == "bytes" else None
    if pt.is_date32(data_type) and kind in ("text", "date"):
        return _days(str(value))
    if pt.is_timestamp(data_type) and kind in ("text", "date", "timestamp"):
        if kind == "date" and _days(str(value)) is None:
            # For a date with a time of day, engines drop the time or refuse the constant.
            return None
        # With another time zone, the meaning of a constant depends on the engine.
        if data_type.tz in (None, "UTC"):
            return _instant(str(value), UNITS_PER_SECOND[data_type.unit])
    return None


def _days(text: str) -> int | None:
    match = _TIME.fullmatch(text)
    if match is None or match[4]:
        return None
    try:
        day = datetime.date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return None
    return day.toordinal() - datetime.date(1970, 1, 1).toordinal()


def _instant(text: str, per_second: int) -> int | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days = _days(text[:10])
    hour, minute, second = (int(match[number] or 0) for number in (4, 5, 6))
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    parts = int((match[7] or "").ljust(9, "0")) * per_second
    count, rest = divmod(parts, 10**9)
    whole = (days * _SECONDS_PER_DAY + hour * 3_600 + minute * 60 + second) * per_second + count
    # How an instant between two values of the column is rounded depends on the engine.
    return whole if not rest and _INT64.min <= whole <= _INT64.max else None
