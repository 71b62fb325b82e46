"""Parser of SQL predicates: tokens, grammar, and operators applied to columns and constants.

An expression that is complete but not known here becomes ``Opaque`` where it stands, and so does an
operator or function over anything but columns and constants. If the text cannot even be split into
expressions, the whole predicate is not understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, get_args
from typing import cast as as_type

from memwal.expressions.date_parts import DatePart
from memwal.expressions.predicate import (
    FLIPPED,
    Column,
    Comparison,
    Constant,
    Junction,
    Not,
    Opaque,
    Operator,
    Truth,
    Value,
)

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
_INTEGER_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "integer": 32, "bigint": 64}
_TIME_TYPES: Final = ("date", "timestamp")
_WILDCARDS: Final = re.compile(r"[%_\\]")
_MAX_LENGTH: Final = 1 << 20
_MAX_DEPTH: Final = 100

# No type that is compared has more.
_MAX_DIGITS: Final = 80
_SIGNS: Final[dict[str, Operator]] = {
    "=": "=",
    "==": "=",
    "!=": "!=",
    "<>": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%", "||"})

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


def parse_predicate(text: str) -> Truth:
    """Read a predicate.

    Raises
    ------
    NotUnderstoodError
        It cannot be told what belongs together.
    """
    return _Parser(_tokenize(text)).whole()


class _Parser:
    """Recursive descent with the precedences of SQL: or, and, not, comparisons, arithmetic."""

    def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Truth:
        found = self._truth(self._or())
        if self._at != len(self._tokens):
            raise NotUnderstoodError
        return found

    def _or(self) -> Truth | Value:
        with self._deeper():
            return self._joined("or")

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NotUnderstoodError
        yield
        self._depth -= 1

    def _and(self) -> Truth | Value:
        return self._joined("and")

    def _joined(self, word: str) -> Truth | Value:
        read = self._and if word == "or" else self._not
        first = read()
        if not self._is_word(word):
            return first
        parts = [self._truth(first)]
        while self._takes_word(word):
            parts.append(self._truth(read()))
        return Junction(word == "and", tuple(parts))

    def _not(self) -> Truth | Value:
        turns = 0
        while self._takes_word("not"):
            turns += 1
        if turns > _MAX_DEPTH:
            raise NotUnderstoodError
        found = self._comparison()
        for _ in range(turns):
            found = Not(self._truth(found))
        return found

    def _comparison(self) -> Truth | Value:
        left = self._sum()
        found: Truth | Value = left
        kind, token = self._next()
        word = token.casefold() if kind == "name" else ""
        if kind == "sign" and token in _SIGNS:
            self._at += 1
            found = _compare(left, _SIGNS[token], self._sum())
        elif word == "is":
            self._at += 1
            found = self._is(left)
        elif word in ("in", "between", "not"):
            negated = self._takes_word("not")
            if self._takes_word("in"):
                found = self._in(left)
            elif self._takes_word("between"):
                low = self._sum()
                self._needs_word("and")
                high = self._sum()
                found = Junction(True, (_compare(left, ">=", low), _compare(left, "<=", high)))
            elif self._is_word("like") or self._is_word("ilike"):
                found = self._like(left)
            else:
                raise NotUnderstoodError
            found = Not(found) if negated else found
        elif word in ("like", "ilike"):
            found = self._like(left)
        if found is not left:
            # ``a = 1 is null`` and the like mean something else than they seem to.
            kind, token = self._next()
            ends = kind == "" or token in (")", ",") or token.casefold() in ("and", "or")
            if not ends or kind in ("text", "quoted"):
                raise NotUnderstoodError
        return found

    def _is(self, left: Truth | Value) -> Truth:
        negated = self._takes_word("not")
        found: Truth
        if self._takes_word("null"):
            if not isinstance(left, Column) or left.part is not None:
                return Opaque()
            return Comparison(left.name, "is not null" if negated else "is null")
        if self._is_word("true") or self._is_word("false"):
            found = _truth_test(self._truth(left), value=self._takes_word("true"))
            # The word that was not the first one is still there.
            self._takes_word("false")
        elif self._takes_word("distinct"):
            self._needs_word("from")
            # Other than with ``=``, all that follows belongs to the right side.
            found = Not(_necessary(_compare(left, "=", self._or())))
        else:
            raise NotUnderstoodError
        return Not(found) if negated else found

    def _like(self, left: Truth | Value) -> Truth:
        exact = self._takes_word("like")
        if not exact:
            self._needs_word("ilike")
        pattern = self._sum()
        # Where case does not matter, no prefix is known.
        return _match_like(left, pattern) if exact else Opaque()

    def _in(self, left: Truth | Value) -> Truth:
        self._needs("(")
        values = [self._sum()]
        while self._takes(","):
            values.append(self._sum())
        self._needs(")")
        constants = [value for value in values if isinstance(value, Constant)]
        if not isinstance(left, Column) or len(constants) != len(values):
            return Opaque()
        present = tuple(value for value in constants if value.kind != "null")
        if not present:
            return Opaque()
        found = Comparison(left.name, "in", present, left.part)
        # Beside a null, what is not found is unknown rather than false.
        return found if len(present) == len(constants) else _necessary(found)

    def _sum(self) -> Truth | Value:
        found = self._primary()
        while self._next()[0] == "sign" and self._next()[1] in _ARITHMETIC:
            self._at += 1
            self._primary()
            found = Opaque()
        return found

    def _primary(self) -> Truth | Value:
        found = self._unit()
        while self._takes("::"):
            found = _cast(found, self._type())
        return found

    def _unit(self) -> Truth | Value:
        kind, word = self._next()
        self._at += 1
        if (kind, word) == ("sign", "("):
            inner = self._or()
            self._needs(")")
            return inner
        if (kind, word) == ("sign", "-"):
            # A cast binds more tightly than the sign.
            with self._deeper():
                return _negate(self._primary())
        if kind == "number":
            is_known = word.isdigit() and len(word) <= _MAX_DIGITS
            return Constant("integer", int(word)) if is_known else Opaque()
        if kind == "text":
            return Constant("text", _unquote(word, "'"))
        if kind == "quoted":
            return Column(_unquote(word, "`"))
        if kind == "name":
            return self._named(word)
        raise NotUnderstoodError

    def _named(self, token: str) -> Truth | Value:
        word = token.casefold()
        kind, following = self._next()
        if kind == "text":
            self._at += 1
            value = _unquote(following, "'")
            if word in ("date", "timestamp"):
                return Constant(word, value)
            if word == "x":
                try:
                    return Constant("bytes", bytes.fromhex(value))
                except ValueError as error:
                    raise NotUnderstoodError from error
            raise NotUnderstoodError
        if word in ("true", "false"):
            return Constant("boolean", word == "true")
        if word == "null":
            return Constant("null", None)
        if word in ("cast", "try_cast") and self._takes("("):
            inner = self._or()
            self._needs_word("as")
            found = _cast(inner, self._type())
            self._needs(")")
            return found
        if word in RESERVED:
            raise NotUnderstoodError
        if self._takes("("):
            return _call(word, self._arguments())
        return Column(token)

    def _arguments(self) -> list[Truth | Value]:
        found: list[Truth | Value] = []
        if not self._takes(")"):
            found.append(self._or())
            while self._takes(","):
                found.append(self._or())
            self._needs(")")
        return found

    def _type(self) -> str:
        """The name of a type; of one that is more than a name, nothing is known."""
        kind, word = self._next()
        if kind != "name":
            raise NotUnderstoodError
        self._at += 1
        if self._takes("("):
            self._arguments()
            return ""
        return word.casefold()

    def _truth(self, found: Truth | Value) -> Truth:
        if isinstance(found, Column):
            return _compare(found, "=", Constant("boolean", True))
        if isinstance(found, Constant) and found.kind != "boolean":
            return Opaque()
        return found

    def _next(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")

    def _is_word(self, word: str) -> bool:
        kind, token = self._next()
        return kind == "name" and token.casefold() == word

    def _takes_word(self, word: str) -> bool:
        found = self._is_word(word)
        self._at += found
        return found

    def _needs_word(self, word: str) -> None:
        if not self._takes_word(word):
            raise NotUnderstoodError

    def _takes(self, sign: str) -> bool:
        found = self._next() == ("sign", sign)
        self._at += found
        return found

    def _needs(self, sign: str) -> None:
        if not self._takes(sign):
            raise NotUnderstoodError


def _tokenize(text: str) -> list[tuple[str, str]]:
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


def _unquote(token: str, quote: str) -> str:
    """What stands in quotes."""
    return token[1:-1].replace(quote * 2, quote)


def _compare(left: Truth | Value, operator: Operator, right: Truth | Value) -> Truth:
    """A comparison of a column with a constant, whichever of them comes first."""
    if isinstance(left, Constant) and isinstance(right, Column):
        left, operator, right = right, FLIPPED[operator], left
    if isinstance(left, Column) and isinstance(right, Constant) and right.kind != "null":
        return Comparison(left.name, operator, (right,), left.part)
    return Opaque()


def _starts_with(left: Truth | Value, prefix: Truth | Value) -> Truth:
    if isinstance(left, Column) and left.part is None and isinstance(prefix, Constant):
        return Comparison(left.name, "starts with", (prefix,))
    return Opaque()


def _match_like(left: Truth | Value, pattern: Truth | Value) -> Truth:
    """A column like a pattern, as far as its beginning tells."""
    if not isinstance(pattern, Constant) or not isinstance(pattern.value, str):
        return Opaque()
    prefix = _WILDCARDS.split(pattern.value, maxsplit=1)[0]
    rest = pattern.value[len(prefix) :]
    if not rest:
        return _compare(left, "=", pattern)
    begins = _starts_with(left, Constant("text", prefix))
    return _necessary(begins) if rest.strip("%") else begins


def _necessary(found: Truth) -> Truth:
    """What holds if this does, and of whose opposite nothing is known."""
    return Junction(True, (found, Opaque()))


def _truth_test(found: Truth, *, value: bool) -> Truth:
    """``is true`` or ``is false``, which are never unknown."""
    wanted = found if value else Not(found)
    if isinstance(found, Comparison):
        if found.operator in ("is null", "is not null"):
            return wanted
        return Junction(True, (wanted, Comparison(found.column, "is not null")))
    return _necessary(wanted)


def _cast(found: Truth | Value, name: str) -> Value:
    """A value as another type, named as in SQL."""
    if isinstance(found, Column) and found.part is None and name == "date":
        return Column(found.name, "date")
    if isinstance(found, Constant):
        if isinstance(found.value, int) and found.kind == "integer" and name in _INTEGER_BITS:
            end = 1 << (_INTEGER_BITS[name] - 1)
            return found if -end <= found.value < end else Opaque()
        if found.kind in ("text", name) and name in _TIME_TYPES:
            return Constant(name, found.value)
        if found.kind == "date" and name == "timestamp":
            return Constant(name, found.value)
    return Opaque()


def _call(name: str, arguments: Sequence[Truth | Value]) -> Truth | Value:
    """What a function gives."""
    match name, arguments:
        case "starts_with", [text, prefix]:
            return _starts_with(text, prefix)
        case (("date_part" | "datepart"), [Constant("text", str(part)), Column(column, None)]):
            wanted = part.casefold()
            if wanted in get_args(DatePart):
                return Column(column, as_type("DatePart", wanted))
    return Opaque()


def _negate(found: Truth | Value) -> Value:
    """A number with the other sign."""
    if isinstance(found, Constant) and found.kind == "integer" and isinstance(found.value, int):
        return Constant("integer", -found.value)
    return Opaque()
