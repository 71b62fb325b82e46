"""Changes of protobuf messages, field by field, at any depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from fuzz.byte_changes import ODD_NUMBERS, ODD_TEXTS

_VARINT: Final = 0
_FIXED_64: Final = 1
_BYTES: Final = 2
_FIXED_32: Final = 5
_WIDTHS: Final = {_FIXED_64: 8, _FIXED_32: 4}
_DEEPEST: Final = 6


@dataclass
class Field:
    """A field of a message as it stands in the bytes.

    Attributes
    ----------
    number, wire : int
    value : int, bytes or list of Field
        A list where the bytes can be read as a message.
    """

    number: int
    wire: int
    value: int | bytes | list[Field]


def message(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Change one field of a message, or of one inside it."""
    fields = parse(data)
    if not fields:
        return data
    _change(dice, _some_message(dice, fields), samples)
    return serialize(fields)


def _some_message(dice: Random, fields: list[Field]) -> list[Field]:
    inner = [field.value for field in fields if isinstance(field.value, list) and field.value]
    if inner and dice.random() < 0.7:
        return _some_message(dice, dice.choice(inner))
    return fields


def _change(dice: Random, fields: list[Field], samples: Sequence[bytes]) -> None:
    at = dice.randrange(len(fields))
    field = fields[at]
    match dice.randrange(9):
        case 0:
            fields.insert(dice.randint(0, len(fields)), field)
        case 1:
            del fields[at]
        case 2:
            # Of another kind than the schema says.
            fields[at] = dice.choice((_number(dice, field), _text(dice, field)))
        case 3:
            fields[at] = Field(
                dice.choice((1, 2, 8, 15, 16, 99, 2**29 - 1)), field.wire, field.value
            )
        case 4:
            fields[at] = Field(
                field.number, _BYTES, nested(field, dice.choice((2, 50, 101, 3_000)))
            )
        case 5:
            fields += [field] * dice.choice((2, 100, 2_000))
        case 6:
            fields += parse(dice.choice(samples)) or []
        case 7 if field.wire == _VARINT:
            fields[at] = _number(dice, field)
        case _:
            fields[at] = _text(dice, field) if field.wire == _BYTES else _number(dice, field)


def _number(dice: Random, field: Field) -> Field:
    return Field(field.number, _VARINT, dice.choice((*ODD_NUMBERS, 2**70)))


def _text(dice: Random, field: Field) -> Field:
    texts = [text.encode() for text in ODD_TEXTS]
    odd = (*texts, b"\xff\xfe", dice.randbytes(16), dice.randbytes(15), b"\0" * 16)
    return Field(field.number, _BYTES, dice.choice(odd))


def nested(field: Field, depth: int) -> bytes:
    """A field inside itself, again and again."""
    inner = serialize([field])
    for _ in range(depth):
        inner = _tag(field.number, _BYTES) + varint(len(inner)) + inner
    return inner


def parse(data: bytes, depth: int = 0) -> list[Field] | None:
    """Fields of a message; None when the bytes are none."""
    fields: list[Field] = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        wire = tag & 7
        if at < 0 or tag >> 3 == 0:
            return None
        value: int | bytes | list[Field]
        if wire == _VARINT:
            value, at = _read_varint(data, at)
            if at < 0:
                return None
        else:
            length = _WIDTHS.get(wire, -1)
            if wire == _BYTES:
                length, at = _read_varint(data, at)
            if at < 0 or length < 0 or at + length > len(data):
                return None
            piece = data[at : at + length]
            inner = parse(piece, depth + 1) if wire == _BYTES and depth < _DEEPEST else None
            value = inner if inner else piece
            at += length
        fields.append(Field(tag >> 3, wire, value))
    return fields


def serialize(fields: Sequence[Field]) -> bytes:
    """The bytes of a message, also where a value does not fit its kind."""
    parts = []
    for field in fields:
        value = field.value
        parts.append(_tag(field.number, field.wire))
        if isinstance(value, int):
            parts.append(varint(value))
            continue
        content = value if isinstance(value, bytes) else serialize(value)
        parts += [varint(len(content))] * (field.wire == _BYTES) + [content]
    return b"".join(parts)


def varint(value: int) -> bytes:
    """A number as protobuf writes it, of any length."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends; -1 where it does not."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return 0, -1
