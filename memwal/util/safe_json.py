"""Parse and bound untrusted JSON-like data: depth, number of values, and valid Unicode.

YAML is the reason for the bound on values: a few lines can stand for more values than fit into
memory, since an alias may repeat a value, even inside itself.
"""

from __future__ import annotations

import json
from typing import Any, Final

MOST_DEPTH: Final = 100
"""The most lists and objects around a value."""

_MOST_VALUES: Final = 1_000_000


def read_json(text: str | bytes) -> Any:
    """What a JSON text says.

    Raises
    ------
    ValueError
        It is no JSON; or it has more than :data:`MOST_DEPTH` lists and objects in one another, or
        half a character. The message holds no value of the text.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH}") from None
    check_data(found)
    return found


def check_data(value: object) -> None:
    """Refuse data that others cannot handle: too deep, of an endless size, or no Unicode.

    A few lines of YAML can stand for more values than fit into memory, since a value can be
    repeated by its name, even within itself.

    Raises
    ------
    ValueError
        The message holds no value.
    """
    level, values = [value], 0
    for _ in range(MOST_DEPTH):
        values += len(level)
        keys = [key for one in level if isinstance(one, dict) for key in one]
        if not all(is_unicode(one) for one in (*level, *keys) if isinstance(one, str)):
            raise ValueError("it has a text with half a character in it (a lone surrogate)")
        level = _within(level, most=_MOST_VALUES - values)
        if not level:
            return
    raise ValueError(f"it is nested deeper than {MOST_DEPTH}")


def is_unicode(text: str) -> bool:
    """Whether a text can be written: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _within(level: list[Any], *, most: int) -> list[Any]:
    """The values one level further in."""
    found: list[Any] = []
    for one in level:
        if isinstance(one, dict):
            found += one.values()
        elif isinstance(one, list | set):
            found += one
        if len(found) > most:
            raise ValueError(f"it has more than {_MOST_VALUES} values")
    return found
