"""Changes of JSON documents, value by value, and texts that parsers of JSON stumble over."""

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from fuzz.byte_changes import ODD_NUMBERS, ODD_TEXTS

_DEEP: Final = 100_000
_RAW: Final = (
    *(b"", b"null", b"true", b"1", b'"', b"[]", b"{}", b"[[]]", b"NaN", b"-Infinity", b"1e400"),
    *(
        b"9" * 5_000,
        b"[" * _DEEP,
        b'{"a":' * _DEEP,
        b"[" * _DEEP + b"]" * _DEEP,
        b"\xff",
        b"\xfe{}",
    ),
    *('{"a": "\ud800"}'.encode("utf-8", "surrogatepass"), b'"\\ud800"', b"\xef\xbb\xbf{}", b"{}\0"),
)
_MARK: Final = "@@here@@"


def document(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Put something else in the place of a value or a key, at any depth."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return data
    places = list(_places(content))
    if not places:
        return raw(dice, data, samples)
    parent, key = dice.choice(places)
    match dice.randrange(5):
        case 0 if isinstance(parent, dict):
            parent[dice.choice(ODD_TEXTS)] = parent.pop(key)
        case 1:
            del parent[key]
        case 2:
            # What no value can be, only a text: the same key twice, numbers of any length, depth.
            parent[key] = _MARK
            return (
                json.dumps(content).encode().replace(json.dumps(_MARK).encode(), dice.choice(_RAW))
            )
        case 3 if isinstance(parent, list):
            parent *= dice.choice((2, 500))
        case _:
            odd = (None, True, [], {}, 0.5, -1, 10**30, *ODD_NUMBERS, *ODD_TEXTS)
            parent[key] = dice.choice(odd)
    return json.dumps(content).encode()


def raw(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """A document of its own, or none."""
    return dice.choice(_RAW)


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key, depth first."""
    keys: Iterator[Any] = iter(())
    if isinstance(content, dict):
        keys = iter(list(content))
    elif isinstance(content, list):
        keys = iter(range(len(content)))
    for key in keys:
        yield content, key
        yield from _places(content[key])
