"""Tokens of many texts, against Lance's tokenizer called for each."""

from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.lsm.memtable.text_index import Tokenizer, hash_terms

OPTIONS: list[dict[str, Any]] = [
    {},
    {"base_tokenizer": "whitespace", "stem": False, "max_token_length": None},
    {"language": "German", "ascii_folding": False, "custom_stop_words": ["wort"]},
    {"max_token_length": 4, "lower_case": False},
    {"base_tokenizer": "ngram", "min_ngram_length": 2, "max_ngram_length": 3},
    {"base_tokenizer": "icu"},
    {"base_tokenizer": "raw"},
    {"analyzer": "code", "split_identifiers": True},
]
WORDS = st.sampled_from(
    [
        "the",
        "Cats",
        "running",
        "sepzz9",
        "SEPZZ9",
        "don't",
        "a-b",
        "foo_Bar2",
        "你好世界",
        "é",
        "Wort",
    ]
)
GAPS = st.sampled_from([" ", "  ", "\n", "\t", "\v", "\u00a0", "\u2003", ", "])
TEXTS = st.one_of(
    st.none(),
    st.text(max_size=15),
    st.lists(st.one_of(WORDS, GAPS, st.text(max_size=3)), max_size=12).map("".join),
)


def expected_of(texts: list[str | None], options: dict[str, Any]) -> list[list[str]]:
    return [
        [] if text is None else [token.text for token in lance.tokenize(text, **options)]
        for text in texts
    ]


@settings(deadline=None, max_examples=150)
@example(texts=["a sepzz9 b", "sepzz9", None, ""], options={}, large=False)
@given(texts=st.lists(TEXTS, max_size=12), options=st.sampled_from(OPTIONS), large=st.booleans())
def test_tokens_are_those_of_each_text_alone(
    texts: list[str | None], options: dict[str, Any], large: bool
) -> None:
    column = pa.array([None, *texts], pa.large_string() if large else pa.string()).slice(1)
    found = Tokenizer(options).tokens(column)
    expected = expected_of(texts, options)
    assert found.counts.tolist() == [len(terms) for terms in expected]
    assert found.hashes.tolist() == hash_terms([t for terms in expected for t in terms]).tolist()


def test_blocks_do_not_show() -> None:
    """Texts that are tokenized in several blocks, of which none ends with the list of texts."""
    texts = ["one two", None, "two three three", "sepzz9 one", "", "four", "five"]
    few = Tokenizer().tokens(pa.array(texts))
    many = Tokenizer().tokens(pa.array(texts * 7_001))
    assert few.counts.tolist() == [2, 0, 3, 2, 0, 1, 1]
    assert many.counts.tolist() == few.counts.tolist() * 7_001
    assert many.hashes.tolist() == few.hashes.tolist() * 7_001


def test_elements_of_a_list_count_together() -> None:
    lists = [["one two", None, "one"], [], None, ["three"]]
    found = Tokenizer().tokens(pa.array([["x"], *lists], pa.list_(pa.string())).slice(1))
    assert found.counts.tolist() == [3, 0, 0, 1]
    assert found.hashes.tolist() == hash_terms(["one", "two", "one", "three"]).tolist()


def test_takes_the_parameters_that_an_index_records() -> None:
    recorded = {"lance_tokenizer": "text", "with_position": True, "stem": False, "block_size": 128}
    assert Tokenizer(recorded).terms("running") == ["running"]
    assert Tokenizer().terms("running") == ["run"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stemming": True}, "stemming"),
        ({"lance_tokenizer": "json"}, "json"),
        ({"document_granularity": "LIST_ELEMENT"}, None),
        ({"base_tokenizer": "no such"}, "no such"),
        ({"language": "Klingon"}, "Klingon"),
    ],
)
def test_refuses_options(options: dict[str, Any], named: str | None) -> None:
    with pytest.raises(InvalidInputError, match=named):
        Tokenizer(options)


@pytest.mark.parametrize(
    ("options", "query", "groups"),
    [
        ({}, "running the cats running", [("run",), ("cat",), ("run",)]),
        ({"base_tokenizer": "ngram"}, "abcabc", [("abc", "bca", "cab")]),
        ({}, "the", []),
    ],
)
def test_terms_of_a_query_by_position(
    options: dict[str, Any], query: str, groups: list[tuple[str, ...]]
) -> None:
    assert Tokenizer(options).query_groups(query) == groups


def test_vocabulary() -> None:
    texts = pa.array([["Cats run", None], None, ["é a cat"]])
    assert Tokenizer({"ascii_folding": False}).vocabulary(texts) == ["cat", "run", "é"]


def test_options_are_those_that_touch_tokens() -> None:
    tokenizer = Tokenizer({"stem": False, "with_position": True, "block_size": 128})
    assert tokenizer.options == {"stem": False}
