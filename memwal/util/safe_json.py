"""Parse and bound untrusted JSON-like data: depth, number of values, and valid Unicode.

YAML is the reason for the bound on values: a few lines can stand for more values than fit into
memory, since an alias may repeat a value, even inside itself.
"""

from __future__ import annotations

import json
from typing import Any, Final

MAX_DEPTH: Final = 100
"""Maximum nesting of lists and objects."""

_MAX_VALUES: Final = 1_000_000


def read_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises ValueError if it is not JSON, is nested deeper than :data:`MAX_DEPTH`, or holds a lone
    surrogate. The message holds no value of the text.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH}") from None
    check_data(value)
    return value


def check_data(value: object) -> None:
    """Raise ValueError for data that is nested too deep, has too many values or invalid Unicode.

    The message holds no value of the data.
    """
    level: list[object] = [value]
    values = 0
    for _ in range(MAX_DEPTH):
        values += len(level)
        keys = [key for item in level if isinstance(item, dict) for key in item]
        if not all(is_unicode(text) for text in (*level, *keys) if isinstance(text, str)):
            raise ValueError("it has a text with half a character in it (a lone surrogate)")
        level = _children(level, limit=_MAX_VALUES - values)
        if not level:
            return
    raise ValueError(f"it is nested deeper than {MAX_DEPTH}")


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _children(level: list[object], *, limit: int) -> list[object]:
    children: list[object] = []
    for item in level:
        if isinstance(item, dict):
            children += item.values()
        elif isinstance(item, list | set):
            children += item
        if len(children) > limit:
            raise ValueError(f"it has more than {_MAX_VALUES} values")
    return children
