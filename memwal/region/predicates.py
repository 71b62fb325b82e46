"""Reading SQL predicates, as far as they can tell that no row of a region passes.

A predicate is read into alternatives, each a list of comparisons that must all hold. What is not
understood is left out of its list, which only makes it weaker, so that a predicate never says less
than it must: a row that passes the predicate passes all comparisons of one alternative.

Negation is carried to the comparisons, where SQL's third truth value stays what it is: ``not
(a < 5)`` and ``a >= 5`` are both unknown for null.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null"]

MAX_ALTERNATIVES: Final = 64
"""Of a predicate that has more, the parts that multiply them are left out."""

_MAX_LENGTH: Final = 1 << 20
_MAX_DEPTH: Final = 100
_TOKENS: Final = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      | (?P<name>[^\W\d]\w*)
      | (?P<sign><=|>=|<>|!=|==|\|\||[=<>(),+\-*/%])
    )""",
    re.VERBOSE,
)
_NEGATED: Final[dict[Operator, Operator]] = {
    "=": "!=",
    "!=": "=",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
    "in": "not in",
    "not in": "in",
    "is null": "is not null",
    "is not null": "is null",
}
_FLIPPED: Final[dict[str, Operator]] = {
    "=": "=",
    "!=": "!=",
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
}
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
# Words that begin or continue what is not read here; a column of this name is quoted.
_RESERVED: Final = frozenset(
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
    }
)


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that stands in a predicate.

    Attributes
    ----------
    kind : {"integer", "text", "bytes", "boolean", "date", "timestamp"}
        How it was written.
    value : int, str, bytes or bool
        Dates and timestamps as they were written.
    """

    kind: str
    value: int | str | bytes | bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column with values.

    Attributes
    ----------
    column : str
        As it was written.
    operator : str
        ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``, ``not in``, ``is null``,
        ``is not null``.
    values : tuple of Constant
        One; several for ``in``; none for ``is null``.
    """

    column: str
    operator: Operator
    values: tuple[Constant, ...] = ()

    def negated(self) -> Comparison:
        """What holds where this is false."""
        return Comparison(self.column, _NEGATED[self.operator], self.values)


Alternative = tuple[Comparison, ...]


def read_predicate(text: str) -> tuple[Alternative, ...]:
    """Alternatives of which one holds for each row that passes a predicate.

    Parameters
    ----------
    text : str
        SQL as Lance takes it.

    Returns
    -------
    tuple of tuple of Comparison
        ``((),)``, which holds for every row, when nothing is understood; nothing at all when no
        row can pass.
    """
    try:
        tree = _Reader(_tokens(text)).whole()
    except _NotUnderstoodError:
        return ((),)
    return tuple(tuple(dict.fromkeys(one)) for one in _alternatives(tree, negated=False))


class _NotUnderstoodError(Exception):
    """The text is none of what is read here."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str


@dataclass(frozen=True, slots=True)
class _Opaque:
    """A value, or a truth value, that is not known here."""


@dataclass(frozen=True, slots=True)
class _Not:
    part: _Truth


@dataclass(frozen=True, slots=True)
class _Junction:
    """Parts joined by ``and`` or ``or``."""

    both: bool
    parts: tuple[_Truth, ...]


_Truth = Comparison | _Not | _Junction | _Opaque | Constant
_Value = _Column | Constant | _Opaque


def _alternatives(tree: _Truth, *, negated: bool) -> list[Alternative]:
    if isinstance(tree, _Not):
        return _alternatives(tree.part, negated=not negated)
    if isinstance(tree, Comparison):
        return [(tree.negated() if negated else tree,)]
    if isinstance(tree, Constant):
        return [()] if bool(tree.value) != negated else []
    if isinstance(tree, _Opaque):
        return [()]
    parts = [_alternatives(part, negated=negated) for part in tree.parts]
    if tree.both == negated:
        joined = [one for part in parts for one in part]
        return joined if len(joined) <= MAX_ALTERNATIVES else [()]
    product: list[Alternative] = [()]
    # Parts with few alternatives first: they are what must not be left out.
    for part in sorted(parts, key=len):
        if len(product) * len(part) <= MAX_ALTERNATIVES:
            product = [(*left, *right) for left in product for right in part]
    return product


def _tokens(text: str) -> list[tuple[str, str]]:
    if len(text) > _MAX_LENGTH or "--" in text or "/*" in text:
        raise _NotUnderstoodError
    found = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None or match.lastgroup is None:
            raise _NotUnderstoodError
        kind, token = match.lastgroup, match[match.lastgroup]
        if kind == "number" and text[match.end() : match.end() + 1].isidentifier():
            raise _NotUnderstoodError
        found.append((kind, token))
        at = match.end()
    return found


class _Reader:
    """Recursive descent with the precedences of SQL: or, and, not, comparisons, arithmetic."""

    def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> _Truth:
        found = self._truth(self._or())
        if self._at != len(self._tokens):
            raise _NotUnderstoodError
        return found

    def _or(self) -> _Truth | _Value:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _NotUnderstoodError
        found = self._joined("or")
        self._depth -= 1
        return found

    def _and(self) -> _Truth | _Value:
        return self._joined("and")

    def _joined(self, word: str) -> _Truth | _Value:
        read = self._and if word == "or" else self._not
        first = read()
        if not self._is_word(word):
            return first
        parts = [self._truth(first)]
        while self._takes_word(word):
            parts.append(self._truth(read()))
        return _Junction(word == "and", tuple(parts))

    def _not(self) -> _Truth | _Value:
        turns = 0
        while self._takes_word("not"):
            turns += 1
        found = self._comparison()
        for _ in range(turns):
            found = _Not(self._truth(found))
        return found

    def _comparison(self) -> _Truth | _Value:
        left = self._sum()
        found: _Truth | _Value = left
        kind, token = self._next()
        word = token.casefold() if kind == "name" else ""
        if kind == "sign" and token in _SIGNS:
            self._at += 1
            found = _compared(left, _SIGNS[token], self._sum())
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
                found = _Junction(True, (_compared(left, ">=", low), _compared(left, "<=", high)))
            elif self._takes_word("like") or self._takes_word("ilike"):
                self._sum()
                found = _Opaque()
            else:
                raise _NotUnderstoodError
            found = _Not(found) if negated else found
        elif word in ("like", "ilike"):
            self._at += 1
            self._sum()
            found = _Opaque()
        if found is not left:
            # ``a = 1 is null`` and the like mean something else than they seem to.
            kind, token = self._next()
            ends = kind == "" or token in (")", ",") or token.casefold() in ("and", "or")
            if not ends or kind in ("text", "quoted"):
                raise _NotUnderstoodError
        return found

    def _is(self, left: _Truth | _Value) -> _Truth:
        negated = self._takes_word("not")
        if self._takes_word("null"):
            if not isinstance(left, _Column):
                return _Opaque()
            return Comparison(left.name, "is not null" if negated else "is null")
        if self._takes_word("true") or self._takes_word("false"):
            return _Opaque()
        raise _NotUnderstoodError

    def _in(self, left: _Truth | _Value) -> _Truth:
        self._needs("(")
        values = [self._sum()]
        while self._takes(","):
            values.append(self._sum())
        self._needs(")")
        literals = tuple(value for value in values if isinstance(value, Constant))
        if not isinstance(left, _Column) or len(literals) != len(values):
            return _Opaque()
        return Comparison(left.name, "in", literals)

    def _sum(self) -> _Truth | _Value:
        found = self._primary()
        while self._next()[0] == "sign" and self._next()[1] in _ARITHMETIC:
            self._at += 1
            self._primary()
            found = _Opaque()
        return found

    def _primary(self) -> _Truth | _Value:
        kind, word = self._next()
        self._at += 1
        if (kind, word) == ("sign", "("):
            inner = self._or()
            self._needs(")")
            return inner
        if (kind, word) == ("sign", "-"):
            inner = self._primary()
            if isinstance(inner, Constant) and inner.kind == "integer":
                return Constant("integer", -int(inner.value))
            return _Opaque()
        if kind == "number":
            return Constant("integer", int(word)) if word.isdigit() else _Opaque()
        if kind == "text":
            return Constant("text", _unquoted(word, "'"))
        if kind == "quoted":
            return _Column(_unquoted(word, "`"))
        if kind == "name":
            return self._named(word)
        raise _NotUnderstoodError

    def _named(self, token: str) -> _Value:
        word = token.casefold()
        kind, following = self._next()
        if kind == "text":
            self._at += 1
            value = _unquoted(following, "'")
            if word in ("date", "timestamp"):
                return Constant(word, value)
            if word == "x":
                try:
                    return Constant("bytes", bytes.fromhex(value))
                except ValueError as error:
                    raise _NotUnderstoodError from error
            raise _NotUnderstoodError
        if word in ("true", "false"):
            return Constant("boolean", word == "true")
        if word == "null":
            return _Opaque()
        if word in _RESERVED:
            raise _NotUnderstoodError
        if self._takes("("):
            if not self._takes(")"):
                self._or()
                while self._takes(","):
                    self._or()
                self._needs(")")
            return _Opaque()
        return _Column(token)

    def _truth(self, found: _Truth | _Value) -> _Truth:
        if isinstance(found, _Column):
            return Comparison(found.name, "=", (Constant("boolean", True),))
        if isinstance(found, Constant) and found.kind != "boolean":
            return _Opaque()
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
            raise _NotUnderstoodError

    def _takes(self, sign: str) -> bool:
        found = self._next() == ("sign", sign)
        self._at += found
        return found

    def _needs(self, sign: str) -> None:
        if not self._takes(sign):
            raise _NotUnderstoodError


def _compared(left: _Truth | _Value, operator: Operator, right: _Truth | _Value) -> _Truth:
    if isinstance(left, _Column) and isinstance(right, Constant):
        return Comparison(left.name, operator, (right,))
    if isinstance(left, Constant) and isinstance(right, _Column):
        return Comparison(right.name, _FLIPPED[operator], (left,))
    return _Opaque()


def _unquoted(token: str, quote: str) -> str:
    return token[1:-1].replace(quote * 2, quote)
