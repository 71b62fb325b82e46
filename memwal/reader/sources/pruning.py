"""Region pruning: skip regions in which no row can pass a filter or have a key of a lookup.

A region is identified by the values that all of its rows share. Only values of columns that never
change for a key say anything about a generation: columns of the primary key, and columns that the
writers of the table promised not to change. They are the same in every row of a key, in its
tombstone and in the base table, so a region in which no row passes hides no base row that would
pass either.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, InvalidInputError
from memwal.expressions.bounds import ColumnBounds, array_of, plain_values
from memwal.expressions.date_parts import UNITS_PER_SECOND, date_part
from memwal.expressions.parser import Alternative, parse_alternatives
from memwal.format.region_manifest import RegionManifest
from memwal.lsm.region_places import spec_of
from memwal.reader.sources.cache import LruCache, version_key
from memwal.region.manifest_store import discover_regions
from memwal.region.router import Router
from memwal.region.spec import RegionSpec
from memwal.region.spec_fields import RegionField
from memwal.region.transforms import CalendarPart, Identity, Truncate
from memwal.region.values import decode_values
from memwal.storage.location import TableLocation

_MAX_COMBINATIONS: Final = 4_096
_MAX_PERIODS: Final = 50_000
_SECONDS: Final = {"h": 3_600, "D": 86_400}


class RegionPruner:
    """Pruner that decides from its manifest whether a region can have rows that pass a filter.

    Parts of the SQL predicate that are not understood rule nothing out.
    """

    def __init__(self, base: BaseTable, filter: str) -> None:
        self._base = base
        self._bounds = [
            _column_bounds(alternative, base.schema) for alternative in parse_alternatives(filter)
        ]
        self._fields: dict[int, list[_FixedField]] = {}

    def reason_against(self, region: RegionManifest) -> str | None:
        """Return why no row of a region can pass; None if a row may."""
        if any(not bounds for bounds in self._bounds):
            return None
        if not self._bounds:
            return "no row can pass the filter"
        values = self._fixed_values(region)
        reasons = []
        for number, bounds in enumerate(self._bounds):
            reason = _reason(values, number, bounds)
            if reason is None:
                return None
            reasons.append(reason)
        return "; ".join(dict.fromkeys(reasons))

    def _fixed_values(self, region: RegionManifest) -> list[_FixedValue]:
        """Return the values that all rows of a region share."""
        if region.spec_id not in self._fields:
            spec = spec_of(self._base, region.spec_id)
            self._fields[region.spec_id] = self._fixed_fields(spec) if spec is not None else []
        stored = dict(region.region_fields)
        values = []
        for field in self._fields[region.spec_id]:
            # A value that is not stored is null, or another client did not record it.
            if field.field.field_id not in stored:
                continue
            try:
                value = decode_values([stored[field.field.field_id]], field.value_type)
            except CorruptDataError:
                # The column had another type when the region was made.
                continue
            plain = plain_values(value)[0]
            if field.bare is None or (field.bare and plain not in field.bare):
                values.append(_FixedValue(field, plain, value))
        return values

    def _fixed_fields(self, spec: RegionSpec) -> list[_FixedField]:
        """Return the fields of a spec whose values all rows of a key share."""
        fixed = []
        compared = {column for bounds in self._bounds for column in bounds}
        for field in spec.fields:
            # Values of columns that the filter does not compare rule nothing out.
            is_fixed = not compared.isdisjoint(field.columns) and all(
                column is not None
                and (
                    field.immutable
                    # Without a key, no row is replaced by one with another value.
                    or not self._base.primary_key
                    or column in self._base.primary_key
                )
                for column in field.columns
            )
            if not is_fixed:
                continue
            try:
                value_type = field.value_type(self._base.schema)
            except InvalidInputError:
                continue
            tests = [_value_test(field, bounds) for bounds in self._bounds]
            fixed.append(_FixedField(field, value_type, self._bare_values(field), tests))
        return fixed

    def _bare_values(self, field: RegionField) -> tuple[Any, ...] | None:
        """Return the values of regions that may have bare keys; None: none may, (): each may.

        Bare keys are tombstones with nulls outside of the key. Another client writes such
        tombstones for rows of any values, and routes them by the nulls. In a table without a key no
        row is deleted.
        """
        outside = [column for column in field.columns if column not in self._base.primary_key]
        if not (self._base.primary_key and outside):
            return None
        if len(field.columns) > 1:
            return ()
        types = [self._base.schema.field(str(column)).type for column in outside]
        bare = field.transform.apply([pa.nulls(1, data_type) for data_type in types])
        return None if bare.null_count else tuple(plain_values(bare))


_ValueTest = Callable[[Any], bool]


@dataclass(frozen=True, slots=True, eq=False)
class _FixedField:
    """Field of a spec whose value all rows of a key share."""

    field: RegionField
    value_type: pa.DataType
    bare: tuple[Any, ...] | None  # see RegionPruner._bare_values
    # For each alternative of the filter: whether rows that pass it can have a plain value; None if
    # they can have each.
    tests: Sequence[_ValueTest | None]


class _FixedValue(NamedTuple):
    """Value that all rows of a region share."""

    field: _FixedField
    plain: Any
    value: pa.Array


def _column_bounds(alternative: Alternative, schema: pa.Schema) -> dict[str, ColumnBounds]:
    names = [name.casefold() for name in schema.names]
    by_column: dict[str, ColumnBounds] = {}
    for column in dict.fromkeys(comparison.column for comparison in alternative):
        # Lance may or may not distinguish names by case.
        if column in schema.names and names.count(column.casefold()) == 1:
            bounds = ColumnBounds.of(
                schema.field(column).type,
                [comparison for comparison in alternative if comparison.column == column],
            )
            if bounds.comparisons:
                by_column[column] = bounds
    return by_column


def _reason(
    fixed: Sequence[_FixedValue], number: int, bounds: Mapping[str, ColumnBounds]
) -> str | None:
    """Return why the alternative ``number`` of a filter has no row; ``bounds`` are its bounds."""
    for value in fixed:
        is_possible = value.field.tests[number]
        if is_possible is not None and not is_possible(value.plain):
            return _explain([value], [bounds[str(column)] for column in value.field.field.columns])
    for column, bound in bounds.items():
        values = [
            (value, value.field.field.transform)
            for value in fixed
            if value.field.field.columns == (column,)
        ]
        parts = [
            (value, transform) for value, transform in values if isinstance(transform, CalendarPart)
        ]
        if parts and not _has_period(bound, [(part, int(value.plain)) for value, part in parts]):
            return _explain([value for value, _ in parts], [bound])
    return None


def _explain(fixed: Sequence[_FixedValue], bounds: Sequence[ColumnBounds]) -> str:
    values = " and ".join(
        f"{value.field.field} is {_literal(value.value[0].as_py())}" for value in fixed
    )
    comparisons = " and ".join(str(part) for bound in bounds for part in bound.comparisons)
    return f"{values} in all of its rows, and in none where {comparisons}"


def _literal(value: object) -> str:
    return repr(value) if isinstance(value, str | bytes) else str(value).lower()


def _value_test(field: RegionField, bounds: Mapping[str, ColumnBounds]) -> _ValueTest | None:
    """Return the test of whether rows within the bounds can have the value of a region.

    It takes plain values. None if it would allow each.
    """
    named = [bounds[column] for column in field.columns if column and column in bounds]
    if len(named) < len(field.columns):
        return None
    choices = [choice for bound in named if (choice := bound.choices()) is not None]
    combinations = int(np.prod([len(choice) for choice in choices], dtype=np.float64))
    transform = field.transform
    if len(choices) == len(named) and combinations <= _MAX_COMBINATIONS:
        given = _given_values(field, choices, [bound.data_type for bound in named])
        return None if given is None else given.__contains__
    if isinstance(transform, Identity):
        return named[0].allows
    if isinstance(transform, CalendarPart):
        return partial(named[0].allows_part, transform.part)
    if isinstance(transform, Truncate):
        return lambda value: _overlaps(named[0], value, transform.width)
    return None


def _given_values(
    field: RegionField, choices: Sequence[Sequence[object]], types: Sequence[pa.DataType]
) -> frozenset[Any] | None:
    """Return the plain values to which the transform maps the choices; None if that is unknown."""
    rows = list(itertools.product(*choices))
    if not rows:
        return frozenset()
    columns = [
        array_of(column, data_type)
        for column, data_type in zip(zip(*rows, strict=True), types, strict=True)
    ]
    try:
        return frozenset(plain_values(field.transform.apply(columns)))
    except InvalidInputError:
        # E.g. a text that is no date.
        return None


def _overlaps(bound: ColumnBounds, value: Any, width: int) -> bool:
    """Return whether anything within the bounds can be truncated to a value."""
    low, high = bound.limits()
    if isinstance(value, str | bytes):
        if len(value) < width:
            return bound.allows(value)
        return (
            (high is None or high >= value)
            and (low is None or low <= value or bool(low.startswith(value)))
            and bound.allows_prefix(value)
        )
    # Integers end one before the next multiple; for decimals one width more does no harm.
    reach = width - isinstance(value, int)
    first = value if value > 0 else value - reach
    last = value if value < 0 else value + reach
    return (high is None or high >= first) and (low is None or low <= last)


def _has_period(bound: ColumnBounds, values: Sequence[tuple[CalendarPart, int]]) -> bool:
    """Return whether an hour or a day within the bounds has these parts of the calendar."""
    per_second = _per_second(bound.data_type)
    if per_second is None:
        return True
    low, high = bound.limits()
    is_date = pt.is_date32(bound.data_type)
    first, last = (
        None if limit is None else limit * 86_400 if is_date else limit // per_second
        for limit in (low, high)
    )
    for part, number in values:
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
    unit = "h" if any(part.part == "hour" for part, _ in values) else "D"
    periods = range(first // _SECONDS[unit], last // _SECONDS[unit] + 1)
    if len(periods) > _MAX_PERIODS:
        return True
    seconds = np.arange(periods.start, periods.stop, dtype=np.int64) * _SECONDS[unit]
    times = pa.array(seconds).view(pa.timestamp("s"))
    fits = np.ones(len(times), np.bool_)
    for part, number in values:
        fits &= date_part(part.part, times).fill_null(number).to_numpy() == number
    return bool(fits.any())


def _per_second(data_type: pa.DataType) -> int | None:
    if pt.is_timestamp(data_type):
        return UNITS_PER_SECOND[data_type.unit]
    return 1 if pt.is_date32(data_type) else None


@dataclass(frozen=True, slots=True)
class KeyRouting:
    """Routing by a spec all of whose columns belong to the primary key."""

    spec: RegionSpec
    router: Router
    regions: frozenset[UUID] | None  # Those that are known in advance; None if they are not.


def key_routing(base: BaseTable, spec_id: int) -> KeyRouting | None:
    """Return how a spec of the table routes keys; None if it routes by other columns as well."""

    def make() -> tuple[KeyRouting | None]:
        spec = spec_of(base, spec_id)
        if spec is None or not is_routed_by_key(spec, base):
            return (None,)
        router = Router(spec, base.schema)
        assignments = router.assignments()
        regions = None if assignments is None else frozenset(a.region_id for a in assignments)
        return (KeyRouting(spec, router, regions),)

    return _routings.get((version_key(base), spec_id), make)[0]


_routings: LruCache[tuple[KeyRouting | None]] = LruCache(64)

KeyBuilder = Callable[[BaseTable], pa.Table]
"""Returns the keys of a lookup or a filter, in the types of a version of the base table."""


def keys_in_filter(filter: str | None) -> KeyBuilder | None:
    """Return a builder of the keys that rows have that pass a SQL predicate; None without one.

    It raises InvalidInputError if the predicate leaves open which keys these are. Of a key of
    several columns it returns the columns whose values the predicate lists.
    """
    return None if filter is None else partial(_listed_keys, filter)


def _listed_keys(filter: str, base: BaseTable) -> pa.Table:
    alternatives = [_column_bounds(part, base.schema) for part in parse_alternatives(filter)]
    names = [
        name
        for name in base.primary_key
        if all(name in bounds and bounds[name].choices() is not None for bounds in alternatives)
    ]
    rows: list[tuple[object, ...]] = []
    for bounds in alternatives:
        choices = [bounds[name].choices() or [] for name in names]
        if math.prod(map(len, choices)) + len(rows) > _MAX_COMBINATIONS:
            raise InvalidInputError("the filter allows too many keys to list them")
        rows += itertools.product(*choices)
    if not names or any(None in row for row in rows):
        raise InvalidInputError("the filter does not list keys")
    columns = [
        array_of([row[at] for row in rows], base.schema.field(name).type)
        for at, name in enumerate(names)
    ]
    return pa.Table.from_arrays(columns, names=names)


def is_routed_by_key(spec: RegionSpec, base: BaseTable) -> bool:
    """Return whether the key of a row alone determines its region."""
    columns = [column for field in spec.fields for column in field.columns]
    return bool(columns) and all(column in base.primary_key for column in columns)


class CandidateRegions(NamedTuple):
    """Regions that may have some keys, and those of the table's spec that do not."""

    regions: list[UUID]
    left_out: frozenset[UUID]


def candidate_regions(
    location: TableLocation, base: BaseTable, keys: KeyBuilder
) -> CandidateRegions | None:
    """List the regions that may have some keys, with one listing and without reading a manifest.

    Regions of the spec to which no key is routed are left out. A region with an id that the spec
    does not know in advance may have any key. ``base`` is the newest version that a read has seen;
    the result is valid for versions for which :func:`routes_alike` holds.

    Returns None if only the manifests tell which keys a region may have: the key does not determine
    regions that are known in advance, or the table has had several specs.
    """
    if len(base.details.region_specs) != 1:
        return None
    routing = key_routing(base, base.details.region_specs[0].spec_id)
    if routing is None or routing.regions is None:
        return None
    try:
        routed = {assignment.region_id for assignment, _ in routing.router.route(keys(base))}
    except InvalidInputError:
        # Keys of other types or columns: the table may have changed; if not, the lookup raises.
        return None
    others = routing.regions - routed
    found = discover_regions(location.store)
    return CandidateRegions([region for region in found if region not in others], others)


def routes_alike(base: BaseTable, other: BaseTable) -> bool:
    """Return whether two versions of a table route every key to the same region."""
    return base is other or (
        base.details.region_specs == other.details.region_specs
        and base.primary_key == other.primary_key
        and base.field_ids() == other.field_ids()
        and base.schema.equals(other.schema)
    )
