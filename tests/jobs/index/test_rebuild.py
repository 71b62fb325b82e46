"""Indexes with missing or damaged files: left out of reads, and replaced by index builds."""

import os
from pathlib import Path

import numpy as np
import pytest
from support.data import indexed
from support.data.indexed import DIMENSION, SCALAR, VECTOR, answers, indexed_copy, models
from support.data.tables import MakeTable, folder, keys, merged, numbered, rows, state
from support.faults.lost_writes import bad_files

import memwal
from memwal.lsm.indexes.catchup import describe_index
from memwal.lsm.indexes.maintained import maintained_indexes

QUERIES = np.random.default_rng(7).standard_normal((2, DIMENSION))


def cut_segments(table: memwal.Table, size: int | None, *, name: str = "idx", first: int) -> None:
    """Cut off the files of an index's segments from the ``first`` on, or delete them (None)."""
    description = describe_index(table.base(), name)
    assert description is not None
    for segment in description.segments[first:]:
        files = list(folder(table).glob(f"_indices/{segment.uuid}/*"))
        assert files
        for path in files:
            if size is None:
                path.unlink()
            else:
                os.truncate(path, size)


def read_through_index(table: memwal.Table, kind: str) -> list[list[int]]:
    """Keys that reads of memwal find which would use the index."""
    if kind in SCALAR:
        ids = table.scan(columns=["id"], filter=SCALAR[kind][1]).to_table()["id"].to_pylist()
        return [sorted(ids)]
    if kind == "INVERTED":
        hits = table.search_text("word17", column="text", k=1_000, columns=["id"]).to_table()
        return [sorted(hits["id"].to_pylist())]
    return [
        table.search(query, column="vector", k=10, columns=["id"]).to_table()["id"].to_pylist()
        for query in QUERIES
    ]


def nearest(table: memwal.Table) -> list[list[int]]:
    """Keys of the rows that are nearest, by their vectors alone."""
    return [
        table.base()
        .dataset.to_table(
            columns=["id", "_distance"],
            nearest={"column": "vector", "q": query, "k": 10, "use_index": False},
        )["id"]
        .to_pylist()
        for query in QUERIES
    ]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *((kind, 0) for kind in (*SCALAR, "INVERTED", "IVF_PQ")),
        *((kind, size) for kind in ("BTREE", "INVERTED") for size in (128, None)),
        *(pytest.param(kind, 0, marks=pytest.mark.slow) for kind in VECTOR if kind != "IVF_PQ"),
        *(pytest.param("IVF_PQ", size, marks=pytest.mark.slow) for size in (128, None)),
    ],
)
def test_an_index_of_any_kind_is_left_out_of_reads_and_built_again(
    tmp_path: Path, kind: str, size: int | None
) -> None:
    table = indexed_copy(tmp_path, kind)
    indexed.merge_rows(table, indexed.rows(600, 40))
    table.build_indexes()
    is_vector = kind in VECTOR
    before = [] if is_vector else answers(table, kind)
    expected = models(table) if is_vector else set()
    # The first segment of a vector index still has the model.
    cut_segments(table, size, first=1 if is_vector else 0)

    read = read_through_index(memwal.open(table.uri), kind)
    assert read == (nearest(table) if is_vector else before)
    assert bad_files(table)
    assert table.build_indexes().metrics["rebuilt"] == 1
    assert bad_files(table) == []
    assert "rebuilt" not in table.build_indexes().metrics
    assert table.verify().clean
    if is_vector:
        assert models(table) == expected
        assert indexed.recall(table, answers(table, kind)) > 0.5
    else:
        assert answers(table, kind) == before
        assert read_through_index(table, kind) == before
    indexed.merge_rows(table, indexed.rows(640, 10))
    assert table.checkpoint().warnings == ()


def test_a_vector_index_without_its_model_is_reported(tmp_path: Path) -> None:
    table = indexed_copy(tmp_path, "IVF_PQ")
    cut_segments(table, 0, first=0)
    indexed.merge_rows(table, indexed.rows(600, 40))

    result = table.checkpoint()

    assert len(result.warnings) == 1
    assert read_through_index(memwal.open(table.uri), "IVF_PQ") == nearest(table)


def test_damage_to_a_copy_leaves_the_index_of_the_table_its_model(tmp_path: Path) -> None:
    """The segments of both have the same UUIDs; no row that the index was trained on is left."""
    table = indexed_copy(tmp_path, "IVF_PQ")
    before = models(table)
    copy = indexed_copy(tmp_path / "copy", "IVF_PQ")
    cut_segments(copy, 0, first=0)
    indexed.merge_rows(copy, indexed.rows(600, 40))
    indexed.merge_rows(table, *(indexed.rows(first, 300, seed=first + 1) for first in (0, 300)))

    table.build_indexes()

    assert models(table) == before


def test_files_that_come_back_are_read_by_the_same_process(tmp_path: Path) -> None:
    table = indexed_copy(tmp_path, "IVF_PQ")
    indexes = folder(table) / "_indices"
    aside = indexes.rename(folder(table) / "aside")
    assert maintained_indexes(table.base()) == ()

    aside.rename(indexes)

    assert [index.name for index in maintained_indexes(table.base())] == ["idx"]


def test_a_table_without_the_index_on_its_key_is_read_and_merged(make_table: MakeTable) -> None:
    table = make_table(maintained_indexes=["id_idx"])
    table.upsert(numbered(0, 20_000))
    table.checkpoint()
    cut_segments(table, 0, name="id_idx", first=0)
    expected = state(table)

    table = memwal.open(table.uri)
    assert table.lookup(keys(7)).to_table()["id"].to_pylist() == [7]
    assert table.lookup(keys(*range(150))).count_rows() == 150
    assert table.scan(filter="id = 7").count_rows() == 1
    with table.writer() as writer:
        writer.upsert(rows({7: 8}))
        writer.delete(keys(9))
    assert state(table.scan(filter="id > 5 and id < 11").to_table()) == {6: 0, 7: 8, 8: 0, 10: 0}
    table.merge()
    assert merged(table) == 2
    expected |= {7: 8}
    del expected[9]
    assert state(table) == expected
    assert table.checkpoint().metrics["rebuilt"] == 1
    assert bad_files(table) == []
    assert state(table) == expected
