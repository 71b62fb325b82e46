"""Documents of all sources that hold a term, gathered once for many searches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from memwal.reader.parallel import run_all
from memwal.reader.recent import Recent
from memwal.reader.text_bodies import Postings
from memwal.reader.text_column import TextColumn

_GATHERED_BYTES = 128 << 20


def gather_postings(column: TextColumn, terms: Sequence[str]) -> dict[str, Postings]:
    """Living documents of a column that hold each of some distinct terms.

    Those of body i count from ``column.starts[i]``. What is gathered is kept as long as the
    sources are the same, unless they are the rows of a MemTable.
    """
    if column.key is None:
        return _gathered(column, terms)
    found = {}
    for term in terms:
        known = _recent.peek((column.key, term))
        if known is not None:
            found[term] = known
    missing = [term for term in terms if term not in found]
    if missing:
        found |= _gathered(column, missing)
    # Those that were known are asked for again, so that they are not forgotten before others.
    return {
        term: _recent.get((column.key, term), partial(found.__getitem__, term)) for term in terms
    }


def _gathered(column: TextColumn, terms: Sequence[str]) -> dict[str, Postings]:
    bodies = column.bodies
    asleep = [number for number, body in enumerate(bodies) if not body.ready(terms)]
    read = run_all([partial(bodies[number].postings, terms) for number in asleep])
    parts = dict(zip(asleep, read, strict=True))
    found = [
        parts[number] if number in parts else body.postings(terms)
        for number, body in enumerate(bodies)
    ]
    return {term: _joined(column, [part[term] for part in found]) for term in terms}


def _joined(column: TextColumn, parts: Sequence[Postings]) -> Postings:
    none = np.empty(0, np.int64)
    starts = column.starts[:-1]
    documents = [part.documents + start for part, start in zip(parts, starts, strict=True)]
    return Postings(
        np.concatenate([none, *documents]),
        np.concatenate([none, *(part.counts for part in parts)]),
        np.concatenate([none, *(part.lengths for part in parts)]),
    )


_recent: Recent[Postings] = Recent(_GATHERED_BYTES, lambda postings: postings.nbytes)
