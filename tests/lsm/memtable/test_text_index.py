"""The text index of a MemTable: order of rows, older views, what it counts.

That its scores are those of a fresh index of Lance is shown by tests/search/text, for all sources.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memwal.lsm.memtable.rows import RowBuffer, RowView
from memwal.lsm.memtable.text_index import TextIndex, Tokenizer
from memwal.search.text.column import TextColumn
from memwal.search.text.documents import TokenizedDocuments
from memwal.search.text.matching import leaf_hits
from memwal.search.text.query import MatchQuery


def view_of(texts: list[Any], size: int) -> RowView:
    column = pa.array(texts, pa.string())
    runs = RowBuffer(pa.schema([("text", column.type)]))
    for start in range(0, len(texts), size):
        runs.append(pa.record_batch([column.slice(start, size)], names=["text"]))
    return runs.view()


def documents_of(index: TextIndex, view: RowView) -> TokenizedDocuments:
    rows = np.arange(view.rows, dtype=np.uint64)
    return TokenizedDocuments(0, index, view, rows, np.ones(view.rows, np.bool_), Tokenizer({}))


def search(words: str, view: RowView, *, k: int) -> list[int]:
    """Search one MemTable, best rows first."""
    column = TextColumn(Tokenizer(None), [documents_of(TextIndex("text"), view)], None)
    hits = leaf_hits(MatchQuery(words, "text"), column, k=k)
    found: list[int] = hits.best(k, smallest=False).rows.tolist()
    return found


def test_equal_scores_come_in_the_order_of_the_log() -> None:
    view = view_of(["bank"] * 40 + ["bank bank"], 1)
    assert search("bank", view, k=4) == [40, 0, 1, 2]


def test_an_older_view_is_answered_as_of_then() -> None:
    texts = ["run to the bank", None, "a walk", "running by the river"] * 75
    index, old = TextIndex("text"), view_of(texts[:100], 100)
    lengths, counts = TextIndex("text").occurrences(["run"], old)
    index.catch_up(view_of(texts, 100))
    assert index.rows == 300
    found_lengths, found_counts = index.occurrences(["run"], old)
    assert found_lengths.tolist() == lengths.tolist()
    assert found_counts["run"].tolist() == counts["run"].tolist()


@pytest.mark.parametrize("texts", [[], [None, ""], ["the of"]])
def test_nothing_to_find(texts: list[str | None]) -> None:
    view = view_of(texts, 5)
    assert search("bank", view, k=3) == search("", view, k=3) == []
    assert documents_of(TextIndex("text"), view).size == (0, 0)


def test_occurrences_and_vocabulary() -> None:
    text = TextIndex("text")
    view = view_of(["a fox", None, "fox and foxes", "cats"], 2)
    lengths, counts = text.occurrences(["fox", "dog"], view)
    assert lengths.tolist() == [1, 0, 2, 1]
    assert counts["fox"].tolist() == [1, 0, 2, 0]
    assert counts["dog"].tolist() == [0, 0, 0, 0]
    assert text.vocabulary(view, np.array([0, 1, 3])) == ["cat", "fox"]


def test_the_vocabulary_of_lists_has_tokens_with_spaces() -> None:
    column = pa.array([["", "red", None, "fox"], None, ["dog"]], pa.list_(pa.string()))
    view = RowView.of(pa.schema([("text", column.type)]), [pa.record_batch([column], ["text"])])
    index = TextIndex("text", {"base_tokenizer": "raw", "stem": False})
    assert index.vocabulary(view, np.array([0, 2])) == ["dog", "red fox"]
