"""Schemas and region specs from the command line."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance.schema import schema_to_json

from memwal import RegionSpec
from memwal.cli.options import schema_from
from memwal.errors import InvalidInputError
from memwal.region.spec_text import parse_regions, parse_type

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("vector", pa.list_(pa.float32(), 8)),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int64", pa.int64()),
        ("string", pa.string()),
        ("date32", pa.date32()),
        ("timestamp[us]", pa.timestamp("us")),
        ("timestamp[ms, Europe/Berlin]", pa.timestamp("ms", "Europe/Berlin")),
        ("decimal128(10, 2)", pa.decimal128(10, 2)),
        ("decimal256(50,0)", pa.decimal256(50, 0)),
        ("float32[128]", pa.list_(pa.float32(), 128)),
        ("list<string>", pa.list_(pa.string())),
        ("list<float16[4]>", pa.list_(pa.list_(pa.float16(), 4))),
        ("timestamp[us][3]", pa.list_(pa.timestamp("us"), 3)),
    ],
)
def test_types(text, expected):
    assert parse_type(text) == expected


@pytest.mark.parametrize(
    "text", ["", "int65", "float32[0]", "list<>", "decimal128(99, 2)", "timestamp[xs, UTC]"]
)
def test_wrong_types(text):
    with pytest.raises(InvalidInputError):
        parse_type(text)


def test_columns():
    found = schema_from(None, ["id:int64", "a:b:string", "at: timestamp[us, UTC]"])
    assert found == pa.schema(
        [("id", pa.int64()), ("a:b", pa.string()), ("at", pa.timestamp("us", "UTC"))]
    )


@pytest.mark.parametrize("column", ["id", ":int64", "\ud800:int64"])
def test_wrong_columns(column):
    with pytest.raises(InvalidInputError, match=re.escape(repr(column))):
        schema_from(None, [column])


def write(path):
    table = SCHEMA.with_metadata({"pandas": "x"}).empty_table()
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path)
        case ".json":
            path.write_text(json.dumps(schema_to_json(SCHEMA)))
        case ".arrows":
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
                out.write_table(table)
        case _:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
                out.write_table(table)


@pytest.mark.parametrize("name", ["s.parquet", "s.json", "s.arrow", "s.arrows", "S.FEATHER"])
def test_files(tmp_path, name):
    write(tmp_path / name)
    found = schema_from(tmp_path / name, None)
    assert found == SCHEMA
    assert found.metadata is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("s.parquet", b"nonsense"),
        ("s.arrow", b"nonsense"),
        ("s.json", b"{"),
        ("s.json", b'{"fields": [{"name": "id", "type": "int64"}]}'),
        ("s.csv", b"id"),
    ],
)
def test_wrong_files(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"s\."):
        schema_from(tmp_path / name, None)


def test_a_missing_file(tmp_path):
    with pytest.raises(InvalidInputError, match=r"none\.parquet"):
        schema_from(tmp_path / "none.parquet", None)


def test_one_source_of_columns(tmp_path):
    for file, columns in ((None, None), (tmp_path / "s.parquet", ["id:int64"])):
        with pytest.raises(InvalidInputError, match="--column"):
            schema_from(file, columns)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bucket:id:16", RegionSpec.bucket("id", 16)),
        ("bucket:a:b:2", RegionSpec.bucket("a:b", 2)),
        ("identity:day", RegionSpec.identity("day")),
        ("unsharded", RegionSpec.unsharded()),
        ("multi_bucket:id:8", RegionSpec.multi_bucket(["id"], 8)),
        ("multi_bucket:a,b:8", RegionSpec.multi_bucket(["a", "b"], 8)),
        ("truncate:name:3", RegionSpec.truncate("name", 3)),
        ("year:at", RegionSpec.year("at")),
        ("month:at", RegionSpec.month("at")),
        ("day:at", RegionSpec.day("at")),
        ("immutable:hour:at", RegionSpec.hour("at", immutable=True)),
        ("immutable:bucket:a:2", RegionSpec.bucket("a", 2, immutable=True)),
        (
            "expression:string:a,b:col0 || ':' || col1",
            RegionSpec.expression("col0 || ':' || col1", ["a", "b"], pa.string()),
        ),
    ],
)
def test_regions(text, expected):
    assert parse_regions([text]) == expected


def test_regions_of_several_values():
    assert parse_regions(["identity:a", "bucket:b:4"]) == RegionSpec.combine(
        RegionSpec.identity("a"), RegionSpec.bucket("b", 4)
    )


def test_manual_regions():
    assert parse_regions(["manual"]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "manual",
        "expression:int:id:col0",
        "bucket:id:100000",
        "bucket",
        "bucket:id",
        "bucket:id:x",
        "bucket::4",
        "identity:",
        "unsharded:id",
        "immutable:unsharded",
        "year",
        "truncate:id",
        "truncate:id:-4",
        "multi_bucket::4",
        "expression:int32:id",
        "expression:col0",
    ],
)
def test_wrong_regions(text):
    """Also beside one that is right; "manual" is so alone."""
    parse_regions(["identity:id"])
    with pytest.raises(InvalidInputError):
        parse_regions([text, "identity:id"])
