"""Changes of Arrow streams, message by message (Arrow columnar format: IPC streaming format)."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import pyarrow as pa
import xxhash
from fuzz.byte_changes import ODD_NUMBERS, flip

from memwal.format.wal_layout import CHECKSUM, CONTINUATION, END_OF_STREAM, PLACEHOLDER, PREFIX

_WIDE: Final = struct.Struct("<q")


@dataclass
class Message:
    """A message of a stream: what describes it, and its buffers."""

    metadata: bytes
    body: bytes


def stream(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Change one message, or which messages there are."""
    messages = parse(data)
    if not messages:
        return data
    at = dice.randrange(len(messages))
    one = messages[at]
    match dice.randrange(8):
        case 0:
            messages.insert(dice.randint(0, len(messages)), one)
        case 1:
            del messages[at]
        case 2:
            # A batch of another schema, or a dictionary that nobody asked for.
            messages.insert(at, dice.choice(parse(dice.choice(samples)) or messages))
        case 3:
            one.body = one.body[: dice.randint(0, len(one.body))]
        case 4:
            one.body = _odd_number(dice, one.body)
        case 5:
            dice.shuffle(messages)
        case _:
            one.metadata = _odd_number(dice, one.metadata)
            if dice.random() < 0.2:
                one.metadata = flip(dice, one.metadata, samples)
    return serialize(messages)


def signed(data: bytes) -> bytes:
    """An entry of ours with the checksum that its bytes have, as somebody would who knows how."""
    header = PREFIX + int.from_bytes(data[4:PREFIX], "little")
    try:
        metadata = pa.ipc.read_schema(pa.py_buffer(data[:header])).metadata or {}
    except Exception:
        return data
    stored = metadata.get(CHECKSUM, b"")
    slot = data[:header].find(stored)
    if len(stored) != len(PLACEHOLDER) or slot < 0:
        return data
    before, after = data[:slot], data[slot + len(stored) :]
    digest = xxhash.xxh64(b"".join((before, PLACEHOLDER, after))).hexdigest().encode()
    return b"".join((before, digest, after))


def parse(data: bytes) -> list[Message]:
    """Messages of a stream, as far as they can be told."""
    found = []
    at = 0
    while data[at : at + 4] == CONTINUATION:
        length = int.from_bytes(data[at + 4 : at + PREFIX], "little")
        metadata = data[at + PREFIX : at + PREFIX + length]
        if not length or len(metadata) < length:
            break
        at += PREFIX + length
        size = _body_length(metadata)
        found.append(Message(metadata, data[at : at + size]))
        at += size
    return found


def serialize(messages: Sequence[Message]) -> bytes:
    """The stream of some messages."""
    parts = []
    for one in messages:
        parts += [CONTINUATION, struct.pack("<I", len(one.metadata)), one.metadata, one.body]
    return b"".join((*parts, END_OF_STREAM))


def _odd_number(dice: Random, data: bytes) -> bytes:
    """An odd number where one may stand: lengths, counts and offsets are aligned to their width."""
    width = dice.choice((2, 4, 8, 8))
    if len(data) < width:
        return data
    at = dice.randrange(len(data) // width) * width
    value = dice.choice(ODD_NUMBERS) * dice.choice((1, 1, -1)) % (1 << 8 * width)
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def _body_length(metadata: bytes) -> int:
    """Length of what follows a message (field 3 of the table in its root)."""
    try:
        (root,) = struct.unpack_from("<I", metadata)
        (back,) = struct.unpack_from("<i", metadata, root)
        (size,) = struct.unpack_from("<H", metadata, root - back)
        (field,) = struct.unpack_from("<H", metadata, root - back + 10) if size > 10 else (0,)
        (length,) = _WIDE.unpack_from(metadata, root + field) if field else (0,)
    except struct.error:
        return 0
    return max(0, min(length, 1 << 30))
