"""Several text columns searched as one (BM25F)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memwal.errors import InvalidInputError
from memwal.memtable.text_scores import TextStatistics, term_scores
from memwal.reader.hits import Hits
from memwal.reader.text_bodies import Numbers, Postings
from memwal.reader.text_column import TextColumn
from memwal.reader.text_leaves import (
    good_enough,
    in_all_groups,
    numbered,
    rows_of,
)
from memwal.reader.text_postings import gather_postings
from memwal.reader.text_query import CombinedFieldsQuery

_Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Field:
    """One of the columns: the documents that hold each term, and the rows that those are."""

    held: dict[str, Postings]
    rows: dict[str, Hits]


def combined_hits(
    query: CombinedFieldsQuery, columns: Sequence[TextColumn], *, k: int | None = None
) -> Hits:
    """Find the rows that match in some columns together.

    A term is as frequent as in the column where it is most frequent, and there are as many
    documents as in the column that has most. Lengths and counts are added up, times the weights.

    Parameters
    ----------
    columns : sequence of TextColumn
        Those of the query, in its order.
    k : int, optional
        Rows that are worse than the k-th best may be left out; by default none is.

    Raises
    ------
    InvalidInputError
        The columns have different tokenizers.
    """
    tokenizer = columns[0].tokenizer
    if any(column.tokenizer.options != tokenizer.options for column in columns):
        raise InvalidInputError(
            f"the text indexes of {', '.join(query.columns)} have different tokenizers; columns "
            "are combined only if theirs is the same"
        )
    terms = list(dict.fromkeys(tokenizer.terms(query.query)))
    fields = [_field(column, terms) for column in columns]
    rows, numbers = numbered([field.rows[term] for field in fields for term in terms])
    counts = {term: np.zeros(len(rows)) for term in terms}
    at: dict[str, list[Numbers]] = {term: [] for term in terms}
    remaining = iter(numbers)
    for field, weight in zip(fields, query.weights, strict=True):
        for term in terms:
            mine = next(remaining)
            at[term].append(mine)
            counts[term][mine] += weight * field.held[term].counts
    statistics = _statistics(query, columns, fields, terms)
    lengths = _lengths(query, columns, rows)
    scores = np.zeros(len(rows))
    for term in terms:
        here = np.flatnonzero(counts[term])
        if len(here):
            scores[here] += term_scores(
                term, counts[term][here], lengths=lengths[here], statistics=statistics
            )
    found = Hits(rows.source, rows.rows, scores)
    if query.operator == "and":
        places = {term: np.concatenate(parts) for term, parts in at.items()}
        found = found.take(in_all_groups([(term,) for term in terms], places, len(rows)))
    return found.take(good_enough(found.values, k))


def _field(column: TextColumn, terms: Sequence[str]) -> _Field:
    held = gather_postings(column, terms)
    rows = {term: rows_of(column, one.documents, one.counts) for term, one in held.items()}
    return _Field(held, rows)


def _statistics(
    query: CombinedFieldsQuery,
    columns: Sequence[TextColumn],
    fields: Sequence[_Field],
    terms: Sequence[str],
) -> TextStatistics:
    weighted = zip(query.weights, columns, strict=True)
    return TextStatistics(
        max(column.documents for column in columns),
        sum(weight * column.tokens for weight, column in weighted),
        {term: max(len(field.held[term].documents) for field in fields) for term in terms},
    )


def _lengths(query: CombinedFieldsQuery, columns: Sequence[TextColumn], rows: Hits) -> _Weights:
    """Tokens of each row in all columns, times the weights; rows are ordered by source."""
    lengths = np.zeros(len(rows))
    for weight, column in zip(query.weights, columns, strict=True):
        for body in column.bodies:
            first, last = np.searchsorted(rows.source, [body.source, body.source + 1])
            lengths[first:last] += weight * body.lengths_of(rows.rows[first:last])
    return lengths
