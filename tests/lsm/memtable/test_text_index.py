"""Text search and its scores, against a fresh index of Lance over the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.query import FullTextOperator
from lance.query import MatchQuery as LanceQuery

from memwal.errors import InvalidInputError
from memwal.lsm.memtable.rows import RowBuffer, RowView
from memwal.lsm.memtable.text_index import TextIndex, Tokenizer
from memwal.reader.hits import Hits
from memwal.search.text.column import TextColumn
from memwal.search.text.documents import TokenizedDocuments
from memwal.search.text.matching import leaf_hits
from memwal.search.text.query import MatchQuery

WORDS = [
    *("run", "running", "runner", "walk", "walking", "café", "Cafe", "naïve", "river", "bank"),
    *(f"word{number}" for number in range(60)),
    *("the", "of", "and"),
]
QUERIES = [
    "running",
    "river bank",
    "cafe NAIVE word3",
    "the word7",
    "word1 word1",
    "nowhere bank",
    "run",
]


def documents(count: int) -> list[str | None]:
    random = np.random.default_rng(count)
    odds = 1 / np.arange(1, len(WORDS) + 1)
    lengths = random.integers(0, 14, count)
    texts: list[str | None] = [
        " ".join(random.choice(WORDS, length, p=odds / odds.sum())) for length in lengths
    ]
    texts[3], texts[4] = None, "the of"
    return texts


def view_of(texts: list[Any], size: int, kind: pa.DataType | None = None) -> RowView:
    column = pa.array(texts, kind or pa.string())
    runs = RowBuffer(pa.schema([("text", column.type)]))
    for start in range(0, len(texts), size):
        runs.append(pa.record_batch([column.slice(start, size)], names=["text"]))
    return runs.view()


def indexed(path: Path, texts: list[Any], alive: np.ndarray, **options: Any) -> Any:
    rows = np.flatnonzero(alive)
    kind = pa.list_(pa.string()) if isinstance(texts[0], list) else pa.string()
    table = pa.table({"row": rows, "text": pa.array([texts[row] for row in rows], kind)})
    dataset = lance.write_dataset(table, path)
    dataset.create_scalar_index("text", "INVERTED", name="text_idx", **options)
    return dataset


def lance_scores(dataset: Any, query: Any) -> dict[int, float]:
    found = dataset.to_table(columns=["row", "_score"], full_text_query=query, limit=10_000)
    return dict(zip(found["row"].to_pylist(), found["_score"].to_pylist(), strict=True))


def documents_of(
    source: int, index: TextIndex, view: RowView, alive: np.ndarray, options: dict[str, Any]
) -> TokenizedDocuments:
    rows = np.arange(view.rows, dtype=np.uint64)
    return TokenizedDocuments(source, index, view, rows, alive, Tokenizer(options))


def search(
    index: TextIndex,
    query: MatchQuery,
    view: RowView,
    *,
    k: int | None = None,
    alive: np.ndarray | None = None,
    options: dict[str, Any] | None = None,
) -> Hits:
    """Search one MemTable, best rows first."""
    alive = np.ones(view.rows, np.bool_) if alive is None else alive
    parts = [documents_of(0, index, view, alive, options or {})]
    column = TextColumn(Tokenizer(options), parts, None)
    return leaf_hits(query, column, k=k).best(k, smallest=False)


def same(found: Hits, expected: dict[int, float]) -> None:
    assert sorted(found.rows.tolist()) == sorted(expected)
    wanted = [expected[row] for row in found.rows.tolist()]
    np.testing.assert_allclose(found.values, wanted, rtol=1e-4)
    assert (np.diff(found.values.astype(np.float32)) <= 0).all()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"stem": False, "remove_stop_words": False, "ascii_folding": False},
    {"base_tokenizer": "ngram", "min_ngram_length": 3, "max_ngram_length": 4},
    {"base_tokenizer": "whitespace", "lower_case": False, "with_position": True},
    {"base_tokenizer": "icu"},
    {"base_tokenizer": "raw"},
    {"analyzer": "code"},
]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("size", "options"),
    [
        # How rows are divided has nothing to do with how texts are.
        pytest.param(size, options, marks=() if size == 30 or not options else pytest.mark.slow)
        for size in (400, 30, 1)
        for options in OPTIONS
    ],
    ids=str,
)
def test_scores_are_those_of_lance(tmp_path: Path, size: int, options: dict[str, Any]) -> None:
    texts = documents(400)
    alive = np.arange(400) % 7 != 6
    dataset = indexed(tmp_path / "table", texts, alive, **options)
    recorded = dataset.stats.index_stats("text_idx")["indices"][0]["params"]
    view = view_of(texts, size)
    for index in (TextIndex("text", options), TextIndex("text", recorded)):
        for query in QUERIES:
            leaf = MatchQuery(query, "text")
            found = search(index, leaf, view, alive=alive, options=options)
            same(found, lance_scores(dataset, query))
            few = search(index, leaf, view, k=5, alive=alive, options=options)
            assert few.rows.tolist() == found.rows[:5].tolist()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"base_tokenizer": "ngram", "min_ngram_length": 3, "max_ngram_length": 4},
        {"base_tokenizer": "icu"},
        {"analyzer": "code", "split_identifiers": True, "preserve_original": True},
    ],
    ids=str,
)
def test_all_terms_may_be_asked_for(tmp_path: Path, options: dict[str, Any]) -> None:
    """Where a word becomes several tokens, Lance asks for one of those at each position."""
    texts, alive = documents(400), np.ones(400, np.bool_)
    texts[:3] = ["riverBank", "river_run walk", "bankRun"]
    dataset = indexed(tmp_path / "table", texts, alive, **options)
    index, view = TextIndex("text", options), view_of(texts, 50)
    found_any = 0
    for query in ["run walk", "run nowhere", "riverBank", "running walk_river", "the bank", "ban"]:
        wanted = LanceQuery(query, "text", operator=FullTextOperator.AND)
        found = search(index, MatchQuery(query, "text", operator="and"), view, options=options)
        same(found, lance_scores(dataset, wanted))
        found_any += len(found.rows)
    assert found_any


def test_lists_of_text(tmp_path: Path) -> None:
    texts = [["river bank", "bank"], ["run"], [], None, ["walk", None, "river word1"]]
    dataset = indexed(tmp_path / "table", texts, np.ones(5, np.bool_))
    index = TextIndex("text")
    view = view_of(texts, 2, pa.list_(pa.string()))
    for query in ["river", "bank walk"]:
        same(search(index, MatchQuery(query, "text"), view), lance_scores(dataset, query))


def test_statistics_of_several_sources_give_global_scores(tmp_path: Path) -> None:
    texts, alive = documents(600), np.arange(600) % 5 != 4
    dataset = indexed(tmp_path / "table", texts, alive)
    halves = [
        documents_of(source, TextIndex("text"), view_of(part, 100), mask, {})
        for source, (part, mask) in enumerate(
            [(texts[:350], alive[:350]), (texts[350:], alive[350:])]
        )
    ]
    column = TextColumn(Tokenizer(), halves, None)
    for query in QUERIES:
        hits = leaf_hits(MatchQuery(query, "text"), column)
        rows = hits.rows.astype(np.int64) + 350 * hits.source
        found = dict(zip(rows.tolist(), hits.values.tolist(), strict=True))
        assert found == pytest.approx(lance_scores(dataset, query), rel=1e-4)


def test_equal_scores_come_in_the_order_of_the_log() -> None:
    view = view_of(["bank"] * 40 + ["bank bank"], 1)
    found = search(TextIndex("text"), MatchQuery("bank", "text"), view, k=4)
    assert found.rows.tolist() == [40, 0, 1, 2]


def test_an_older_view_is_answered_as_of_then() -> None:
    texts = documents(300)
    index, old = TextIndex("text"), view_of(texts[:100], 100)
    lengths, counts = TextIndex("text").occurrences(["run"], old)
    index.catch_up(view_of(texts, 100))
    assert index.rows == 300
    found_lengths, found_counts = index.occurrences(["run"], old)
    assert found_lengths.tolist() == lengths.tolist()
    assert found_counts["run"].tolist() == counts["run"].tolist()


@pytest.mark.parametrize("texts", [[], [None, ""], ["the of"]])
def test_nothing_to_find(texts: list[str | None]) -> None:
    index, view = TextIndex("text"), view_of(texts, 5)
    assert search(index, MatchQuery("bank", "text"), view, k=3).rows.tolist() == []
    assert search(index, MatchQuery("", "text"), view, k=3).rows.tolist() == []
    assert documents_of(0, index, view, np.ones(view.rows, np.bool_), {}).size == (0, 0)


def test_refuses_columns_without_text() -> None:
    with pytest.raises(InvalidInputError, match="int64"):
        TextIndex("text").catch_up(view_of([1], 1, pa.int64()))


def test_occurrences_and_vocabulary() -> None:
    text = TextIndex("text")
    view = view_of(["a fox", None, "fox and foxes", "cats"], 2)
    lengths, counts = text.occurrences(["fox", "dog"], view)
    assert lengths.tolist() == [1, 0, 2, 1]
    assert counts["fox"].tolist() == [1, 0, 2, 0]
    assert counts["dog"].tolist() == [0, 0, 0, 0]
    assert text.vocabulary(view, np.array([0, 1, 3])) == ["cat", "fox"]
