"""Reading the fields of a region spec that a table stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.index_details import RegionFieldSpec, StoredRegionSpec
from memwal.region.expressions import Expression
from memwal.region.region_values import type_named
from memwal.region.transforms import (
    NUM_BUCKETS,
    WIDTH,
    Bucket,
    CalendarPart,
    Identity,
    MultiBucket,
    Transform,
    Truncate,
    Unsharded,
)

IMMUTABLE: Final = "immutable"
"""Parameter of a field whose columns never change for a key."""

PENDING: Final = "pending"
"""Parameter of the fields of a spec that is not in force yet."""

_COLUMN: Final = "column"
_DIGITS: Final = 20
_SHOWN: Final = 40


def is_pending(stored: StoredRegionSpec) -> bool:
    """Whether regions of an earlier spec are still being emptied."""
    return any(field.parameters.get(PENDING) == "true" for field in stored.fields)


def without_pending(stored: StoredRegionSpec) -> StoredRegionSpec:
    """The spec once it is in force."""
    fields = (
        replace(
            field,
            parameters={name: v for name, v in field.parameters.items() if name != PENDING},
        )
        for field in stored.fields
    )
    return replace(stored, fields=tuple(fields))


def field_from_stored(
    field: RegionFieldSpec, names: Mapping[int, str], *, where: str
) -> tuple[tuple[str | None, ...], Transform, bool]:
    """Source columns, transform, and whether the columns are promised not to change.

    Raises
    ------
    InvalidInputError
        The transform or the expression is not supported.
    CorruptDataError
        A part is missing or contradicts another one.
    """
    transform = _transform(field, where)
    columns = _columns(field, transform, names, where)
    return columns, transform, field.parameters.get(IMMUTABLE) == "true"


def _transform(field: RegionFieldSpec, where: str) -> Transform:
    match field.transform:
        case "unsharded":
            return Unsharded()
        case "identity":
            return Identity()
        case "year" | "month" | "day" | "hour":
            return CalendarPart(field.transform)
        case "bucket":
            return Bucket(_number(field, NUM_BUCKETS, where))
        case "multi_bucket":
            return MultiBucket(_number(field, NUM_BUCKETS, where))
        case "truncate":
            return Truncate(_number(field, WIDTH, where))
        case None if field.expression:
            result_type = type_named(field.result_type)
            return Expression(field.expression, result_type, len(field.source_ids))
        case None:
            raise CorruptDataError(
                f"{where}: there is neither a transform nor an expression; look at how the table "
                "was set up"
            )
        case _:
            raise InvalidInputError(
                f"{where}: the region transform {field.transform!r} is not supported; only "
                "bucket, multi_bucket, identity, truncate, year, month, day, hour and unsharded are"
            )


def _columns(
    field: RegionFieldSpec, transform: Transform, names: Mapping[int, str], where: str
) -> tuple[str | None, ...]:
    if transform.num_columns == 0:
        return ()
    wanted = transform.num_columns
    if not field.source_ids or (wanted is not None and len(field.source_ids) != wanted):
        raise CorruptDataError(
            f"{where}: the transform {field.transform!r} takes "
            f"{'one source column' if wanted else 'source columns'}, but the table stores "
            f"{len(field.source_ids)}; look at how the table was set up"
        )
    columns = tuple(names.get(source_id) for source_id in field.source_ids)
    # Lance lets this parameter win over the field id, blank or not.
    override = field.parameters.get(_COLUMN, "")
    if override.strip() and columns != (override,):
        raise CorruptDataError(
            f"{where}: the source column is {columns[0]!r} by its field id but {override!r} "
            "by its name; look at how the table was set up"
        )
    return columns


def _number(field: RegionFieldSpec, name: str, where: str) -> int:
    text = field.parameters.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise CorruptDataError(
            f"{where}: the transform {field.transform!r} needs the parameter {name!r} as a "
            f"number, but the table stores {text[:_SHOWN]!r}; look at how the table was set up"
        )
    return int(text)
