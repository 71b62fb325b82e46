"""Results of lookups and searches: they run when they are used, as scans do."""

import sys
from collections.abc import Callable

import duckdb
import lance
import polars as pl
import pyarrow as pa
import pytest

import memwal
from memwal.errors import InvalidInputError, MissingExtraError
from memwal.reader.result import Result

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("t", pa.string()),
    ]
)
Read = Callable[[memwal.Table], Result]
READS: dict[str, Read] = {
    "scan": lambda table: table.scan(),
    "scan of a column": lambda table: table.scan(columns=["t"], with_generation=True),
    "lookup": lambda table: table.lookup([2, 1, 99]),
    "lookup of a column": lambda table: table.lookup(1, columns=["t", "id"]),
    "search": lambda table: table.search([0.0, 0.0], k=2),
    "search of a column": lambda table: table.search([0.0, 0.0], columns=["t"]),
    "text": lambda table: table.search_text("fox"),
    "hybrid": lambda table: table.search_hybrid([0.0, 0.0], "fox", columns=["id"]),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> memwal.Table:
    """Two rows in the base table, one of them replaced, and one in a generation."""
    folder = tmp_path_factory.mktemp("results") / "t.lance"
    dataset = lance.write_dataset(SCHEMA.empty_table(), str(folder))
    dataset.create_scalar_index("t", "INVERTED", name="t_idx")
    made = memwal.enable(
        dataset, primary_key=["id"], region_spec="bucket:id:2", maintained_indexes=["t_idx"]
    )
    made.upsert(
        [{"id": 1, "v": [5.0, 0.0], "t": "fox"}, {"id": 2, "v": [0.0, 1.0], "t": "red fox"}]
    )
    made.merge()
    made.upsert([{"id": 1, "v": [0.0, 0.0], "t": "fox fox"}, {"id": 3, "v": None, "t": None}])
    return made


@pytest.mark.few(4)
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_form_has_the_same_rows(table: memwal.Table, read: Read) -> None:
    result = read(table)
    rows = result.to_pylist()
    assert rows
    assert result.to_table().to_pylist() == rows
    assert result.to_table().schema == result.schema
    assert result.to_reader().read_all().to_pylist() == rows
    assert [row for batch in result.to_batches() for row in batch.to_pylist()] == rows
    assert [row for batch in result for row in batch.to_pylist()] == rows
    assert result.count_rows() == len(rows)
    assert pa.table(result).to_pylist() == rows
    assert result.to_polars().to_dicts() == rows
    assert result.to_arrow() == result.to_table()
    assert pl.DataFrame(result).to_dicts() == rows
    assert list(result.to_pandas().columns) == result.schema.names
    assert len(result.to_pandas()) == len(rows)
    assert duckdb.sql("select count(*) from result").fetchall() == [(len(rows),)]
    assert duckdb.from_arrow(result).columns == result.schema.names


def test_each_use_reads_the_table_as_it_is_then(table: memwal.Table) -> None:
    looked_up, found = table.lookup(50), table.search_text("wolf")
    assert looked_up.to_pylist() == found.to_pylist() == []
    table.upsert({"id": 50, "v": [9.0, 9.0], "t": "wolf"})
    assert [row["id"] for row in (*looked_up.to_pylist(), *found.to_pylist())] == [50, 50]
    table.delete(50)
    assert looked_up.count_rows() == found.count_rows() == 0


def test_a_version_has_the_same_interface(table: memwal.Table) -> None:
    past = table.at(table.version)
    assert past.lookup([1, 3]).to_pylist() == [{"id": 1, "v": [5.0, 0.0], "t": "fox"}]
    assert past.lookup([1], columns=["t"]).schema.names == ["t"]
    assert past.count_rows() == 2
    assert past.head(1).num_rows == 1


def test_what_does_not_fit_is_refused_when_it_is_used(table: memwal.Table) -> None:
    for result in (
        table.lookup("x"),
        table.lookup(1.5),
        table.lookup([1], columns=["nope"]),
        table.search([0.0]),
        table.search([0.0, 0.0], columns=["nope"]),
        table.search_text("fox", column="id"),
    ):
        with pytest.raises(InvalidInputError):
            result.to_table()
    with pytest.raises(InvalidInputError):
        _ = table.scan(columns=["nope"]).schema


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_library_may_be_absent(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError):
        getattr(table.lookup(1), f"to_{package}")()
