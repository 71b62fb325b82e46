"""One of the values that name a region, and where it comes from (spec: Region Spec)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.format.index_details import RegionFieldSpec
from memwal.given_data import is_unicode
from memwal.region.expressions import Expression
from memwal.region.region_values import type_name
from memwal.region.stored_fields import IMMUTABLE
from memwal.region.transforms import Transform


@dataclass(frozen=True, slots=True)
class RegionField:
    """One of the values that name a region.

    Parameters
    ----------
    field_id : str
        Name of the value, unique within its spec.
    columns : tuple of (str or None)
        Source columns. None stands for one that was dropped from the table; it counts as null.
    transform : Transform
        How the value is computed from them.
    immutable : bool, default False
        The columns need not be part of the primary key: whoever writes promises that they never
        change for a key.
    """

    field_id: str
    columns: tuple[str | None, ...]
    transform: Transform
    immutable: bool = False

    def __post_init__(self) -> None:
        wanted = self.transform.num_columns
        if wanted is None and not self.columns:
            raise InvalidInputError(f"{self._kind} needs the names of columns, got none")
        if wanted is not None and len(self.columns) != wanted:
            raise InvalidInputError(f"{self._kind} takes {wanted} column, got {self.columns}")
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
        """Return the type of the value in a table, after checking that its columns can be used.

        Raises
        ------
        InvalidInputError
            The table has no such column at the top level, or its type does not fit.
        """
        types = [pa.null() if name is None else _column_type(name, schema) for name in self.columns]
        found = self.transform.value_type(types)
        if found is None:
            shown = ", ".join(
                f"{name!r} of type {data_type}"
                for name, data_type in zip(self.columns, types, strict=True)
            )
            raise InvalidInputError(
                f"column {shown} cannot divide a table into regions by "
                f"{self.transform.name or 'expression'!r}; use a column of one of these types: "
                f"{self.transform.source_types}"
            )
        return found

    def bind(
        self, field_ids: Mapping[str, int], schema: pa.Schema, parameters: Mapping[str, str]
    ) -> RegionFieldSpec:
        """Return what the table stores of this field. See :meth:`RegionSpec.bind`."""
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
        return RegionFieldSpec(
            field_id=self.field_id,
            source_ids=tuple(field_ids[name] for name in self.columns if name is not None),
            transform=self.transform.name,
            expression=self.transform.sql if isinstance(self.transform, Expression) else None,
            result_type=name,
            parameters={**self.transform.parameters, **immutable, **parameters},
        )


def _column_type(name: str, schema: pa.Schema) -> pa.DataType:
    position = schema.get_field_index(name)
    if position < 0:
        raise InvalidInputError(
            f"region column {name!r} is not one of the columns at the top of the table: "
            f"{', '.join(schema.names)}"
        )
    return schema.field(position).type
