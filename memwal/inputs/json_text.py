"""Checks of JSON text, which a flush stores in Lance's binary form.

Python's parser takes text that Lance refuses, or stores as another value: a name twice in an
object, numbers that are not finite, and half of a surrogate pair.
"""

from __future__ import annotations

import json
import re
from math import isinf
from typing import Any, Final, NoReturn

import pyarrow as pa

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class _RepeatedNameError(ValueError):
    """An object has two members of the same name."""


def _with_distinct_names(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise _RepeatedNameError
    return found


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError
    return number


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError


_decode = json.JSONDecoder(object_pairs_hook=_with_distinct_names).decode
_decode_exact = json.JSONDecoder(
    object_pairs_hook=_with_distinct_names,
    parse_int=_finite,
    parse_float=_finite,
    parse_constant=_refuse_constant,
).decode


def find_invalid_json(values: pa.Array, *, exact: bool) -> str | None:
    """Describe the text of a column that Lance refuses; None if there is none.

    With ``exact``, also text that it would store as another value: out of NaN it makes a null.
    """
    decode = _decode_exact if exact else _decode
    try:
        for text in getattr(values, "storage", values).to_pylist():
            if text is None:
                continue
            value = decode(text)
            if exact and "\\u" in text and _SURROGATE.search(text):
                # Half of a pair cannot be encoded.
                json.dumps(value, ensure_ascii=False).encode()
    except _RepeatedNameError:
        return "JSON with a name twice in an object"
    except (ValueError, TypeError, RecursionError):
        return "text that is not valid JSON, such as NaN, or a number beyond the range of floats"
    return None


def repeats_name(text: str) -> bool:
    """Return whether an object in JSON text has a name twice, so that no flush can store it."""
    try:
        _decode(text)
    except _RepeatedNameError:
        return True
    except (ValueError, RecursionError):
        # How deeply text may be nested depends on the caller's stack.
        return False
    return False
