"""Rows in request bodies: JSON, a list of objects, or an Arrow IPC stream."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
from fastapi import Request

from memwal.errors import InvalidInputError

ARROW = "application/vnd.apache.arrow.stream"
MAX_BYTES = 16 << 20


class BodyTooLargeError(Exception):
    """The body must be sent in smaller parts."""


def to_arrow(rows: pa.Table) -> bytes:
    """Encode rows as a body."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue().to_pybytes()


async def read_rows(request: Request, schema: pa.Schema) -> pa.Table:
    """Read the rows of an untrusted body.

    Raises
    ------
    InvalidInputError
        The body contains no rows of this schema.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise BodyTooLargeError(f"send at most {MAX_BYTES:,} bytes at once")
    is_arrow = request.headers.get("content-type") == ARROW
    try:
        rows = _from_arrow(bytes(body), schema) if is_arrow else _from_json(body, schema)
        _check_finite(rows)
        return rows
    except (ValueError, TypeError, KeyError, AttributeError, OSError, pa.ArrowException) as error:
        columns = ", ".join(schema.names)
        raise InvalidInputError(f"these are no rows of {columns}: {error}") from error


def _from_arrow(body: bytes, schema: pa.Schema) -> pa.Table:
    rows = pa.ipc.open_stream(body).read_all()
    rows.validate(full=True)
    return rows.select(schema.names).cast(schema)


def _check_finite(rows: pa.Table) -> None:
    """Refuse what an answer in JSON could not say."""
    for name in rows.column_names:
        column = rows.column(name)
        if pa.types.is_floating(column.type) and pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise ValueError(f"{name} has a number that is not finite")


def _from_json(body: bytearray, schema: pa.Schema) -> pa.Table:
    rows = json.loads(body)
    unknown = {name for row in rows for name in row} - set(schema.names)
    if unknown:
        raise ValueError(f"unknown columns {', '.join(sorted(unknown))}")
    return pa.Table.from_pylist(rows, schema=schema)
