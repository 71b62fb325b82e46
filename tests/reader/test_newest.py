"""Which rows of the generations count."""

from __future__ import annotations

from uuid import uuid4

import lance
import numpy as np
import pyarrow as pa
import pytest

from memwal.reader import newest
from memwal.reader.generations import GenerationSource
from memwal.reader.lazy import Lazy
from memwal.reader.newest import GenerationKeys, find_newest, read_keys


def source(
    generation: int, *pairs: tuple[int, bool], identity: str | None = None
) -> GenerationSource:
    """A generation with rows of key and tombstone, oldest first."""
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("_tombstone", pa.bool_(), nullable=False)]
    )
    table = pa.table(
        {"id": [key for key, _ in pairs], "_tombstone": [gone for _, gone in pairs]},
        schema=schema,
    )
    return GenerationSource(
        region_id=uuid4(),
        generation=generation,
        opened=Lazy.of(lance.write_dataset(table, "memory://")),
        identity=identity,
    )


def test_nothing_has_no_newest() -> None:
    found = find_newest([], ["id"], pa.int64())
    assert len(found.keys) == 0
    assert found.keys.type == pa.int64()
    assert found.live_addresses(0).tolist() == []


def test_later_generations_win_and_within_one_the_later_row() -> None:
    found = find_newest(
        [
            source(1, (1, False), (2, False), (3, False)),
            source(2, (2, False), (1, True), (2, False)),
        ],
        ["id"],
        pa.int64(),
    )

    by_key = dict(zip(found.keys.to_pylist(), range(3), strict=True))
    assert set(by_key) == {1, 2, 3}
    assert [int(found.source[by_key[key]]) for key in (1, 2, 3)] == [1, 1, 0]
    assert [bool(found.deleted[by_key[key]]) for key in (1, 2, 3)] == [True, False, False]
    assert found.live_addresses(0).tolist() == [2]
    assert found.live_addresses(1).tolist() == [2]


def test_deleted_rows_of_a_generation_do_not_count() -> None:
    """Lance's own flushes mark older rows of a key with a deletion vector."""
    made = source(1, (1, False), (2, False), (1, True))
    made.dataset.delete("id = 1 and _tombstone")

    found = find_newest([made], ["id"], pa.int64())

    assert sorted(found.keys.to_pylist()) == [1, 2]
    assert not found.deleted.any()
    assert found.live_addresses(0).tolist() == [0, 1]


class TestCache:
    @pytest.fixture
    def cache(self, monkeypatch: pytest.MonkeyPatch) -> newest._KeyCache:
        made = newest._KeyCache(100)
        monkeypatch.setattr(newest, "_cache", made)
        return made

    @staticmethod
    def keys(count: int) -> GenerationKeys:
        return GenerationKeys(
            keys=pa.array([0] * count, pa.int64()),
            deleted=np.zeros(0, np.bool_),
            addresses=np.zeros(0, np.uint64),
        )

    def test_reads_a_flushed_generation_once(self, cache: newest._KeyCache) -> None:
        made = source(1, (1, False), identity="one")
        first = read_keys(made, ["id"])
        assert read_keys(made, ["id"]) is first

    def test_never_keeps_a_memtable(self, cache: newest._KeyCache) -> None:
        made = source(1, (1, False))
        assert read_keys(made, ["id"]) is not read_keys(made, ["id"])

    def test_forgets_what_was_used_longest_ago(self, cache: newest._KeyCache) -> None:
        cache.put("a", self.keys(5))
        cache.put("b", self.keys(5))
        assert cache.get("a") is not None
        cache.put("c", self.keys(5))
        assert cache.get("b") is None
        assert cache.get("a") is not None
        assert cache.get("c") is not None

    def test_does_not_keep_what_is_too_large_for_it(self, cache: newest._KeyCache) -> None:
        cache.put("large", self.keys(50))
        assert cache.get("large") is None
        cache.put("a", self.keys(5))
        assert cache.get("a") is not None

    def test_counts_a_generation_once(self, cache: newest._KeyCache) -> None:
        for _ in range(10):
            cache.put("a", self.keys(5))
        cache.put("b", self.keys(5))
        assert cache.get("a") is not None
        assert cache.get("b") is not None
