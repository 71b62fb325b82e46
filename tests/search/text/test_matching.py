"""The formula; tests of text rows compare it with Lance."""

import numpy as np
import pytest

from memwal.search.text.matching import TextStatistics, term_scores


def test_one_term_in_a_document_of_average_length() -> None:
    statistics = TextStatistics(10, 50, {"red": 2})
    scores = term_scores("red", np.array([1]), lengths=np.array([5]), statistics=statistics)
    # With average length, a single occurrence weighs as much as the rarity of the term.
    assert scores == pytest.approx([np.log(1 + 8.5 / 2.5)])


def test_often_and_short_ranks_higher() -> None:
    statistics = TextStatistics(10, 50, {"red": 2})
    scores = term_scores(
        "red", np.array([1, 2, 1]), lengths=np.array([5, 5, 2]), statistics=statistics
    )
    assert scores[1] > scores[0]
    assert scores[2] > scores[0]
