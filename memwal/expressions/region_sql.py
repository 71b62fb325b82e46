"""Tokenizer and allow-list of region expressions, applied before an engine sees them.

An expression can come from a table that a third party set up. Only listed words are allowed, so
that an expression cannot access files, tables, the clock, random numbers or session settings. Its
length is bounded, so that it cannot exhaust the machine. Spec: Region Expression, requirements 1
and 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from memwal.errors import InvalidInputError

MAX_LENGTH: Final = 1_000
"""Maximum length of an expression, in characters."""

MAX_DEPTH: Final = 16
"""Maximum nesting of parentheses and CASEs."""

MAX_COLUMNS: Final = 16
"""Maximum number of source columns."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text that are separated by spaces."""
    return frozenset(text.split())


FUNCTIONS: Final = words(
    "abs btrim char_length character_length coalesce concat date_part date_trunc ends_with "
    "greatest least left length lower ltrim md5 murmur3 murmur3_multi nullif octet_length "
    "reverse right rtrim split_part starts_with strpos substr trim upper"
)
"""Allowed functions: they depend on their arguments alone, and generate no data beyond these."""

_KEYWORDS: Final = words(
    "and as between case cast else end false in is like not null or then true when"
)
_TYPES: Final = words(
    "bigint boolean date int integer smallint text timestamp tinyint unsigned varchar"
)
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\n]+)
      | (?P<text>'(?:[^']|'')*')
      | (?P<number>\d+)
      | (?P<word>[A-Za-z_][A-Za-z_0-9]*)
      | (?P<sign><>|!=|<=|>=|\|\||<<|>>|[-+*/%=<>(),&|^])""",
    re.VERBOSE,
)

_COLUMN: Final = re.compile(r"col(0|[1-9]\d?)")


@dataclass(frozen=True, slots=True)
class Token:
    """Token of an expression: a word in lower case, a number, a text or a sign."""

    kind: str
    text: str


def tokenize(expression: str, *, num_columns: int) -> list[Token]:
    """Split an expression into tokens that are all allowed; InvalidInputError for others."""
    if len(expression) > MAX_LENGTH:
        raise InvalidInputError(
            f"a region expression may have {MAX_LENGTH} characters, this one has {len(expression)}"
        )
    tokens: list[Token] = []
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        # "--" and "/*" start comments.
        if match is None or expression.startswith(("--", "/*"), position):
            raise InvalidInputError(
                f"a region expression may not contain {expression[position : position + 10]!r}; "
                "use col0, col1, ..., whole numbers, texts in single quotes, operators, and the "
                f"functions {', '.join(sorted(FUNCTIONS))}"
            )
        position = match.end()
        kind = match.lastgroup or ""
        if kind != "space":
            text = match[0].lower() if kind == "word" else match[0]
            tokens.append(Token(kind, text))
    if not tokens:
        raise InvalidInputError("a region expression is empty; give SQL over col0, col1, ...")
    _checkwords(tokens, num_columns)
    _check_depth(tokens)
    return tokens


def _checkwords(tokens: list[Token], num_columns: int) -> None:
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.kind != "word" or token.text in _KEYWORDS or token.text in _TYPES:
            continue
        if following is not None and following.text == "(":
            if token.text not in FUNCTIONS:
                raise InvalidInputError(
                    f"a region expression may not call {token.text}; the functions it can call "
                    f"are {', '.join(sorted(FUNCTIONS))}"
                )
            continue
        column = _COLUMN.fullmatch(token.text)
        if column is None or int(column[1]) >= num_columns:
            raise InvalidInputError(
                f"{token.text!r} in a region expression is neither a source column nor a keyword; "
                f"its columns are {', '.join(f'col{n}' for n in range(num_columns))}, in the "
                "order in which they are given"
            )


def _check_depth(tokens: list[Token]) -> None:
    depth = 0
    for token in tokens:
        if token.text in ("(", "case") and token.kind != "text":
            depth += 1
        elif token.text in (")", "end") and token.kind != "text":
            depth -= 1
        if depth > MAX_DEPTH:
            raise InvalidInputError(
                f"a region expression may be nested {MAX_DEPTH} deep, this one is deeper"
            )
        if depth < 0:
            break
    if depth:
        raise InvalidInputError("the parentheses of a region expression do not match")
