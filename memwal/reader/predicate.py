"""Check the SQL predicates of callers before they reach Lance."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, TypeAlias

from memwal.boundary.lance_errors import translate_lance_error
from memwal.errors import CorruptDataError, InvalidInputError

MAX_OPERATORS: Final = 200
"""Maximum number of operators in a chain, where each takes the result of the previous one.

Lance evaluates them by recursion, and some hundreds more crash the process.
"""

MAX_PARTS: Final = 5_000
"""Maximum number of parts joined by ``and`` and ``or``: Lance's time grows with the square."""

# Quoted text and names, which hide all other tokens; comments; parentheses; tokens that end an
# operand, and operators, which continue one.
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

SqlFilter: TypeAlias = Annotated[str, "SQL as a str, such as \"n > 1 and name = 'x'\""]
"""SQL predicate over the columns of a table."""


def parenthesize_filter(filter: str | None) -> str | None:
    """Return the predicate in parentheses, so that it can be combined with others.

    Lance ignores everything after a complete predicate, and a closing parenthesis too many would
    end the expression that the predicate is put into. InvalidInputError is raised for parentheses
    that do not match, a comment, which could hide a parenthesis or the expression that follows, and
    a predicate that is larger than Lance can evaluate.
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
    """Raise InvalidInputError for a predicate that Lance can parse and cannot evaluate."""
    try:
        yield
    except RuntimeError as error:
        if filter is None or isinstance(translate_lance_error(error, "reading"), CorruptDataError):
            raise
        raise InvalidInputError(
            f"Lance cannot evaluate the filter {filter}: {error}; write it in other words"
        ) from error
