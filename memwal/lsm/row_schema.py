"""Convert a caller's rows to stored rows, or refuse them.

Columns are cast to the table's types by :mod:`memwal.inputs.casts`, which refuses values that would
be other ones there. An acknowledged row must be flushed later, so values that would make the flush
fail are refused before they go to the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from memwal.base_table.blobs import find_invalid_blob, is_blob_v2
from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError, TableSetupError
from memwal.format.paths import TOMBSTONE
from memwal.format.values import VERSIONS_WITHOUT_NULL_STRUCTS, contains_type
from memwal.format.wal_layout import has_dictionaries
from memwal.inputs.casts import Cast, cast_column, misfit, plan_cast
from memwal.inputs.dictionaries import to_dictionaries
from memwal.inputs.json_text import find_invalid_json, find_refused_json
from memwal.inputs.rows import Keys, Rows, to_keys, to_rows
from memwal.lsm.logged_blobs import log_schema, to_logged
from memwal.region.rows import align_rows, stored_schema
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore
from memwal.util.arrays import Mask

# Up to this many values, converting them to Python is cheaper than releasing the GIL.
_FEW_VALUES = 4
# A producer writes rows of one or two schemas; comparing with more costs more than planning.
_MAX_CACHED_PLANS: Final = 4
# Most batches use slices of these: a row's flag takes as long to make as the row.
_TOMBSTONES: Final = {flag: pa.repeat(pa.scalar(flag), 1 << 16) for flag in (False, True)}

ValueCheck: TypeAlias = Callable[[pa.Array], str | None]
"""Returns a description of the invalid values of a column; None if all are valid."""


class RowSchema:
    """Schema of a table's stored rows, and conversion of a caller's rows to it.

    Stored rows have the table's columns and a flag that marks a delete. Columns outside the primary
    key are nullable in them even if the base table's are not, since a deleted row has only its key.
    ``schema`` is that of the base table, with field ids. Without ``null_structs`` the table's files
    cannot store null structs. ``logged`` is the schema with the types that log entries have, if
    these differ: see :mod:`memwal.inputs.dictionaries` and :mod:`memwal.lsm.logged_blobs`.
    ``unusable`` are columns of the table that stored rows do not have. External blobs must be where
    files of the table at ``location`` may be.
    """

    def __init__(
        self,
        schema: pa.Schema,
        primary_key: Sequence[str],
        *,
        null_structs: bool = True,
        logged: pa.Schema | None = None,
        unusable: Collection[str] = (),
        location: TableLocation | None = None,
    ) -> None:
        self.base_schema = schema
        self.unusable = frozenset(unusable)
        self._null_structs = null_structs
        self._location = location
        self.primary_key = tuple(primary_key)
        self.schema = stored_schema(schema, primary_key)
        self.has_dictionaries = has_dictionaries(self.schema)
        # Schema of the log entries, if it has other types.
        self.logged = None if logged is None else stored_schema(logged, primary_key)
        self._upserts = _PlanCache(self._plan_upserts)
        self._partials = _PlanCache(partial(self._plan_part, only_key=False))
        self._deletes = _PlanCache(partial(self._plan_part, only_key=True))

    @classmethod
    def of(cls, base: BaseTable) -> RowSchema:
        """Return the schema of the stored rows of a table version."""
        logged = log_schema(base.stored_schema)
        if logged is None and base.stored is not base.dataset:
            logged = base.stored_schema
        return cls(
            base.identified_schema,
            base.primary_key,
            null_structs=base.dataset.data_storage_version not in VERSIONS_WITHOUT_NULL_STRUCTS,
            logged=logged,
            unusable=base.unusable,
            location=base.location,
        )

    def is_of(self, base: BaseTable) -> bool:
        """Return whether the stored rows of a table version have this schema."""
        same = base.identified_schema.equals(self.base_schema, check_metadata=True)
        return bool(same) and self.unusable == frozenset(base.unusable)

    @property
    def store(self) -> ObjectStore | None:
        """Store of the table; None for rows of no table."""
        return None if self._location is None else self._location.store

    def convert_upserts(self, data: Rows) -> list[pa.RecordBatch]:
        """Convert whole rows to stored rows. Empty batches are dropped.

        The columns are in any order, and are cast to the table's types without loss. Columns that
        have the table's type are not copied. Raises InvalidInputError if a column is unknown or
        missing, or has a value that does not fit, or a null where none may be, or the table has no
        key.
        """
        self.check_has_key("an upsert")
        return self._whole_rows(data)

    def convert_appends(self, data: Rows) -> list[pa.RecordBatch]:
        """Convert whole rows to stored rows of a table without a primary key.

        As :meth:`convert_upserts`. Raises InvalidInputError if the table has a key.
        """
        if self.primary_key:
            raise InvalidInputError(
                f"the table has the primary key {', '.join(self.primary_key)}, so that a row may "
                "replace another: write rows with upsert, not append"
            )
        return self._whole_rows(data)

    def check_has_key(self, doing: str) -> None:
        """Raise InvalidInputError for a table without a primary key, which ``doing`` needs."""
        if not self.primary_key:
            raise InvalidInputError(
                f"the table has no primary key, which {doing} needs: write rows with append; "
                "none of them replaces another"
            )

    def _whole_rows(self, data: Rows) -> list[pa.RecordBatch]:
        given = to_rows(data, self.base_schema, self.primary_key)
        plan = self._upserts.get(given.schema)
        return [
            pa.RecordBatch.from_arrays([*columns, _tombstones(False, rows)], schema=self.schema)
            for rows, columns in self._columns(plan, given)
        ]

    def convert_partial(self, data: Rows) -> list[pa.RecordBatch]:
        """Convert the columns of partial rows to the order and the types of the table.

        They are the key columns and any others. The result has these columns, without the flag of
        stored rows. Raises InvalidInputError as :meth:`convert_upserts`, or if a key column is
        missing, or the table has no key.
        """
        self.check_has_key("a partial upsert")
        given = to_rows(data, self.base_schema, self.primary_key)
        plan = self._partials.get(given.schema)
        return [
            pa.RecordBatch.from_arrays(columns, schema=plan.schema)
            for _, columns in self._columns(plan, given)
        ]

    def convert_deletes(self, keys: Keys) -> list[pa.RecordBatch]:
        """Convert keys to stored rows that delete them: the key, nulls, and the flag.

        Other columns of the table are ignored. If there is one key column, its values are accepted
        without its name. Raises InvalidInputError if a key column is missing, or has a value that
        does not fit, or a null, or the table has no key.
        """
        self.check_has_key("a delete")
        given = to_keys(keys, self.base_schema, self.primary_key)
        plan = self._deletes.get(given.schema)
        stored = []
        for rows, columns in self._columns(plan, given):
            by_name = dict(zip(plan.schema.names, columns, strict=True))
            whole = [
                by_name[field.name] if field.name in by_name else pa.nulls(rows, field.type)
                for field in self.base_schema
            ]
            whole.append(_tombstones(True, rows))
            stored.append(pa.RecordBatch.from_arrays(whole, schema=self.schema))
        return stored

    def convert_keys(self, keys: Keys) -> pa.Table:
        """Convert the keys of a lookup to the key columns, as :meth:`convert_deletes` does."""
        given = to_keys(keys, self.base_schema, self.primary_key)
        plan = self._deletes.get(given.schema)
        batches = [
            pa.RecordBatch.from_arrays(columns, schema=plan.schema)
            for _, columns in self._columns(plan, given)
        ]
        return pa.Table.from_batches(batches, plan.schema).select(self.primary_key)

    def is_logged_schema(self, schema: pa.Schema) -> bool:
        """Return whether a batch from the log with this schema consists of stored rows as it is."""
        return self.logged is None and bool(schema.equals(self.schema, check_metadata=True))

    def convert_logged(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Convert a batch from the log, written by any client, to stored rows.

        Like Lance, accepts reordered columns, additional columns, and a missing tombstone column.
        Columns are matched by their field ids if the writer recorded them. Raises InvalidInputError
        if a column is missing or cannot be cast to the table's type, and TableSetupError if there
        are values of an unusable column.
        """
        if batch.schema.equals(self.schema, check_metadata=True):
            return [batch]
        for name in self.unusable.intersection(batch.schema.names):
            if batch.column(name).null_count < batch.num_rows:
                raise TableSetupError(
                    f"column {name} has values in unmerged rows, and memwal cannot keep columns of "
                    f"type {batch.schema.field(name).type}; flush and merge these rows with the "
                    "client that wrote them"
                )
        table = pa.Table.from_batches([batch])
        if TOMBSTONE not in table.column_names:
            table = table.append_column(
                self.schema.field(TOMBSTONE), _tombstones(False, table.num_rows)
            )
        return [part for part in align_rows(table, self.schema).to_batches() if part.num_rows]

    def find_problems(self, rows: pa.RecordBatch, *, exact: bool = False) -> dict[int, str]:
        """Return the row numbers of stored rows that cannot be flushed or merged, and why.

        Makes the checks of :meth:`convert_upserts` and :meth:`convert_deletes`, except that a null
        struct is allowed, and without ``exact`` also JSON that is stored as another value. Values
        are not in the texts.
        """
        flags = rows.column(TOMBSTONE)
        problems = {
            int(number): f"{TOMBSTONE} is null" for number in np.flatnonzero(_null_mask(flags))
        }
        deleted = np.asarray(flags.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
        upserts = np.flatnonzero(~deleted)
        for field in self.base_schema:
            column = rows.column(field.name)
            if field.name in self.primary_key:
                for number in np.flatnonzero(_null_mask(column)):
                    problems.setdefault(int(number), f"key column {field.name} is null")
                continue
            values = column.take(pa.array(upserts))
            if not field.nullable:
                for number in upserts[_null_mask(values)]:
                    problems.setdefault(int(number), f"column {field.name} is null and may not be")
            for check in _checks_for(field, None, null_structs=True, exact=exact):
                if check(values) is None:
                    continue
                for index, number in enumerate(upserts):
                    problem = check(values.slice(index, 1))
                    if problem is not None:
                        problems.setdefault(int(number), f"column {field.name} has {problem}")
        return problems

    def find_refused_json(self, rows: pa.RecordBatch) -> dict[int, str]:
        """Return the row numbers of rows with JSON that no flush can store, and why.

        Earlier versions of memwal logged such rows.
        """
        return {
            number: f"column {field.name} has {problem}"
            for field in self.base_schema
            if isinstance(field.type, pa.JsonType)
            for number, text in enumerate(rows.column(field.name).storage.to_pylist())
            if text is not None and (problem := find_refused_json(text)) is not None
        }

    def _plan_upserts(self, schema: pa.Schema) -> _ConversionPlan:
        self._check_names(schema.names)
        missing = [name for name in self.base_schema.names if name not in schema.names]
        if missing:
            unless = ", unless partial=True keeps the values of the other columns"
            raise InvalidInputError(
                f"columns are missing: {', '.join(missing)}; give whole rows"
                f"{unless if self.primary_key else ''}"
            )
        return self._plan(schema, list(self.base_schema))

    def _plan_part(self, schema: pa.Schema, *, only_key: bool) -> _ConversionPlan:
        self._check_names(schema.names)
        self._check_key(schema.names)
        names = self.primary_key if only_key else schema.names
        return self._plan(schema, [f for f in self.base_schema if f.name in names])

    def _plan(self, schema: pa.Schema, fields: Sequence[pa.Field]) -> _ConversionPlan:
        """Plan the conversion of rows that have all these columns."""
        sources = [schema.get_field_index(field.name) for field in fields]
        casts: list[Cast | None] = []
        misfits = []
        for number, (field, source) in enumerate(zip(fields, sources, strict=True)):
            given = schema.field(source).type
            casts.append(None if given == field.type else plan_cast(given, field.type))
            if casts[-1] is None and given != field.type:
                misfits.append(number)
        return _ConversionPlan(
            schema=pa.schema([self.schema.field(field.name) for field in fields]),
            sources=tuple(sources),
            casts=tuple(casts),
            misfits=tuple(misfits),
            required=tuple(
                number
                for number, field in enumerate(fields)
                if field.name in self.primary_key or not field.nullable
            ),
            checks=tuple(
                (number, checks)
                for number, field in enumerate(fields)
                if (
                    checks := _checks_for(
                        field, self._location, null_structs=self._null_structs, exact=True
                    )
                )
            ),
            is_identity=sources == list(range(len(schema))) and not any(casts),
        )

    def _columns(
        self, plan: _ConversionPlan, given: pa.Table | pa.RecordBatch
    ) -> list[tuple[int, list[pa.Array]]]:
        """Convert and check rows; return the number and columns of each batch that has any."""
        if plan.misfits:
            raise _misfit(plan, given)
        batches = [given] if isinstance(given, pa.RecordBatch) else given.to_batches()
        converted = []
        start = 0
        for batch in batches:
            if batch.num_rows:
                converted.append((batch.num_rows, plan.columns_of(batch, start)))
                start += batch.num_rows
        for number in plan.required:
            nulls = sum(_null_count(columns[number]) for _, columns in converted)
            if nulls:
                name = plan.schema.field(number).name
                what = "key column" if name in self.primary_key else "column"
                masks = [_null_mask(columns[number]) for _, columns in converted]
                raise InvalidInputError(
                    f"{what} {name} has {nulls} null values and may have none, the first in row "
                    f"{np.flatnonzero(np.concatenate(masks))[0]} (rows count from 0); "
                    "drop those rows or fill them in"
                )
        for number, checks in plan.checks:
            for _, columns in converted:
                _check_values(plan.schema.field(number).name, columns[number], checks)
        if self.logged is not None:
            logged = pa.schema([self.logged.field(name) for name in plan.schema.names])
            for _, columns in converted:
                rows = pa.RecordBatch.from_arrays(columns, schema=plan.schema)
                to_dictionaries(to_logged(rows), logged)
        return converted

    def _check_names(self, names: Sequence[str]) -> None:
        existing = self.base_schema.names
        unknown = [name for name in names if name not in existing]
        if unknown:
            raise InvalidInputError(
                f"unknown columns: {', '.join(unknown)}; the table has {', '.join(existing)}"
            )
        if len(set(names)) != len(names):
            raise InvalidInputError(f"a column is given twice: {', '.join(names)}")

    def _check_key(self, names: Sequence[str]) -> None:
        missing = [name for name in self.primary_key if name not in names]
        if missing:
            raise InvalidInputError(f"key columns are missing: {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class _ConversionPlan:
    """How to convert rows of one schema to columns of the table."""

    schema: pa.Schema  # of the resulting columns
    sources: tuple[int, ...]  # index of each column in the rows
    # Cast of each column to the table's type; None if it has that type.
    casts: tuple[Cast | None, ...]
    misfits: tuple[int, ...]  # indices of the columns whose type does not fit at all
    required: tuple[int, ...]  # indices of the columns that must not have nulls
    checks: tuple[tuple[int, tuple[ValueCheck, ...]], ...]  # columns whose values must be checked
    is_identity: bool  # whether the rows have exactly these columns, in this order and these types

    def columns_of(self, batch: pa.RecordBatch, start: int) -> list[pa.Array]:
        """Return the converted columns of a batch whose first row is row ``start``."""
        columns: list[pa.Array] = batch.columns
        if self.is_identity:
            return columns
        return [
            columns[source]
            if cast is None
            else cast_column(field.name, cast, columns[source], field.type, start)
            for field, source, cast in zip(self.schema, self.sources, self.casts, strict=True)
        ]


def check_row_sizes(batches: Iterable[pa.RecordBatch], max_bytes: int) -> None:
    """Refuse rows that have more than ``max_bytes`` in memory, without their dictionaries."""
    start = 0
    for batch in batches:
        # The buffers of a slice hold other rows too. To count its own bytes takes far longer.
        if batch.get_total_buffer_size() <= max_bytes:
            start += batch.num_rows
            continue
        names = [field.name for field in batch.schema if not has_dictionaries([field])]
        # Parts that are large as a whole, each with its place.
        parts = [(start, batch.select(names))]
        while parts:
            first, part = parts.pop()
            if part.nbytes <= max_bytes:
                continue
            if part.num_rows == 1:
                raise InvalidInputError(
                    f"row {first} (the first is 0) has {part.nbytes} bytes, and max_row_bytes is "
                    f"{max_bytes}: raise that option of the writer, or store large values as "
                    "external blobs (lance.Blob.from_uri in a column of type lance.blob.v2)"
                )
            middle = part.num_rows // 2
            parts += [(first + middle, part.slice(middle)), (first, part.slice(0, middle))]
        start += batch.num_rows


class _PlanCache:
    """Conversion plans for the latest schemas of one kind of input."""

    def __init__(self, make_plan: Callable[[pa.Schema], _ConversionPlan]) -> None:
        self._make_plan = make_plan
        self._plans: tuple[tuple[pa.Schema, _ConversionPlan], ...] = ()

    def get(self, schema: pa.Schema) -> _ConversionPlan:
        """Return the plan for a schema, made unless it is cached."""
        for planned_schema, plan in self._plans:
            if schema.equals(planned_schema):
                return plan
        plan = self._make_plan(schema)
        # A new tuple, since other threads read the old one.
        self._plans = ((schema, plan), *self._plans[: _MAX_CACHED_PLANS - 1])
        return plan


def _misfit(plan: _ConversionPlan, given: pa.Table | pa.RecordBatch) -> InvalidInputError:
    """Return the error for a column whose type does not fit, with its first value if it has one."""
    number = plan.misfits[0]
    field = plan.schema.field(number)
    column = given.column(plan.sources[number])
    present = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    if not len(present):
        return InvalidInputError(
            f"column {field.name} is {column.type}, the table has {field.type}; cast it"
        )
    row = int(present[0])
    return misfit(field.name, row, column[row], field.type)


def _checks_for(
    field: pa.Field, location: TableLocation | None, *, null_structs: bool, exact: bool
) -> tuple[ValueCheck, ...]:
    """Return the checks that the values of a column need; none for most types."""
    if is_blob_v2(field):
        return (partial(find_invalid_blob, location),)
    checks: list[ValueCheck] = []
    if contains_type(field.type, lambda kind: pt.is_string(kind) or pt.is_large_string(kind)):
        checks.append(_find_invalid_utf8)
    if contains_type(field.type, lambda kind: isinstance(kind, pa.JsonType)):
        checks.append(partial(find_invalid_json, exact=exact))
    if _has_required(field.type) or (not null_structs and contains_type(field.type, pt.is_struct)):
        checks.append(lambda values: _find_forbidden_null(values, field, null_structs))
    return tuple(checks)


def _check_values(name: str, values: pa.Array, checks: Iterable[ValueCheck]) -> None:
    """Refuse values that a flush could not write; the message shows none."""
    for check in checks:
        problem = check(values)
        if problem is not None:
            raise InvalidInputError(f"column {name} has {problem}; correct or drop those rows")


def _find_invalid_utf8(values: pa.Array) -> str | None:
    try:
        if len(values) <= _FEW_VALUES and not pt.is_dictionary(values.type):
            # validate() releases the GIL, which costs more for a few values.
            values.to_pylist()
        else:
            values.validate(full=True)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return "text that is not valid UTF-8"
    return None


def _find_forbidden_null(values: pa.Array, field: pa.Field, null_structs: bool) -> str | None:
    """Find nulls in required children, and null structs if the files cannot store them."""
    values = getattr(values, "storage", values)
    kind = values.type
    if pt.is_struct(kind):
        if values.null_count and not null_structs:
            return "null structs, which the table's file version cannot store"
        # The children of a null struct are null, even required ones.
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
            return f"nulls in {child.name}, which is not nullable"
        problem = _find_forbidden_null(part, child, null_structs)
        if problem is not None:
            return problem
    return None


def _has_required(kind: pa.DataType) -> bool:
    kind = getattr(kind, "storage_type", kind)
    children = [kind.field(number) for number in range(kind.num_fields)]
    if pt.is_map(kind):
        children = [kind.item_field]
    return any(not child.nullable or _has_required(child.type) for child in children)


def _tombstones(value: bool, length: int) -> pa.Array:
    flags = _TOMBSTONES[value]
    return flags[:length] if length <= len(flags) else pa.repeat(pa.scalar(value), length)


def _null_count(array: pa.Array) -> int:
    """Count the null values, including indices of a null in their dictionary."""
    if isinstance(array, pa.DictionaryArray) and array.dictionary.null_count:
        return int(array.dictionary_decode().null_count)
    return int(array.null_count)


def _null_mask(array: pa.Array) -> Mask:
    """Mark the null values, including indices of a null in their dictionary."""
    decoded = array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array
    return np.asarray(decoded.is_null().to_numpy(zero_copy_only=False), np.bool_)
