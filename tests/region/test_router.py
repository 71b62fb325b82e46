"""Every row must land once, in order, in the region where LanceDB would put it."""

import datetime as dt
import gc
import hashlib
import math
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import lancedb
import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lancedb import LsmWriteSpec

from memwal.errors import InvalidInputError
from memwal.region import router as routing
from memwal.region.hashing import bucket
from memwal.region.router import UNSHARDED_ID, RegionAssignment, Router, bucket_region_id
from memwal.region.spec import RegionSpec
from memwal.region.spec_fields import RegionField
from memwal.region.transforms import MultiBucket
from memwal.region.values import decode_values

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"k": "v"}),
        pa.field("name", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("tags", pa.list_(pa.string())),
    ],
    metadata={"table": "yes"},
)

INTEGERS = {
    pa.int8(): [-128, -1, 0, 127],
    pa.int16(): [-(2**15), 5],
    pa.int32(): [-(2**31), 5, 2**31 - 1],
    pa.int64(): [-(2**63), 5, 2**63 - 1],
    pa.uint8(): [0, 255],
    pa.uint16(): [0, 2**16 - 1],
    pa.uint32(): [5, 2**32 - 1],
    pa.uint64(): [5, 2**64 - 1],
}
IDENTITY_VALUES = {
    **INTEGERS,
    pa.bool_(): [True, False],
    pa.string(): ["", "a", "é1", "日本語"],
    pa.large_string(): ["tenant", "\x00"],
}
BUCKET_VALUES = {
    **{data_type: [*values, None] for data_type, values in IDENTITY_VALUES.items()},
    pa.float32(): [0.0, -0.0, 1.25, float("nan")],
    pa.float64(): [0.0, -0.0, 1.25, float("nan")],
    pa.date32(): [dt.date(1960, 1, 1), dt.date(2017, 11, 16)],
    pa.time32("s"): [dt.time(1, 2, 3)],
    pa.time64("us"): [dt.time(1, 2, 3, 4)],
    pa.timestamp("us"): [dt.datetime(2020, 1, 1), dt.datetime(1960, 1, 1)],
    pa.timestamp("ns", "UTC"): [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)],
}


def rows_of(ids: list[int]) -> pa.RecordBatch:
    """Return rows whose other columns tell where each row stood."""
    count = len(ids)
    return pa.record_batch(
        [
            pa.array(ids, pa.int64()),
            pa.array([None if i % 7 == 0 else f"row-{i}" for i in range(count)]),
            pa.array([[i, -i] for i in range(count)], SCHEMA.field("vector").type),
            pa.array([[str(i)] * (i % 3) for i in range(count)], SCHEMA.field("tags").type),
        ],
        schema=SCHEMA,
    )


def numbered(column: pa.Array) -> pa.RecordBatch:
    """Return rows with a column ``c`` and, in ``at``, the position of the row."""
    return pa.record_batch({"c": column, "at": pa.array(range(len(column)), pa.int64())})


class LanceDbTable:
    """A LanceDB table divided by its column ``c``, which need not be the key for LanceDB."""

    def __init__(self, path: Path, spec: LsmWriteSpec, data_type: pa.DataType) -> None:
        self._folder = path / "t.lance" / "_mem_wal"
        self.schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("c", data_type)])
        self._table = lancedb.connect(path).create_table("t", schema=self.schema)
        self._table.set_unenforced_primary_key("id")
        self._table.set_lsm_write_spec(spec)

    def upsert(self, value: object) -> uuid.UUID:
        """Upsert one row, and return the region that was made for it."""
        before = self._regions()
        rows = pa.table(
            [pa.array([1]), pa.array([value], self.schema.field("c").type)], self.schema
        )
        upsert = self._table.merge_insert("id").when_matched_update_all()
        upsert.when_not_matched_insert_all().execute(rows)
        self._table.close_lsm_writers()
        (region,) = self._regions() - before
        return region

    def _regions(self) -> set[uuid.UUID]:
        folders = self._folder.iterdir() if self._folder.exists() else ()
        return {uuid.UUID(folder.name) for folder in folders}


@pytest.mark.few(5)
@pytest.mark.parametrize("data_type", IDENTITY_VALUES, ids=str)
def test_identity_regions_equal_lancedb(tmp_path: Path, data_type: pa.DataType) -> None:
    theirs = LanceDbTable(tmp_path, LsmWriteSpec.identity("c"), data_type)
    router = Router(RegionSpec.identity("c"), theirs.schema)
    values = IDENTITY_VALUES[data_type]
    parts = router.route(numbered(pa.array(values, data_type)))
    assert [part.column("c").to_pylist() for _, part in parts] == [[value] for value in values]
    assert [region.region_id for region, _ in parts] == [theirs.upsert(value) for value in values]


@pytest.mark.few(7)
@pytest.mark.parametrize("data_type", BUCKET_VALUES, ids=str)
def test_bucket_regions_equal_lancedb(tmp_path: Path, data_type: pa.DataType) -> None:
    for position, value in enumerate(BUCKET_VALUES[data_type]):
        path = tmp_path / str(position)
        theirs = LanceDbTable(path, LsmWriteSpec.bucket("c", 1024), data_type)
        router = Router(RegionSpec.bucket("c", 1024), theirs.schema)
        ((region, _),) = router.route(numbered(pa.array([value], data_type)))
        assert region.region_id == theirs.upsert(value), value


@pytest.mark.few(5)
@pytest.mark.parametrize("data_type", IDENTITY_VALUES, ids=str)
def test_null_is_a_region_of_its_own_that_lancedb_does_not_write(
    tmp_path: Path, data_type: pa.DataType
) -> None:
    theirs = LanceDbTable(tmp_path, LsmWriteSpec.identity("c"), data_type)
    with pytest.raises(ValueError, match="does not support null routing values"):
        theirs.upsert(None)
    router = Router(RegionSpec.identity("c"), theirs.schema)
    value = IDENTITY_VALUES[data_type][0]

    found = router.route(numbered(pa.array([None, value, None], data_type)))

    assert [part.column("c").to_pylist() for _, part in found] == [[None, None], [value]]
    (null, _), (other, _) = found
    assert null.field_values == ()
    assert other.region_id == theirs.upsert(value)
    assert null.region_id not in (other.region_id, UNSHARDED_ID)
    again = Router(RegionSpec.identity("c"), theirs.schema)
    assert again.route(numbered(pa.array([None], data_type)))[0][0] == null


@settings(deadline=None)
@given(
    data_type=st.sampled_from(list(BUCKET_VALUES)),
    num_buckets=st.integers(1, 1024),
    data=st.data(),
)
def test_any_rows_by_bucket(data_type: pa.DataType, num_buckets: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.sampled_from(BUCKET_VALUES[data_type]), max_size=30))
    batch = numbered(pa.array(values, data_type))
    parts = Router(RegionSpec.bucket("c", num_buckets), batch.schema).route(batch)
    want: dict[int, list[int]] = {}
    for position, number in enumerate(bucket(batch.column("c"), num_buckets).tolist()):
        want.setdefault(number, []).append(position)
    got = {region.region_id: part.column("at").to_pylist() for region, part in parts}
    assert got == {bucket_region_id(number): positions for number, positions in want.items()}
    assert [region.field_values for region, _ in parts] == [
        (("bucket", number.to_bytes(4, "little")),) for number in sorted(want)
    ]


@settings(deadline=None)
@given(data_type=st.sampled_from(list(IDENTITY_VALUES)), data=st.data())
def test_any_rows_by_identity(data_type: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.sampled_from(IDENTITY_VALUES[data_type]), max_size=30))
    batch = numbered(pa.array(values, data_type))
    parts = Router(RegionSpec.identity("c"), batch.schema).route(batch)
    want: dict[object, list[int]] = {}
    for position, value in enumerate(values):
        want.setdefault(value, []).append(position)
    assert [part.column("at").to_pylist() for _, part in parts] == list(want.values())
    assert len({region.region_id for region, _ in parts}) == len(want)


def test_whole_rows_move_together() -> None:
    rng = np.random.default_rng(7)
    batch = rows_of(rng.integers(-(2**63), 2**63, 5_000).tolist()).slice(11)
    parts = Router(RegionSpec.bucket("id", 16), SCHEMA).route(batch)
    assert len(parts) == 16
    numbers = bucket(batch.column("id"), 16)
    given = batch.to_pylist()
    for region, part in parts:
        number = int.from_bytes(region.field_values[0][1], "little")
        assert part.schema.equals(SCHEMA, check_metadata=True)
        assert part.to_pylist() == [
            row for row, own in zip(given, numbers, strict=True) if own == number
        ]


@pytest.mark.parametrize(
    "spec", [RegionSpec.bucket("id", 4), RegionSpec.identity("id"), RegionSpec.unsharded()], ids=str
)
def test_rows_of_one_region_are_not_copied(spec: RegionSpec) -> None:
    batch = rows_of([12, 12, 12])
    router = Router(spec, SCHEMA)
    ((region, part),) = router.route(batch)
    assert part is batch
    ((of_table, from_table),) = router.route(pa.Table.from_batches([batch]))
    assert of_table == region
    assert from_table.column("name").buffers()[2].address == (
        batch.column("name").buffers()[2].address
    )


@pytest.mark.parametrize(
    "spec", [RegionSpec.bucket("id", 4), RegionSpec.identity("id"), RegionSpec.unsharded()], ids=str
)
def test_a_table_routes_like_one_batch(spec: RegionSpec) -> None:
    batch = rows_of(list(range(40)))
    table = pa.Table.from_batches([batch[:7], batch[7:7], batch[7:30], batch[30:]])
    router = Router(spec, SCHEMA)
    assert router.route(table) == router.route(batch)


@pytest.mark.parametrize(
    "spec", [RegionSpec.bucket("id", 4), RegionSpec.identity("id"), RegionSpec.unsharded()], ids=str
)
def test_no_rows(spec: RegionSpec) -> None:
    router = Router(spec, SCHEMA)
    assert router.route(rows_of([])) == []
    assert router.route(SCHEMA.empty_table()) == []


def test_unsharded_rows_need_no_column() -> None:
    batch = pa.record_batch({"other": ["a", "b"]})
    router = Router(RegionSpec.unsharded(), SCHEMA)
    assert router.route(batch) == [(RegionAssignment(UNSHARDED_ID, ()), batch)]


def test_a_table_that_exceeds_one_batch() -> None:
    # The bytes are never touched, so they take no memory.
    text = pa.py_buffer(np.zeros(2**30 + 2**29, dtype=np.uint8))
    offsets = pa.py_buffer(np.array([0, 2**30 + 2**29], dtype=np.int32))
    large = pa.Array.from_buffers(pa.string(), 1, [None, offsets, text])
    table = pa.table({"id": pa.chunked_array([[1], [2]]), "text": pa.chunked_array([large, large])})
    router = Router(RegionSpec.bucket("id", 4), table.schema)
    with pytest.raises(InvalidInputError):
        router.route(table)
    assert sum(len(router.route(batch)) for batch in table.to_batches()) == 2


@pytest.mark.parametrize("spec", [RegionSpec.bucket("id", 4), RegionSpec.identity("id")], ids=str)
def test_rows_without_the_region_column(spec: RegionSpec) -> None:
    router = Router(spec, SCHEMA)
    absent = pa.record_batch({"name": ["a"]})
    twice = pa.record_batch([pa.array([1]), pa.array([2])], names=["id", "id"])
    for batch in (absent, absent[:0], twice):
        with pytest.raises(InvalidInputError, match="'id'"):
            router.route(batch)


@pytest.mark.parametrize("spec", [RegionSpec.bucket("id", 4), RegionSpec.identity("id")], ids=str)
def test_a_column_of_another_type_is_refused(spec: RegionSpec) -> None:
    router = Router(spec, SCHEMA)
    batch = pa.record_batch({"id": pa.array([5], pa.int32())})
    with pytest.raises(InvalidInputError, match=r"int32.*int64"):
        router.route(batch)


@pytest.mark.parametrize("column", ["vector", "absent"])
def test_a_table_that_cannot_be_divided(column: str) -> None:
    for spec in (RegionSpec.bucket(column, 4), RegionSpec.identity(column)):
        with pytest.raises(InvalidInputError, match=f"'{column}'"):
            Router(spec, SCHEMA)


def test_all_assignments() -> None:
    router = Router(RegionSpec.bucket("id", 4), SCHEMA)
    assert router.assignments() == [
        RegionAssignment(bucket_region_id(n), (("bucket", bytes([n, 0, 0, 0])),)) for n in range(4)
    ]
    router.assignments().clear()
    assert len(router.assignments()) == 4
    assert Router(RegionSpec.identity("id"), SCHEMA).assignments() is None
    unsharded = Router(RegionSpec.unsharded(), SCHEMA)
    assert unsharded.assignments() == [RegionAssignment(UNSHARDED_ID, ())]


# Specs beyond what Lance knows

TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tenant", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(8, 2)),
        pa.field("blob", pa.binary()),
    ]
)
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
        "tenant": st.none() | st.sampled_from(["", "a", "ab", "日本", "b"]),
        "at": st.none() | st.datetimes(dt.datetime(2020, 1, 1), dt.datetime(2021, 1, 1)),
        "price": st.none() | st.integers(-999, 999).map(lambda cents: Decimal(cents) / 100),
        "blob": st.none() | st.binary(max_size=2),
    }
)


def abs_mod(value: int | None, buckets: int) -> int | None:
    return None if value is None else abs(value) % buckets


def hash_of(*parts: bytes | None) -> int | None:
    known = [part for part in parts if part is not None]
    return mmh3.hash(b"".join(known)) if known else None


def utf8(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


ORACLES: dict[RegionSpec, Callable[[dict[str, Any]], tuple[Any, ...]]] = {
    RegionSpec.multi_bucket(["id", "tenant"], 5): lambda row: (
        abs_mod(hash_of(row["id"].to_bytes(8, "little", signed=True), utf8(row["tenant"])), 5),
    ),
    RegionSpec.multi_bucket(["tenant"], 3): lambda row: (abs_mod(hash_of(utf8(row["tenant"])), 3),),
    RegionSpec.truncate("tenant", 1): lambda row: (row["tenant"] and row["tenant"][:1],),
    RegionSpec.truncate("id", 10): lambda row: (
        int(math.copysign(1, row["id"])) * (abs(row["id"]) // 10 * 10),
    ),
    RegionSpec.identity("blob"): lambda row: (row["blob"],),
    RegionSpec.identity("price"): lambda row: (row["price"],),
    RegionSpec.month("at"): lambda row: (row["at"] and row["at"].month,),
    RegionSpec.combine(
        RegionSpec.year("at"), RegionSpec.hour("at"), RegionSpec.truncate("tenant", 1)
    ): lambda row: (
        row["at"] and row["at"].year,
        row["at"] and row["at"].hour,
        row["tenant"] and row["tenant"][:1],
    ),
    RegionSpec.combine(
        RegionSpec.multi_bucket(["id"], 3), RegionSpec.multi_bucket(["blob"], 4)
    ): lambda row: (
        abs_mod(hash_of(row["id"].to_bytes(8, "little", signed=True)), 3),
        abs_mod(hash_of(row["blob"]), 4),
    ),
    RegionSpec.expression("abs(murmur3(col0)) % 4", ["tenant"], pa.int32()): lambda row: (
        abs_mod(hash_of(utf8(row["tenant"])), 4),
    ),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("spec", ORACLES, ids=str)
@settings(deadline=None, max_examples=20)
@given(rows=st.lists(ROWS, max_size=25))
def test_any_rows_by_any_spec(spec: RegionSpec, rows: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{**row, "at": row["at"] and row["at"].replace(tzinfo=dt.UTC)} for row in rows], TABLE
    )
    batch = batch.append_column("n", pa.array(range(len(rows)), pa.int64()))
    router = Router(spec, TABLE)
    want: dict[tuple[Any, ...], list[int]] = {}
    for position, row in enumerate(rows):
        want.setdefault(ORACLES[spec](row), []).append(position)
    parts = router.route(batch)
    assert sorted(part.column("n").to_pylist() for _, part in parts) == sorted(want.values())
    assert len({region.region_id for region, _ in parts}) == len(want)
    types = spec.value_types(TABLE)
    for region, part in parts:
        stored = dict(region.field_values)
        found = tuple(
            decode_values([stored.get(field.field_id)], kind)[0].as_py()
            for field, kind in zip(spec.fields, types, strict=True)
        )
        assert want[found] == part.column("n").to_pylist()
        # Alone, every row goes to the same region.
        for position in range(part.num_rows):
            assert router.route(part.slice(position, 1)) == [(region, part.slice(position, 1))]
    known = router.assignments()
    if known is not None:
        assert {region for region, _ in parts if len(region.field_values) == len(types)} <= set(
            known
        )


def test_ids_of_our_own_are_pinned() -> None:
    schema = pa.schema([("id", pa.int64()), ("t", pa.string())])
    batch = pa.record_batch({"id": [7], "t": [None]}, schema=schema)
    spec = RegionSpec.combine(RegionSpec.truncate("id", 5), RegionSpec.identity("t"))
    ((region, _),) = Router(spec, schema).route(batch)
    namespace = uuid.UUID("6d656d77-616c-5b72-a567-696f6e732031")
    name = (
        (1).to_bytes(4, "little")
        + b"i\x10\x00\x00\x00"
        + (5).to_bytes(16, "little")
        + b"0\x00\x00\x00\x00"
    )
    digest = hashlib.sha1(namespace.bytes + name, usedforsecurity=False).digest()
    assert region.region_id == uuid.UUID(bytes=digest[:16], version=5)
    assert str(region.region_id) == "c3f84171-d33c-5338-bc16-8848f8d9c893"
    assert region.field_values == (("id_truncate", (5).to_bytes(8, "little")),)


def test_every_spec_of_a_table_has_regions_of_its_own() -> None:
    batch = rows_of([1])
    for spec in (
        RegionSpec.bucket("id", 4),
        RegionSpec.identity("id"),
        RegionSpec.unsharded(),
        RegionSpec.multi_bucket(["id"], 4),
    ):
        ids = set()
        for spec_id in (1, 2, 3):
            ((region, _),) = Router(replace(spec, spec_id=spec_id), SCHEMA).route(batch)
            ids.add(region.region_id)
        assert len(ids) == 3


def test_a_wider_column_keeps_its_region() -> None:
    for spec in (
        RegionSpec.identity("c"),
        RegionSpec.truncate("c", 10),
        RegionSpec.multi_bucket(["c"], 100),
        RegionSpec.expression("col0 * 2", ["c"], pa.int64()),
    ):
        spec = replace(spec, spec_id=2)
        ids = set()
        for kind in INTEGERS:
            batch = pa.record_batch({"c": pa.array([27], kind)})
            ((region, _),) = Router(spec, batch.schema).route(batch)
            ids.add(region.region_id)
        assert len(ids) == 1, spec


def test_parts_are_slices_of_one_copy() -> None:
    batch = rows_of(list(range(100)))
    parts = Router(RegionSpec.bucket("id", 4), SCHEMA).route(batch)
    assert len({part.column("id").buffers()[1].address for _, part in parts}) == 1


def test_all_assignments_of_several_values() -> None:
    spec = RegionSpec.combine(RegionSpec.bucket("id", 2), RegionSpec.multi_bucket(["name"], 3))
    known = Router(spec, SCHEMA).assignments()
    assert [[value[0] for _, value in region.field_values] for region in known] == [
        [a, b] for a in range(2) for b in range(3)
    ]
    assert len({region.region_id for region in known}) == 6


def test_a_dropped_column_counts_as_null() -> None:
    spec = RegionSpec((RegionField("x", (None,), MultiBucket(4)),))
    batch = rows_of([1, 2])
    ((region, part),) = Router(spec, SCHEMA).route(batch)
    assert part is batch
    assert region.field_values == ()


def test_a_delete_has_to_tell_columns_outside_of_the_key() -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.date32()), ("_tombstone", pa.bool_())])
    router = Router(RegionSpec.year("at", immutable=True), schema)
    day = pa.array([dt.date(2026, 1, 1), None])
    upsert = pa.record_batch([pa.array([1, 2]), day, pa.array([False, False])], schema=schema)
    regions = [region for region, _ in router.route(upsert)]
    delete = pa.record_batch(
        [pa.array([1, 2]), pa.nulls(2, pa.date32()), pa.array([True, True])], schema=schema
    )
    with pytest.raises(InvalidInputError):
        router.route(delete)
    found = router.route(delete, by=pa.record_batch({"at": day}))
    assert [region for region, _ in found] == regions
    assert [part.column("id").to_pylist() for _, part in found] == [[1], [2]]
    assert all(part.column("at").null_count == 1 for _, part in found)


def test_a_region_made_by_hand() -> None:
    region_id = uuid.uuid4()
    router = Router.to_region(region_id)
    batch = rows_of([1, 2, 3])
    assert router.assignments() == [RegionAssignment(region_id)]
    assert router.route(batch) == [(RegionAssignment(region_id, ()), batch)]


def alive() -> int:
    """How many regions are held in memory."""
    return sum(isinstance(held, RegionAssignment) for held in gc.get_objects())


def test_many_values_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_CACHED_REGIONS", 10)
    router = Router(RegionSpec.identity("id"), SCHEMA)
    gc.collect()
    before = alive()
    parts = router.route(rows_of(list(range(35))))
    assert len({region.region_id for region, _ in parts}) == 35
    assert alive() == before + 35
    del parts
    assert before <= alive() <= before + 10
