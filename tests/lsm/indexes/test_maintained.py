"""Reads of unflushed rows through the MemTable's indexes, kept at each write or when needed."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import memwal
from memwal import WriterOptions
from memwal.lsm.memtable.indexes import MemTableIndexes

DIMENSION = 8
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("vector", pa.list_(pa.float32(), DIMENSION)),
        pa.field("text", pa.string()),
    ]
)
WORDS = ["tower", "river", "cloud", "stone", "ember", "lamps", "winds", "roses"]


def rows(start: int, count: int, *, seed: int = 0) -> pa.Table:
    """Numbered rows with a random vector and a text of three words."""
    chance = np.random.default_rng(seed + start)
    vectors = chance.random((count, DIMENSION), dtype=np.float32)
    texts = [" ".join(chance.choice(WORDS, 3)) for _ in range(count)]
    return pa.table(
        {
            "id": np.arange(start, start + count),
            "vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), DIMENSION),
            "text": texts,
        },
        schema=SCHEMA,
    )


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """A table whose key, vectors and texts are indexed, and maintained by writers."""
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(rows(0, 300), uri)
    dataset.create_scalar_index("id", "BTREE", name="id_idx")
    dataset.create_scalar_index("text", "INVERTED", name="text_idx", stem=True)
    dataset.create_index("vector", "IVF_PQ", name="vector_idx", num_partitions=1, num_sub_vectors=4)
    return memwal.enable(
        uri,
        primary_key=["id"],
        region_spec="unsharded",
        maintained_indexes=["id_idx", "text_idx", "vector_idx"],
    )


@pytest.mark.parametrize(("indexed", "expected"), [(True, 2), (False, 0)])
def test_only_an_indexed_write_pays_for_the_indexes(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch, indexed: bool, expected: int
) -> None:
    calls: list[Any] = []
    catch_up = MemTableIndexes.catch_up
    monkeypatch.setattr(
        MemTableIndexes, "catch_up", lambda self: (calls.append(self), catch_up(self))
    )
    with table.writer(options=WriterOptions(indexed=indexed)) as writer:
        writer.upsert(rows(1000, 20))
        writer.upsert(rows(1000, 20))
        assert len(calls) == expected


@pytest.mark.parametrize("count", [50, 4_096, 4_097])
def test_generations_of_few_rows_have_no_index_on_the_key(table: memwal.Table, count: int) -> None:
    table.upsert(rows(1000, count))
    (folder,) = Path(table.uri).glob("_mem_wal/*/*_gen_1")
    generation = lance.dataset(str(folder))
    # Few rows are filtered as fast without an index.
    filtered = {"id_idx"} if count > 4_096 else set()
    assert {index.name for index in generation.describe_indices()} == {
        "text_idx",
        "vector_idx",
        *filtered,
    }
