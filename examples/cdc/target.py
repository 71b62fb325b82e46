"""The target table: its columns and types, and conversion of PostgreSQL's texts to rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pgoutput import Relation

import memwal
from memwal.errors import TableSetupError
from memwal.region.router import Router

REGIONS = 4

_BOOL = 16
# Types by oid. Values of all other types stay text: numeric, json, uuid, arrays, enums.
_TYPES: Mapping[int, pa.DataType] = {
    _BOOL: pa.bool_(),
    21: pa.int16(),
    23: pa.int32(),
    20: pa.int64(),
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}


class SchemaChangedError(Exception):
    """The followed table has other columns than the target."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target table and its source.

    Attributes
    ----------
    source : str
        Name of the table in PostgreSQL, with its schema.
    """

    table: memwal.Table
    source: str
    schema: pa.Schema
    key: tuple[str, ...]

    @classmethod
    def open_or_create(cls, uri: str, connection: psycopg.Connection, source: str) -> Target:
        """Open the table; a new one gets the columns and the key of the source."""
        try:
            table = memwal.open(uri)
        except TableSetupError:
            schema, key = _described(connection, source)
            spec = memwal.RegionSpec.bucket(key[0], REGIONS)
            table = memwal.create(uri, schema, primary_key=key, region_spec=spec)
        return cls(table, source, table.schema, table.primary_key)

    def rows(self, values: Iterable[Mapping[str, str | None]]) -> pa.Table:
        """Convert the text of every column to rows."""
        given = list(values)
        return pa.table(
            [_column([row[field.name] for row in given], field.type) for field in self.schema],
            schema=self.schema,
        )

    def keys(self, keys: Iterable[Sequence[str]]) -> pa.Table:
        """Convert the text of key columns to keys."""
        given = list(keys)
        fields = [self.schema.field(name) for name in self.key]
        return pa.table(
            [_column([key[n] for key in given], f.type) for n, f in enumerate(fields)],
            schema=pa.schema(fields),
        )

    def region_of(self, key: Sequence[str]) -> UUID:
        """Return the region that a key belongs to."""
        _, spec = self.table.region_spec()
        (batch,) = self.keys([key]).select(spec.columns).to_batches()
        ((region, _),) = Router(spec, self.schema).route(batch)
        return region.region_id

    def texts(self, rows: pa.Table) -> dict[tuple[str, ...], dict[str, str | None]]:
        """Convert rows back to text, by key."""
        columns = {name: _texts(rows[name]) for name in self.schema.names}
        keys = zip(*(columns[name] for name in self.key), strict=True)
        values = zip(*columns.values(), strict=True)
        return {
            key: dict(zip(columns, row, strict=True)) for key, row in zip(keys, values, strict=True)
        }

    def check(self, relation: Relation) -> None:
        """Refuse changes of a table that has columns which the target lacks.

        Dropped columns are accepted: existing rows keep their value, and new ones have nulls.

        Raises
        ------
        SchemaChangedError
            The message names the next step.
        """
        if relation.name != self.source:
            raise SchemaChangedError(
                f"the publication sends {relation.name}, and this follows {self.source} alone: "
                f"ALTER PUBLICATION ... SET TABLE {self.source}"
            )
        there = {name: _TYPES.get(oid, pa.string()) for name, oid in relation.columns}
        here = {field.name: field.type for field in self.schema}
        advice = [
            *(
                f"column {name!r} is new: add it with table.base().dataset.add_columns("
                f"pa.field({name!r}, pa.{_call(there[name])}))"
                for name in there.keys() - here.keys()
            ),
            *(
                f"column {name!r} is {there[name]} now and {here[name]} here: no log can follow "
                "that; drop the slot, and follow into a new table"
                for name in there.keys() & here.keys()
                if there[name] != here[name]
            ),
        ]
        if advice:
            raise SchemaChangedError(
                f"{self.source} has changed; {'; '.join(sorted(advice))}. Then start again: "
                "everything before the change is written, and the slot keeps what comes after"
            )


def _call(kind: pa.DataType) -> str:
    """Return the Python call that creates a type."""
    if pa.types.is_timestamp(kind):
        return f'timestamp("us", {kind.tz!r})'
    return {"bool": "bool_()", "float": "float32()", "double": "float64()"}.get(
        str(kind), f"{str(kind).partition('[')[0]}()"
    )


def _column(texts: list[str | None], kind: pa.DataType) -> pa.Array:
    column = pa.array(texts, pa.string())
    if pa.types.is_boolean(kind):
        return pc.equal(column, "t")
    return column if pa.types.is_string(kind) else column.cast(kind)


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    if pa.types.is_boolean(column.type):
        return pc.if_else(column, "t", "f").to_pylist()
    return column.cast(pa.string()).to_pylist()


def _described(connection: psycopg.Connection, source: str) -> tuple[pa.Schema, list[str]]:
    """Return columns and primary key of a table in PostgreSQL."""
    columns: list[tuple[Any, ...]] = connection.execute(
        "SELECT a.attname, a.atttypid, array_position(i.indkey::int2[], a.attnum)"
        " FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary"
        " WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped"
        " ORDER BY a.attnum",
        [source],
    ).fetchall()
    key = [name for name, _, place in sorted(columns, key=lambda c: c[2] or 0) if place is not None]
    if not key:
        raise SystemExit(f"{source} has no primary key, and rows could not be told apart")
    fields = [
        pa.field(name, _TYPES.get(oid, pa.string()), nullable=name not in key)
        for name, oid, _ in columns
    ]
    return pa.schema(fields), key
