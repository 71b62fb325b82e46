"""Schemas and region specs as a command line gives them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memwal.errors import InvalidInputError
from memwal.given_data import is_unicode, read_json

if TYPE_CHECKING:
    import pyarrow as pa

    from memwal.region.spec import RegionSpec

TYPES_HELP = (
    "int64, string, float32, bool, binary, date32, timestamp[us], timestamp[us, UTC], "
    "decimal128(10, 2), list<string>, float32[128] for a vector, ..."
)

REGIONS_HELP = (
    "bucket:COLUMN:N, multi_bucket:COLUMN,COLUMN:N, identity:COLUMN, truncate:COLUMN:WIDTH, "
    "year:COLUMN, month:COLUMN, day:COLUMN, hour:COLUMN, expression:TYPE:COLUMN,COLUMN:SQL over "
    "col0, col1 and so on, unsharded, or manual"
)

_EXPRESSION = re.compile(r"([^:]+):([^:]+):(.+)", re.DOTALL)
_VECTOR = re.compile(r"(.+)\[([1-9][0-9]{0,8})\]")
_LIST = re.compile(r"list<(.+)>")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), ?([^\]]+)\]")
_DECIMAL = re.compile(r"decimal(128|256)\(([0-9]{1,3}), ?(-?[0-9]{1,3})\)")
_LONGEST_TYPE = 200
_NUMBER = re.compile(r"[0-9]{1,19}")


def schema_from(file: Path | None, columns: Sequence[str] | None) -> pa.Schema:
    """Schema from a file, or from columns of the form ``name:type``.

    Raises
    ------
    InvalidInputError
        Neither or both are given, or one of them cannot be read.
    """
    import pyarrow as pa

    if (file is None) == (not columns):
        raise InvalidInputError("give the columns either as --schema FILE or as --column NAME:TYPE")
    if file is not None:
        return _read_schema(file)
    fields = []
    for column in columns or ():
        name, separator, text = column.rpartition(":")
        if not separator or not name or not is_unicode(name):
            raise InvalidInputError(f"column {column!r} is not of the form NAME:TYPE")
        fields.append(pa.field(name, parse_type(text.strip())))
    return pa.schema(fields)


def parse_type(text: str) -> pa.DataType:
    """Arrow type of a text such as ``int64``, ``float32[128]`` or ``list<string>``.

    Raises
    ------
    InvalidInputError
        No type is called that.
    """
    import pyarrow as pa

    if len(text) > _LONGEST_TYPE:
        raise InvalidInputError(f"a type of {len(text)} characters is none; known are {TYPES_HELP}")
    if found := _LIST.fullmatch(text):
        return pa.list_(parse_type(found[1]))
    if found := _VECTOR.fullmatch(text):
        return pa.list_(parse_type(found[1]), int(found[2]))
    try:
        if found := _ZONED.fullmatch(text):
            return pa.timestamp(found[1], tz=found[2])
        if found := _DECIMAL.fullmatch(text):
            make = pa.decimal128 if found[1] == "128" else pa.decimal256
            return make(int(found[2]), int(found[3]))
        return pa.type_for_alias(text)
    except ValueError as error:
        raise InvalidInputError(f"{text!r} is not a type; known are {TYPES_HELP}") from error


def parse_regions(texts: Sequence[str]) -> RegionSpec | None:
    """Region spec of one text, or of several whose values name a region together.

    Returns
    -------
    RegionSpec or None
        None for ``manual``.

    Raises
    ------
    InvalidInputError
        A text is none of :data:`REGIONS_HELP`, or says what no region spec can be.
    """
    from memwal.region.spec import RegionSpec

    if list(texts) == ["manual"]:
        return None
    parts = [_parse_region_field(text) for text in texts]
    return parts[0] if len(parts) == 1 else RegionSpec.combine(*parts)


def _parse_region_field(text: str) -> RegionSpec:
    from memwal.region.spec import RegionSpec

    plain = text.removeprefix("immutable:")
    immutable = plain != text
    kind, _, rest = plain.partition(":")
    # Column names may have colons in them, numbers and types have none.
    columns, _, number = rest.rpartition(":")
    match kind:
        case "bucket" if columns and _NUMBER.fullmatch(number):
            return RegionSpec.bucket(columns, int(number), immutable=immutable)
        case "multi_bucket" if columns and _NUMBER.fullmatch(number):
            return RegionSpec.multi_bucket(columns.split(","), int(number), immutable=immutable)
        case "truncate" if columns and _NUMBER.fullmatch(number):
            return RegionSpec.truncate(columns, int(number), immutable=immutable)
        case "identity" | "year" | "month" | "day" | "hour" if rest:
            made: RegionSpec = getattr(RegionSpec, kind)(rest, immutable=immutable)
            return made
        case "expression" if found := _EXPRESSION.fullmatch(rest):
            return RegionSpec.expression(
                found[3], found[2].split(","), parse_type(found[1]), immutable=immutable
            )
        case "unsharded" if plain == text == "unsharded":
            return RegionSpec.unsharded()
    raise InvalidInputError(f"{text!r} does not divide a table; give {REGIONS_HELP}")


def _read_schema(file: Path) -> pa.Schema:
    import pyarrow as pa

    readers = {
        ".parquet": _parquet,
        ".json": _json,
        **dict.fromkeys((".arrow", ".feather", ".ipc", ".arrows"), _arrow),
    }
    read = readers.get(file.suffix.lower())
    if read is None:
        raise InvalidInputError(f"cannot tell what {file} is: name it {', '.join(sorted(readers))}")
    try:
        return read(file)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InvalidInputError(f"cannot read a schema from {file}: {error}") from error


def _parquet(file: Path) -> pa.Schema:
    import pyarrow.parquet as pq

    return pq.read_schema(file).remove_metadata()


def _arrow(file: Path) -> pa.Schema:
    import pyarrow as pa

    with pa.memory_map(str(file)) as source:
        try:
            return pa.ipc.open_file(source).schema.remove_metadata()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).schema.remove_metadata()


def _json(file: Path) -> pa.Schema:
    from lance.schema import json_to_schema

    description = read_json(file.read_text(encoding="utf-8"))
    try:
        return json_to_schema(description)
    except BaseException as error:
        # Lance takes what it expects for granted; a panic of its own is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"it does not describe a schema as Lance does ({error})") from error
