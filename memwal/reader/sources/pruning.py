"""Region pruning: skip regions in which no row can pass a filter.

A region is identified by the values that all of its rows share. Only values of columns that never
change for a key say anything about a generation: columns of the primary key, and columns that the
writers of the table promised not to change. They are the same in every row of a key, in its
tombstone and in the base table, so a region in which no row passes hides no base row that would
pass either.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, InvalidInputError
from memwal.expressions.bounds import ColumnBounds, array_of, plain_values
from memwal.expressions.date_parts import date_part
from memwal.expressions.dnf import Alternative, read_predicate
from memwal.format.region_manifest import RegionManifest
from memwal.reader.sources.key_routing import spec_of
from memwal.region.spec import RegionSpec
from memwal.region.spec_fields import RegionField
from memwal.region.transforms import CalendarPart, Identity, Truncate
from memwal.region.values import read_values

_MAX_COMBINATIONS: Final = 4_096
_MAX_PERIODS: Final = 50_000
_SECONDS: Final = {"h": 3_600, "D": 86_400}


class RegionPruner:
    """Tells of regions whether rows that pass a filter can be in them.

    Parameters
    ----------
    base : BaseTable
        The table.
    filter : str or None
        SQL predicate. What is not understood in it rules nothing out.
    """

    def __init__(self, base: BaseTable, filter: str | None) -> None:
        self._base = base
        self._alternatives: tuple[Alternative, ...] = (
            read_predicate(filter) if filter is not None else ((),)
        )
        self._bounds = [_bounds(one, base.schema) for one in self._alternatives]
        self._specs: dict[int, RegionSpec | None] = {}

    def reason_against(self, region: RegionManifest) -> str | None:
        """Why no row that passes can be in a region; None when one may be."""
        if any(not bounds for bounds in self._bounds):
            return None
        if not self._bounds:
            return "no row can pass the filter"
        fields = self._decisive(region)
        reasons = []
        for bounds in self._bounds:
            reason = _reason(fields, bounds)
            if reason is None:
                return None
            reasons.append(reason)
        return "; ".join(dict.fromkeys(reasons))

    def _decisive(self, region: RegionManifest) -> list[tuple[RegionField, pa.Array]]:
        """Fields that say something about the rows of a region, with their values."""
        if region.spec_id not in self._specs:
            self._specs[region.spec_id] = spec_of(self._base, region.spec_id)
        spec = self._specs[region.spec_id]
        stored = dict(region.region_fields)
        found = []
        for field in spec.fields if spec is not None else ():
            # A value that is not stored is null, or another client did not record it.
            if field.field_id not in stored or not self._is_fixed(field):
                continue
            try:
                value_type = field.value_type(self._base.schema)
                value = read_values([stored[field.field_id]], value_type)
            except (CorruptDataError, InvalidInputError):
                # The column had another type when the region was made.
                continue
            if not self._may_hold_bare_keys(field, value):
                found.append((field, value))
        return found

    def _may_hold_bare_keys(self, field: RegionField, value: pa.Array) -> bool:
        """Whether keys that another client deleted may be in a region only since they are bare.

        Its tombstones have nulls in all columns outside of the key, whatever their rows had.
        """
        outside = [column for column in field.columns if column not in self._base.primary_key]
        if not outside:
            return False
        if len(field.columns) > 1:
            return True
        types = [self._base.schema.field(str(column)).type for column in outside]
        bare = field.transform.apply([pa.nulls(1, data_type) for data_type in types])
        return not bare.null_count and bool(pc.equal(bare[0], value[0]).as_py())

    def _is_fixed(self, field: RegionField) -> bool:
        return bool(field.columns) and all(
            column is not None and (field.immutable or column in self._base.primary_key)
            for column in field.columns
        )


def _bounds(alternative: Alternative, schema: pa.Schema) -> dict[str, ColumnBounds]:
    """What an alternative says about each column that it names."""
    names = [name.casefold() for name in schema.names]
    found: dict[str, ColumnBounds] = {}
    for column in dict.fromkeys(comparison.column for comparison in alternative):
        # Lance may or may not tell names apart by case.
        if column in schema.names and names.count(column.casefold()) == 1:
            bounds = ColumnBounds.of(
                schema.field(column).type,
                [comparison for comparison in alternative if comparison.column == column],
            )
            if bounds.comparisons:
                found[column] = bounds
    return found


def _reason(
    fields: Sequence[tuple[RegionField, pa.Array]], bounds: Mapping[str, ColumnBounds]
) -> str | None:
    for field, value in fields:
        named = [bounds[column] for column in field.columns if column and column in bounds]
        if len(named) == len(field.columns) and not _is_possible(field, value, named):
            return _shown([(field, value)], named)
    for column, bound in bounds.items():
        parts = [
            (field, field.transform, value)
            for field, value in fields
            if field.columns == (column,) and isinstance(field.transform, CalendarPart)
        ]
        wanted = [(part, int(value[0].as_py())) for _, part, value in parts]
        if wanted and not _has_period(bound, wanted):
            return _shown([(field, value) for field, _, value in parts], [bound])
    return None


def _shown(fields: Sequence[tuple[RegionField, pa.Array]], bounds: Sequence[ColumnBounds]) -> str:
    has = " and ".join(f"{field} is {_literal(value[0].as_py())}" for field, value in fields)
    asked = " and ".join(str(one) for bound in bounds for one in bound.comparisons)
    return f"{has} in all of its rows, and in none where {asked}"


def _literal(value: Any) -> str:
    return repr(value) if isinstance(value, str | bytes) else str(value).lower()


def _is_possible(field: RegionField, value: pa.Array, bounds: Sequence[ColumnBounds]) -> bool:
    """Whether rows within the bounds can have the value of the region."""
    choices = [bound.choices() for bound in bounds]
    known = [choice for choice in choices if choice is not None]
    combined = int(np.prod([len(choice) for choice in known], dtype=np.float64))
    if len(known) == len(choices) and combined <= _MAX_COMBINATIONS:
        return _any_gives(field, value, known, [bound.data_type for bound in bounds])
    if isinstance(field.transform, Identity):
        return bounds[0].allows(plain_values(value)[0])
    if isinstance(field.transform, CalendarPart):
        return bounds[0].allows_part(field.transform.part, int(value[0].as_py()))
    if isinstance(field.transform, Truncate):
        return _overlaps(bounds[0], plain_values(value)[0], field.transform.width)
    return True


def _any_gives(
    field: RegionField,
    value: pa.Array,
    choices: Sequence[Sequence[Any]],
    types: Sequence[pa.DataType],
) -> bool:
    """Whether the transform makes the value of the region from any of the choices."""
    rows = list(itertools.product(*choices))
    if not rows:
        return False
    columns = [
        array_of(column, data_type)
        for column, data_type in zip(zip(*rows, strict=True), types, strict=True)
    ]
    try:
        made = field.transform.apply(columns)
    except InvalidInputError:
        # Such as a text that is no date.
        return True
    return bool(pc.any(pc.equal(made, value[0])).as_py())


def _overlaps(bound: ColumnBounds, value: Any, width: int) -> bool:
    """Whether anything within the bounds can be truncated to a value."""
    low, high = bound.limits()
    if isinstance(value, str | bytes):
        if len(value) < width:
            return bound.allows(value)
        return (
            (high is None or high >= value)
            and (low is None or low <= value or bool(low.startswith(value)))
            and bound.allows_prefix(value)
        )
    # Integers end one before the next multiple; a width too far does no harm to decimals.
    reach = width - isinstance(value, int)
    first = value if value > 0 else value - reach
    last = value if value < 0 else value + reach
    return (high is None or high >= first) and (low is None or low <= last)


def _has_period(bound: ColumnBounds, wanted: Sequence[tuple[CalendarPart, int]]) -> bool:
    """Whether an hour or a day within the bounds has these parts of the calendar."""
    per_second = _per_second(bound.data_type)
    if per_second is None:
        return True
    low, high = bound.limits()
    first, last = (
        None if limit is None else _seconds(limit, per_second, bound.data_type)
        for limit in (low, high)
    )
    for part, number in wanted:
        if part.part == "year":
            start, end = (
                int(np.datetime64(year - 1970, "Y").astype("datetime64[s]").astype(np.int64))
                for year in (number, number + 1)
            )
            first = start if first is None else max(first, start)
            last = end - 1 if last is None else min(last, end - 1)
    if first is None or last is None:
        return True
    if first > last:
        return False
    unit = "h" if any(part.part == "hour" for part, _ in wanted) else "D"
    periods = range(first // _SECONDS[unit], last // _SECONDS[unit] + 1)
    if len(periods) > _MAX_PERIODS:
        return True
    seconds = np.arange(periods.start, periods.stop, dtype=np.int64) * _SECONDS[unit]
    times = pa.array(seconds).view(pa.timestamp("s"))
    fits = np.ones(len(times), np.bool_)
    for part, number in wanted:
        fits &= date_part(part.part, times).fill_null(number).to_numpy() == number
    return bool(fits.any())


def _per_second(data_type: pa.DataType) -> int | None:
    if pt.is_timestamp(data_type):
        return {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[data_type.unit]
    return 1 if pt.is_date32(data_type) else None


def _seconds(value: int, per_second: int, data_type: pa.DataType) -> int:
    return value * 86_400 if pt.is_date32(data_type) else value // per_second
