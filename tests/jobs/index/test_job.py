"""Catching maintained indexes up with what was merged."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.tables import REGION, MakeTable, flush, keys, rows
from support.stores.faulty_store import skip_waits

import memwal
from memwal.errors import ConflictError, MemWalError
from memwal.jobs.index import job
from memwal.jobs.job import JobResult
from memwal.lsm.indexes.catchup import caught_up, covers


@pytest.fixture
def indexed(make_table: MakeTable) -> memwal.Table:
    return make_table(maintained_indexes=["id_idx", "n_idx"])


def coverage(table: memwal.Table) -> dict[str, int]:
    """Newest generation that each index covers."""
    base = table.base()
    return {name: caught_up(base, name).get(REGION, 0) for name in ("id_idx", "n_idx")}


def test_brings_every_maintained_index_up_to_the_merge(indexed: memwal.Table) -> None:
    flush(indexed, {1: 1}, {2: 2})
    indexed.merge()
    assert coverage(indexed) == {"id_idx": 0, "n_idx": 0}

    result = indexed.build_indexes()

    assert coverage(indexed) == {"id_idx": 2, "n_idx": 2}
    assert result.metrics == {"indexes": 2}
    assert result.warnings == ()
    assert result.version == indexed.base().version
    stats = indexed.base().dataset.stats.index_stats("id_idx")
    assert stats["num_unindexed_rows"] == 0


def test_does_nothing_when_all_is_covered(indexed: memwal.Table) -> None:
    flush(indexed, {1: 1})
    indexed.merge()
    indexed.build_indexes()
    version = indexed.base().version

    result = indexed.build_indexes()

    assert (result.tasks, result.commits, result.version) == (0, 0, version)


@pytest.mark.parametrize("emptied", [False, True], ids=["never any rows", "emptied"])
def test_a_base_table_without_rows_is_covered_by_any_index(
    indexed: memwal.Table, monkeypatch: pytest.MonkeyPatch, emptied: bool
) -> None:
    skip_waits(monkeypatch)
    if emptied:
        flush(indexed, {1: 1})
        indexed.merge()
        indexed.build_indexes()
    indexed.delete(keys(1))
    indexed.merge()
    assert indexed.base().dataset.count_rows() == 0

    result = indexed.build_indexes()

    newest = 2 if emptied else 1
    assert coverage(indexed) == {"id_idx": newest, "n_idx": newest}
    assert result.warnings == ()
    assert indexed.checkpoint().warnings == ()


def test_a_maintained_index_that_does_not_exist_is_a_problem(indexed: memwal.Table) -> None:
    flush(indexed, {1: 1})
    indexed.merge()
    indexed.base().dataset.drop_index("n_idx")

    result = indexed.build_indexes()

    (warning,) = result.warnings
    assert "n_idx" in warning
    assert coverage(indexed)["id_idx"] == 1


@pytest.mark.parametrize("maintained_only", [True, False])
def test_other_indexes_are_extended_unless_told_otherwise(
    make_table: MakeTable, maintained_only: bool
) -> None:
    table = make_table(maintained_indexes=["id_idx"])
    flush(table, {1: 1})
    table.merge()
    table.base().dataset.create_scalar_index("n", "BTREE", name="other")
    flush(table, {2: 2})
    table.merge()

    result = table.build_indexes(maintained_only=maintained_only)

    assert result.tasks == (1 if maintained_only else 2)
    stats = table.base().dataset.stats.index_stats("other")
    assert stats["num_unindexed_rows"] == (1 if maintained_only else 0)


def test_all_of_them_when_the_table_says_so(tmp_path: Any) -> None:
    uri = str(tmp_path / "table")
    dataset = lance.write_dataset(rows({1: 1}), uri)
    dataset.create_scalar_index("n", "BTREE", name="n_idx")
    table = memwal.enable(uri, region_spec="unsharded", primary_key=["id"], maintained_indexes=None)
    flush(table, {2: 2})
    table.merge()
    table.base().dataset.create_scalar_index("text", "BTREE", name="text_idx")
    flush(table, {3: 3})
    table.merge()

    table.build_indexes()

    base = table.base()
    for name in ("n_idx", "text_idx"):
        assert caught_up(base, name) == {REGION: 2}


def test_an_index_that_never_catches_up_is_reported(
    indexed: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(indexed, {1: 1})
    indexed.merge()
    monkeypatch.setattr(job, "covers", lambda *args: False)
    skip_waits(monkeypatch)

    with pytest.raises(ConflictError):
        indexed.build_indexes()


def test_an_index_that_is_dropped_meanwhile_is_one_of_our_errors(
    indexed: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(indexed, {1: 1})
    indexed.merge()
    skip_waits(monkeypatch)

    def run(tasks: Any, function: Any) -> list[Any]:
        indexed.base().dataset.drop_index("n_idx")
        return [function(task) for task in tasks]

    with pytest.raises(MemWalError):
        indexed.build_indexes(run=run)
    assert coverage(indexed)["id_idx"] == 1


def test_coverage_without_an_entry_is_none(indexed: memwal.Table) -> None:
    base = indexed.base()
    assert caught_up(base, "id_idx") == {}
    assert covers(base, "id_idx", {})
    assert not covers(base, "id_idx", {REGION: 1})


def test_a_vector_index_that_could_not_be_trained_is_a_problem_until_it_can(
    tmp_path: Path,
) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("vector", pa.list_(pa.float32(), 8)),
        ]
    )
    random = np.random.default_rng(0)

    def vectors(start: int, count: int) -> pa.Table:
        values = pa.array(random.random(count * 8, np.float32))
        ids = pa.array(range(start, start + count))
        return pa.table([ids, pa.FixedSizeListArray.from_arrays(values, 8)], schema=schema)

    uri = str(tmp_path / "table")
    lance.write_dataset(vectors(0, 50), uri, schema=schema).create_index(
        "vector", "IVF_PQ", name="vector_idx", num_partitions=1, num_sub_vectors=2
    )
    table = memwal.enable(
        uri, primary_key=["id"], region_spec="unsharded", maintained_indexes=["vector_idx"]
    )

    def merged_with(start: int, count: int) -> JobResult:
        table.upsert(vectors(start, count))
        table.merge()
        return table.build_indexes()

    few = merged_with(50, 50)
    assert few.commits == 1
    (warning,) = few.warnings
    assert "vector_idx" in warning
    assert table.status().indexes[0].generations == 1
    enough = merged_with(100, 300)
    assert enough.warnings == ()
    assert table.status().indexes[0].generations == 0
