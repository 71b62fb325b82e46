"""Region values: their types, and their encodings in manifests and in region ids.

In a manifest, values are encoded as Lance does: fixed-width values as Arrow stores them,
little-endian, booleans as one byte, text as UTF-8. Nulls are omitted.

The id of a region is derived from its values, and must not change when the column gets a wider
type. The encoding in an id is therefore that of the *meaning*: a letter for the kind, and the value
in one form for all widths and units of that kind. Spec: Region Spec, requirement 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.expressions.date_parts import UNITS_PER_SECOND
from memwal.format.values import is_binary, is_text

# Lance's names of the types that it supports.
_SIMPLE: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "utf8": pa.string(),
    "large_utf8": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32": pa.date32(),
    "date64": pa.date64(),
}

_SIMPLE_NAMES: Final = {data_type: name for name, data_type in _SIMPLE.items()}
_TIME: Final = re.compile(r"(?:time32\((s|ms)\)|time64\((us|ns)\))")
_TIMESTAMP: Final = re.compile(r"timestamp\((s|ms|us|ns)(?:, ?([^()]+))?\)")
_DECIMAL: Final = re.compile(r"decimal(128|256)\((\d{1,2}), ?(-?\d{1,2})\)")
_FIXED: Final = re.compile(r"fixed_size_binary\((\d{1,9})\)")

VALUE_TYPES: Final = (
    f"{', '.join(_SIMPLE)}, time32(s), time64(us), timestamp(us), timestamp(us, UTC), "
    "decimal128(10, 2), fixed_size_binary(16)"
)
"""Names of the types that a region value can have, for messages."""

_NULL_IN_ID: Final = b"0" + bytes(4)


def type_name(data_type: pa.DataType) -> str | None:
    """Return the name of a type in a stored region spec; None if a region value cannot have it.

    Floats are not supported: -0, NaN and rounding make them unsuitable to identify a region.
    """
    if data_type in _SIMPLE_NAMES:
        return _SIMPLE_NAMES[data_type]
    if pt.is_time(data_type):
        return f"time{data_type.bit_width}({data_type.unit})"
    if pt.is_timestamp(data_type):
        zone = f", {data_type.tz}" if data_type.tz else ""
        return f"timestamp({data_type.unit}{zone})"
    if pt.is_decimal128(data_type) or pt.is_decimal256(data_type):
        return f"decimal{data_type.bit_width}({data_type.precision}, {data_type.scale})"
    if pt.is_fixed_size_binary(data_type):
        return f"fixed_size_binary({data_type.byte_width})"
    return None


def parse_type(name: str) -> pa.DataType:
    """Return the type with a name from :func:`type_name`.

    Raises InvalidInputError if no type of a region value has this name.
    """
    if name in _SIMPLE:
        return _SIMPLE[name]
    try:
        if match := _TIME.fullmatch(name):
            return pa.time32(match[1]) if match[1] else pa.time64(match[2])
        if match := _TIMESTAMP.fullmatch(name):
            return pa.timestamp(match[1], match[2])
        if match := _DECIMAL.fullmatch(name):
            decimal_type = pa.decimal128 if match[1] == "128" else pa.decimal256
            return decimal_type(int(match[2]), int(match[3]))
        if match := _FIXED.fullmatch(name):
            return pa.binary(int(match[1]))
    except ValueError as error:
        raise InvalidInputError(f"{name!r} is not a type: {error}") from error
    raise InvalidInputError(f"no region value has a type {name!r}; it can be one of: {VALUE_TYPES}")


def encode_values(values: pa.Array) -> list[bytes | None]:
    """Encode each value as in a region manifest; null becomes None and is not stored."""
    data_type = values.type
    encoded: list[bytes | None]
    if pt.is_null(data_type):
        return [None] * len(values)
    if pt.is_boolean(data_type):
        return [None if value is None else bytes([value]) for value in values.to_pylist()]
    if _is_bytes(data_type):
        encoded = values.cast(pa.large_binary()).to_pylist()
        return encoded
    width = data_type.byte_width
    start = values.offset * width
    data = values.buffers()[1][start : start + len(values) * width].to_pybytes()
    encoded = [data[at : at + width] for at in range(0, len(data), width)]
    if values.null_count:
        valid = values.is_valid().to_pylist()
        return [value if is_valid else None for value, is_valid in zip(encoded, valid, strict=True)]
    return encoded


def decode_values(stored: Sequence[bytes | None], data_type: pa.DataType) -> pa.Array:
    """Decode values from region manifests; None, which is not stored, becomes null.

    Raises CorruptDataError if a value does not have this type.
    """
    if not _is_bytes(data_type):
        width = 1 if pt.is_boolean(data_type) else data_type.byte_width
        wrong = next((value for value in stored if value is not None and len(value) != width), None)
        if wrong is not None:
            raise CorruptDataError(
                f"a region value of {len(wrong)} bytes is not a valid {data_type}; look at the "
                "manifest of the region"
            )
    if pt.is_boolean(data_type):
        return pa.array([None if value is None else value != b"\x00" for value in stored])
    if is_text(data_type):
        try:
            return pa.array(stored, pa.large_binary()).cast(data_type)
        except pa.ArrowInvalid as error:
            raise CorruptDataError(f"a region value is not a valid text: {error}") from error
    if _is_bytes(data_type):
        return pa.array(stored, data_type)
    fixed = pa.array(stored, pa.binary(data_type.byte_width))
    return pa.Array.from_buffers(data_type, len(fixed), fixed.buffers(), fixed.null_count)


def encode_for_id(values: pa.Array) -> list[bytes]:
    """Encode each value as in a region id: kind, length and meaning; null has its own code."""
    data_type = values.type
    if pt.is_null(data_type):
        return [_NULL_IN_ID] * len(values)
    kind, meanings = _canonical_values(values, data_type)
    return [
        _NULL_IN_ID if meaning is None else kind + len(meaning).to_bytes(4, "little") + meaning
        for meaning in meanings
    ]


def _canonical_values(values: pa.Array, data_type: pa.DataType) -> tuple[bytes, list[bytes | None]]:
    if pt.is_boolean(data_type):
        return b"?", encode_values(values)
    if pt.is_integer(data_type):
        # 16 bytes hold every integer, signed or not.
        return b"i", _each(
            values.to_pylist(), lambda value: value.to_bytes(16, "little", signed=True)
        )
    if is_text(data_type):
        return b"s", encode_values(values)
    if _is_bytes(data_type) or pt.is_fixed_size_binary(data_type):
        return b"b", encode_values(values)
    if pt.is_decimal(data_type):
        return b"n", _each(values.to_pylist(), _encode_decimal)
    if pt.is_date32(data_type):
        return b"d", _each(
            values.view(pa.int32()).to_pylist(), lambda day: _encode_instant(day * 86_400, 0)
        )
    unit = "ms" if pt.is_date64(data_type) else data_type.unit
    per_second = UNITS_PER_SECOND[unit]
    kind = b"d" if pt.is_date64(data_type) else b"h" if pt.is_time(data_type) else b"t"
    integers = values.view(pa.int32() if data_type.bit_width == 32 else pa.int64())

    def encode(value: int) -> bytes:
        seconds, rest = divmod(value, per_second)
        return _encode_instant(seconds, rest * (10**9 // per_second))

    return kind, _each(integers.to_pylist(), encode)


def _encode_instant(seconds: int, nanoseconds: int) -> bytes:
    return seconds.to_bytes(8, "little", signed=True) + nanoseconds.to_bytes(4, "little")


def _encode_decimal(value: Decimal) -> bytes:
    """Encode the digits without trailing zeros, and the exponent; no context rounds them."""
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    significant = text.rstrip("0")
    if not significant:
        return b"0"
    point = int(exponent) + len(text) - len(significant)
    return f"{'-' if sign else ''}{significant}e{point}".encode()


def _each(values: list[object], encode: Callable[..., bytes]) -> list[bytes | None]:
    return [None if value is None else encode(value) for value in values]


def _is_bytes(data_type: pa.DataType) -> bool:
    return is_text(data_type) or is_binary(data_type)
