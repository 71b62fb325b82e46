"""The tokens of a SQL predicate."""

from __future__ import annotations

import re
from typing import Final

RESERVED: Final = frozenset(
    {
        "and",
        "or",
        "not",
        "in",
        "is",
        "null",
        "between",
        "like",
        "ilike",
        "similar",
        "escape",
        "case",
        "when",
        "then",
        "else",
        "end",
        "cast",
        "try_cast",
        "as",
        "exists",
        "any",
        "all",
        "some",
        "from",
        "select",
        "distinct",
        "collate",
        "interval",
        "div",
        "extract",
    }
)
"""Words that begin or continue what is not read; a column of this name is quoted."""

_MAX_LENGTH: Final = 1 << 20
_TOKENS: Final = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      | (?P<name>[^\W\d]\w*)
      | (?P<sign><=|>=|<>|!=|==|\|\||::|[=<>(),+\-*/%])
    )""",
    re.VERBOSE,
)


class NotUnderstoodError(Exception):
    """The text is none of what is read here."""


def read_tokens(text: str) -> list[tuple[str, str]]:
    """The kind of each token (``text``, ``quoted``, ``number``, ``name`` or ``sign``), and itself.

    Raises
    ------
    NotUnderstoodError
        There is something else in it, or a comment.
    """
    if len(text) > _MAX_LENGTH or "--" in text or "/*" in text:
        raise NotUnderstoodError
    found = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None or match.lastgroup is None:
            raise NotUnderstoodError
        kind, token = match.lastgroup, match[match.lastgroup]
        if kind == "number" and text[match.end() : match.end() + 1].isidentifier():
            raise NotUnderstoodError
        found.append((kind, token))
        at = match.end()
    return found


def unquoted(token: str, quote: str) -> str:
    """What stands in quotes."""
    return token[1:-1].replace(quote * 2, quote)
