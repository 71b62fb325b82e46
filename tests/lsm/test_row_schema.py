"""From what a caller hands in to the rows that are stored."""

from typing import Any

import pyarrow as pa
import pytest

from memwal.errors import InvalidInputError
from memwal.lsm.row_schema import RowSchema, check_row_sizes

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("text", pa.string()),
    ]
)
ROW_SCHEMA = RowSchema(SCHEMA, ["id"])
ROWS = pa.record_batch(
    {"id": pa.array([1, 2]), "n": pa.array([3, 4], pa.int32()), "text": ["x", None]}
)


def single(name: str, kind: pa.DataType) -> RowSchema:
    """A table with a key and one more column."""
    return RowSchema(pa.schema([pa.field("id", pa.int64(), nullable=False), (name, kind)]), ["id"])


def test_the_stored_form_has_a_flag_and_nullable_columns_beside_the_key() -> None:
    assert ROW_SCHEMA.schema == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("n", pa.int32()),
            pa.field("text", pa.string()),
            pa.field("_tombstone", pa.bool_(), nullable=False),
        ]
    )


class TestAdopt:
    """Batches that were read from the log, whoever wrote them."""

    def test_the_flag_is_kept(self) -> None:
        batch = pa.record_batch(
            {
                "_tombstone": [True, False],
                "text": ["x", "y"],
                "n": pa.array([None, 2], pa.int32()),
                "id": pa.array([1, 2], pa.int64()),
            }
        )
        (converted,) = ROW_SCHEMA.convert_logged(batch)
        assert converted.column("_tombstone").to_pylist() == [True, False]

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
            ROW_SCHEMA.convert_logged(batch)


class TestPartial:
    """Rows that lack columns."""

    def test_what_is_given_comes_in_the_tables_order_and_types(self) -> None:
        (batch,) = ROW_SCHEMA.convert_partial(
            pa.table({"text": ["x"], "id": pa.array([1], pa.int8())})
        )
        assert batch.schema.names == ["id", "text"]
        assert batch.schema.field("id").type == pa.int64()
        assert batch.to_pylist() == [{"id": 1, "text": "x"}]

    @pytest.mark.parametrize(
        ("data", "named"),
        [
            ({"text": ["x"]}, "id"),
            ({"id": [1], "other": [1]}, "other"),
            ({"id": [1, None]}, "id"),
            ({"id": [1], "n": pa.array([None], pa.int32())}, "n"),
            ({"id": [1], "n": ["x"]}, "string"),
            ({"id": [1], "_tombstone": [True]}, "_tombstone"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, data: dict[str, Any], named: str) -> None:
        with pytest.raises(InvalidInputError, match=rf"\b{named}\b"):
            ROW_SCHEMA.convert_partial(pa.table(data))


class TestKnownSchemas:
    """Rows like the ones before are not planned again, and are judged as strictly."""

    def test_columns_of_the_tables_types_are_not_copied(self) -> None:
        for _ in range(2):
            (batch,) = ROW_SCHEMA.convert_upserts(ROWS)
            for name in ROWS.schema.names:
                given, made = ROWS.column(name), batch.column(name)
                assert [b and b.address for b in made.buffers()] == [
                    b and b.address for b in given.buffers()
                ]

    def test_each_form_of_rows_keeps_its_own_plan(self) -> None:
        row_schema = RowSchema(SCHEMA, ["id"])
        reordered = ROWS.select(["text", "id", "n"])
        narrow = ROWS.set_column(0, "id", ROWS.column("id").cast(pa.int8()))
        unsigned = ROWS.set_column(1, "n", ROWS.column("n").cast(pa.uint8()))
        empty = ROWS.set_column(2, "text", pa.nulls(2))
        labels = ROWS.set_column(2, "text", ROWS.column("text").dictionary_encode())
        for _ in range(3):
            for given in (ROWS, reordered, narrow, unsigned, empty, labels):
                (batch,) = row_schema.convert_upserts(given)
                assert batch.schema.equals(row_schema.schema, check_metadata=True)
                wanted = [{**row, "_tombstone": False} for row in given.to_pylist()]
                assert [dict(sorted(row.items())) for row in batch.to_pylist()] == [
                    dict(sorted(row.items())) for row in wanted
                ]
            assert row_schema.convert_deletes(ROWS)[0].to_pylist() == [
                {"id": key, "n": None, "text": None, "_tombstone": True} for key in (1, 2)
            ]
            assert row_schema.convert_partial(ROWS) == [
                ROWS.cast(row_schema.convert_partial(ROWS)[0].schema)
            ]

    @pytest.mark.parametrize("make", ["upserts", "partial", "deletes"])
    def test_nulls_are_looked_for_in_every_batch(self, make: str) -> None:
        row_schema = RowSchema(SCHEMA, ["id"])
        good, bad = pa.table(ROWS), ROWS.set_column(0, "id", pa.array([None, 2], pa.int64()))
        write = getattr(row_schema, f"convert_{make}")
        write(good)
        with pytest.raises(InvalidInputError, match=r"\bid\b.*\b1\b"):
            write(bad)
        with pytest.raises(InvalidInputError, match=r"\bid\b.*\b2\b"):
            write(pa.Table.from_batches([ROWS, bad, ROWS, bad]))
        write(good)

    def test_metadata_of_the_given_schema_does_not_matter(self) -> None:
        row_schema = RowSchema(SCHEMA, ["id"])
        for metadata in (None, {"a": "1"}, {"a": "2"}):
            (batch,) = row_schema.convert_upserts(ROWS.replace_schema_metadata(metadata))
            assert batch.schema.equals(row_schema.schema, check_metadata=True)

    def test_refusals_are_not_remembered_as_anything(self) -> None:
        row_schema = RowSchema(SCHEMA, ["id"])
        for _ in range(2):
            with pytest.raises(InvalidInputError, match=r"\btext\b"):
                row_schema.convert_upserts(ROWS.drop_columns(["text"]))


class TestRefusals:
    @pytest.mark.parametrize(
        ("data", "named"),
        [
            (ROWS.append_column("other", pa.nulls(2)), "other"),
            (pa.table([[1], [1]], names=["id", "id"]), "id"),
            (ROWS.drop_columns(["n"]), "n"),
            ({"id": [1]}, "n"),
            ([{"id": 1}], "n"),
            (1, "int"),
            (["x"], "list"),
            (ROWS.set_column(1, "n", pa.array([1, None], pa.int32())), "n"),
            (ROWS.set_column(1, "n", pa.nulls(2)), "n"),
            (ROWS.set_column(1, "n", pa.nulls(2, pa.string())), "n"),
            (SCHEMA.empty_table().append_column("other", pa.array([], pa.int64())), "other"),
        ],
    )
    def test_rows_that_do_not_fit(self, data: Any, named: str) -> None:
        with pytest.raises(InvalidInputError, match=rf"\b{named}\b"):
            ROW_SCHEMA.convert_upserts(data)

    def test_a_null_in_a_dictionary_is_one(self) -> None:
        kind = pa.dictionary(pa.int8(), pa.string())
        row_schema = RowSchema(pa.schema([pa.field("id", kind, nullable=False)]), ["id"])
        values = pa.DictionaryArray.from_arrays(
            pa.array([0, 1, 1], pa.int8()), pa.array(["a", None])
        )
        with pytest.raises(InvalidInputError, match=r"\bid\b.*\b2\b"):
            row_schema.convert_upserts(pa.table({"id": values}))

    @pytest.mark.parametrize(
        ("values", "kind"),
        [
            ([1, 2, 2**40], pa.int32()),
            ([1.0, None, 1.5], pa.int32()),
            ([None, None, "x"], pa.int32()),
        ],
    )
    def test_the_row_is_named_by_its_number_among_all(self, values: Any, kind: Any) -> None:
        """Whether its value is lossy or impossible, and in whatever chunk it is."""
        key = RowSchema(pa.schema([pa.field("id", kind, nullable=False)]), ["id"])
        for chunks in ([values], [[], values[:2], values[2:]], [values[:1], values[1:]]):
            column = pa.chunked_array([pa.array(c, pa.array(values).type) for c in chunks])
            with pytest.raises(InvalidInputError, match=r"\bx\b.*\brow 2\b"):
                single("x", kind).convert_upserts(pa.table({"id": [1, 2, 3], "x": column}))
            with pytest.raises(InvalidInputError, match=r"\bid\b.*\brow 2\b"):
                key.convert_deletes(column)

    def test_the_first_null_is_named(self) -> None:
        data = pa.table({"id": pa.chunked_array([[1, 2], [None, 3]])})
        with pytest.raises(InvalidInputError, match=r"\bid\b.*\brow 2\b"):
            ROW_SCHEMA.convert_deletes(data)


KINDS = {
    "dictionary": pa.array(["a", None]).dictionary_encode(),
    "large": pa.array(["a", None], pa.large_string()),
    "vector": pa.array([[1, 2], None], pa.list_(pa.float32(), 2)),
    "fixed binary": pa.array([b"ab", None], pa.binary(2)),
    "nested": pa.array([{"a": [{"b": 1}]}, None]),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "json": pa.array(["{}", None]).cast(pa.json_()),
    "uuid": pa.array([b"0123456789abcdef", None], pa.binary(16)).cast(pa.uuid()),
    "blob": pa.array([b"x" * 2_000_000, None], pa.large_binary()),
}


@pytest.mark.parametrize("name", KINDS)
def test_types_of_lance_go_through_unchanged(name: str) -> None:
    column = KINDS[name]
    field = pa.field("x", column.type, metadata={"lance-encoding:blob": "true"})
    row_schema = RowSchema(pa.schema([pa.field("id", pa.int64(), nullable=False), field]), ["id"])
    rows = pa.table({"id": [1, 2], "x": column})

    for given in (rows, rows.to_batches()[0], rows.to_reader(), pa.concat_tables([rows, rows])):
        for batch in row_schema.convert_upserts(given):
            assert batch.schema.equals(row_schema.schema, check_metadata=True)
            assert batch.column("x").equals(column)
    (deleted,) = row_schema.convert_deletes(rows)
    assert deleted.column("x").null_count == 2
    (partial,) = row_schema.convert_partial(rows)
    assert partial.column("x").equals(column)


def test_many_rows_have_as_many_flags() -> None:
    many = pa.table({"id": range(100_000), "x": pa.nulls(100_000, pa.int8())})
    row_schema = single("x", pa.int8())
    assert row_schema.convert_upserts(many)[0].column("_tombstone").true_count == 0
    assert row_schema.convert_deletes(many)[0].column("_tombstone").true_count == 100_000


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.list_(pa.large_binary())])
def test_only_a_row_that_is_too_large_is_refused(kind: pa.DataType) -> None:
    values = [b"x" * 400] * 10 + [b"y" * 1200] + [b"x" * 400] * 5
    if pa.types.is_list(kind):
        values = [[value] for value in values]
    large = pa.record_batch({"id": range(16), "x": pa.array(values, kind)})
    small = large.slice(0, 10)
    check_row_sizes([small, large], 2_000)
    check_row_sizes([small], 500)
    with pytest.raises(InvalidInputError, match="row 20 "):
        check_row_sizes([small, large], 1_000)
