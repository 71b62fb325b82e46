"""Generations whose rows are older than the table's schema, and the indexes on changed columns."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.tables import REGION, MakeTable, keys, rows

import memwal
from memwal.format.paths import generation_dir
from memwal.lsm.flush.generation import write_generation
from memwal.lsm.indexes.kinds import BTREE, KINDS, IndexSpec
from memwal.lsm.indexes.maintained import MaintainedIndex, maintained_indexes
from memwal.lsm.row_schema import RowSchema

pytestmark = pytest.mark.usefixtures("of_few_rows")

ID = pa.field("id", pa.int64(), nullable=False)


def accepted(table: memwal.Table, data: pa.Table, *, delete: pa.Array | None = None) -> pa.Table:
    """Rows as a writer holds them that knows the table as it is now."""
    base = table.base()
    row_schema = RowSchema(base.identified_schema, base.primary_key)
    batches = row_schema.convert_upserts(data) + (
        row_schema.convert_deletes(delete) if delete is not None else []
    )
    return pa.Table.from_batches(batches, row_schema.schema)


def written(
    table: memwal.Table, contents: pa.Table, indexes: tuple[MaintainedIndex, ...] | None = None
) -> lance.LanceDataset:
    """A generation of them, for the table as it is now."""
    base = table.base()
    indexes = maintained_indexes(base) if indexes is None else indexes
    flushed = write_generation(base, REGION, 1, contents, indexes)
    return lance.dataset(table.location.child(generation_dir(REGION, flushed.path)))


def enabled(
    path: Path, schema: pa.Schema, index: Callable[[lance.LanceDataset], object]
) -> memwal.Table:
    """An empty table that maintains an index."""
    uri = str(path / "enabled")
    index(lance.write_dataset(schema.empty_table(), uri))
    return memwal.enable(uri, primary_key=["id"], region_spec="unsharded", maintained_indexes=None)


def ids(dataset: lance.LanceDataset) -> dict[str, int]:
    return {field.name(): field.id() for field in dataset.lance_schema.fields()}


CHANGES: dict[str, tuple[Callable[[lance.LanceDataset], object], dict[str, Any]]] = {
    "nothing": (lambda d: None, {"id": 1, "n": 10, "text": "1=10"}),
    "added": (
        lambda d: d.add_columns(pa.field("later", pa.int32())),
        {"id": 1, "n": 10, "text": "1=10", "later": None},
    ),
    "dropped": (lambda d: d.drop_columns(["n"]), {"id": 1, "text": "1=10"}),
    "last dropped": (lambda d: d.drop_columns(["text"]), {"id": 1, "n": 10}),
    "renamed": (
        lambda d: d.alter_columns({"path": "n", "name": "m"}),
        {"id": 1, "m": 10, "text": "1=10"},
    ),
    "replaced by another type": (
        lambda d: (d.drop_columns(["n"]), d.add_columns(pa.field("n", pa.string()))),
        {"id": 1, "text": "1=10", "n": None},
    ),
    "names exchanged": (
        lambda d: (
            d.alter_columns({"path": "n", "name": "between"}),
            d.alter_columns({"path": "text", "name": "n"}),
            d.alter_columns({"path": "between", "name": "text"}),
        ),
        {"id": 1, "text": 10, "n": "1=10"},
    ),
}


@pytest.mark.parametrize(("change", "wanted"), CHANGES.values(), ids=CHANGES.keys())
def test_columns_that_changed(
    table: memwal.Table, change: Callable[[lance.LanceDataset], object], wanted: dict[str, Any]
) -> None:
    contents = accepted(table, rows({1: 10}), delete=keys(2))
    change(table.base().dataset)

    dataset = written(table, contents)

    gone = {**dict.fromkeys(wanted), "id": 2, "_tombstone": True}
    assert dataset.to_table().to_pylist() == [{**wanted, "_tombstone": False}, gone]
    found, base = ids(dataset), ids(table.base().dataset)
    assert found.pop("_tombstone") > max(base.values())
    assert found == base


def test_one_commit_while_the_field_ids_are_in_order(make_table: MakeTable) -> None:
    table = make_table(maintained_indexes=["n_idx", "text_idx"])
    dataset = written(table, accepted(table, rows({1: 10})))
    # The rows, and all indexes together.
    assert dataset.version == 2


class TestIndexes:
    @pytest.fixture
    def table(self, make_table: MakeTable) -> memwal.Table:
        return make_table(maintained_indexes=["n_idx", "text_idx"])

    @pytest.mark.parametrize(
        ("change", "column"),
        [("renamed", "m"), ("dropped", None), ("replaced by another type", None)],
    )
    def test_on_a_column_that_changed(
        self, table: memwal.Table, change: str, column: str | None
    ) -> None:
        contents, indexes = accepted(table, rows({1: 10})), maintained_indexes(table.base())
        CHANGES[change][0](table.base().dataset)
        dataset = written(table, contents, indexes)
        found = {index.name: index.field_names for index in dataset.describe_indices()}
        assert found == {"text_idx": ["text"]} | ({"n_idx": [column]} if column else {})

    def test_inside_a_struct(self, tmp_path: Path) -> None:
        schema = pa.schema([ID, pa.field("s", pa.struct([pa.field("x", pa.int64())]))])
        table = enabled(
            tmp_path, schema, lambda d: d.create_scalar_index("s.x", "BTREE", name="x_idx")
        )
        (index,) = maintained_indexes(table.base())
        assert (index.column, index.kind) == ("s.x", BTREE)
        contents = accepted(table, pa.table({"id": [1], "s": [{"x": 5}]}, schema=schema))
        (found,) = written(table, contents).describe_indices()
        assert (found.name, found.field_names) == ("x_idx", ["s.x"])

    def test_a_kind_that_cannot_be_built_is_told_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        table = enabled(
            tmp_path,
            pa.schema([ID, pa.field("v", pa.list_(pa.float32(), 4))]),
            lambda d: d.create_index(
                "v", "IVF_FLAT", name="untrained", num_partitions=2, train=False
            ),
        )
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert maintained_indexes(table.base()) == ()
        (message,) = [r.getMessage() for r in caplog.records if r.name.startswith("memwal")]
        assert "untrained" in message
        assert "IVF_FLAT" in message

    def test_an_index_that_refuses_the_rows_does_not_stop_the_flush(
        self, table: memwal.Table, caplog: pytest.LogCaptureFixture
    ) -> None:
        indexes = {index.name: index for index in maintained_indexes(table.base())}
        (ngram,) = (kind for kind in KINDS if kind.pylance_name == "NGRAM")
        wrong = MaintainedIndex("n_idx", "n", 1, IndexSpec(ngram))
        with caplog.at_level(logging.WARNING):
            dataset = written(table, accepted(table, rows({1: 10})), (wrong, indexes["text_idx"]))
        assert [index.name for index in dataset.describe_indices()] == ["text_idx"]
        assert dataset.count_rows() == 1
        assert "n_idx" in caplog.text
