"""Specs must be stored as LanceDB stores them, and read back from what it stored."""

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path

import lancedb
import pyarrow as pa
import pytest
from lancedb import LsmWriteSpec

from memwal.errors import CorruptDataError, InvalidInputError, TableSetupError
from memwal.format.lance_manifest import find_mem_wal_index
from memwal.format.memwal_index import IndexDetails, StoredRegionSpec
from memwal.format.paths import table_manifest_keys
from memwal.region.router import Router
from memwal.region.spec import RegionSpec
from memwal.region.spec_fields import TRANSFORM, RegionField
from memwal.region.transforms import Identity

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
    pa.large_binary(),
    pa.binary(4),
    pa.float16(),
    pa.date64(),
    pa.decimal128(5, 2),
    pa.duration("s"),
    pa.dictionary(pa.int32(), pa.string()),
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


@pytest.mark.parametrize(
    ("data_type", "num_buckets"),
    [(data_type, (1, 1024)[number % 2]) for number, data_type in enumerate(BUCKET_TYPES)],
    ids=str,
)
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
    with pytest.raises(ValueError, match="cannot be used as a shard key"):
        set_up_by_lancedb(tmp_path, LsmWriteSpec.bucket("c", 4), data_type)
    spec, schema = RegionSpec.bucket("c", 4), pa.schema([pa.field("c", data_type)])
    with pytest.raises(InvalidInputError):
        spec.bind({"c": 0}, schema)


@pytest.mark.parametrize(
    ("data_type", "name"),
    [
        (pa.binary(), "binary"),
        (pa.binary(4), "fixed_size_binary(4)"),
        (pa.date32(), "date32"),
        (pa.date64(), "date64"),
        (pa.time32("ms"), "time32(ms)"),
        (pa.time64("ns"), "time64(ns)"),
        (pa.timestamp("us"), "timestamp(us)"),
        (pa.timestamp("ns", "Europe/Berlin"), "timestamp(ns, Europe/Berlin)"),
        (pa.decimal128(5, 2), "decimal128(5, 2)"),
        (pa.decimal256(50, 2), "decimal256(50, 2)"),
    ],
    ids=str,
)
def test_identity_of_types_that_lancedb_does_not_take(
    tmp_path: Path, data_type: pa.DataType, name: str
) -> None:
    with pytest.raises(ValueError, match="cannot be used as a shard key"):
        set_up_by_lancedb(tmp_path, LsmWriteSpec.identity("c"), data_type)
    schema = pa.schema([pa.field("c", data_type)])
    stored = RegionSpec.identity("c").bind({"c": 0}, schema)
    assert stored.fields[0].result_type == name
    assert not RegionSpec.identity("c").is_shared_with_lance(schema)


@pytest.mark.parametrize("num_buckets", [0, 1025])
def test_numbers_of_buckets_that_lancedb_refuses(tmp_path: Path, num_buckets: int) -> None:
    with pytest.raises(ValueError, match="num_buckets"):
        set_up_by_lancedb(tmp_path, LsmWriteSpec.bucket("c", num_buckets), pa.int64())
    with pytest.raises(InvalidInputError):
        RegionSpec.bucket("c", num_buckets)


@pytest.mark.parametrize("num_buckets", [-1, 1.5, "4", True, None])
def test_numbers_of_buckets_that_are_none(num_buckets: object) -> None:
    with pytest.raises(InvalidInputError):
        RegionSpec.bucket("id", num_buckets)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: RegionSpec.identity(""), "''"),
        (lambda: RegionSpec.identity(3), "column"),
        (lambda: RegionSpec.multi_bucket([], 4), "multi_bucket"),
        (lambda: RegionSpec.multi_bucket(["a"], 0), "1024"),
        (lambda: RegionSpec.truncate("a", 0), "width"),
        (lambda: RegionSpec.truncate("a", True), "width"),
        (lambda: RegionSpec.truncate("a", 2**63), "width"),
        (lambda: RegionSpec.combine(), "16"),
        (lambda: RegionSpec.combine(*[RegionSpec.identity("a")] * 17), "17"),
        (lambda: RegionSpec.combine(RegionSpec.unsharded(), RegionSpec.identity("a")), "unsharded"),
        (lambda: RegionSpec.expression("col0", [], pa.int32()), "16"),
        (lambda: RegionSpec.expression("col0", ["a"], pa.float64()), "double"),
        (lambda: RegionSpec((RegionField("x", ("a", "b"), Identity()),)), "'a', 'b'"),
        (lambda: RegionSpec((RegionField("", ("a",), Identity()),)), "fields"),
        (lambda: RegionSpec((RegionField("x", ("a",), Identity()),) * 2), "x, x"),
    ],
)
def test_parts_that_do_not_belong_together(make: Callable[[], RegionSpec], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        make()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (RegionSpec.bucket("id", 16), "bucket(id, 16)"),
        (RegionSpec.identity("tenant"), "identity(tenant)"),
        (RegionSpec.unsharded(), "unsharded()"),
        (RegionSpec.multi_bucket(["a", "b"], 4), "multi_bucket(a, b, 4)"),
        (RegionSpec.truncate("a", 3), "truncate(a, 3)"),
        (RegionSpec.year("at"), "year(at)"),
        (
            RegionSpec.combine(RegionSpec.identity("a"), RegionSpec.hour("at")),
            "identity(a), hour(at)",
        ),
        (
            RegionSpec.expression("col0 % 3", ["a"], pa.int64()),
            "expression('col0 % 3' over a as int64)",
        ),
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
        with pytest.raises(InvalidInputError, match="'id'"):
            spec.check_keys(["tenant", "name"])
    RegionSpec.unsharded().check_keys(["id"])


@pytest.mark.parametrize("column", ["absent", "nested.inner", "inner", "ID"])
def test_columns_that_are_not_at_the_top(column: str) -> None:
    for spec in (RegionSpec.bucket(column, 4), RegionSpec.identity(column)):
        with pytest.raises(InvalidInputError, match=repr(column)):
            spec.bind({**FIELD_IDS, column: 9}, SCHEMA)


def test_spec_ids() -> None:
    assert RegionSpec.bucket("id", 4).bind(FIELD_IDS, SCHEMA, spec_id=7).spec_id == 7
    unsharded = RegionSpec.unsharded()
    with pytest.raises(InvalidInputError):
        unsharded.bind(FIELD_IDS, SCHEMA, spec_id=0)


def test_a_column_without_field_id() -> None:
    spec = RegionSpec.bucket("id", 4)
    with pytest.raises(InvalidInputError):
        spec.bind({"x": 0}, SCHEMA)


def test_a_renamed_column_is_found_by_its_field_id() -> None:
    assert RegionSpec.from_stored(stored(), {**NAMES, 1: "key"}) == RegionSpec.bucket("key", 16)


EVERY_SPEC = [
    RegionSpec.bucket("id", 4),
    RegionSpec.bucket("id", 4, immutable=True),
    RegionSpec.identity("name"),
    RegionSpec.multi_bucket(["id", "name"], 7),
    RegionSpec.truncate("name", 3),
    RegionSpec.truncate("id", 100, immutable=True),
    RegionSpec.year("name"),
    RegionSpec.month("name"),
    RegionSpec.day("name"),
    RegionSpec.hour("name"),
    RegionSpec.unsharded(),
    RegionSpec.expression("col0 % 3 + length(col1)", ["id", "name"], pa.int32()),
    RegionSpec.combine(RegionSpec.identity("name"), RegionSpec.bucket("id", 4)),
    RegionSpec.combine(*[RegionSpec.truncate("id", width) for width in (2, 3, 4)]),
]


@pytest.mark.parametrize("spec", EVERY_SPEC, ids=str)
def test_what_is_stored_is_read_back(spec: RegionSpec) -> None:
    for one in (spec, dataclasses.replace(spec, pending=True)):
        bound = one.bind(FIELD_IDS, SCHEMA, spec_id=3)
        found = RegionSpec.from_stored(bound, NAMES)
        assert found == one
        assert found.spec_id == 3
        assert found.bind(FIELD_IDS, SCHEMA) == bound
        assert len({field.field_id for field in bound.fields}) == len(bound.fields)


def named(spec: RegionSpec) -> StoredRegionSpec:
    """The form in which a spec was stored before: the transform by its name."""
    bound = spec.bind(FIELD_IDS, SCHEMA)
    fields = [
        dataclasses.replace(
            stored,
            transform=field.transform.name,
            expression=None,
            parameters={k: v for k, v in stored.parameters.items() if k != TRANSFORM},
        )
        for field, stored in zip(spec.fields, bound.fields, strict=True)
    ]
    return dataclasses.replace(bound, fields=tuple(fields))


@pytest.mark.parametrize(
    "spec",
    [spec for spec in EVERY_SPEC if "expression" not in str(spec)],
    ids=str,
)
def test_names_of_transforms_that_clients_may_store(spec: RegionSpec) -> None:
    """A table that has other names goes on, with the same regions."""
    bound = spec.bind(FIELD_IDS, SCHEMA)
    for field in bound.fields:
        assert (field.transform in ("identity", "bucket", "unsharded")) == (
            field.expression is None
        )
    before = RegionSpec.from_stored(named(spec), NAMES)
    assert before == spec
    names = SCHEMA.names
    rows = pa.table({name: pa.nulls(1, SCHEMA.field(name).type) for name in names})
    if "name" in spec.columns:
        rows = rows.set_column(names.index("name"), SCHEMA.field("name"), pa.array(["2020-01-02"]))
    now = RegionSpec.from_stored(bound, NAMES)
    regions = [
        [assignment for assignment, _ in Router(each, SCHEMA).route(rows)] for each in (before, now)
    ]
    assert regions[0] == regions[1]


def test_an_expression_that_contradicts_its_name() -> None:
    bound = RegionSpec.truncate("name", 3).bind(FIELD_IDS, SCHEMA)
    (field,) = bound.fields
    wrong = dataclasses.replace(field, expression="left(col0, 4)")
    with pytest.raises(CorruptDataError):
        RegionSpec.from_stored(dataclasses.replace(bound, fields=(wrong,)), NAMES)


@pytest.mark.parametrize(
    ("spec", "error", "named"),
    [
        *(
            (stored(transform=name), InvalidInputError, repr(name))
            for name in ("void", "BUCKET", "")
        ),
        (stored(transform=None, expression=None), CorruptDataError, None),
        *(
            (stored(transform=None, expression=expression), InvalidInputError, None)
            for expression in ("now()", "(select 1)", "col1", "col0; drop table x")
        ),
        (StoredRegionSpec(spec_id=3, fields=()), InvalidInputError, None),
    ],
)
def test_stored_specs_that_are_refused(
    spec: StoredRegionSpec, error: type[Exception], named: str | None
) -> None:
    with pytest.raises(error, match=named):
        RegionSpec.from_stored(spec, NAMES)


def test_a_source_column_that_is_gone_counts_as_null_but_takes_no_writes() -> None:
    for spec in (stored(source_ids=(9,)), stored(source_ids=(9,), transform="identity")):
        found = RegionSpec.from_stored(spec, NAMES)
        assert found.columns == ()
        assert "<dropped>" in str(found)
        with pytest.raises(TableSetupError):
            found.check_keys(["id"])


def test_a_pending_spec_takes_no_writes() -> None:
    spec = dataclasses.replace(RegionSpec.unsharded(), pending=True)
    with pytest.raises(TableSetupError):
        spec.check_keys(["id"])


def test_columns_outside_the_key_have_to_be_promised() -> None:
    spec = RegionSpec.combine(RegionSpec.bucket("id", 4), RegionSpec.year("at", immutable=True))
    spec.check_keys(["id"])
    assert spec.columns == ("id", "at")
    assert spec.columns_beside_key == ("at",)
    changing = RegionSpec.year("at")
    with pytest.raises(InvalidInputError):
        changing.check_keys(["id"])


def test_numbers_of_regions() -> None:
    bucket, identity = RegionSpec.bucket("id", 4), RegionSpec.identity("name")
    assert RegionSpec.multi_bucket(["id", "name"], 9).num_regions == 9
    assert RegionSpec.combine(bucket, RegionSpec.bucket("name", 8)).num_regions == 32
    assert RegionSpec.combine(bucket, identity).num_regions == 0
    assert RegionSpec.combine(bucket, RegionSpec.bucket("name", 1024)).num_regions == 0
    assert RegionSpec.year("name").num_regions == 0


@pytest.mark.parametrize("source_ids", [(), (1, 2)])
def test_another_number_of_source_columns(source_ids: tuple[int, ...]) -> None:
    spec = stored(source_ids=source_ids)
    with pytest.raises(CorruptDataError):
        RegionSpec.from_stored(spec, NAMES)


@pytest.mark.parametrize("text", ["", "x", "-4", "+4", " 4", "4.0", "٤"])
def test_a_stored_number_of_buckets_that_is_none(text: str) -> None:
    for spec in (stored(parameters={"num_buckets": text}), stored(parameters={})):
        with pytest.raises(CorruptDataError, match="'num_buckets'"):
            RegionSpec.from_stored(spec, NAMES)


@pytest.mark.parametrize("text", ["0", "1025"])
def test_a_stored_number_of_buckets_out_of_range(text: str) -> None:
    spec = stored(parameters={"num_buckets": text})
    with pytest.raises(InvalidInputError):
        RegionSpec.from_stored(spec, NAMES)


def test_a_source_column_that_is_also_named() -> None:
    for name in ("id", "", " "):
        spec = stored(parameters={"num_buckets": "16", "column": name})
        assert RegionSpec.from_stored(spec, NAMES) == RegionSpec.bucket("id", 16)
    spec = stored(parameters={"num_buckets": "16", "column": "name"})
    with pytest.raises(CorruptDataError, match="'name'"):
        RegionSpec.from_stored(spec, NAMES)
