"""What the tokens of a SQL predicate say together.

What is not known here, but is a complete expression, becomes ``Opaque`` where it stands. What
cannot even be told apart makes the whole predicate one that is not understood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from memwal.region.predicate_operations import called, cast, compared, known, like, negative, only
from memwal.region.predicate_terms import (
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
from memwal.region.predicate_tokens import RESERVED, NotUnderstoodError, read_tokens, unquoted

_MAX_DEPTH: Final = 100
# No type that is compared has more.
_MOST_DIGITS: Final = 80
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


def parse_predicate(text: str) -> Truth:
    """Read a predicate.

    Raises
    ------
    NotUnderstoodError
        It cannot be told what belongs together.
    """
    return _Reader(read_tokens(text)).whole()


class _Reader:
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
            found = compared(left, _SIGNS[token], self._sum())
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
                found = Junction(True, (compared(left, ">=", low), compared(left, "<=", high)))
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
            found = known(self._truth(left), value=self._takes_word("true"))
            # The word that was not the first one is still there.
            self._takes_word("false")
        elif self._takes_word("distinct"):
            self._needs_word("from")
            # Other than with ``=``, all that follows belongs to the right side.
            found = Not(only(compared(left, "=", self._or())))
        else:
            raise NotUnderstoodError
        return Not(found) if negated else found

    def _like(self, left: Truth | Value) -> Truth:
        exact = self._takes_word("like")
        if not exact:
            self._needs_word("ilike")
        pattern = self._sum()
        # Where case does not matter, no prefix is known.
        return like(left, pattern) if exact else Opaque()

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
        return found if len(present) == len(constants) else only(found)

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
            found = cast(found, self._type())
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
                return negative(self._primary())
        if kind == "number":
            is_known = word.isdigit() and len(word) <= _MOST_DIGITS
            return Constant("integer", int(word)) if is_known else Opaque()
        if kind == "text":
            return Constant("text", unquoted(word, "'"))
        if kind == "quoted":
            return Column(unquoted(word, "`"))
        if kind == "name":
            return self._named(word)
        raise NotUnderstoodError

    def _named(self, token: str) -> Truth | Value:
        word = token.casefold()
        kind, following = self._next()
        if kind == "text":
            self._at += 1
            value = unquoted(following, "'")
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
            found = cast(inner, self._type())
            self._needs(")")
            return found
        if word in RESERVED:
            raise NotUnderstoodError
        if self._takes("("):
            return called(word, self._arguments())
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
            return compared(found, "=", Constant("boolean", True))
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
