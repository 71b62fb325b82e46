"""Region specs and Arrow types as text: ``bucket:id:4``, ``timestamp[us, UTC]``.

Arrow is imported when a text is parsed: the command line shows the forms without it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memwal.errors import InvalidInputError

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

UNSHARDED = "unsharded"
"""Text of the spec that keeps all rows in one region."""

AS_BEFORE = "as before"
"""Text of the specs that the regions of a table were made for; ``unsharded`` without regions."""

_EXPRESSION = re.compile(r"([^:]+):([^:]+):(.+)", re.DOTALL)
_VECTOR = re.compile(r"(.+)\[([1-9][0-9]{0,8})\]")
_LIST = re.compile(r"list<(.+)>")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), ?([^\]]+)\]")
_DECIMAL = re.compile(r"decimal(128|256)\(([0-9]{1,3}), ?(-?[0-9]{1,3})\)")
_MAX_TYPE = 200
_NUMBER = re.compile(r"[0-9]{1,19}")


def as_region_spec(spec: RegionSpec | str) -> RegionSpec:
    """Return a region spec that is given as such, or as a text of one of its forms."""
    return _parse_region_field(spec) if isinstance(spec, str) else spec


def parse_type(text: str) -> pa.DataType:
    """Parse an Arrow type such as ``int64``, ``float32[128]`` or ``list<string>``."""
    import pyarrow as pa

    if len(text) > _MAX_TYPE:
        raise InvalidInputError(f"a type of {len(text)} characters is none; known are {TYPES_HELP}")
    if match := _LIST.fullmatch(text):
        return pa.list_(parse_type(match[1]))
    if match := _VECTOR.fullmatch(text):
        return pa.list_(parse_type(match[1]), int(match[2]))
    try:
        if match := _ZONED.fullmatch(text):
            return pa.timestamp(match[1], tz=match[2])
        if match := _DECIMAL.fullmatch(text):
            make = pa.decimal128 if match[1] == "128" else pa.decimal256
            return make(int(match[2]), int(match[3]))
        return pa.type_for_alias(text)
    except ValueError as error:
        raise InvalidInputError(f"{text!r} is not a type; known are {TYPES_HELP}") from error


def parse_regions(texts: Sequence[str]) -> RegionSpec | None:
    """Parse a region spec, or several whose values name a region together; None for ``manual``.

    :data:`REGIONS_HELP` lists the forms.
    """
    from memwal.region.spec import RegionSpec

    if list(texts) == ["manual"]:
        return None
    parts = [_parse_region_field(text) for text in texts]
    return parts[0] if len(parts) == 1 else RegionSpec.combine(*parts)


def _parse_region_field(text: str) -> RegionSpec:
    from memwal.region.spec import RegionSpec

    unprefixed = text.removeprefix("immutable:")
    immutable = unprefixed != text
    kind, _, rest = unprefixed.partition(":")
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
            spec: RegionSpec = getattr(RegionSpec, kind)(rest, immutable=immutable)
            return spec
        case "expression" if match := _EXPRESSION.fullmatch(rest):
            return RegionSpec.expression(
                match[3], match[2].split(","), parse_type(match[1]), immutable=immutable
            )
        case "unsharded" if unprefixed == text == UNSHARDED:
            return RegionSpec.unsharded()
    raise InvalidInputError(f"{text!r} does not divide a table; give {REGIONS_HELP}")
