"""A table with vectors and texts, what must be in it, and the answers of one merged table."""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lance
import lance.query as lq
import numpy as np
import pyarrow as pa
from support.data.copied import copy_of
from support.oracles.read_sources import sources_now

import memwal
from memwal.reader.latest import NewestRows
from memwal.reader.scan import open_newest
from memwal.reader.sources.generation import ReadSources
from memwal.search import search, search_text
from memwal.search.text.query import (
    BooleanQuery,
    BoostQuery,
    CombinedFieldsQuery,
    MatchQuery,
    MultiMatchQuery,
    PhraseQuery,
    TextQuery,
)

DIMENSION = 8
WORDS = [
    *("apple", "apply", "ample", "maple", "sample", "simple", "zebra", "zebras", "quick"),
    *("brown", "fox", "foxes", "running", "runs", "the", "of", "Café", "cafe", "naïve"),
]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("v", pa.list_(pa.float32(), DIMENSION)),
        pa.field("t", pa.string()),
        pa.field("u", pa.string()),
    ]
)
ALL_INDEXES = ("v_idx", "t_idx", "u_idx")


class Searched:
    """A table, and the rows that it must show.

    Parameters
    ----------
    folder : Path
        Where the table is made.
    seed : int
    text : mapping, optional
        Options of the text indexes.
    maintained : collection of str
        Indexes that generations get.
    rows : int
        In the base table at first.
    words : sequence of str
        What texts are made of.
    stable_row_ids : bool
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 0,
        text: Mapping[str, Any] | None = None,
        maintained: Collection[str] = ALL_INDEXES,
        rows: int = 150,
        words: Sequence[str] = WORDS,
        stable_row_ids: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.words = words
        self._merged: lance.LanceDataset | None = None
        self.text = {"with_position": True, **(text or {})}
        self.model: dict[int, dict[str, Any]] = {}
        self.uri = str(folder / "searched")
        first = self.rows(range(rows))

        def make(made: Path) -> None:
            uri = str(made / "searched")
            dataset = lance.write_dataset(
                first, uri, schema=SCHEMA, enable_stable_row_ids=stable_row_ids
            )
            dataset.create_index("v", "IVF_PQ", num_partitions=2, num_sub_vectors=4, num_bits=4)
            self._index_texts(lance.dataset(uri))
            memwal.enable(
                uri,
                primary_key=["id"],
                region_spec=memwal.RegionSpec.bucket("id", 2),
                maintained_indexes=list(maintained),
            )

        options = (seed, self.text, [*maintained], rows, words, stable_row_ids)
        copy_of(f"searched {options}", folder, make)
        self.table = memwal.open(self.uri)

    def rows(self, ids: Iterable[int]) -> pa.Table:
        """New rows of some keys, which from now on must be there."""
        ids = list(ids)
        self._merged = None
        for key in ids:
            self.model[key] = {
                "id": key,
                "n": self.random.randrange(10),
                "v": [self.random.gauss(0, 1) for _ in range(DIMENSION)],
                "t": self._text(),
                "u": self._text(),
            }
        return pa.Table.from_pylist([self.model[key] for key in ids], schema=SCHEMA)

    def update_by_hand(self, ids: Iterable[int]) -> None:
        """Write other rows of keys that are merged into the base table."""
        written = self.rows(ids)
        lance.dataset(self.uri).merge_insert("id").when_matched_update_all().execute(written)

    def delete(self, writer: Any, ids: Iterable[int]) -> None:
        """Delete keys, present or not."""
        ids = list(ids)
        writer.delete(pa.array(ids, pa.int64()))
        self.forget(ids)

    def forget(self, ids: Iterable[int]) -> None:
        """Expect keys to be gone, present or not."""
        self._merged = None
        for key in ids:
            self.model.pop(key, None)

    def step(self, writer: Any) -> None:
        """Do something to the table at random."""
        start, chance = self.random.randrange(180), self.random.random()
        if chance < 0.55:
            writer.upsert(self.rows(range(start, start + self.random.randint(1, 40))))
        elif chance < 0.8:
            self.delete(writer, range(start, start + self.random.randint(1, 30)))
        else:
            writer.flush()

    def merged(self) -> lance.LanceDataset:
        """One plain table with all rows and fresh text indexes."""
        if self._merged is None:
            rows = [self.model[key] for key in sorted(self.model)]
            dataset = lance.write_dataset(pa.Table.from_pylist(rows, schema=SCHEMA), "memory://")
            self._index_texts(dataset)
            self._merged = dataset
        return self._merged

    def live(self, check: Callable[[Any], None]) -> None:
        """Have rows written, flushed, merged, appended beside, indexed and compacted.

        Parameters
        ----------
        check : callable
            Compares what a writer, or the table, answers with what must be there.
        """
        for _ in range(3):
            with self.table.writer() as writer:
                for _ in range(self.random.randint(1, 5)):
                    self.step(writer)
                check(writer)
            check(self.table)
            if self.random.random() < 0.7:
                self.table.merge()
                check(self.table)
                if self.random.random() < 0.5:
                    self.update_by_hand(self.random.sample(sorted(self.model), 20))
                    check(self.table)
            if self.random.random() < 0.3:
                start = 10_000 + max(self.model)
                lance.write_dataset(self.rows(range(start, start + 5)), self.uri, mode="append")
                check(self.table)
            if self.random.random() < 0.4:
                self.table.build_indexes()
                check(self.table)
            if self.random.random() < 0.3:
                lance.dataset(self.uri).optimize.compact_files()
                check(self.table)

    def found_texts(
        self, reads: Any, query: str | TextQuery, *, k: int | None, **options: Any
    ) -> dict[int, float]:
        """Scores of what our search finds, best first."""
        sources, newest = self.sources(reads)
        found = search_text(sources, newest, query, k=k, columns=["id", "t", "u"], **options)
        ids = found["id"].to_pylist()
        for key, t, u in zip(ids, found["t"].to_pylist(), found["u"].to_pylist(), strict=True):
            assert (t, u) == (self.model[key]["t"], self.model[key]["u"])
        return dict(zip(ids, found["_score"].to_pylist(), strict=True))

    def check_text(self, reads: Any, query: TextQuery, *, filter: str | None = None) -> None:
        """All that matches, and the best five, with the scores of the merged table."""
        wanted = lance_scores(self.merged(), query, filter=filter)
        found = self.found_texts(reads, query, k=None, filter=filter)
        assert list(found.values()) == sorted(found.values(), reverse=True), query
        assert found.keys() == wanted.keys(), query
        assert all(abs(found[key] - wanted[key]) < 1e-3 for key in found), query
        best = list(self.found_texts(reads, query, k=5, filter=filter).values())
        assert best == sorted(found.values(), reverse=True)[:5]

    def check_nearest(
        self, reads: Any, *, k: int = 10, least: int, filter: str | None = None, **options: Any
    ) -> None:
        """The nearest rows: the right number, exact distances, and enough of the right ones."""
        vector = [self.random.gauss(0, 1) for _ in range(DIMENSION)]
        sources, newest = self.sources(reads)
        found = search(
            sources, newest, vector, column="v", k=k, filter=filter, columns=["id", "n"], **options
        )
        distances = found["_distance"].to_pylist()
        exact = {
            key: float(np.sum((np.array(row["v"], np.float32) - np.array(vector, "f4")) ** 2))
            for key, row in self.model.items()
            if filter is None or row["n"] < 4
        }
        ids = found["id"].to_pylist()
        assert len(set(ids)) == len(ids) == min(k, len(exact))
        assert distances == sorted(distances)
        np.testing.assert_allclose(distances, [exact[key] for key in ids], rtol=1e-4)
        assert found["n"].to_pylist() == [self.model[key]["n"] for key in ids]
        right = set(sorted(exact, key=lambda key: exact[key])[:k])
        assert len(right & set(ids)) >= min(least, len(right))

    def sources(self, reads: Any) -> tuple[ReadSources, NewestRows]:
        """Sources of a read by a table or a writer."""
        return sources_of(reads)

    def query(self, *, fuzzy: bool = True) -> TextQuery:
        """A query at random; phrases only where the index has positions."""
        chance = self.random.random()
        if chance < 0.6:
            return self._leaf(fuzzy=fuzzy)
        if chance < 0.75:
            return BoostQuery(self._leaf(fuzzy=fuzzy), self._leaf(fuzzy=fuzzy), negative_boost=0.7)
        occurs = ["should", *(self._any("must", "should", "must_not") for _ in range(2))]
        return BooleanQuery([(occur, self._leaf(fuzzy=fuzzy)) for occur in occurs])  # type: ignore[misc]

    def _leaf(self, *, fuzzy: bool) -> TextQuery:
        words = " ".join(
            self._any(*self.words, "nothing") for _ in range(self.random.randint(1, 3))
        )
        column, operator = self._any("t", "u"), self._any("or", "and")
        kind = self.random.randrange(5)
        if kind == 4:
            weights = self._any(None, [1.0, 2.5])
            return CombinedFieldsQuery(words, ("t", "u"), boosts=weights, operator=operator)
        if kind == 0 and self.text["with_position"]:
            return PhraseQuery(words, column, slop=self.random.randrange(2))
        if kind == 1:
            boosts = self._any(None, [1.0, 3.0])
            return MultiMatchQuery(words, ("t", "u"), boosts=boosts, operator=operator)
        if kind == 2 and fuzzy:
            return MatchQuery(
                words,
                column,
                operator=operator,
                fuzziness=self.random.randint(1, 2),
                max_expansions=self._any(50, 3),
                prefix_length=self.random.randrange(2),
            )
        boost, fuzziness = self._any((1.0, 0), (2.5, 0), (1.0, None))
        return MatchQuery(words, column, operator=operator, boost=boost, fuzziness=fuzziness)

    def _text(self) -> str | None:
        chance = self.random.random()
        if chance < 0.05:
            return self._any(None, "", "the")
        return " ".join(self._any(*self.words) for _ in range(self.random.randint(1, 12)))

    def _any(self, *values: Any) -> Any:
        return self.random.choice(values)

    def _index_texts(self, dataset: lance.LanceDataset) -> None:
        for column in ("t", "u"):
            dataset.create_scalar_index(column, "INVERTED", **self.text)


def sources_of(reads: Any) -> tuple[ReadSources, NewestRows]:
    """Sources of a read by a table or a writer."""
    return open_newest(lambda: sources_now(reads))


def lance_scores(
    dataset: lance.LanceDataset, query: TextQuery, *, filter: str | None = None
) -> dict[int, float]:
    """Scores of all that Lance finds in one table."""
    found = dataset.scanner(
        columns=["id", "_score"],
        full_text_query=lance_query(query),
        filter=filter,
        prefilter=True,
        disable_scoring_autoprojection=True,
    ).to_table()
    return dict(zip(found["id"].to_pylist(), found["_score"].to_pylist(), strict=True))


def lance_query(query: TextQuery) -> lq.FullTextQuery:
    """The same query for Lance."""
    if isinstance(query, PhraseQuery):
        return lq.PhraseQuery(query.query, query.column, slop=query.slop)
    if isinstance(query, BoostQuery):
        return lq.BoostQuery(
            lance_query(query.positive),
            lance_query(query.negative),
            negative_boost=query.negative_boost,
        )
    if isinstance(query, BooleanQuery):
        return lq.BooleanQuery(
            [(lq.Occur(occur.upper()), lance_query(part)) for occur, part in query.queries]
        )
    operator = lq.FullTextOperator(query.operator.upper())
    if isinstance(query, MultiMatchQuery | CombinedFieldsQuery):
        several = (
            lq.MultiMatchQuery if isinstance(query, MultiMatchQuery) else lq.CombinedFieldsQuery
        )
        boosts = None if query.boosts is None else list(query.boosts)
        return several(query.query, list(query.columns), boosts=boosts, operator=operator)
    return lq.MatchQuery(
        query.query,
        query.column,
        boost=query.boost,
        fuzziness=query.fuzziness,
        max_expansions=query.max_expansions,
        operator=operator,
        prefix_length=query.prefix_length,
    )
