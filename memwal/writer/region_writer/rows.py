"""Convert a caller's rows to stored rows, or refuse them.

Types are widened to the table's where every value stays the same. A row that was acknowledged must
be flushed some day, so values that would keep a flush from succeeding are refused before they go to
the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.format.paths import TOMBSTONE
from memwal.format.values import VERSIONS_WITHOUT_NULL_STRUCTS
from memwal.region.rows import align_rows, stored_schema

_CASTS_FAIL_WITH = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def widened(name: str, array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A column in a type that its own :func:`widens` to.

    Raises
    ------
    InvalidInputError
        A value does not fit after all.
    """
    if pt.is_null(array.type):
        return pa.nulls(len(array), wanted)
    try:
        return array.cast(wanted)
    except _CASTS_FAIL_WITH as error:
        raise InvalidInputError(f"column {name}: {error}") from error


def widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is the same value in the other."""
    if pt.is_null(given):
        return True
    if isinstance(given, pa.BaseExtensionType):
        return given.storage_type == wanted or widens(given.storage_type, wanted)
    if isinstance(wanted, pa.BaseExtensionType):
        return False
    if pt.is_dictionary(given):
        return widens(given.value_type, wanted)
    if pt.is_dictionary(wanted):
        return widens(given, wanted.value_type)
    text = (pt.is_string, pt.is_large_string, pt.is_string_view)
    binary = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
    if any(is_(given) for is_ in text):
        return any(is_(wanted) for is_ in text)
    if any(is_(given) for is_ in binary):
        return any(is_(wanted) for is_ in binary[:3])
    if pt.is_integer(given) and pt.is_integer(wanted):
        if pt.is_signed_integer(given):
            return bool(pt.is_signed_integer(wanted) and wanted.bit_width >= given.bit_width)
        if pt.is_signed_integer(wanted):
            return bool(wanted.bit_width > given.bit_width)
        return bool(wanted.bit_width >= given.bit_width)
    if pt.is_floating(given) and pt.is_floating(wanted):
        return bool(wanted.bit_width >= given.bit_width)
    if pt.is_timestamp(given) and pt.is_timestamp(wanted):
        units = ["s", "ms", "us", "ns"]
        return given.tz == wanted.tz and units.index(wanted.unit) >= units.index(given.unit)
    if (pt.is_list(given) or pt.is_large_list(given)) and (
        pt.is_list(wanted) or pt.is_large_list(wanted)
    ):
        return given.value_type == wanted.value_type or widens(given.value_type, wanted.value_type)
    if pt.is_fixed_size_list(given) and pt.is_fixed_size_list(wanted):
        return given.list_size == wanted.list_size and (
            given.value_type == wanted.value_type or widens(given.value_type, wanted.value_type)
        )
    if pt.is_struct(given) and pt.is_struct(wanted):
        return [f.name for f in given] == [f.name for f in wanted] and all(
            g.type == w.type or widens(g.type, w.type) for g, w in zip(given, wanted, strict=True)
        )
    return False


Check: TypeAlias = Callable[[pa.Array], str | None]
"""Tells what is wrong with the values of a column."""


_FEW_VALUES = 4


def checks_of(field: pa.Field, *, null_structs: bool) -> tuple[Check, ...]:
    """What the values of a column must be looked through for; nothing for most types.

    Parameters
    ----------
    null_structs : bool
        Whether the table's files can hold structs that are null.
    """
    found: list[Check] = []
    if _holds(field.type, lambda kind: pt.is_string(kind) or pt.is_large_string(kind)):
        found.append(_not_utf8)
    if _holds(field.type, lambda kind: isinstance(kind, pa.JsonType)):
        found.append(_not_json)
    if _has_required(field.type) or (not null_structs and _holds(field.type, pt.is_struct)):
        found.append(lambda values: _null_inside(values, field, null_structs))
    return tuple(found)


def check_values(name: str, values: pa.Array, checks: Iterable[Check]) -> None:
    """Refuse values that cannot be kept.

    Raises
    ------
    InvalidInputError
        The message names the column, and shows no value.
    """
    for check in checks:
        problem = check(values)
        if problem is not None:
            raise InvalidInputError(f"column {name} has {problem}; mend or leave out those rows")


def _not_utf8(values: pa.Array) -> str | None:
    try:
        if len(values) <= _FEW_VALUES and not pt.is_dictionary(values.type):
            # Arrow gives the interpreter to other threads while it looks, which costs more.
            values.to_pylist()
        else:
            values.validate(full=True)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return "text that is no UTF-8"
    return None


def _not_json(values: pa.Array) -> str | None:
    try:
        for text in getattr(values, "storage", values).to_pylist():
            if text is not None:
                json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return "text that is no JSON"
    return None


def _null_inside(values: pa.Array, field: pa.Field, null_structs: bool) -> str | None:
    """Nulls in children that may have none, or structs that are null where none may be."""
    values = getattr(values, "storage", values)
    kind = values.type
    if pt.is_struct(kind):
        if values.null_count and not null_structs:
            return "structs that are null, which the table's file version cannot hold"
        # A child of a struct that is null is null itself, and may be.
        present = values.drop_null() if values.null_count else values
        children = list(zip(kind, present.flatten(), strict=True))
    elif pt.is_map(kind):
        children = [(kind.item_field, values.items)]
    elif pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        children = [(kind.value_field, values.flatten())]
    else:
        return None
    for child, part in children:
        if not child.nullable and part.null_count:
            return f"nulls in {child.name}, which may have none"
        problem = _null_inside(part, child, null_structs)
        if problem is not None:
            return problem
    return None


def _has_required(kind: pa.DataType) -> bool:
    kind = getattr(kind, "storage_type", kind)
    children = [kind.field(number) for number in range(kind.num_fields)]
    if pt.is_map(kind):
        children = [kind.item_field]
    return any(not child.nullable or _has_required(child.type) for child in children)


def _holds(kind: pa.DataType, is_: Callable[[pa.DataType], bool]) -> bool:
    if is_(kind):
        return True
    if pt.is_dictionary(kind):
        return _holds(kind.value_type, is_)
    kind = getattr(kind, "storage_type", kind)
    return is_(kind) or any(_holds(kind.field(n).type, is_) for n in range(kind.num_fields))


class RowShape:
    """The stored form of a table's rows: its columns, and a flag that marks a delete.

    Columns outside the primary key are nullable in it whatever the base table says, since a
    deleted row carries nothing but its key.

    Parameters
    ----------
    schema : pyarrow.Schema
        Schema of the base table, with field ids.
    primary_key : sequence of str
        Key columns.
    null_structs : bool, default True
        Whether the table's files can hold structs that are null.
    """

    def __init__(
        self, schema: pa.Schema, primary_key: Sequence[str], *, null_structs: bool = True
    ) -> None:
        self.base_schema = schema
        self._null_structs = null_structs
        self.primary_key = tuple(primary_key)
        self.schema = stored_schema(schema, primary_key)
        # What to do with rows of the schemas that were given last, by what they are for.
        self._upserts: _Plans = ()
        self._partials: _Plans = ()
        self._deletes: _Plans = ()

    def upserts(self, data: Any) -> list[pa.RecordBatch]:
        """Stored form of whole rows; no batch where there are no rows.

        Parameters
        ----------
        data : anything Arrow
            Table, record batch, reader, or an object with ``__arrow_c_stream__``. Columns in any
            order; types equal to the table's, or widened to them without loss. Columns that are
            the table's already are not copied.

        Raises
        ------
        InvalidInputError
            A column is unknown or missing, has another type, or a null where none may be.
        """
        schema, batches = _as_batches(data)
        plan = _remembered(self._upserts, schema)
        if plan is None:
            plan = self._plan_upserts(schema)
            self._upserts = _remember(self._upserts, schema, plan)
        return [
            pa.RecordBatch.from_arrays([*columns, _flags(False, rows)], schema=self.schema)
            for rows, columns in self._columns(plan, batches)
        ]

    def partial(self, data: Any) -> list[pa.RecordBatch]:
        """Rows that lack columns: those given, in the order and the types of the table.

        Parameters
        ----------
        data : anything Arrow
            As for :meth:`upserts`; the key columns and any others.

        Returns
        -------
        list of pyarrow.RecordBatch
            Their schema tells which columns were given; they have no flag.

        Raises
        ------
        InvalidInputError
            A column is unknown, has another type, or a null where none may be, or a key column is
            missing.
        """
        schema, batches = _as_batches(data)
        plan = _remembered(self._partials, schema)
        if plan is None:
            self._check_names(schema.names)
            self._check_key(schema.names)
            plan = self._plan(schema, [f for f in self.base_schema if f.name in schema.names])
            self._partials = _remember(self._partials, schema, plan)
        return [
            pa.RecordBatch.from_arrays(columns, schema=plan.given)
            for _, columns in self._columns(plan, batches)
        ]

    def deletes(self, keys: Any) -> list[pa.RecordBatch]:
        """Stored form of deleted rows: the key, nulls, and the flag.

        Parameters
        ----------
        keys : anything Arrow
            The key columns; other columns of the table may be there and are ignored. For a
            single key column, an array of its values does as well.

        Raises
        ------
        InvalidInputError
            A key column is missing, has another type or a null.
        """
        if isinstance(keys, (pa.Array, pa.ChunkedArray)) and not pt.is_struct(keys.type):
            if len(self.primary_key) != 1:
                raise InvalidInputError(
                    f"the key has columns {', '.join(self.primary_key)}; give a table of them"
                )
            keys = pa.table({self.primary_key[0]: keys})
        schema, batches = _as_batches(keys)
        plan = _remembered(self._deletes, schema)
        if plan is None:
            self._check_names(schema.names)
            self._check_key(schema.names)
            plan = self._plan(schema, [f for f in self.base_schema if f.name in self.primary_key])
            self._deletes = _remember(self._deletes, schema, plan)
        stored = []
        for rows, columns in self._columns(plan, batches):
            by_name = dict(zip(plan.given.names, columns, strict=True))
            whole = [
                by_name[field.name] if field.name in by_name else pa.nulls(rows, field.type)
                for field in self.base_schema
            ]
            whole.append(_flags(True, rows))
            stored.append(pa.RecordBatch.from_arrays(whole, schema=self.schema))
        return stored

    def adopt(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Stored form of a batch that was read from the log, whoever wrote it.

        Lance accepts reordered columns, further ones, and a missing tombstone column; so do we.
        Columns are told apart by their field ids, as far as the writer recorded them.

        Raises
        ------
        InvalidInputError
            A column is missing or cannot become the table's type.
        """
        if batch.schema.equals(self.schema, check_metadata=True):
            return [batch]
        table = pa.Table.from_batches([batch])
        if TOMBSTONE not in table.column_names:
            table = table.append_column(self.schema.field(TOMBSTONE), _flags(False, table.num_rows))
        return [part for part in align_rows(table, self.schema).to_batches() if part.num_rows]

    def _plan_upserts(self, schema: pa.Schema) -> _Plan:
        self._check_names(schema.names)
        missing = [name for name in self.base_schema.names if name not in schema.names]
        if missing:
            raise InvalidInputError(
                f"columns are missing: {', '.join(missing)}; an upsert gives whole rows, "
                "unless it is told partial=True to keep what the others have"
            )
        return self._plan(schema, list(self.base_schema))

    def _plan(self, schema: pa.Schema, fields: Sequence[pa.Field]) -> _Plan:
        """How columns of a table come from rows of a schema that has them all."""
        casts: list[pa.DataType | None] = []
        for field in fields:
            given = schema.field(field.name).type
            casts.append(None if given == field.type else field.type)
            if given != field.type and not widens(given, field.type):
                raise InvalidInputError(
                    f"column {field.name} is {given}, the table has {field.type}; cast it"
                )
        sources = [schema.get_field_index(field.name) for field in fields]
        return _Plan(
            given=pa.schema([self.schema.field(field.name) for field in fields]),
            sources=tuple(sources),
            casts=tuple(casts),
            required=tuple(
                number
                for number, field in enumerate(fields)
                if field.name in self.primary_key or not field.nullable
            ),
            checks=tuple(
                (number, found)
                for number, field in enumerate(fields)
                if (found := checks_of(field, null_structs=self._null_structs))
            ),
            is_identity=sources == list(range(len(schema))) and not any(casts),
        )

    def _columns(
        self, plan: _Plan, batches: Sequence[pa.RecordBatch]
    ) -> list[tuple[int, list[pa.Array]]]:
        """Number of rows and columns of each batch that has any, looked through for nulls."""
        made = [(b.num_rows, plan.columns_of(b)) for b in batches if b.num_rows]
        for number in plan.required:
            nulls = sum(_null_count(columns[number]) for _, columns in made)
            if nulls:
                name = plan.given.field(number).name
                what = "key column" if name in self.primary_key else "column"
                raise InvalidInputError(
                    f"{what} {name} has {nulls} null values and may have none; "
                    "drop those rows or fill them in"
                )
        for number, checks in plan.checks:
            for _, columns in made:
                check_values(plan.given.field(number).name, columns[number], checks)
        return made

    def _check_names(self, names: Sequence[str]) -> None:
        known = self.base_schema.names
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InvalidInputError(
                f"unknown columns: {', '.join(unknown)}; the table has {', '.join(known)}"
            )
        if len(set(names)) != len(names):
            raise InvalidInputError(f"a column is given twice: {', '.join(names)}")

    def _check_key(self, names: Sequence[str]) -> None:
        missing = [name for name in self.primary_key if name not in names]
        if missing:
            raise InvalidInputError(f"key columns are missing: {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class _Plan:
    """How columns of the table come from the rows of one schema.

    Attributes
    ----------
    given : pyarrow.Schema
        The columns, in stored form.
    sources : tuple of int
        Where each is in the rows.
    casts : tuple of DataType or None
        What each is to become; None for one that is in the table's type.
    required : tuple of int
        Those that may have no null.
    checks : tuple of (int, checks)
        Those whose values must be looked through.
    is_identity : bool
        Whether the rows have just these columns, in this order and these types.
    """

    given: pa.Schema
    sources: tuple[int, ...]
    casts: tuple[pa.DataType | None, ...]
    required: tuple[int, ...]
    checks: tuple[tuple[int, tuple[Check, ...]], ...]
    is_identity: bool

    def columns_of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        columns: list[pa.Array] = batch.columns
        if self.is_identity:
            return columns
        return [
            columns[source] if cast is None else widened(field.name, columns[source], cast)
            for field, source, cast in zip(self.given, self.sources, self.casts, strict=True)
        ]


# A producer gives rows of one schema or two; comparing with more costs more than planning.
_REMEMBERED: Final = 4
_Plans: TypeAlias = tuple[tuple[pa.Schema, _Plan], ...]


def _remembered(plans: _Plans, schema: pa.Schema) -> _Plan | None:
    for known, plan in plans:
        if schema.equals(known):
            return plan
    return None


def _remember(plans: _Plans, schema: pa.Schema, plan: _Plan) -> _Plans:
    """The plans with one more in front: a new tuple, since other threads read the old one."""
    return ((schema, plan), *plans[: _REMEMBERED - 1])


def _as_batches(data: Any) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    if isinstance(data, pa.RecordBatch):
        return data.schema, [data]
    if isinstance(data, pa.RecordBatchReader):
        data = data.read_all()
    elif not isinstance(data, pa.Table):
        if not hasattr(data, "__arrow_c_stream__"):
            raise InvalidInputError(
                "rows must be Arrow data (a table, a record batch, a reader), not "
                f"{type(data).__name__}; pyarrow.Table.from_pandas or from_pylist make it from "
                "others"
            )
        data = pa.table(data)
    return data.schema, data.to_batches()


# Slices of this serve most batches: a row's flag costs as much to make as the row.
_FLAGS: Final = {flag: pa.repeat(pa.scalar(flag), 1 << 16) for flag in (False, True)}


def _flags(value: bool, length: int) -> pa.Array:
    flags = _FLAGS[value]
    return flags[:length] if length <= len(flags) else pa.repeat(pa.scalar(value), length)


def _null_count(array: pa.Array) -> int:
    """How many values are null, by their own or by that of the dictionary they point into."""
    if isinstance(array, pa.DictionaryArray) and array.dictionary.null_count:
        return int(array.dictionary_decode().null_count)
    return int(array.null_count)


def stored_shape(base: BaseTable) -> RowShape:
    """What rows of a version of the table look like where they are stored."""
    return RowShape(
        base.identified_schema,
        base.primary_key,
        null_structs=base.dataset.data_storage_version not in VERSIONS_WITHOUT_NULL_STRUCTS,
    )
