"""Checks of JSON text, which a flush stores in Lance's binary form.

Python's parser takes text that Lance refuses, or stores as another value: a name twice in an
object, numbers that are not finite, and half of a surrogate pair. Text that is nested very deeply
overflows the stack of Lance's threads, which ends the process.
"""

from __future__ import annotations

import json
import re
from math import isinf
from typing import Any, Final, NoReturn

import pyarrow as pa

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
# Text that is cut off matches to its end: it is read once.
_TEXT_OR_BRACKET: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[][{}]', re.DOTALL)
_MAX_DEPTH: Final = 500
# Of text that was logged before there was a limit: Lance stores it.
_MAX_LOGGED_DEPTH: Final = 1000


class _RefusedError(ValueError):
    """Lance cannot store the text; the message says why."""


def _check_depth(text: str, limit: int) -> None:
    if text.count("[") + text.count("{") <= limit:
        return
    depth = 0
    for found in _TEXT_OR_BRACKET.finditer(text):
        depth += (found[0] in "[{") - (found[0] in "]}")
        if depth > limit:
            raise _RefusedError(f"JSON that is nested in more than {limit} levels")


def _with_distinct_names(members: list[tuple[str, Any]]) -> dict[str, Any]:
    by_name = dict(members)
    if len(by_name) < len(members):
        raise _RefusedError("JSON with a name twice in an object")
    return by_name


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError
    return number


def _exact(text: str) -> float:
    """Return a whole number that Lance keeps: of 64 bits, or the value of a float."""
    number = int(text)
    if not -(2**63) <= number < 2**64 and float(text) != number:
        raise ValueError
    return number


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError


_decode = json.JSONDecoder(object_pairs_hook=_with_distinct_names).decode
_decode_exact = json.JSONDecoder(
    object_pairs_hook=_with_distinct_names,
    parse_int=_exact,
    parse_float=_finite,
    parse_constant=_refuse_constant,
).decode


def find_invalid_json(values: pa.Array, *, exact: bool) -> str | None:
    """Describe the text of a column that Lance refuses; None if there is none.

    With ``exact``, also text that it would store as another value: out of NaN it makes a null.
    """
    decode = _decode_exact if exact else _decode
    limit = _MAX_DEPTH if exact else _MAX_LOGGED_DEPTH
    try:
        for text in getattr(values, "storage", values).to_pylist():
            if text is None:
                continue
            _check_depth(text, limit)
            value = decode(text)
            if exact and "\\u" in text and _SURROGATE.search(text):
                # Half of a pair cannot be encoded.
                json.dumps(value, ensure_ascii=False).encode()
    except _RefusedError as error:
        return str(error)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return (
            "text that is not valid JSON, such as NaN, or JSON within another type, or a number "
            "that neither 64 bits nor a float hold"
        )
    return None


def find_refused_json(text: str) -> str | None:
    """Describe JSON text that Python reads and no flush can store; None for other text."""
    try:
        _check_depth(text, _MAX_LOGGED_DEPTH)
        _decode(text)
    except _RefusedError as error:
        return str(error)
    except (ValueError, RecursionError):
        # How deeply Python reads text depends on the caller's stack.
        return None
    return None
