"""What a SQL predicate says about columns, as far as it can tell that no row of a region passes.

A predicate is read into alternatives, each a list of comparisons that must all hold. What is not
understood is left out of its list, which only makes it weaker, so that a predicate never says less
than it must: a row that passes the predicate passes all comparisons of one alternative.

Negation is carried to the comparisons, where SQL's third truth value stays what it is: ``not
(a < 5)`` and ``a >= 5`` are both unknown for null.
"""

from __future__ import annotations

from typing import Final

from memwal.region.predicate_syntax import parse_predicate
from memwal.region.predicate_terms import Comparison, Constant, Not, Opaque, Truth
from memwal.region.predicate_tokens import NotUnderstoodError

MAX_ALTERNATIVES: Final = 64
"""Of a predicate that has more, the parts that multiply them are left out."""

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
