"""BM25 scores as Lance computes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log1p
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

_K1 = 1.2
_B = 0.75

_Numbers: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TextStatistics:
    """Statistics of a set of documents for BM25."""

    documents: int  # with at least one token
    tokens: float  # of all documents; not whole if tokens have weights
    frequencies: Mapping[str, int]  # number of documents that contain the term, by term


def term_scores(
    term: str,
    counts: _Numbers,
    *,
    lengths: _Numbers,
    statistics: TextStatistics,
) -> npt.NDArray[np.float64]:
    """Compute the part of a term in the scores of documents.

    ``counts`` and ``lengths`` are the occurrences of the term in each document, and its number of
    tokens. The statistics are of all documents that are ranked together, at least one.
    """
    frequency = statistics.frequencies[term]
    weight = log1p((statistics.documents - frequency + 0.5) / (frequency + 0.5))
    average = statistics.tokens / statistics.documents
    damping = _K1 * (1 - _B + _B * lengths / average)
    scores: npt.NDArray[np.float64] = weight * counts * (_K1 + 1) / (counts + damping)
    return scores
