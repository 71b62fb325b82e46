"""Text search by every tokenizer, with rows in every kind of place, against one merged table."""

import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.sampled import drawn, every
from support.data.searched import ALL_INDEXES, Searched

import memwal

WORDS = [
    *("apple", "apples", "Apply", "sample", "quick", "foxes", "running", "runs", "the", "of"),
    *("Café", "cafe", "naïve", "Häuser", "haus", "und", "maisons", "maison", "l'eau", "niños"),
    *("дома", "дом", "bücher", "fooBar", "foo_bar2", "a-b", "don't", "北京", "x" * 45, "12.5"),
]
LANGUAGES = [
    *("Arabic", "Danish", "Dutch", "English", "Finnish", "French", "German", "Greek"),
    *("Hungarian", "Italian", "Norwegian", "Portuguese", "Romanian", "Russian", "Spanish"),
    *("Swedish", "Tamil", "Turkish"),
]
TOKENIZERS: dict[str, dict[str, Any]] = {
    "default": {},
    "no-stemming": {"stem": False},
    "stop-words-and-accents": {"remove_stop_words": False, "ascii_folding": False},
    "own-stop-words": {"custom_stop_words": ["apple", "quick"]},
    "upper-case": {"lower_case": False, "stem": False, "remove_stop_words": False},
    "long-and-short": {"max_token_length": None, "with_position": False},
    "short-tokens": {"max_token_length": 4},
    "whitespace": {"base_tokenizer": "whitespace", "lower_case": False},
    "raw": {"base_tokenizer": "raw", "with_position": False},
    "ngrams": {"base_tokenizer": "ngram", "min_ngram_length": 3, "max_ngram_length": 4},
    "prefixes": {"base_tokenizer": "ngram", "prefix_only": True, "max_ngram_length": 5},
    "icu": {"base_tokenizer": "icu"},
    "code": {"analyzer": "code", "split_identifiers": True, "preserve_original": True},
    "german": {"language": "German"},
    "french": {"language": "French", "with_position": False},
    "russian": {"language": "Russian", "ascii_folding": False},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", every(10, TOKENIZERS))
def test_every_tokenizer(tmp_path: Path, name: str) -> None:
    _compare(tmp_path, TOKENIZERS[name], seed=len(name))


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", every(3, range(6)))
def test_options_together(tmp_path: Path, seed: int) -> None:
    _compare(tmp_path, _options(random.Random(seed)), seed=seed)


@pytest.mark.parametrize("seed", drawn(6, range(6, 200), seed="tokenizers"))
def test_more_options_together(tmp_path: Path, seed: int) -> None:
    _compare(tmp_path, _options(random.Random(seed)), seed=seed)


@pytest.mark.parametrize("base_tokenizer", ["simple", "raw", "ngram", "icu"])
def test_lists_of_text_are_joined_as_in_lance(make_table: Any, base_tokenizer: str) -> None:
    """Rows in memory and merged ones have the tokens that an index of Lance has."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("t", pa.list_(pa.string()))])
    texts = [["red fox", None, "fox"], ["red", ""], ["", "red"], [], [None], None, ["red", "red"]]
    rows = pa.table({"id": range(len(texts)), "t": pa.array(texts, schema.field("t").type)})
    options = {"base_tokenizer": base_tokenizer, "stem": False}
    plain = lance.write_dataset(rows, "memory://")
    plain.create_scalar_index("t", "INVERTED", **options)
    table = make_table(schema)
    lance.dataset(table.uri).create_scalar_index("t", "INVERTED", **options)
    with memwal.open(table.uri).writer() as writer:
        writer.upsert(rows.slice(0, 4))
        writer.upsert(rows.slice(4))
        for query in ("red", "red ", "red red", "d fo", "red fox fox", ""):
            wanted = plain.to_table(columns=["id", "_score"], full_text_query=query)
            found = writer.search_text(query, k=None, columns=["id"]).to_table()
            scores = dict(zip(wanted["id"].to_pylist(), wanted["_score"].to_pylist(), strict=True))
            ours = dict(zip(found["id"].to_pylist(), found["_score"].to_pylist(), strict=True))
            assert ours == pytest.approx(scores, rel=1e-4), query


def _options(chance: random.Random) -> dict[str, Any]:
    """Options that Lance takes, at random."""
    base = chance.choice(["simple", "simple", "whitespace", "raw", "ngram", "icu"])
    options: dict[str, Any] = {
        "base_tokenizer": base,
        "language": chance.choice(LANGUAGES),
        "with_position": chance.random() < 0.7,
        "max_token_length": chance.choice([None, 4, 10, 40]),
    }
    for name in ("lower_case", "stem", "remove_stop_words", "ascii_folding"):
        options[name] = chance.random() < 0.5
    if options["remove_stop_words"] and chance.random() < 0.3:
        options["custom_stop_words"] = chance.sample(WORDS, 3)
    if base == "ngram":
        options["min_ngram_length"] = chance.randint(2, 3)
        options["max_ngram_length"] = chance.randint(3, 5)
        options["prefix_only"] = chance.random() < 0.5
    return options


def _compare(folder: Path, options: dict[str, Any], *, seed: int) -> None:
    """Queries while rows are in the base table, merged but not indexed, flushed and unflushed."""
    chance = random.Random(seed)
    maintained = chance.choice([ALL_INDEXES, ALL_INDEXES, ["t_idx"], []])
    searched = Searched(
        folder, seed=seed, text=options, words=WORDS, rows=120, maintained=maintained
    )
    fuzzy = options.get("base_tokenizer") != "ngram"
    table = searched.table

    def check(reads: Any) -> None:
        for _ in range(3):
            filter = searched.random.choice([None, None, "n < 4"])
            searched.check_text(reads, searched.query(fuzzy=fuzzy), filter=filter)

    for first in (100, 130):
        with table.writer() as writer:
            writer.upsert(searched.rows(range(first, first + 50)))
            searched.delete(writer, range(first - 100, first - 90))
        table.merge()
    check(table)
    with table.writer() as writer:
        writer.upsert(searched.rows(range(140, 200)))
        searched.delete(writer, range(120, 135))
        writer.flush()
        writer.upsert(searched.rows(range(60, 150, 3)))
        writer.flush()
        writer.upsert(searched.rows(range(20, 210, 4)))
        searched.delete(writer, range(50, 190, 7))
        check(writer)
    check(table)
    table.checkpoint()
    check(table)
