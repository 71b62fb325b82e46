"""Text search and its scores, against a fresh index of Lance over the same rows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.query import FullTextOperator, MatchQuery

from memwal.errors import InvalidInputError
from memwal.lsm.memtable.bm25 import TextStatistics
from memwal.lsm.memtable.rows import RowBuffer, RowView
from memwal.lsm.memtable.text_index import TextIndex

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


def lance_scores(dataset: Any, query: Any, filter: str | None = None) -> dict[int, float]:
    found = dataset.to_table(
        columns=["row", "_score"],
        full_text_query=query,
        filter=filter,
        prefilter=True,
        limit=10_000,
    )
    return dict(zip(found["row"].to_pylist(), found["_score"].to_pylist(), strict=True))


def same(found: Any, expected: dict[int, float]) -> None:
    assert sorted(found.rows.tolist()) == sorted(expected)
    wanted = [expected[row] for row in found.rows.tolist()]
    np.testing.assert_allclose(found.scores, wanted, rtol=1e-4)
    assert (np.diff(found.scores) <= 0).all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stem": False, "remove_stop_words": False, "ascii_folding": False},
        {"base_tokenizer": "ngram", "min_ngram_length": 3, "max_ngram_length": 4},
        {"base_tokenizer": "whitespace", "lower_case": False, "with_position": True},
        {"base_tokenizer": "icu"},
        {"base_tokenizer": "raw"},
        {"analyzer": "code"},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [400, 30, 1])
def test_scores_are_those_of_lance(tmp_path: Path, size: int, options: dict[str, Any]) -> None:
    texts = documents(400)
    alive = np.arange(400) % 7 != 6
    dataset = indexed(tmp_path / "table", texts, alive, **options)
    recorded = dataset.stats.index_stats("text_idx")["indices"][0]["params"]
    view = view_of(texts, size)
    for index in (TextIndex("text", options), TextIndex("text", recorded)):
        for query in QUERIES:
            terms = index.terms(query)
            found = index.search(terms, view, k=10_000, alive=alive)
            same(found, lance_scores(dataset, query))
            few = index.search(terms, view, k=5, alive=alive)
            assert few.rows.tolist() == found.rows[:5].tolist()


def test_a_filter_leaves_the_statistics_alone(tmp_path: Path) -> None:
    texts, alive = documents(400), np.ones(400, np.bool_)
    dataset = indexed(tmp_path / "table", texts, alive)
    index = TextIndex("text")
    found = index.search(
        index.terms("river bank"),
        view_of(texts, 400),
        k=10_000,
        allowed=np.arange(400) % 3 == 0,
    )
    same(found, lance_scores(dataset, "river bank", "row % 3 = 0"))


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
        wanted = MatchQuery(query, "text", operator=FullTextOperator.AND)
        found = index.search(index.groups(query), view, k=10_000, operator="and")
        same(found, lance_scores(dataset, wanted))
        found_any += len(found.rows)
        if not options:
            terms = index.search(index.terms(query), view, k=10_000, operator="and")
            assert terms.rows.tolist() == found.rows.tolist()
    assert found_any


def test_lists_of_text(tmp_path: Path) -> None:
    texts = [["river bank", "bank"], ["run"], [], None, ["walk", None, "river word1"]]
    dataset = indexed(tmp_path / "table", texts, np.ones(5, np.bool_))
    index = TextIndex("text")
    view = view_of(texts, 2, pa.list_(pa.string()))
    for query in ["river", "bank walk"]:
        same(index.search(index.terms(query), view, k=9), lance_scores(dataset, query))


def test_statistics_of_several_sources_give_global_scores(tmp_path: Path) -> None:
    texts, alive = documents(600), np.arange(600) % 5 != 4
    dataset = indexed(tmp_path / "table", texts, alive)
    halves = [(TextIndex("text"), view_of(part, 100)) for part in (texts[:350], texts[350:])]
    masks = [alive[:350], alive[350:]]
    for query in QUERIES:
        terms = halves[0][0].terms(query)
        counted = TextStatistics()
        for (index, view), mask in zip(halves, masks, strict=True):
            counted += index.statistics(terms, view, alive=mask)
        expected = lance_scores(dataset, query)
        found: dict[int, float] = {}
        for first, (index, view), mask in zip((0, 350), halves, masks, strict=True):
            matches = index.search(terms, view, k=10_000, alive=mask, statistics=counted)
            found.update(zip((matches.rows + first).tolist(), matches.scores.tolist(), strict=True))
        assert found == pytest.approx(expected, rel=1e-4)


def test_equal_scores_come_in_the_order_of_the_log() -> None:
    index = TextIndex("text")
    view = view_of(["bank"] * 40 + ["bank bank"], 1)
    assert index.search(["bank"], view, k=4).rows.tolist() == [40, 0, 1, 2]


def test_an_older_view_is_answered_as_of_then() -> None:
    texts = documents(300)
    index, old = TextIndex("text"), view_of(texts[:100], 100)
    alone = TextIndex("text").search(["run"], old, k=300)
    index.catch_up(view_of(texts, 100))
    assert index.rows == 300
    found = index.search(["run"], old, k=300)
    assert found.rows.tolist() == alone.rows.tolist()
    assert found.scores.tolist() == alone.scores.tolist()


def test_searches_while_rows_come() -> None:
    texts = [f"bank word{number}" if number % 3 else "word1" for number in range(600)]
    runs = RowBuffer(pa.schema([("text", pa.string())]))
    index, done, failures = TextIndex("text"), threading.Event(), []

    def read() -> None:
        ended = False
        while not ended:
            ended = done.is_set()
            view = runs.view()
            found = index.search(["bank"], view, k=1_000)
            if found.rows.tolist() != [row for row in range(view.rows) if row % 3]:
                failures.append(view.rows)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for text in texts:
        runs.append(pa.record_batch([pa.array([text])], names=["text"]))
    done.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert index.rows == 600


@pytest.mark.parametrize("texts", [[], [None, ""], ["the of"]])
def test_nothing_to_find(texts: list[str | None]) -> None:
    index, view = TextIndex("text"), view_of(texts, 5)
    assert index.search(["bank"], view, k=3).rows.tolist() == []
    assert index.search([], view, k=3).rows.tolist() == []
    assert index.statistics(["bank"], view) == TextStatistics(0, 0, {"bank": 0})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"k": 0}, r"\bk\b"),
        ({"operator": "xor"}, "xor"),
        ({"statistics": TextStatistics(1, 1, {})}, "bank"),
    ],
)
def test_refuses(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        TextIndex("text").search(["bank"], view_of(["bank"], 1), **{"k": 1, **options})


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
