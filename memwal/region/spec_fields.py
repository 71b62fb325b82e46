"""Fields of a region spec: values, source columns and transforms (spec: Region Spec)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.memwal_index import RegionFieldSpec, StoredRegionSpec
from memwal.region.sql_transform import Expression
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
from memwal.region.values import parse_type, type_name
from memwal.util.safe_json import is_unicode

IMMUTABLE: Final = "immutable"
"""Parameter of a field whose columns never change for a key."""

PENDING: Final = "pending"
"""Parameter of the fields of a spec that is not in force yet."""

TRANSFORM: Final = "memwal_transform"
"""Parameter with the name of a transform that is stored as an expression."""

_COLUMN: Final = "column"
_MAX_DIGITS: Final = 20
_MAX_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class RegionField:
    """One of the values that together identify a region."""

    field_id: str  # name of the value, unique within its spec
    # Source columns. None is a column that was dropped from the table; it counts as null.
    columns: tuple[str | None, ...]
    transform: Transform  # computes the value from the columns
    # Whether the columns may be outside of the primary key, because the writers promise that they
    # never change for a key.
    immutable: bool = False

    def __post_init__(self) -> None:
        expected = self.transform.num_columns
        if expected is None and not self.columns:
            raise InvalidInputError(f"{self._kind} needs the names of columns, got none")
        if expected is not None and len(self.columns) != expected:
            raise InvalidInputError(f"{self._kind} takes {expected} column, got {self.columns}")
        for column in self.columns:
            is_name = isinstance(column, str) and bool(column) and is_unicode(column)
            if column is not None and not is_name:
                raise InvalidInputError(f"{self._kind} needs the name of a column, got {column!r}")
        if isinstance(self.transform, Expression) and self.transform.num_sources != len(
            self.columns
        ):
            raise InvalidInputError(
                f"a region expression over {self.transform.num_sources} columns got "
                f"{len(self.columns)}"
            )

    def __str__(self) -> str:
        columns = ", ".join(column or "<dropped>" for column in self.columns)
        arguments = self.transform.arguments(columns) if self.columns else ""
        return f"{self.transform.name or 'expression'}({arguments})"

    @property
    def _kind(self) -> str:
        return f"a region spec of transform {self.transform.name or 'expression'!r}"

    def value_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of the value in a table, after checking the source columns.

        Raises InvalidInputError if the table has no such top-level column, or its type is not
        supported.
        """
        types = self._types(schema)
        value_type = self.transform.value_type(types)
        if value_type is None:
            columns = ", ".join(
                f"{name!r} of type {data_type}"
                for name, data_type in zip(self.columns, types, strict=True)
            )
            raise InvalidInputError(
                f"column {columns} cannot divide a table into regions by "
                f"{self.transform.name or 'expression'!r}; use a column of one of these types: "
                f"{self.transform.source_types}"
            )
        return value_type

    def _types(self, schema: pa.Schema) -> list[pa.DataType]:
        return [pa.null() if name is None else _column_type(name, schema) for name in self.columns]

    def bind(
        self, field_ids: Mapping[str, int], schema: pa.Schema, parameters: Mapping[str, str]
    ) -> RegionFieldSpec:
        """Return the stored form of this field. See :meth:`RegionSpec.bind`."""
        value_type = self.value_type(schema)
        unknown = [name for name in self.columns if name is None or name not in field_ids]
        if unknown:
            raise InvalidInputError(
                f"no field id is known for region column {unknown[0]!r}; "
                "pass the field ids of the table that is set up"
            )
        name = type_name(value_type)
        if name is None:
            raise InvalidInputError(f"a region value cannot have type {value_type}")
        immutable = {IMMUTABLE: "true"} if self.immutable else {}
        transform, expression = self.transform.name, self.transform.expression(self._types(schema))
        named = {TRANSFORM: transform} if transform and expression else {}
        return RegionFieldSpec(
            field_id=self.field_id,
            source_ids=tuple(field_ids[name] for name in self.columns if name is not None),
            transform=None if expression else transform,
            expression=expression,
            result_type=name,
            parameters={**self.transform.parameters, **named, **immutable, **parameters},
        )


def field_from_stored(
    field: RegionFieldSpec, names: Mapping[int, str], *, where: str
) -> RegionField:
    """Decode the stored form of a field.

    Raises InvalidInputError if the transform or the expression is not supported, and
    CorruptDataError if a part is missing or contradicts another one.
    """
    transform = _stored_transform(field, where)
    expressions = transform.expressions(len(field.source_ids))
    if field.transform is None and field.expression not in expressions:
        raise CorruptDataError(
            f"{where}: the expression {field.expression!r} is not that of the transform "
            f"{transform.name!r}, which its parameters name; look at how the table was set up"
        )
    columns = _stored_columns(field, transform, names, where)
    return RegionField(
        field.field_id, columns, transform, field.parameters.get(IMMUTABLE) == "true"
    )


def is_pending(stored: StoredRegionSpec) -> bool:
    """Return whether a stored spec is not in force yet."""
    return any(field.parameters.get(PENDING) == "true" for field in stored.fields)


def without_pending(stored: StoredRegionSpec) -> StoredRegionSpec:
    """Return a stored spec as it is once in force."""
    fields = (
        replace(
            field,
            parameters={name: v for name, v in field.parameters.items() if name != PENDING},
        )
        for field in stored.fields
    )
    return replace(stored, fields=tuple(fields))


def _stored_transform(field: RegionFieldSpec, where: str) -> Transform:
    name = field.transform
    if name is None and field.expression:
        name = field.parameters.get(TRANSFORM)
    match name:
        case "unsharded":
            return Unsharded()
        case "identity":
            return Identity()
        case "year" | "month" | "day" | "hour":
            return CalendarPart(name)
        case "bucket":
            return Bucket(_stored_number(field, NUM_BUCKETS, where))
        case "multi_bucket":
            return MultiBucket(_stored_number(field, NUM_BUCKETS, where))
        case "truncate":
            return Truncate(_stored_number(field, WIDTH, where))
        case None if field.expression:
            result_type = parse_type(field.result_type)
            return Expression(field.expression, result_type, len(field.source_ids))
        case None:
            raise CorruptDataError(
                f"{where}: there is neither a transform nor an expression; look at how the table "
                "was set up"
            )
        case _:
            raise InvalidInputError(
                f"{where}: the region transform {name!r} is not supported; only "
                "bucket, multi_bucket, identity, truncate, year, month, day, hour and unsharded are"
            )


def _stored_columns(
    field: RegionFieldSpec, transform: Transform, names: Mapping[int, str], where: str
) -> tuple[str | None, ...]:
    if transform.num_columns == 0:
        return ()
    expected = transform.num_columns
    if not field.source_ids or (expected is not None and len(field.source_ids) != expected):
        raise CorruptDataError(
            f"{where}: the transform {field.transform!r} takes "
            f"{'one source column' if expected else 'source columns'}, but the table stores "
            f"{len(field.source_ids)}; look at how the table was set up"
        )
    columns = tuple(names.get(source_id) for source_id in field.source_ids)
    # In Lance, this parameter overrides the field id, even if it is blank.
    override = field.parameters.get(_COLUMN, "")
    if override.strip() and columns != (override,):
        raise CorruptDataError(
            f"{where}: the source column is {columns[0]!r} by its field id but {override!r} "
            "by its name; look at how the table was set up"
        )
    return columns


def _stored_number(field: RegionFieldSpec, name: str, where: str) -> int:
    text = field.parameters.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise CorruptDataError(
            f"{where}: the transform {field.transform!r} needs the parameter {name!r} as a "
            f"number, but the table stores {text[:_MAX_SHOWN]!r}; look at how the table was set up"
        )
    return int(text)


def _column_type(name: str, schema: pa.Schema) -> pa.DataType:
    position = schema.get_field_index(name)
    if position < 0:
        raise InvalidInputError(
            f"region column {name!r} is not one of the columns at the top of the table: "
            f"{', '.join(schema.names)}"
        )
    return schema.field(position).type
