"""Text search over all sources scores and orders as one merged, freshly indexed table does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.searched import Searched

import memwal
from memwal.errors import InvalidInputError
from memwal.reader.scan import collect_newest
from memwal.reader.search import search_text
from memwal.reader.sources import collect_sources
from memwal.reader.text_query import (
    BooleanQuery,
    MatchQuery,
    MultiMatchQuery,
    PhraseQuery,
)

TOKENIZERS: dict[str, dict[str, Any]] = {
    "default": {},
    "no-stemming": {"stem": False},
    "stop-words-and-accents": {"remove_stop_words": False, "ascii_folding": False},
    "ngrams": {"base_tokenizer": "ngram", "min_ngram_length": 3, "max_ngram_length": 4},
    "whitespace": {"base_tokenizer": "whitespace", "lower_case": False},
    "raw": {"base_tokenizer": "raw"},
    "german": {"language": "German"},
    "short-tokens": {"max_token_length": 4},
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_tokenizer(tmp_path: Path, name: str) -> None:
    searched = Searched(tmp_path, seed=len(name), text=TOKENIZERS[name])
    with searched.table.writer() as writer:
        writer.upsert(searched.rows(range(100, 180)))
        writer.flush()
        searched.delete(writer, range(40))
        writer.upsert(searched.rows(range(20, 50)))
        for _ in range(8):
            searched.check_text(writer, searched.query(fuzzy=name != "ngrams"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.timeout(120)
def test_histories(tmp_path: Path, seed: int) -> None:
    """Whatever was written, flushed, merged, appended beside, indexed or compacted."""
    searched = Searched(tmp_path, seed=seed, maintained=["t_idx", "u_idx"][: 1 + seed % 2])
    table = searched.table
    for _ in range(3):
        with table.writer() as writer:
            for _ in range(searched.random.randint(1, 5)):
                searched.step(writer)
            _check(searched, writer)
        _check(searched, table)
        if searched.random.random() < 0.7:
            table.merge()
            _check(searched, table)
        if searched.random.random() < 0.3:
            start = 10_000 + max(searched.model)
            lance.write_dataset(searched.rows(range(start, start + 5)), table.uri, mode="append")
            _check(searched, table)
        if searched.random.random() < 0.4:
            table.build_indexes()
            _check(searched, table)
        if searched.random.random() < 0.3:
            lance.dataset(table.uri).optimize.compact_files()
            _check(searched, table)


def _check(searched: Searched, reads: Any) -> None:
    for _ in range(4):
        filter = searched.random.choice([None, None, "n < 4"])
        searched.check_text(reads, searched.query(), filter=filter)


def test_an_index_of_another_form_is_not_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    searched = Searched(tmp_path, text={"block_size": 256})
    with searched.table.writer() as writer:
        writer.upsert(searched.rows(range(140, 170)))
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            searched.check_text(searched.table, searched.query())
    told = [record.getMessage() for record in caplog.records if "form" in record.getMessage()]
    assert len(told) == len(set(told)) > 0


def test_statistics_do_not_count_what_is_gone(tmp_path: Path) -> None:
    """Rows deleted from the base table stay in its index until it is built again."""
    searched = Searched(tmp_path)
    lance.dataset(searched.uri).delete("id < 60")
    for key in range(60):
        del searched.model[key]
    searched.check_text(searched.table, MatchQuery("apple fox", "t"))
    searched.table.build_indexes()
    searched.check_text(searched.table, MatchQuery("apple fox", "t"))


def test_a_filter_leaves_scores_alone_and_finds_all(tmp_path: Path) -> None:
    searched = Searched(tmp_path)
    with searched.table.writer() as writer:
        writer.upsert(searched.rows(range(100, 200)))
    query = MatchQuery("apple quick fox", "t")
    every = searched.found_texts(searched.table, query, k=None)
    for k in (1, 7, 1000):
        found = searched.found_texts(searched.table, query, k=k, filter="n = 3")
        left = {key: score for key, score in every.items() if searched.model[key]["n"] == 3}
        assert list(found.values()) == list(left.values())[:k]
        assert found.keys() <= left.keys()


def test_plain_text_searches_every_indexed_column(tmp_path: Path) -> None:
    searched = Searched(tmp_path)
    both = searched.found_texts(searched.table, "zebra", k=None)
    assert both == searched.found_texts(
        searched.table, MultiMatchQuery("zebra", ["t", "u"]), k=None
    )
    one = searched.found_texts(searched.table, "zebra", k=None, column="t")
    assert one == searched.found_texts(searched.table, MatchQuery("zebra", "t"), k=None)
    assert one.keys() < both.keys()


@pytest.mark.parametrize("query", ["", "the of", "nothing"])
def test_nothing_to_find(tmp_path: Path, query: str) -> None:
    searched = Searched(tmp_path, rows=40)
    assert searched.found_texts(searched.table, query, k=5) == {}
    assert searched.found_texts(searched.table, PhraseQuery(query, "t"), k=5) == {}


def test_an_empty_table(make_table: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("t", pa.string())])
    table = make_table(schema)
    lance.dataset(table.uri).create_scalar_index("t", "INVERTED")
    assert _found(table, "apple") == []
    with table.writer() as writer:
        writer.upsert(pa.table({"id": [1, 2], "t": ["an apple", "a pear"]}))
        assert _found(writer, "apple") == [1]
        writer.flush()
        assert _found(table, "apple") == [1]
        writer.delete(pa.array([1]))
        assert _found(writer, "apple") == []


def test_lists_of_text_and_composite_keys(make_table: Any) -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("b", pa.string(), nullable=False),
            pa.field("t", pa.list_(pa.string())),
        ]
    )
    table = make_table(schema, primary_key=("a", "b"))
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("t", "INVERTED", with_position=True)
    table = memwal.open(table.uri)
    with table.writer() as writer:
        writer.upsert(
            pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "t": [["red fox", "blue"], None, []]})
        )
        table.merge()
        writer.flush()
        table.merge()
        table.build_indexes()
        writer.upsert(pa.table({"a": [1, 2], "b": ["y", "x"], "t": [["a blue", "fox"], ["red"]]}))
        assert _keys(writer, "blue") == {(1, "x"), (1, "y")}
        assert _keys(writer, "red") == {(1, "x"), (2, "x")}
        assert _keys(writer, PhraseQuery("red fox", "t")) == {(1, "x")}
        assert _keys(writer, PhraseQuery("blue fox", "t")) == {(1, "y")}
        writer.upsert(pa.table({"a": [1], "b": ["x"], "t": [["green"]]}))
        assert _keys(writer, "blue") == {(1, "y")}


def test_mistakes_are_told(tmp_path: Path) -> None:
    searched = Searched(tmp_path, rows=40, text={"with_position": False})
    for query, words, options in (
        ("apple", "no text index", {"column": "n"}),
        ("apple", "ask for at least one", {"k": 0}),
        (PhraseQuery("quick fox", "t"), "no positions", {}),
        (MatchQuery("apple", "t"), "names its columns", {"column": "t"}),
        (lance.query.MatchQuery("apple", "t"), "is no text query", {}),
    ):
        sources, newest = searched.sources(searched.table)
        with pytest.raises(InvalidInputError, match=words):
            search_text(sources, newest, query, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="must or should"):
        BooleanQuery([("must_not", MatchQuery("apple", "t"))])
    with pytest.raises(InvalidInputError, match="none of or, and"):
        MatchQuery("apple", "t", operator="xor")  # type: ignore[arg-type]


def _found(reads: Any, query: str) -> list[int]:
    ids: list[int] = _search(reads, query)["id"].to_pylist()
    return ids


def _keys(reads: Any, query: Any) -> set[tuple[int, str]]:
    found = _search(reads, query)
    return set(zip(found["a"].to_pylist(), found["b"].to_pylist(), strict=True))


def _search(reads: Any, query: Any) -> pa.Table:
    sources, newest = collect_newest(lambda: collect_sources(reads.location, reads._memtables()))
    return search_text(sources, newest, query, k=None)
