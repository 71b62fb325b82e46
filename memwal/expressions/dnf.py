"""Disjunctive normal form of a SQL predicate, for proving that no row of a region passes.

A predicate becomes a list of alternatives, each a list of comparisons that must all hold. A
condition that is not understood is omitted from its list, which only weakens the alternative. The
result is therefore never stricter than the predicate: a row that passes the predicate passes all
comparisons of at least one alternative.

Negation is pushed down to the comparisons. This keeps SQL's third truth value: ``not (a < 5)`` and
``a >= 5`` are both unknown for null.
"""

from __future__ import annotations

from typing import Final

from memwal.expressions.parser import NotUnderstoodError, parse_predicate
from memwal.expressions.predicate import Comparison, Constant, Not, Opaque, Truth

MAX_ALTERNATIVES: Final = 64
"""Limit of alternatives. Conditions that would exceed it are omitted."""

Alternative = tuple[Comparison, ...]


def parse_alternatives(text: str) -> tuple[Alternative, ...]:
    """Parse a predicate into alternatives, of which at least one holds for each row that passes.

    The result is ``((),)``, which holds for every row, if nothing is understood; empty if no row
    can pass.
    """
    try:
        tree = parse_predicate(text)
    except NotUnderstoodError:
        return ((),)
    return tuple(
        tuple(dict.fromkeys(alternative)) for alternative in _alternatives(tree, negated=False)
    )


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
