"""Specs must be stored as LanceDB stores them, and read back from what it stored."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import lancedb
import pyarrow as pa
import pytest
from lancedb import LsmWriteSpec

from memwal.errors import CorruptDataError, InvalidInputError, TableSetupError
from memwal.format.index_details import IndexDetails, RegionFieldSpec, StoredRegionSpec
from memwal.format.names import table_manifest_keys
from memwal.format.table_manifest import find_mem_wal_index
from memwal.region.spec import RegionSpec

SCHEMA = pa.schema(
    [
        pa.field("x", pa.binary()),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("nested", pa.struct([pa.field("inner", pa.int32())])),
    ]
)
FIELD_IDS = {"x": 0, "id": 1, "name": 2, "nested": 3}
NAMES = {number: name for name, number in FIELD_IDS.items()}

IDENTITY_TYPES = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.string(),
    pa.large_string(),
]
BUCKET_TYPES = [
    *IDENTITY_TYPES,
    pa.float32(),
    pa.float64(),
    pa.date32(),
    pa.time32("ms"),
    pa.time64("ns"),
    pa.timestamp("us"),
    pa.timestamp("ns", "UTC"),
]
TYPES_FOR_NOTHING = [
    pa.binary(),
    pa.binary(4),
    pa.float16(),
    pa.date64(),
    pa.decimal128(5, 2),
    pa.duration("s"),
    pa.list_(pa.int32()),
    pa.struct([pa.field("a", pa.int32())]),
]


def stored(**changes: object) -> StoredRegionSpec:
    field = RegionSpec.bucket("id", 16).bind(FIELD_IDS, SCHEMA).fields[0]
    return StoredRegionSpec(spec_id=1, fields=(dataclasses.replace(field, **changes),))


def set_up_by_lancedb(
    path: Path, spec: LsmWriteSpec, data_type: pa.DataType
) -> tuple[IndexDetails, dict[str, int], pa.Schema]:
    """Return what LanceDB stores for a table divided by ``c``, and that table's columns."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("s", pa.struct([pa.field("a", pa.int8()), pa.field("b", pa.int8())])),
            pa.field("c", data_type),
        ]
    )
    table = lancedb.connect(path).create_table("t", schema=schema)
    table.set_unenforced_primary_key("id")
    table.set_lsm_write_spec(spec)
    dataset = table.to_lance()
    keys = [path / "t.lance" / key for key in table_manifest_keys(dataset.version)]
    entry = find_mem_wal_index(next(key for key in keys if key.exists()).read_bytes())
    assert entry is not None
    ids = {field.name(): field.id() for field in dataset.lance_schema.fields()}
    return IndexDetails.decode(entry.details), ids, dataset.schema


@pytest.mark.parametrize("data_type", BUCKET_TYPES, ids=str)
@pytest.mark.parametrize("num_buckets", [1, 1024])
def test_bucket_spec_equals_lancedb(
    tmp_path: Path, data_type: pa.DataType, num_buckets: int
) -> None:
    theirs, ids, schema = set_up_by_lancedb(
        tmp_path, LsmWriteSpec.bucket("c", num_buckets), data_type
    )
    spec = RegionSpec.bucket("c", num_buckets)
    assert theirs.region_specs == (spec.bind(ids, schema),)
    assert theirs.num_regions == spec.num_regions == num_buckets
    names = {number: name for name, number in ids.items()}
    assert RegionSpec.from_stored(theirs.region_specs[0], names) == spec


@pytest.mark.parametrize("data_type", IDENTITY_TYPES, ids=str)
def test_identity_spec_equals_lancedb(tmp_path: Path, data_type: pa.DataType) -> None:
    theirs, ids, schema = set_up_by_lancedb(tmp_path, LsmWriteSpec.identity("c"), data_type)
    spec = RegionSpec.identity("c")
    assert theirs.region_specs == (spec.bind(ids, schema),)
    assert theirs.num_regions == spec.num_regions == 0
    names = {number: name for name, number in ids.items()}
    assert RegionSpec.from_stored(theirs.region_specs[0], names) == spec


def test_unsharded_spec_equals_lancedb(tmp_path: Path) -> None:
    theirs, ids, schema = set_up_by_lancedb(tmp_path, LsmWriteSpec.unsharded(), pa.binary())
    spec = RegionSpec.unsharded()
    assert theirs.region_specs == (spec.bind(ids, schema),)
    assert theirs.num_regions == spec.num_regions == 1
    assert RegionSpec.from_stored(theirs.region_specs[0], {}) == spec


@pytest.mark.parametrize("data_type", TYPES_FOR_NOTHING, ids=str)
def test_types_that_lancedb_refuses(tmp_path: Path, data_type: pa.DataType) -> None:
    for name, spec, theirs in (
        ("bucket", RegionSpec.bucket("c", 4), LsmWriteSpec.bucket("c", 4)),
        ("identity", RegionSpec.identity("c"), LsmWriteSpec.identity("c")),
    ):
        with pytest.raises(ValueError, match="cannot be used as a shard key"):
            set_up_by_lancedb(tmp_path / name, theirs, data_type)
        with pytest.raises(InvalidInputError, match=r"'c' of type .* cannot divide a table"):
            spec.bind({"c": 0}, pa.schema([pa.field("c", data_type)]))


@pytest.mark.parametrize("data_type", [t for t in BUCKET_TYPES if t not in IDENTITY_TYPES], ids=str)
def test_types_that_hash_but_name_no_region(tmp_path: Path, data_type: pa.DataType) -> None:
    with pytest.raises(ValueError, match="cannot be used as a shard key"):
        set_up_by_lancedb(tmp_path, LsmWriteSpec.identity("c"), data_type)
    with pytest.raises(InvalidInputError, match="cannot divide a table into regions by 'identity'"):
        RegionSpec.identity("c").bind({"c": 0}, pa.schema([pa.field("c", data_type)]))


@pytest.mark.parametrize("num_buckets", [0, 1025])
def test_numbers_of_buckets_that_lancedb_refuses(tmp_path: Path, num_buckets: int) -> None:
    with pytest.raises(ValueError, match="num_buckets must be in"):
        set_up_by_lancedb(tmp_path, LsmWriteSpec.bucket("c", num_buckets), pa.int64())
    with pytest.raises(InvalidInputError, match=f"between 1 and 1024, got {num_buckets}"):
        RegionSpec.bucket("c", num_buckets)


@pytest.mark.parametrize("num_buckets", [-1, 1.5, "4", True, None])
def test_numbers_of_buckets_that_are_none(num_buckets: object) -> None:
    with pytest.raises(InvalidInputError, match="num_buckets must be an integer"):
        RegionSpec.bucket("id", num_buckets)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"transform": "truncate", "column": "id"}, "no region transform 'truncate'"),
        ({"transform": "bucket", "num_buckets": 4}, "needs the name of a column, got None"),
        ({"transform": "identity", "column": ""}, "needs the name of a column, got ''"),
        ({"transform": "identity", "column": 3}, "needs the name of a column, got 3"),
        ({"transform": "identity", "column": "id", "num_buckets": 4}, "has no buckets"),
        ({"transform": "unsharded", "column": "id"}, "takes no column"),
        ({"transform": "unsharded", "num_buckets": 1}, "has no buckets"),
    ],
)
def test_parts_that_do_not_belong_together(parts: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        RegionSpec(**parts)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (RegionSpec.bucket("id", 16), "bucket(id, 16)"),
        (RegionSpec.identity("tenant"), "identity(tenant)"),
        (RegionSpec.unsharded(), "unsharded()"),
    ],
)
def test_text_equality_and_pickling(spec: RegionSpec, text: str) -> None:
    assert str(spec) == text
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert len({spec, dataclasses.replace(spec)}) == 1


def test_region_columns_must_be_key_columns() -> None:
    for spec in (RegionSpec.bucket("id", 4), RegionSpec.identity("id")):
        spec.check_keys(["id"])
        spec.check_keys(["tenant", "id"])
        with pytest.raises(InvalidInputError, match="'id' is not part of the primary key"):
            spec.check_keys(["tenant", "name"])
    RegionSpec.unsharded().check_keys(["id"])


@pytest.mark.parametrize("column", ["absent", "nested.inner", "inner", "ID"])
def test_columns_that_are_not_at_the_top(column: str) -> None:
    for spec in (RegionSpec.bucket(column, 4), RegionSpec.identity(column)):
        with pytest.raises(InvalidInputError, match="not one of the columns at the top"):
            spec.bind({**FIELD_IDS, column: 9}, SCHEMA)


def test_spec_ids() -> None:
    assert RegionSpec.bucket("id", 4).bind(FIELD_IDS, SCHEMA, spec_id=7).spec_id == 7
    with pytest.raises(InvalidInputError, match="must be positive, got 0"):
        RegionSpec.unsharded().bind(FIELD_IDS, SCHEMA, spec_id=0)


def test_a_column_without_field_id() -> None:
    with pytest.raises(InvalidInputError, match="no field id is known for region column 'id'"):
        RegionSpec.bucket("id", 4).bind({"x": 0}, SCHEMA)


def test_a_renamed_column_is_found_by_its_field_id() -> None:
    assert RegionSpec.from_stored(stored(), {**NAMES, 1: "key"}) == RegionSpec.bucket("key", 16)


@pytest.mark.parametrize("transform", ["truncate", "year", "multi_bucket", "BUCKET", ""])
def test_transforms_that_are_not_supported(transform: str) -> None:
    with pytest.raises(InvalidInputError, match=f"transform {transform!r} is not supported"):
        RegionSpec.from_stored(stored(transform=transform), NAMES)


def test_expressions_are_not_supported() -> None:
    spec = stored(transform=None, expression="col0 % 4")
    with pytest.raises(InvalidInputError, match="expression 'col0 % 4' is not supported"):
        RegionSpec.from_stored(spec, NAMES)


@pytest.mark.parametrize("count", [0, 2])
def test_specs_of_another_number_of_values(count: int) -> None:
    fields: tuple[RegionFieldSpec, ...] = stored().fields * count
    with pytest.raises(InvalidInputError, match=f"by {count} values"):
        RegionSpec.from_stored(StoredRegionSpec(spec_id=3, fields=fields), NAMES)


def test_a_source_column_that_is_gone() -> None:
    for spec in (stored(source_ids=(9,)), stored(source_ids=(9,), transform="identity")):
        with pytest.raises(TableSetupError, match="field id 9 is not at the top level"):
            RegionSpec.from_stored(spec, NAMES)


@pytest.mark.parametrize("source_ids", [(), (1, 2)])
def test_another_number_of_source_columns(source_ids: tuple[int, ...]) -> None:
    with pytest.raises(CorruptDataError, match=f"the table stores {len(source_ids)}"):
        RegionSpec.from_stored(stored(source_ids=source_ids), NAMES)


@pytest.mark.parametrize("text", ["", "x", "-4", "+4", " 4", "4.0", "٤"])
def test_a_stored_number_of_buckets_that_is_none(text: str) -> None:
    with pytest.raises(CorruptDataError, match="needs the parameter 'num_buckets'"):
        RegionSpec.from_stored(stored(parameters={"num_buckets": text}), NAMES)
    with pytest.raises(CorruptDataError, match="needs the parameter 'num_buckets'"):
        RegionSpec.from_stored(stored(parameters={}), NAMES)


@pytest.mark.parametrize("text", ["0", "1025"])
def test_a_stored_number_of_buckets_out_of_range(text: str) -> None:
    with pytest.raises(InvalidInputError, match=f"between 1 and 1024, got {text}"):
        RegionSpec.from_stored(stored(parameters={"num_buckets": text}), NAMES)


def test_a_source_column_that_is_also_named() -> None:
    for name in ("id", "", " "):
        spec = stored(parameters={"num_buckets": "16", "column": name})
        assert RegionSpec.from_stored(spec, NAMES) == RegionSpec.bucket("id", 16)
    spec = stored(parameters={"num_buckets": "16", "column": "name"})
    with pytest.raises(CorruptDataError, match="'id' by its field id but 'name' by its name"):
        RegionSpec.from_stored(spec, NAMES)
