"""Rows that an index refuses: it is built without them, and they are reported and found."""

import math
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.tables import REGION, folder
from support.faults.collecting import DAY, collect
from support.stores.faulty_store import FaultyStores

import memwal
from memwal.errors import ConflictError, InvalidInputError
from memwal.jobs.index import job
from memwal.jobs.index.job import build_indexes
from memwal.jobs.index.unindexable import UNINDEXABLE_DIR
from memwal.jobs.job import JobResult
from memwal.lsm.indexes import maintained

DIMENSION = 8
HUGE = [1e20] * DIMENSION
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.list_(pa.float32(), DIMENSION))]
)
NUMBERS = np.random.default_rng(7)


def vectors(values: dict[int, list[float] | None]) -> pa.Table:
    """Rows with vectors; a random one for None."""
    made = [NUMBERS.normal(size=DIMENSION) if value is None else value for value in values.values()]
    array = pa.array(np.asarray(made, np.float32).ravel())
    columns = [pa.array([*values], pa.int64()), pa.FixedSizeListArray.from_arrays(array, DIMENSION)]
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture(
    params=[
        "IVF_PQ",
        pytest.param("IVF_FLAT", marks=pytest.mark.slow),
        pytest.param("IVF_HNSW_SQ", marks=pytest.mark.slow),
    ]
)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> memwal.Table:
    """A table with a vector index of metric l2."""
    options = {"num_sub_vectors": 2} if request.param == "IVF_PQ" else {}
    dataset = lance.write_dataset(vectors(dict.fromkeys(range(300))), tmp_path / "table.lance")
    dataset.create_index("v", request.param, name="v_idx", metric="l2", num_partitions=2, **options)
    spec = memwal.RegionSpec.unsharded()
    return memwal.enable(
        tmp_path / "table.lance", primary_key="id", region_spec=spec, maintained_indexes=["v_idx"]
    )


def merge(table: memwal.Table, values: dict[int, list[float] | None]) -> None:
    table.upsert(vectors(values))
    table.merge()


def refused(result: JobResult) -> dict[int, str | None]:
    """Key and region of each row that was reported, in the result and in its warnings."""
    for row in result.unindexable_rows:
        assert row.index == "v_idx"
        assert row.reason
        assert any(str(row) in warning for warning in result.warnings)
    assert result.metrics.get("unindexable_rows", 0) == len(result.unindexable_rows)
    assert JobResult.from_dict(result.to_dict()) == result
    return {row.key["id"]: row.region_id for row in result.unindexable_rows}  # type: ignore[misc]


def nearest(table: memwal.Table, vector: Any, k: int = 1) -> list[int]:
    found = table.search(np.asarray(vector, np.float32), column="v", k=k).to_table()
    return list(found.column("id").to_pylist())


@pytest.mark.few(2)
@pytest.mark.parametrize("others", [{}, {400: [1.0] * DIMENSION, 401: None}], ids=["alone", "rest"])
@pytest.mark.parametrize("options", [{}, {"max_tasks": 2, "part_rows": 1}], ids=["whole", "parts"])
def test_the_others_are_indexed_and_collected(
    table: memwal.Table, others: dict[int, list[float] | None], options: dict[str, int]
) -> None:
    merge(table, {500: HUGE, **others})
    result = table.build_indexes(**options)
    assert refused(result) == {500: str(REGION)}
    (lag,) = table.status().indexes
    assert (lag.rows, lag.generations) == (0, 0)
    assert not list((folder(table) / "_deletions").glob("*"))
    assert collect(table, DAY).metrics["generations_dropped"] == 1

    assert table.lookup([500]).count_rows() == 1
    assert table.scan(filter="id = 500").count_rows() == 1
    assert nearest(table, HUGE) == [500]
    if others:
        assert nearest(table, [1.0] * DIMENSION) == [400]
        assert table.scan().count_rows() == lance.dataset(table.uri).count_rows() == 303
    assert table.verify().clean


def test_are_reported_until_they_are_replaced_or_deleted(table: memwal.Table) -> None:
    merge(table, {500: HUGE, 501: None, 502: [-1e25] * DIMENSION})
    assert refused(table.build_indexes()).keys() == {500, 502}
    merge(table, {500: [2.0] * DIMENSION})
    assert refused(table.build_indexes()).keys() == {502}
    assert nearest(table, [2.0] * DIMENSION) == [500]
    table.delete([502])
    table.merge()
    assert refused(table.build_indexes()) == {}
    assert not list((folder(table) / "_memwal" / "unindexable").glob("*"))


def test_a_build_that_dies_before_its_commit_is_repeated(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has recorded the rows, and the next one finds them again."""
    merge(table, {500: HUGE, 501: None})

    def die(*_: object) -> None:
        raise ConflictError("the process ends here")

    monkeypatch.setattr(job, "commit_parts", die)
    with pytest.raises(ConflictError):
        build_indexes(table.location)
    monkeypatch.undo()
    assert refused(table.build_indexes()) == {500: str(REGION)}
    (lag,) = table.status().indexes
    assert lag.rows == 0


def test_a_damaged_index_is_built_again_without_them(table: memwal.Table) -> None:
    merge(table, {500: HUGE, 501: [3.0] * DIMENSION})
    table.build_indexes()
    for file in (folder(table) / "_indices").glob("*/index.idx"):
        file.write_bytes(b"")
        break
    result = table.build_indexes()
    assert result.metrics["rebuilt"] == 1
    assert refused(result) == {500: str(REGION)}
    assert nearest(table, [3.0] * DIMENSION) == [501]


def test_an_error_that_no_row_causes_is_raised(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(table, {500: None})

    def refuse(*_: object, **__: object) -> None:
        raise InvalidInputError("an index that accepts nothing")

    monkeypatch.setattr(job, "commit_durably", refuse)
    with pytest.raises(InvalidInputError, match="accepts nothing"):
        build_indexes(table.location)


@pytest.mark.parametrize(
    ("bad", "other"), [(HUGE, None), ([math.nan] * DIMENSION, [math.nan] * DIMENSION)]
)
def test_an_index_without_a_model_keeps_no_other_behind(
    tmp_path: Path, bad: list[float], other: list[float] | None
) -> None:
    """Lance would train it now, and cannot with such rows."""
    dataset = lance.write_dataset(vectors(dict.fromkeys(range(10))), tmp_path / "table.lance")
    dataset.create_index("v", "IVF_PQ", name="v_idx", num_partitions=1, num_sub_vectors=2)
    dataset.create_scalar_index("id", "BTREE", name="id_idx")
    names = ["v_idx", "id_idx"]
    spec = memwal.RegionSpec.unsharded()
    table = memwal.enable(
        tmp_path / "table.lance", primary_key="id", region_spec=spec, maintained_indexes=names
    )
    merge(table, {500: bad, **dict.fromkeys(range(20, 400), other)})

    (warning,) = table.build_indexes().warnings

    assert "v_idx" in warning
    assert {lag.name: lag.rows > 0 for lag in table.status().indexes} == {
        "v_idx": True,
        "id_idx": False,
    }
    table.delete([500])
    merge(table, dict.fromkeys(range(20, 400)))
    assert not table.build_indexes().warnings
    assert not any(lag.rows for lag in table.status().indexes)


def records(table: memwal.Table) -> list[Path]:
    return list((folder(table) / "_memwal" / "unindexable").glob("*"))


def test_a_build_that_pauses_keeps_the_record_of_another(
    faults: FaultyStores, table: memwal.Table
) -> None:
    """It has read a version without the row."""
    pause = faults.of(table.location).pause("list", f"{UNINDEXABLE_DIR}/*")
    with pause.holding(table.build_indexes) as building:
        other = memwal.open(table.uri)
        merge(other, {500: HUGE})
        assert refused(other.build_indexes()) == {500: str(REGION)}

    assert refused(building.result()) == {500: str(REGION)}
    assert len(records(table)) == 1


def test_a_record_that_another_build_deletes_is_no_error(
    faults: FaultyStores, table: memwal.Table
) -> None:
    merge(table, {500: HUGE})
    table.build_indexes()
    pause = faults.of(table.location).pause("get", f"{UNINDEXABLE_DIR}/*")
    with pause.holding(table.build_indexes) as building:
        other = memwal.open(table.uri)
        merge(other, {500: [2.0] * DIMENSION})
        assert refused(other.build_indexes()) == {}

    assert refused(building.result()) == {}


def test_a_damaged_index_keeps_the_records(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may come back."""
    monkeypatch.setattr(maintained, "_specs", {})
    merge(table, {500: HUGE, 501: None})
    table.build_indexes()
    files = {path: path.read_bytes() for path in (folder(table) / "_indices").glob("*/*.idx")}
    for path in files:
        path.write_bytes(b"")
    maintained._specs.clear()
    assert table.build_indexes().warnings
    for path, data in files.items():
        path.write_bytes(data)

    assert refused(table.build_indexes()) == {500: str(REGION)}
