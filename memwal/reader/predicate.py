"""Predicates that callers give as text."""

from __future__ import annotations

import re

from memwal.errors import InvalidInputError

# Quoted text and names, in which parentheses mean nothing; then parentheses.
_TOKENS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|[()]")


def whole_predicate(filter: str | None) -> str | None:
    """A predicate that means the same by itself and beside others: in parentheses.

    Lance ignores whatever follows a predicate that is complete, and a closing parenthesis too many
    would end the one that it is put into.

    Raises
    ------
    InvalidInputError
        Its parentheses do not match.
    """
    if filter is None:
        return None
    depth = 0
    for token in _TOKENS.findall(filter):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth < 0:
            break
    if depth:
        raise InvalidInputError(f"the parentheses of the filter do not match: {filter}")
    return f"({filter})"
