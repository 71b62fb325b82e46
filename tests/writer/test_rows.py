"""From what a caller hands in to the rows that are stored."""

from __future__ import annotations

import pyarrow as pa
import pytest

from memwal.errors import InvalidInputError
from memwal.writer.rows import RowShape

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("text", pa.string()),
    ]
)
SHAPE = RowShape(SCHEMA, ["id"])


def single(name: str, kind: pa.DataType) -> RowShape:
    """A table with a key and one more column."""
    return RowShape(pa.schema([pa.field("id", pa.int64(), nullable=False), (name, kind)]), ["id"])


def test_the_stored_form_has_a_flag_and_nullable_columns_beside_the_key() -> None:
    assert SHAPE.schema == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("n", pa.int32()),
            pa.field("text", pa.string()),
            pa.field("_tombstone", pa.bool_(), nullable=False),
        ]
    )


def test_upserts_are_not_tombstones() -> None:
    (batch,) = SHAPE.upserts(pa.table({"text": ["x"], "id": [1], "n": pa.array([2], pa.int32())}))
    assert batch.schema == SHAPE.schema
    assert batch.to_pylist() == [{"id": 1, "n": 2, "text": "x", "_tombstone": False}]


def test_deletes_have_nothing_but_their_key() -> None:
    (batch,) = SHAPE.deletes(
        pa.table({"id": [1, 2], "n": pa.array([5, 6], pa.int32()), "text": ["x", "y"]})
    )
    assert batch.schema == SHAPE.schema
    assert batch.to_pylist() == [
        {"id": key, "n": None, "text": None, "_tombstone": True} for key in (1, 2)
    ]


def test_nothing_is_no_batch() -> None:
    assert SHAPE.deletes(pa.array([], pa.int64())) == []
    assert SHAPE.upserts(SCHEMA.empty_table()) == []


WIDENED = [
    (pa.int8(), pa.int64()),
    (pa.uint8(), pa.int16()),
    (pa.uint32(), pa.int64()),
    (pa.uint8(), pa.uint64()),
    (pa.float32(), pa.float64()),
    (pa.string(), pa.large_string()),
    (pa.large_string(), pa.string()),
    (pa.binary(), pa.large_binary()),
    (pa.timestamp("s"), pa.timestamp("ns")),
    (pa.list_(pa.int32()), pa.large_list(pa.int64())),
    (pa.list_(pa.float32(), 2), pa.list_(pa.float64(), 2)),
    (pa.null(), pa.string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int64())])),
]
REFUSED = [
    (pa.int64(), pa.int32()),
    (pa.int8(), pa.uint8()),
    (pa.uint64(), pa.int64()),
    (pa.float64(), pa.float32()),
    (pa.int64(), pa.float64()),
    (pa.float32(), pa.int64()),
    (pa.bool_(), pa.int8()),
    (pa.string(), pa.binary()),
    (pa.binary(), pa.string()),
    (pa.int64(), pa.string()),
    (pa.timestamp("ns"), pa.timestamp("s")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (pa.list_(pa.int64()), pa.list_(pa.int32())),
    (pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 3)),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
]


@pytest.mark.parametrize(("given", "wanted"), WIDENED, ids=str)
def test_types_are_widened_without_loss(given: pa.DataType, wanted: pa.DataType) -> None:
    table = pa.table({"id": [1, 2], "x": pa.nulls(2, given)})
    (batch,) = single("x", wanted).upserts(table)
    assert batch.column("x").type == wanted


@pytest.mark.parametrize(("given", "wanted"), REFUSED, ids=str)
def test_types_are_not_narrowed(given: pa.DataType, wanted: pa.DataType) -> None:
    table = pa.table({"id": [1, 2], "x": pa.nulls(2, given)})
    with pytest.raises(InvalidInputError, match="x"):
        single("x", wanted).upserts(table)


def test_a_null_inside_a_struct_or_list_is_the_columns_own_business() -> None:
    kind = pa.struct([("a", pa.int64())])
    table = pa.table({"id": [1], "x": pa.array([{"a": None}], kind)})
    (batch,) = single("x", kind).upserts(table)
    assert batch.column("x").to_pylist() == [{"a": None}]


class TestAdopt:
    """Batches that were read from the log, whoever wrote them."""

    def test_our_own_are_taken_as_they_are(self) -> None:
        (batch,) = SHAPE.deletes(pa.array([1], pa.int64()))
        assert SHAPE.adopt(batch) == [batch]

    def test_columns_may_be_reordered_and_the_flag_missing(self) -> None:
        batch = pa.record_batch(
            {"text": ["x"], "n": pa.array([2], pa.int32()), "id": pa.array([1], pa.int64())}
        )
        (adopted,) = SHAPE.adopt(batch)
        assert adopted.schema == SHAPE.schema
        assert adopted.to_pylist() == [{"id": 1, "n": 2, "text": "x", "_tombstone": False}]

    def test_the_flag_is_kept(self) -> None:
        batch = pa.record_batch(
            {
                "_tombstone": [True, False],
                "text": ["x", "y"],
                "n": pa.array([None, 2], pa.int32()),
                "id": pa.array([1, 2], pa.int64()),
            }
        )
        (adopted,) = SHAPE.adopt(batch)
        assert adopted.column("_tombstone").to_pylist() == [True, False]

    def test_a_column_that_the_table_got_later_is_null(self) -> None:
        batch = pa.record_batch({"n": pa.array([2], pa.int32()), "id": pa.array([1], pa.int64())})
        (adopted,) = SHAPE.adopt(batch)
        assert adopted.to_pylist() == [{"id": 1, "n": 2, "text": None, "_tombstone": False}]

    @pytest.mark.parametrize(
        "batch",
        [
            pytest.param(pa.record_batch({"n": pa.array([2], pa.int32())}), id="no key"),
            pytest.param(
                pa.record_batch({"id": ["x"], "n": pa.array([2], pa.int32()), "text": ["x"]}),
                id="another type",
            ),
        ],
    )
    def test_rows_that_cannot_be_the_tables_are_refused(self, batch: pa.RecordBatch) -> None:
        with pytest.raises(InvalidInputError):
            SHAPE.adopt(batch)
