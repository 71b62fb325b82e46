"""Parser of SQL predicates, and their normal form, which proves that no row of a region passes.

A complete expression that is not supported becomes an ``Opaque`` node, and so does an operator or
function over anything but columns and constants. If the text cannot be split into expressions,
:class:`NotUnderstoodError` is raised for the whole predicate.

A predicate becomes a list of alternatives, each a list of comparisons that must all hold. A
condition that is not understood is omitted from its list, which only weakens the alternative. The
result is therefore never stricter than the predicate: a row that passes the predicate passes all
comparisons of at least one alternative.

Negation is pushed down to the comparisons. This keeps SQL's third truth value: ``not (a < 5)`` and
``a >= 5`` are both unknown for null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Final, cast, get_args

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
from memwal.expressions.region_sql import words

_RESERVED: Final = words(
    "and or not in is null between like ilike similar escape case when then else end cast "
    "try_cast as exists any all some from select distinct collate interval div extract"
)
"""Keywords. A column with such a name must be quoted."""

_INTEGER_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "integer": 32, "bigint": 64}
_TIME_TYPES: Final = ("date", "timestamp")
_WILDCARDS: Final = re.compile(r"[%_\\]")
_MAX_LENGTH: Final = 1 << 20
_KEPT_LENGTH: Final = 1 << 12
# Each level takes a dozen of the thousand calls that Python allows within each other.
_MAX_DEPTH: Final = 40
_MAX_NEGATIONS: Final = 100

# No comparable type has more digits.
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


MAX_ALTERNATIVES: Final = 64
"""Limit of alternatives. Conditions that would exceed it are omitted."""

Alternative = tuple[Comparison, ...]


class NotUnderstoodError(Exception):
    """The text is not a predicate that this parser understands."""


def parse_alternatives(text: str) -> tuple[Alternative, ...]:
    """Parse a predicate into alternatives, of which at least one holds for each row that passes.

    The result is ``((),)``, which holds for every row, if nothing is understood; empty if no row
    can pass.
    """
    # Long lists of keys would stay in memory beyond the limit of what a process keeps.
    return (_parse_short if len(text) <= _KEPT_LENGTH else _parse)(text)


def _parse(text: str) -> tuple[Alternative, ...]:
    try:
        tree = _Parser(_tokenize(text)).parse()
    except NotUnderstoodError:
        return ((),)
    return tuple(
        tuple(dict.fromkeys(alternative)) for alternative in _alternatives(tree, negated=False)
    )


# A read parses its filter three times.
_parse_short = lru_cache(maxsize=4)(_parse)


def _alternatives(tree: Truth, *, negated: bool) -> list[Alternative]:
    if isinstance(tree, Not):
        return _alternatives(tree.part, negated=not negated)
    if isinstance(tree, Comparison):
        return [(tree.negated() if negated else tree,)]
    if isinstance(tree, Constant):
        return [()] if bool(tree.value) != negated else []
    if isinstance(tree, Opaque):
        return [()]
    parts = [_alternatives(part, negated=negated) for part in tree.parts]
    if tree.both == negated:
        joined = [alternative for part in parts for alternative in part]
        return joined if len(joined) <= MAX_ALTERNATIVES else [()]
    product: list[Alternative] = [()]
    # Parts with few alternatives first: they restrict most, and are omitted last.
    for part in sorted(parts, key=len):
        if len(product) * len(part) <= MAX_ALTERNATIVES:
            product = [(*first, *second) for first in product for second in part]
    return product


class _Parser:
    """Recursive-descent parser with SQL's precedences: or, and, not, comparisons, arithmetic."""

    def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    def parse(self) -> Truth:
        predicate = self._truth(self._or())
        if self._position != len(self._tokens):
            raise NotUnderstoodError
        return predicate

    def _or(self) -> Truth | Value:
        with self._deeper():
            return self._junction("or", partial(self._junction, "and", self._not))

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NotUnderstoodError
        yield
        self._depth -= 1

    def _junction(self, word: str, parse_part: Callable[[], Truth | Value]) -> Truth | Value:
        first = parse_part()
        if not self._is_word(word):
            return first
        parts = [self._truth(first)]
        while self._accept_word(word):
            parts.append(self._truth(parse_part()))
        return Junction(word == "and", tuple(parts))

    def _not(self) -> Truth | Value:
        negations = 0
        while self._accept_word("not"):
            negations += 1
        if negations > _MAX_NEGATIONS:
            raise NotUnderstoodError
        node = self._comparison()
        for _ in range(negations):
            node = Not(self._truth(node))
        return node

    def _comparison(self) -> Truth | Value:
        operand = self._sum()
        node: Truth | Value = operand
        kind, token = self._peek()
        word = token.casefold() if kind == "name" else ""
        if kind == "sign" and token in _SIGNS:
            self._position += 1
            node = _compare(operand, _SIGNS[token], self._sum())
        elif word == "is":
            self._position += 1
            node = self._is(operand)
        elif word in ("in", "between", "not"):
            negated = self._accept_word("not")
            if self._accept_word("in"):
                node = self._in(operand)
            elif self._accept_word("between"):
                low = self._sum()
                self._expect_word("and")
                high = self._sum()
                node = Junction(True, (_compare(operand, ">=", low), _compare(operand, "<=", high)))
            elif self._is_word("like") or self._is_word("ilike"):
                node = self._like(operand)
            else:
                raise NotUnderstoodError
            node = Not(node) if negated else node
        elif word in ("like", "ilike"):
            node = self._like(operand)
        if node is not operand:
            # Refuse ``a = 1 is null`` and the like, which SQL groups in an unexpected way.
            kind, token = self._peek()
            ends = kind == "" or token in (")", ",") or token.casefold() in ("and", "or")
            if not ends or kind in ("text", "quoted"):
                raise NotUnderstoodError
        return node

    def _is(self, operand: Truth | Value) -> Truth:
        negated = self._accept_word("not")
        node: Truth
        if self._accept_word("null"):
            if not isinstance(operand, Column) or operand.part is not None:
                return Opaque()
            return Comparison(operand.name, "is not null" if negated else "is null")
        if self._is_word("true") or self._is_word("false"):
            node = _truth_test(self._truth(operand), value=self._accept_word("true"))
            # If the word was not "true", it is still the next token.
            self._accept_word("false")
        elif self._accept_word("distinct"):
            self._expect_word("from")
            # Unlike with ``=``, everything that follows belongs to the right side.
            node = Not(_necessary(_compare(operand, "=", self._or())))
        else:
            raise NotUnderstoodError
        return Not(node) if negated else node

    def _like(self, operand: Truth | Value) -> Truth:
        exact = self._accept_word("like")
        if not exact:
            self._expect_word("ilike")
        pattern = self._sum()
        # A match that ignores case has no fixed prefix.
        return _match_like(operand, pattern) if exact else Opaque()

    def _in(self, operand: Truth | Value) -> Truth:
        self._expect("(")
        values = [self._sum()]
        while self._accept(","):
            values.append(self._sum())
        self._expect(")")
        constants = [value for value in values if isinstance(value, Constant)]
        if not isinstance(operand, Column) or len(constants) != len(values):
            return Opaque()
        present = tuple(value for value in constants if value.kind != "null")
        if not present:
            return Opaque()
        comparison = Comparison(operand.name, "in", present, operand.part)
        # If the list has a null, a value that is not in the list is unknown, not false.
        return comparison if len(present) == len(constants) else _necessary(comparison)

    def _sum(self) -> Truth | Value:
        node = self._primary()
        while self._peek()[0] == "sign" and self._peek()[1] in _ARITHMETIC:
            self._position += 1
            self._primary()
            node = Opaque()
        return node

    def _primary(self) -> Truth | Value:
        node = self._operand()
        while self._accept("::"):
            node = _cast(node, self._type())
        return node

    def _operand(self) -> Truth | Value:
        kind, word = self._peek()
        self._position += 1
        if (kind, word) == ("sign", "("):
            inner = self._or()
            self._expect(")")
            return inner
        if (kind, word) == ("sign", "-"):
            # A cast binds more tightly than the sign.
            with self._deeper():
                return _negate(self._primary())
        if kind == "number":
            is_integer = word.isdigit() and len(word) <= _MAX_DIGITS
            return Constant("integer", int(word)) if is_integer else Opaque()
        if kind == "text":
            return Constant("text", _unquote(word, "'"))
        if kind == "quoted":
            return Column(_unquote(word, "`"))
        if kind == "name":
            return self._named(word)
        raise NotUnderstoodError

    def _named(self, token: str) -> Truth | Value:
        word = token.casefold()
        kind, following = self._peek()
        if kind == "text":
            self._position += 1
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
        if word in ("cast", "try_cast") and self._accept("("):
            inner = self._or()
            self._expect_word("as")
            node = _cast(inner, self._type())
            self._expect(")")
            return node
        if word in _RESERVED:
            raise NotUnderstoodError
        if self._accept("("):
            return _call(word, self._arguments())
        return Column(token)

    def _arguments(self) -> list[Truth | Value]:
        arguments: list[Truth | Value] = []
        if not self._accept(")"):
            arguments.append(self._or())
            while self._accept(","):
                arguments.append(self._or())
            self._expect(")")
        return arguments

    def _type(self) -> str:
        """Return the name of a type; empty for a type with arguments, which is not supported."""
        kind, word = self._peek()
        if kind != "name":
            raise NotUnderstoodError
        self._position += 1
        if self._accept("("):
            self._arguments()
            return ""
        return word.casefold()

    def _truth(self, node: Truth | Value) -> Truth:
        if isinstance(node, Column):
            return _compare(node, "=", Constant("boolean", True))
        if isinstance(node, Constant) and node.kind != "boolean":
            return Opaque()
        return node

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._position] if self._position < len(self._tokens) else ("", "")

    def _is_word(self, word: str) -> bool:
        kind, token = self._peek()
        return kind == "name" and token.casefold() == word

    def _accept_word(self, word: str) -> bool:
        matches = self._is_word(word)
        self._position += matches
        return matches

    def _expect_word(self, word: str) -> None:
        if not self._accept_word(word):
            raise NotUnderstoodError

    def _accept(self, sign: str) -> bool:
        matches = self._peek() == ("sign", sign)
        self._position += matches
        return matches

    def _expect(self, sign: str) -> None:
        if not self._accept(sign):
            raise NotUnderstoodError


def _tokenize(text: str) -> list[tuple[str, str]]:
    """Return kind (text, quoted, number, name or sign) and text of each token."""
    if len(text) > _MAX_LENGTH or "--" in text or "/*" in text:
        raise NotUnderstoodError
    tokens = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None or match.lastgroup is None:
            raise NotUnderstoodError
        kind, token = match.lastgroup, match[match.lastgroup]
        if kind == "number" and text[match.end() : match.end() + 1].isidentifier():
            raise NotUnderstoodError
        tokens.append((kind, token))
        at = match.end()
    return tokens


def _unquote(token: str, quote: str) -> str:
    return token[1:-1].replace(quote * 2, quote)


def _compare(first: Truth | Value, operator: Operator, second: Truth | Value) -> Truth:
    """Compare a column with a constant, in either order."""
    if isinstance(first, Constant) and isinstance(second, Column):
        first, operator, second = second, FLIPPED[operator], first
    if isinstance(first, Column) and isinstance(second, Constant) and second.kind != "null":
        return Comparison(first.name, operator, (second,), first.part)
    return Opaque()


def _starts_with(operand: Truth | Value, prefix: Truth | Value) -> Truth:
    if isinstance(operand, Column) and operand.part is None and isinstance(prefix, Constant):
        return Comparison(operand.name, "starts with", (prefix,))
    return Opaque()


def _match_like(operand: Truth | Value, pattern: Truth | Value) -> Truth:
    """Compare a column with a LIKE pattern, as far as a prefix of the pattern decides."""
    if not isinstance(pattern, Constant) or not isinstance(pattern.value, str):
        return Opaque()
    prefix = _WILDCARDS.split(pattern.value, maxsplit=1)[0]
    rest = pattern.value[len(prefix) :]
    if not rest:
        return _compare(operand, "=", pattern)
    starts = _starts_with(operand, Constant("text", prefix))
    return _necessary(starts) if rest.strip("%") else starts


def _necessary(condition: Truth) -> Truth:
    """Return a predicate that implies ``condition`` and whose negation implies nothing."""
    return Junction(True, (condition, Opaque()))


def _truth_test(tested: Truth, *, value: bool) -> Truth:
    """Apply ``is true`` or ``is false``, which are never unknown."""
    condition = tested if value else Not(tested)
    if isinstance(tested, Comparison):
        if tested.operator in ("is null", "is not null"):
            return condition
        return Junction(True, (condition, Comparison(tested.column, "is not null")))
    return _necessary(condition)


def _cast(node: Truth | Value, type_name: str) -> Value:
    """Convert a column or constant to another SQL type."""
    if isinstance(node, Column) and node.part is None and type_name == "date":
        return Column(node.name, "date")
    if isinstance(node, Constant):
        if isinstance(node.value, int) and node.kind == "integer" and type_name in _INTEGER_BITS:
            end = 1 << (_INTEGER_BITS[type_name] - 1)
            return node if -end <= node.value < end else Opaque()
        if node.kind in ("text", type_name) and type_name in _TIME_TYPES:
            return Constant(type_name, node.value)
        if node.kind == "date" and type_name == "timestamp":
            # Still a date: engines drop a time of day in its text.
            return node
    return Opaque()


def _call(name: str, arguments: Sequence[Truth | Value]) -> Truth | Value:
    match name, arguments:
        case "starts_with", [text, prefix]:
            return _starts_with(text, prefix)
        case (("date_part" | "datepart"), [Constant("text", str(part)), Column(column, None)]):
            date_part = part.casefold()
            if date_part in get_args(DatePart):
                return Column(column, cast("DatePart", date_part))
    return Opaque()


def _negate(node: Truth | Value) -> Value:
    """Return an integer constant with the other sign."""
    if isinstance(node, Constant) and node.kind == "integer" and isinstance(node.value, int):
        return Constant("integer", -node.value)
    return Opaque()
