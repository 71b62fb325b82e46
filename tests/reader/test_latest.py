"""Which rows of the generations count."""

import os
import threading
from dataclasses import replace
from uuid import uuid4

import lance
import numpy as np
import pyarrow as pa
import pytest

from memwal.reader.latest import find_newest, read_keys
from memwal.reader.sources.generation import GenerationSource
from memwal.util.arrays import nbytes_of
from memwal.util.concurrency import Lazy


def source(
    generation: int, *pairs: tuple[int, bool | None], identity: str | None = None
) -> GenerationSource:
    """A generation with rows of key and tombstone, oldest first."""
    nullable = any(gone is None for _, gone in pairs)
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("_tombstone", pa.bool_(), nullable=nullable)]
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


def test_a_row_of_another_client_without_a_tombstone_is_alive() -> None:
    found = find_newest([source(1, (1, None), (2, True))], ["id"], pa.int64())
    assert found.live_addresses(0).tolist() == [0]


def test_deleted_rows_of_a_generation_do_not_count() -> None:
    """Lance's own flushes mark older rows of a key with a deletion vector."""
    made = source(1, (1, False), (2, False), (1, True))
    made.dataset.delete("id = 1 and _tombstone")

    found = find_newest([made], ["id"], pa.int64())

    assert sorted(found.keys.to_pylist()) == [1, 2]
    assert not found.deleted.any()
    assert found.live_addresses(0).tolist() == [0, 1]


def test_generations_of_an_object_store_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few processors there are, since each read waits for the store."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    together = threading.Barrier(3, timeout=60)

    def stored(number: int) -> GenerationSource:
        made = source(number, (number, False))

        def opened() -> lance.LanceDataset:
            together.wait()
            return made.dataset

        return replace(made, opened=Lazy(opened), is_local=False)

    found = find_newest([stored(number) for number in range(3)], ["id"], pa.int64())
    assert found.keys.to_pylist() == [0, 1, 2]


class TestCache:
    def test_reads_a_flushed_generation_once(self) -> None:
        made = source(1, (1, False), identity=str(uuid4()))
        first = read_keys(made, ["id"])
        assert read_keys(made, ["id"]) is first

    def test_never_keeps_a_memtable(self) -> None:
        made = source(1, (1, False))
        assert read_keys(made, ["id"]) is not read_keys(made, ["id"])

    def test_merges_the_same_generations_once(self) -> None:
        made = [source(n, (n, False), identity=str(uuid4())) for n in (1, 2)]
        first = find_newest(made, ["id"], pa.int64())
        assert find_newest(made, ["id"], pa.int64()) is first
        assert find_newest(made[:1], ["id"], pa.int64()).keys.to_pylist() == [1]
        unflushed = [*made, source(3, (1, True))]
        assert find_newest(unflushed, ["id"], pa.int64()).live_addresses(0).tolist() == []
        assert find_newest(made, ["id"], pa.int64()).live_addresses(0).tolist() == [0]

    def test_weighs_what_it_keeps(self) -> None:
        found = find_newest([source(1, (1, False), (2, True))], ["id"], pa.int64())
        assert found.nbytes == sum(
            nbytes_of(part)
            for part in (found.keys, found.rows, found.source, found.addresses, found.deleted)
        )
        keys = read_keys(source(1, (1, False), (2, True)), ["id"])
        assert nbytes_of(keys) == 2 * (8 + 8) + keys.deleted.nbytes


class TestRowsThatCount:
    def test_are_found_by_address_again(self) -> None:
        found = find_newest(
            [source(1, (1, False), (2, False), (5, False)), source(2, (3, False), (2, False))],
            ["id"],
            pa.int64(),
        )
        assert found.keys_at(0, np.array([2, 0], np.uint64)).to_pylist() == [5, 1]
        assert found.keys_at(1, np.array([0, 1], np.uint64)).to_pylist() == [3, 2]
        assert found.keys_at(1, np.empty(0, np.uint64)).to_pylist() == []

    def test_can_be_narrowed_down_to_some_keys(self) -> None:
        found = find_newest(
            [source(1, (1, False), (2, False), (5, True)), source(2, (3, False), (2, False))],
            ["id"],
            pa.int64(),
        )
        some = found.only(pa.array([1, 2, 5, 9]))
        assert some.live_addresses(0).tolist() == [0]
        assert some.live_addresses(1).tolist() == [1]
        assert some.keys.equals(found.keys)
        assert found.live_addresses(1).tolist() == [0, 1]
