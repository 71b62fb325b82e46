"""Check the SQL predicates of callers before they reach Lance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Annotated, Final, TypeAlias

import pyarrow as pa

from memwal.boundary.lance_errors import first_line, translate_lance_error
from memwal.errors import CorruptDataError, InvalidInputError, MemWalError

MAX_OPERATORS: Final = 200
"""Maximum number of operators in a chain, where each takes the result of the previous one.

Lance evaluates them by recursion, and some hundreds more crash the process.
"""

MAX_PARTS: Final = 5_000
"""Maximum number of parts joined by ``and`` and ``or``: Lance's time grows with the square."""

MAX_NESTING: Final = 32
"""Maximum depth of parentheses, and of ``case`` expressions, within each other.

Lance's parser gives up at some 48 nested casts, after a time that doubles with each of them: hours.
"""

MAX_REPEATS: Final = 10_000
"""Maximum length of the text or the list that a function makes, per row.

Lance evaluates some thousand rows at once, and a failed allocation ends the process. The size of
values that replacements make cannot be bounded, so a filter is code: take none from a stranger.
"""

_PADDING: Final = "repeat|lpad|rpad|array_repeat|list_repeat|array_resize|list_resize"
_SERIES: Final = "generate_series|range"
_MAX_DIGITS: Final = 9

# Characters in a message: of a filter, of all columns of a table, and of the type of one.
_MAX_FILTER: Final = 300
_MAX_COLUMNS: Final = 1_500
_MAX_TYPE: Final = 120

# Lance's messages for predicates that fail, in errors that have no type of their own.
_EVALUATION: Final = re.compile(
    "Error applying filter expression|Query Execution error: Execution error"
)
_STEPS: Final = re.compile(
    r"^.*(?:Invalid user input|Schema error|sql parser error|Error parsing function"
    r"|Error during planning|Error applying filter expression to batch|Execution error"
    r"|LanceError\(Arrow\)|Arrow error): "
)

# Quoted text and names, which hide all other tokens; comments; parentheses; tokens that end an
# operand, and operators, which continue one.
_TOKENS: Final = re.compile(
    rf"""(?P<padding>["`]?\b(?:{_PADDING})\b["`]?\s*\()
      | (?P<series>["`]?\b(?:{_SERIES})\b["`]?\s*\()
      | (?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`)
      | (?P<comment>--|/\*)
      | (?P<open>[(\[])
      | (?P<close>[)\]])
      | (?P<case>(?<!\.)\bcase\b)
      | (?P<end>(?<!\.)\bend\b)
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
    that do not match or are too deep, a comment, which could hide a parenthesis or the expression
    that follows, a predicate that is larger than Lance can evaluate, and values that are too long.
    """
    if filter is None:
        return None
    levels, parts = [_Level()], 0
    for token in _TOKENS.finditer(filter):
        match token.lastgroup:
            case "comment":
                raise InvalidInputError(f"a filter has no comments; leave them out of: {filter}")
            case "open" | "case" | "padding" | "series" as kind:
                levels.append(_Level(token.end(), kind))
            case "end" if levels[-1].kind != "case":
                # A column has this name.
                continue
            case "close" | "end":
                closed = levels.pop()
                if levels:
                    levels[-1].length = max(levels[-1].length, closed.made(filter, token.start()))
            case "operator":
                levels[-1].operators += 1
            case "joint" | "comma":
                levels[-1].operators = 0
                levels[-1].commas += [token.start()] * (token.lastgroup == "comma")
                parts += token.lastgroup == "joint"
        if not levels:
            break
        _check_levels(levels)
    if len(levels) != 1:
        raise InvalidInputError(f"the parentheses of the filter do not match: {filter}")
    if parts >= MAX_PARTS:
        raise InvalidInputError(
            f"a filter may join {MAX_PARTS} parts by and, or, and this one has {parts + 1}; list "
            "values with in (...)"
        )
    return f"({filter})"


@dataclass(slots=True)
class _Level:
    """State of the parser between two parentheses."""

    start: int = 0
    kind: str = "open"  # ``padding`` or ``series`` for arguments of a function that makes values
    operators: int = 0  # in a chain that has not ended
    length: int = 1  # of the longest value that a function in it makes
    commas: list[int] = field(default_factory=list)

    def made(self, filter: str, end: int) -> int:
        """Return the length of the longest value that is made; refuse one that is too long."""
        if self.kind in ("open", "case"):
            return self.length
        bounds = [self.start - 1, *self.commas, end]
        numbers = [filter[a + 1 : b].strip() for a, b in pairwise(bounds)]
        if self.kind == "padding":
            # A value, the length, and the padding.
            numbers = numbers[1:2]
        for number in numbers:
            if not number.isdecimal() or len(number) > _MAX_DIGITS:
                raise _too_long(f"{number!r} in place of that number")
        length = self.length * max(map(int, numbers), default=1)
        if length > MAX_REPEATS:
            raise _too_long(f"{length:,}")
        return max(length, self.length)


def _too_long(found: str) -> InvalidInputError:
    names = f"{_PADDING}|{_SERIES}".replace("|", ", ")
    return InvalidInputError(
        f"a filter may make texts and lists of up to {MAX_REPEATS:,} characters or values by "
        f"{names}, whose length is written as a number, and this one has {found}; compute a column"
    )


def _check_levels(levels: Sequence[_Level]) -> None:
    if sum(level.operators for level in levels) > MAX_OPERATORS:
        raise InvalidInputError(
            f"a filter may have {MAX_OPERATORS} operators in a row, and this one has more; "
            "divide it with and, or, or compute a column"
        )
    if len(levels) > MAX_NESTING:
        raise InvalidInputError(
            f"a filter may be nested {MAX_NESTING} deep by parentheses and case, and this one is "
            "deeper; write it in another form, or compute a column"
        )


@contextmanager
def translate_filter_errors(filter: str | None, schema: pa.Schema) -> Iterator[None]:
    """Raise InvalidInputError for a predicate that Lance cannot parse, resolve or evaluate."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        if filter is None or not _is_refusal(error):
            raise
        shown = filter[1:-1][:_MAX_FILTER].strip() or "''"
        raise InvalidInputError(
            f"the filter {shown} cannot be used: {_reason(error)}; "
            f"the columns of the table are {_show_columns(schema)}"
        ) from error


def _is_refusal(error: Exception) -> bool:
    """Return whether Lance refused the request, rather than failed to read."""
    if isinstance(error, MemWalError):
        return False
    translated = translate_lance_error(error, "reading")
    if isinstance(error, RuntimeError) or _EVALUATION.search(str(error)):
        return not isinstance(translated, CorruptDataError)
    return isinstance(translated, InvalidInputError)


def _reason(error: Exception) -> str:
    """Return Lance's message about a predicate, without its steps and columns of one source."""
    reason = _STEPS.sub("", first_line(error)).partition(" Valid fields are")[0]
    if reason.count(")") > reason.count("("):
        reason = reason.removesuffix(")")
    return reason.rstrip(". ")


def _show_columns(schema: pa.Schema) -> str:
    """List columns with their types for a message, as many as fit."""
    shown = [f"{field.name} ({str(field.type)[:_MAX_TYPE]})" for field in schema]
    lengths = accumulate(map(len, shown))
    fitting = max(sum(length <= _MAX_COLUMNS for length in lengths), 1)
    rest = len(shown) - fitting
    return ", ".join(shown[:fitting]) + (f" and {rest} more" if rest > 0 else "")
