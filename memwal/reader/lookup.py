"""Point lookup: the newest row of each of many keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.reader.newest import NewestRows
from memwal.reader.scan import output_schema, project
from memwal.reader.sources import ReadSources
from memwal.region.newest import key_column, newest_rows
from memwal.table_index.base_table import BaseTable

# More keys than this are looked up by one pass over the key column instead of a predicate.
_MAX_PREDICATE_KEYS = 5_000


def lookup(
    sources: ReadSources,
    newest: NewestRows,
    keys: pa.Table,
    *,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Rows of the given keys.

    Parameters
    ----------
    sources, newest
        See :func:`memwal.reader.scan.collect_newest`.
    keys : pyarrow.Table
        The key columns, in the table's types and without nulls.
    columns : sequence of str, optional
        Columns to return; all by default.

    Returns
    -------
    pyarrow.Table
        One row per key that exists, in the order of ``keys``; a key that is given twice is
        answered once.
    """
    base = sources.base
    schema = output_schema(base, columns)
    wanted = key_column(keys, base.primary_key)
    distinct = pa.array(newest_rows(wanted))
    wanted, keys = wanted.take(distinct), keys.take(distinct)
    in_generations = pc.index_in(wanted, value_set=newest.keys)
    known = pc.is_valid(in_generations)
    parts = _from_generations(sources, newest, in_generations, known, schema, base)
    rest = keys.filter(pc.invert(known))
    if rest.num_rows:
        parts.extend(_from_base(base, rest, schema))
    names = _with_keys(schema, base.primary_key)
    if not parts:
        return schema.empty_table()
    found = pa.concat_tables([part.select(names) for part in parts])
    order = pc.sort_indices(pc.index_in(key_column(found, base.primary_key), value_set=wanted))
    rows = found.take(order).combine_chunks()
    return pa.Table.from_batches([project(batch, schema) for batch in rows.to_batches()], schema)


def _from_generations(
    sources: ReadSources,
    newest: NewestRows,
    positions: pa.Array,
    known: pa.Array,
    schema: pa.Schema,
    base: BaseTable,
) -> list[pa.Table]:
    at = positions.filter(known).to_numpy()
    at = at[~newest.deleted[at]]
    parts = []
    for number in np.unique(newest.source[at]):
        addresses = newest.addresses[at[newest.source[at] == number]]
        dataset = sources.generations[number].dataset
        rows = dataset._take_rows(addresses.tolist(), columns=_with_keys(schema, base.primary_key))
        parts.append(_in_base_types(rows, base))
    return parts


def _from_base(base: BaseTable, keys: pa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
    names = _with_keys(schema, base.primary_key)
    wanted = key_column(keys, base.primary_key)
    if keys.num_rows <= _MAX_PREDICATE_KEYS:
        predicate = " and ".join(
            f"{_quoted(name)} in ({', '.join(_literals(keys.column(name)))})"
            for name in base.primary_key
        )
        rows = base.dataset.scanner(columns=names, filter=predicate).to_table()
        # Of a composite key the predicate lets through every combination of the columns.
        exact = pc.is_in(key_column(rows, base.primary_key), value_set=wanted)
        yield _in_base_types(rows.filter(exact), base)
        return
    scanner = base.dataset.scanner(columns=list(base.primary_key), with_row_id=True)
    matching = []
    for batch in scanner.to_batches():
        hit = pc.is_in(key_column(batch, base.primary_key), value_set=wanted)
        matching.append(batch.column("_rowid").filter(hit))
    row_ids = pa.chunked_array(matching, pa.uint64()).to_pylist()
    if row_ids:
        yield _in_base_types(base.dataset._take_rows(row_ids, columns=names), base)


def _with_keys(schema: pa.Schema, primary_key: Sequence[str]) -> list[str]:
    return [*schema.names, *(key for key in primary_key if key not in schema.names)]


def _in_base_types(rows: pa.Table, base: BaseTable) -> pa.Table:
    schema = pa.schema([base.schema.field(name) for name in rows.column_names])
    return pa.Table.from_arrays(rows.columns, schema=schema)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literals(column: pa.ChunkedArray) -> list[str]:
    kind = column.type
    if pt.is_boolean(kind):
        return ["true" if value else "false" for value in column.to_pylist()]
    if pt.is_integer(kind):
        # The parser takes the digits of the smallest one for a float.
        smallest = -(1 << 63)
        return [
            f"cast('{value}' as bigint)" if value == smallest else str(value)
            for value in column.to_pylist()
        ]
    if pt.is_string(kind) or pt.is_large_string(kind):
        return ["'" + value.replace("'", "''") + "'" for value in column.to_pylist()]
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return ["X'" + value.hex() + "'" for value in column.to_pylist()]
    raise InvalidInputError(f"a key of type {kind} cannot be looked up")
