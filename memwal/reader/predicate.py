"""Predicates that callers give as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from memwal.base_table.snapshot import translate_lance_error
from memwal.errors import CorruptDataError, InvalidInputError

MAX_OPERATORS: Final = 200
"""The most operators of which each takes what the one before gave.

Lance follows them by recursion, and some hundreds more end the process.
"""

MAX_PARTS: Final = 5_000
"""The most parts joined by ``and`` and ``or``: the time that Lance takes grows with the square."""

# Quoted text and names, in which nothing else means anything; parentheses and comments; what ends
# an operand and what goes on with one.
_TOKENS: Final = re.compile(
    r"""(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`)
      | (?P<comment>--|/\*)
      | (?P<open>[(\[])
      | (?P<close>[)\]])
      | (?P<joint>\b(?:and|or)\b)
      | (?P<comma>,)
      | (?P<operator>\b(?:is|not|like|ilike|similar|between|in|div|collate)\b
        | \|\||::|[-+*/%&|^~=<>!]+|\.(?=[^\W\d]|["`]))""",
    re.VERBOSE | re.IGNORECASE,
)


def parenthesize_filter(filter: str | None) -> str | None:
    """A predicate that means the same by itself and beside others: in parentheses.

    Lance ignores whatever follows a predicate that is complete, and a closing parenthesis too many
    would end the one that it is put into.

    Raises
    ------
    InvalidInputError
        Its parentheses do not match; it has a comment, which could hide one, and what the
        predicate is put beside; or it is larger than Lance can take.
    """
    if filter is None:
        return None
    operators, parts = [0], 0
    for token in _TOKENS.finditer(filter):
        match token.lastgroup:
            case "comment":
                raise InvalidInputError(f"a filter has no comments; leave them out of: {filter}")
            case "open":
                operators.append(0)
            case "close":
                operators.pop()
            case "operator":
                operators[-1] += 1
            case "joint" | "comma":
                operators[-1] = 0
                parts += token.lastgroup == "joint"
        if not operators:
            break
        if token.lastgroup == "operator" and sum(operators) > MAX_OPERATORS:
            raise InvalidInputError(
                f"a filter may have {MAX_OPERATORS} operators in a row, and this one has more; "
                "divide it with and, or, or compute a column"
            )
    if len(operators) != 1:
        raise InvalidInputError(f"the parentheses of the filter do not match: {filter}")
    if parts >= MAX_PARTS:
        raise InvalidInputError(
            f"a filter may join {MAX_PARTS} parts by and, or, and this one has {parts + 1}; list "
            "values with in (...)"
        )
    return f"({filter})"


@contextmanager
def translate_filter_errors(filter: str | None) -> Iterator[None]:
    """Say of a failure inside of Lance that the filter led to it.

    Raises
    ------
    InvalidInputError
        Lance gave up on a predicate that it can read and not evaluate.
    """
    try:
        yield
    except RuntimeError as error:
        if filter is None or isinstance(translate_lance_error(error, "reading"), CorruptDataError):
            raise
        raise InvalidInputError(
            f"Lance cannot evaluate the filter {filter}: {error}; write it in other words"
        ) from error
