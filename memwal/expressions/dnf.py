"""Disjunctive normal form of a SQL predicate, for proving that no row of a region passes.

A predicate becomes a list of alternatives, each a list of comparisons that must all hold. A
comparison that is not understood is left out of its list, which only makes the alternative weaker.
The result is therefore never stricter than the predicate: a row that passes the predicate passes
all comparisons of one alternative.

Negation is pushed down to the comparisons, where SQL's third truth value stays what it is: ``not (a
< 5)`` and ``a >= 5`` are both unknown for null.
"""

from __future__ import annotations

from typing import Final

from memwal.expressions.parser import NotUnderstoodError, parse_predicate
from memwal.expressions.predicate import Comparison, Constant, Not, Opaque, Truth

MAX_ALTERNATIVES: Final = 64
"""Of a predicate that has more, the parts that multiply them are left out."""

Alternative = tuple[Comparison, ...]


def parse_alternatives(text: str) -> tuple[Alternative, ...]:
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
        tree = parse_predicate(text)
    except NotUnderstoodError:
        return ((),)
    return tuple(tuple(dict.fromkeys(one)) for one in _alternatives(tree, negated=False))


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
        joined = [one for part in parts for one in part]
        return joined if len(joined) <= MAX_ALTERNATIVES else [()]
    product: list[Alternative] = [()]
    # Parts with few alternatives first: they are what must not be left out.
    for part in sorted(parts, key=len):
        if len(product) * len(part) <= MAX_ALTERNATIVES:
            product = [(*left, *right) for left in product for right in part]
    return product
