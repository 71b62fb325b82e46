"""Text search over all sources scores and orders as one merged, freshly indexed table does."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.query import DocumentGranularity
from support.data.sampled import every
from support.data.searched import Searched, sources_of
from support.data.tables import rows

import memwal
from memwal.errors import InvalidInputError
from memwal.reader import base_rows
from memwal.search import search_text
from memwal.search.text import matching
from memwal.search.text.query import (
    BooleanQuery,
    CombinedFieldsQuery,
    MatchQuery,
    MultiMatchQuery,
    PhraseQuery,
)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", every(3, range(4)))
@pytest.mark.timeout(120)
def test_histories(tmp_path: Path, seed: int) -> None:
    """Whatever was written, flushed, merged, appended beside, indexed or compacted."""
    searched = Searched(tmp_path, seed=seed, maintained=["t_idx", "u_idx"][: 1 + seed % 2])

    def check(reads: Any) -> None:
        for _ in range(2):
            filter = searched.random.choice([None, None, "n < 4"])
            searched.check_text(reads, searched.query(), filter=filter)

    searched.live(check)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", every(2, range(4)))
@pytest.mark.timeout(120)
def test_histories_with_stable_row_ids(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that is replaced keeps its id; the index answers for those that were not."""
    searched = Searched(tmp_path, seed=seed, stable_row_ids=True)

    def check(reads: Any) -> None:
        for _ in range(2):
            filter = searched.random.choice([None, None, "n < 4"])
            searched.check_text(reads, searched.query(), filter=filter)

    with caplog.at_level(logging.WARNING):
        searched.live(check)
    assert not [r for r in caplog.records if "tokenized" in r.getMessage()]


def test_stable_row_ids_with_former_texts_in_the_index(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A segment of its own for newer rows leaves the former texts in the older one."""
    searched = Searched(tmp_path, stable_row_ids=True)
    searched.update_by_hand(range(60))
    lance.dataset(searched.uri).optimize.optimize_indices(num_indices_to_merge=0)
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            searched.check_text(searched.table, searched.query())
    assert [r for r in caplog.records if "tokenized" in r.getMessage()]


def test_an_index_of_another_form_is_not_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    searched = Searched(tmp_path, text={"block_size": 256})
    searched.table.upsert(searched.rows(range(140, 170)))
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            searched.check_text(searched.table, searched.query())
    told = [record.getMessage() for record in caplog.records if "form" in record.getMessage()]
    assert len(told) == len(set(told)) > 0


def test_statistics_do_not_count_what_is_gone(tmp_path: Path) -> None:
    """Rows deleted from the base table stay in its index until it is built again."""
    searched = Searched(tmp_path)
    lance.dataset(searched.uri).delete("id < 60")
    searched.forget(range(60))
    searched.check_text(searched.table, MatchQuery("apple fox", "t"))
    searched.table.build_indexes()
    searched.check_text(searched.table, MatchQuery("apple fox", "t"))


def test_a_filter_leaves_scores_alone_and_finds_all(tmp_path: Path) -> None:
    searched = Searched(tmp_path)
    searched.table.upsert(searched.rows(range(100, 200)))
    query = MatchQuery("apple quick fox", "t")
    every = searched.found_texts(searched.table, query, k=None)
    for k in (1, 7, 1000):
        found = searched.found_texts(searched.table, query, k=k, filter="n = 3")
        left = {key: score for key, score in every.items() if searched.model[key]["n"] == 3}
        assert list(found.values()) == list(left.values())[:k]
        assert found.keys() <= left.keys()


def test_the_best_rows_are_found_whatever_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents that hold only frequent words are not scored where rare words decide."""
    words = ["most"] * 120 + ["many"] * 40 + ["some"] * 10 + ["few"] * 3 + ["rare"]
    searched = Searched(tmp_path, rows=600, words=words)
    searched.table.upsert(searched.rows(range(550, 700)))
    skipped: list[int] = []
    scores_at = matching.WeightedTerm.scores_at

    def spied(self: Any, documents: Any) -> Any:
        skipped.append(len(documents))
        return scores_at(self, documents)

    monkeypatch.setattr(matching.WeightedTerm, "scores_at", spied)
    for query in ("rare most", "few most many", "rare few some many most", "most most rare rare"):
        for boost in (1.0, 3.0, -1.0):
            one = MatchQuery(query, "t", boost=boost)
            every = searched.found_texts(searched.table, one, k=None)
            for k in (1, 3, 10, 40):
                assert (
                    list(searched.found_texts(searched.table, one, k=k).items())
                    == list(every.items())[:k]
                )
    assert skipped
    searched.check_text(searched.table, MatchQuery("rare most", "t"))


def test_keys_of_a_memtable_are_looked_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = Searched(tmp_path)
    asked: list[list[int]] = []
    rows_of_keys = base_rows.rows_of_keys

    def spied(base: Any, keys: Any, *fragments: Any) -> Any:
        asked.append(sorted(keys.to_pylist()))
        return rows_of_keys(base, keys, *fragments)

    monkeypatch.setattr(base_rows, "rows_of_keys", spied)
    query = MatchQuery("apple quick fox", "t")
    with searched.table.writer() as writer:
        for written, fresh in (([1, 2, 160], [[1, 2, 160]]), ([2, 3], [[3]]), ([1], [])):
            writer.upsert(searched.rows(written))
            asked.clear()
            for _ in range(2):
                searched.check_text(writer, query)
            assert asked == fresh
        writer.flush()
        # Keys that no MemTable has any more are forgotten when they are many.
        monkeypatch.setattr(base_rows, "_MAX_CACHED_KEYS", 3)
        for written, fresh in (([4], [4]), ([3], [3])):
            writer.upsert(searched.rows(written))
            asked.clear()
            searched.check_text(writer, query)
            assert fresh in asked


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


@pytest.mark.parametrize("flushes", [False, True])
def test_an_index_created_again_with_another_tokenizer(make_table: Any, flushes: bool) -> None:
    """An open writer tokenizes as before; its rows are found by the tokens of the new index."""
    table = make_table()
    table.upsert(rows({1: 1}))
    table.checkpoint()
    create = partial(_create_text_index, table.uri)
    create(stem=False)
    table.choose_indexes(add=["text_idx"])
    with memwal.open(table.uri).writer() as writer:
        writer.upsert({"id": [2], "n": [0], "text": ["she runs"]})
        assert _ids(writer, "runs") == [2]
        create(stem=True)
        if flushes:
            writer.flush()
        writer.upsert({"id": [3], "n": [0], "text": ["he runs"]})
        assert _ids(writer, "runs") == _ids(writer, "run") == [2, 3]


def test_list_elements_as_documents(make_table: Any) -> None:
    """Their index is left alone when there is one of rows beside it, and refused when not."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("t", pa.list_(pa.string()))])
    table = make_table(schema)
    rows = pa.table({"id": [1, 2], "t": [["red fox", "blue"], ["fox"]]}, schema=schema)
    lance.write_dataset(rows, table.uri, mode="append")
    lance.dataset(table.uri).create_scalar_index(
        "t", "INVERTED", name="a", document_granularity=DocumentGranularity.LIST_ELEMENT
    )
    for options in ({"column": "t"}, {}):
        with pytest.raises(InvalidInputError):
            table.search_text("fox", **options).to_table()
    lance.dataset(table.uri).create_scalar_index("t", "INVERTED", name="b")
    query = lance.query.MatchQuery("fox", "t", document_granularity=DocumentGranularity.ROW)
    wanted = lance.dataset(table.uri).to_table(columns=["id", "_score"], full_text_query=query)
    found = table.search_text("fox", columns=["id"]).to_table()
    assert found["id"].to_pylist() == wanted["id"].to_pylist() == [2, 1]
    assert found["_score"].to_pylist() == pytest.approx(wanted["_score"].to_pylist(), rel=1e-5)


def test_columns_are_combined_only_with_one_tokenizer(tmp_path: Path) -> None:
    searched = Searched(tmp_path, rows=40)
    lance.dataset(searched.uri).create_scalar_index("u", "INVERTED", name="u_idx", stem=False)
    with pytest.raises(InvalidInputError, match="t, u"):
        searched.table.search_text(CombinedFieldsQuery("fox", ["t", "u"])).to_table()
    for columns, boosts in (
        (["t", "t"], None),
        ([], None),
        (["t", "u"], [1.0]),
        (["t", "u"], [1.0, 0.5]),
    ):
        with pytest.raises(InvalidInputError):
            CombinedFieldsQuery("fox", columns, boosts=boosts)


def test_mistakes_are_told(tmp_path: Path) -> None:
    searched = Searched(tmp_path, rows=40, text={"with_position": False})
    for query, options in (
        ("apple", {"column": "n"}),
        ("apple", {"k": 0}),
        (PhraseQuery("quick fox", "t"), {}),
        (MatchQuery("apple", "t"), {"column": "t"}),
        (lance.query.MatchQuery("apple", "t"), {}),
    ):
        sources, newest = searched.sources(searched.table)
        with pytest.raises(InvalidInputError):
            search_text(sources, newest, query, **options)  # type: ignore[arg-type]
    only_excluded = [("must_not", MatchQuery("apple", "t"))]
    with pytest.raises(InvalidInputError):
        BooleanQuery(only_excluded)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="'xor'"):
        MatchQuery("apple", "t", operator="xor")  # type: ignore[arg-type]


def _create_text_index(uri: str, **options: Any) -> None:
    lance.dataset(uri).create_scalar_index("text", "INVERTED", name="text_idx", **options)


def _ids(reads: Any, query: str) -> list[int]:
    return sorted(reads.search_text(query).to_table()["id"].to_pylist())


def _found(reads: Any, query: str) -> list[int]:
    ids: list[int] = _search(reads, query)["id"].to_pylist()
    return ids


def _keys(reads: Any, query: Any) -> set[tuple[int, str]]:
    found = _search(reads, query)
    return set(zip(found["a"].to_pylist(), found["b"].to_pylist(), strict=True))


def _search(reads: Any, query: Any) -> pa.Table:
    return search_text(*sources_of(reads), query, k=None)
