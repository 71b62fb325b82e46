"""Changes of bytes that know nothing of what they stand for."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

Change = Callable[[Random, bytes, Sequence[bytes]], bytes]
"""Makes other bytes of some: with dice, the bytes, and samples of the same reader to splice in."""

ODD_NUMBERS: Final = (
    *(0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 4_095, 65_535, 65_536),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**43, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
"""Numbers at which something often goes wrong: ends of types, and terabytes."""

ODD_TEXTS: Final = (
    *("", ".", "..", "../..", "../../../etc/passwd", "/etc/passwd", "//", "a/../../b", "~"),
    *("\0", "a\0b", "x" * 5_000, "ä\u202e\U0001f4a3", "%2e%2e%2f", "C:\\x", "\\..\\", "-1", "1e9"),
    *("0123abcd_gen_1", "0123abcd_gen_18446744073709551616", "0123abcd_gen_1/../..", "9" * 30),
    *("0123abcd_gen_\u0661", " 0123abcd_gen_1", "0123abcd_gen_1\n", "{}", "None", "__import__"),
)
"""Texts that are no good names: paths that lead out, and what parsers stumble over."""


def flip(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Turn a few bits."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 8)) if changed else 0):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def cut(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Keep a piece: mostly the beginning, as what was not written to its end."""
    at = dice.randint(0, len(data))
    return data[:at] if dice.random() < 0.8 else data[at:]


def splice(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """The beginning of this and the end of another."""
    other = dice.choice(samples)
    return data[: dice.randint(0, len(data))] + other[dice.randint(0, len(other)) :]


def number(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Put an odd number somewhere, of any width and order of bytes: where lengths may be."""
    width = dice.choice((1, 2, 4, 4, 8, 8))
    if len(data) < width:
        return data
    at = dice.randint(0, len(data) - width)
    if dice.random() < 0.7:
        at -= at % width
    value = dice.choice(ODD_NUMBERS)
    if dice.random() < 0.3:
        value = -value
    written = (value % (1 << 8 * width)).to_bytes(width, dice.choice(("little", "little", "big")))
    return data[:at] + written + data[at + width :]


def remove(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Leave a short piece out."""
    start = dice.randint(0, len(data))
    return data[:start] + data[start + dice.choice((1, 2, 4, 8, 64)) :]


def insert(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Put noise, or a piece of a sample, somewhere in between."""
    at = dice.randint(0, len(data))
    length = dice.choice((1, 2, 4, 8, 64, 1_000))
    other = dice.choice(samples)
    start = dice.randint(0, len(other))
    piece = dice.randbytes(length) if dice.random() < 0.5 else other[start : start + length]
    return data[:at] + piece + data[at:]


def fill(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Overwrite a stretch by one byte, as a page that was never written."""
    start = dice.randint(0, len(data))
    stop = min(len(data), start + dice.choice((4, 16, 512, 4_096)))
    return data[:start] + dice.choice((b"\0", b"\xff", b"A")) * (stop - start) + data[stop:]


def double(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """All of it twice, or a piece of it."""
    start = dice.choice((0, dice.randint(0, len(data))))
    return data + data[start:]


ANY: Final[tuple[Change, ...]] = (flip, flip, cut, splice, number, number, remove, insert, fill)
"""For every reader."""
