"""Text queries: the query classes of Lance, with readable fields.

Classes and arguments are those of ``lance.query``, whose objects do not expose their fields.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from memwal.errors import InvalidInputError

MatchOperator: TypeAlias = Literal["or", "and"]
Occur: TypeAlias = Literal["should", "must", "must_not"]


@dataclass(frozen=True, slots=True)
class MatchQuery:
    """Terms in one column. InvalidInputError names a value that is wrong.

    Parameters
    ----------
    query : str
        Text; the tokenizer of the column's index makes the terms.
    column : str
    boost : float, default 1.0
        Scores are multiplied by it.
    operator : {"or", "and"}, default "or"
        Whether one term is enough, or all must be there.
    fuzziness : int or None, default 0
        Characters by which a term may differ. None is the same as 0, as Lance takes it, though
        pylance says that it depends on the length of the term.
    max_expansions : int, default 50
        Terms at most that a fuzzy query stands for, in the order of their bytes.
    prefix_length : int, default 0
        Bytes at the beginning of a term that must not differ.
    """

    query: str
    column: str
    boost: float = field(default=1.0, kw_only=True)
    operator: MatchOperator = field(default="or", kw_only=True)
    fuzziness: int | None = field(default=0, kw_only=True)
    max_expansions: int = field(default=50, kw_only=True)
    prefix_length: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "operator", _parse_choice(self.operator, ("or", "and")))
        if (self.fuzziness or 0) < 0 or self.prefix_length < 0 or self.max_expansions < 1:
            raise InvalidInputError(
                "fuzziness and prefix_length must not be negative, max_expansions at least 1"
            )


@dataclass(frozen=True, slots=True)
class PhraseQuery:
    """Terms one after the other in one column. InvalidInputError names a value that is wrong.

    Parameters
    ----------
    query : str
    column : str
        Its index must have positions.
    slop : int, default 0
        Terms that may stand between two that follow each other.
    """

    query: str
    column: str
    slop: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.slop < 0:
            raise InvalidInputError(f"slop is {self.slop}; it must not be negative")


@dataclass(frozen=True, slots=True)
class MultiMatchQuery:
    """The same text in several columns; the best column counts.

    InvalidInputError names a value that is wrong.

    Parameters
    ----------
    query : str
    columns : sequence of str
    boosts : sequence of float, optional
        One per column.
    operator : {"or", "and"}, default "or"
        Within each column.
    """

    query: str
    columns: Sequence[str]
    boosts: Sequence[float] | None = field(default=None, kw_only=True)
    operator: MatchOperator = field(default="or", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "operator", _parse_choice(self.operator, ("or", "and")))
        if not self.columns:
            raise InvalidInputError("no columns are given; name at least one")
        if self.boosts is not None and len(self.boosts) != len(self.columns):
            raise InvalidInputError(
                f"{len(self.boosts)} boosts are given for {len(self.columns)} columns"
            )

    @property
    def parts(self) -> tuple[MatchQuery, ...]:
        """One query per column."""
        boosts = self.boosts or [1.0] * len(self.columns)
        return tuple(
            MatchQuery(self.query, column, boost=boost, operator=self.operator)
            for column, boost in zip(self.columns, boosts, strict=True)
        )


@dataclass(frozen=True, slots=True)
class CombinedFieldsQuery:
    """The same text in several columns taken as one: BM25F. A repeated word counts once.

    Term rarity, term counts and row lengths are computed over all columns together, and a row may
    contain one term in one column and another term in another. InvalidInputError names a value
    that is wrong.

    Parameters
    ----------
    query : str
    columns : sequence of str
        All of them have text indexes with the same tokenizer.
    boosts : sequence of float, optional
        Weight of each column, 1 or more; 1 by default.
    operator : {"or", "and"}, default "or"
        Whether one term is enough, or each must be in some column.
    """

    query: str
    columns: Sequence[str]
    boosts: Sequence[float] | None = field(default=None, kw_only=True)
    operator: MatchOperator = field(default="or", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "operator", _parse_choice(self.operator, ("or", "and")))
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise InvalidInputError("name at least one column, and none twice")
        if self.boosts is None:
            return
        object.__setattr__(self, "boosts", tuple(self.boosts))
        if len(self.boosts) != len(self.columns):
            raise InvalidInputError(
                f"{len(self.boosts)} boosts are given for {len(self.columns)} columns"
            )
        if not all(1 <= boost < math.inf for boost in self.boosts):
            raise InvalidInputError("the boosts of combined columns are numbers of at least 1")

    @property
    def weights(self) -> tuple[float, ...]:
        """Weight of each column."""
        return tuple(self.boosts or [1.0] * len(self.columns))


@dataclass(frozen=True, slots=True)
class BoostQuery:
    """Hits of one query, with a share of another query's scores subtracted.

    Parameters
    ----------
    positive, negative : query
    negative_boost : float, default 0.5
    """

    positive: TextQuery
    negative: TextQuery
    negative_boost: float = field(default=0.5, kw_only=True)


@dataclass(frozen=True, slots=True)
class BooleanQuery:
    """Combination of queries; scores of queries that must or should match are added.

    InvalidInputError names a value that is wrong.

    Parameters
    ----------
    queries : sequence of ({"should", "must", "must_not"}, query)
    """

    queries: Sequence[tuple[Occur, TextQuery]]

    def __post_init__(self) -> None:
        choices = ("should", "must", "must_not")
        queries = tuple((_parse_choice(occur, choices), query) for occur, query in self.queries)
        object.__setattr__(self, "queries", queries)
        if not any(occur != "must_not" for occur, _ in queries):
            raise InvalidInputError("a boolean query needs something that must or should match")

    def of(self, occur: Occur) -> list[TextQuery]:
        """Return the queries of one kind, ``occur``."""
        return [query for kind, query in self.queries if kind == occur]


TextQuery: TypeAlias = (
    MatchQuery | PhraseQuery | MultiMatchQuery | CombinedFieldsQuery | BoostQuery | BooleanQuery
)
Leaf: TypeAlias = MatchQuery | PhraseQuery | CombinedFieldsQuery


def columns_of(leaf: Leaf) -> Sequence[str]:
    """Return the columns that a leaf of a query searches."""
    return leaf.columns if isinstance(leaf, CombinedFieldsQuery) else (leaf.column,)


def leaves(query: TextQuery) -> list[Leaf]:
    """Return the leaves of a query, which are searched one by one."""
    if isinstance(query, Leaf):
        return [query]
    if isinstance(query, MultiMatchQuery):
        return list(query.parts)
    if isinstance(query, BoostQuery):
        return [*leaves(query.positive), *leaves(query.negative)]
    if isinstance(query, BooleanQuery):
        return [leaf for _, part in query.queries for leaf in leaves(part)]
    raise InvalidInputError(
        f"{type(query).__name__} is not a text query; use the classes of memwal.search.text.query, "
        "which have the names and arguments of those in lance.query"
    )


def _parse_choice(value: object, known: tuple[str, ...]) -> str:
    """Return a choice in lower case; members of Lance's enumerations are accepted too."""
    name = str(getattr(value, "value", value)).lower()
    if name not in known:
        raise InvalidInputError(f"{value!r} is none of {', '.join(known)}")
    return name
