"""What LanceDB and pylance do with tables that are divided in ways they do not know."""

import uuid
from dataclasses import replace
from pathlib import Path

import lance
import lancedb
import pyarrow as pa
import pytest
from lance.mem_wal import ShardingField, ShardingSpec, evaluate_sharding_spec
from lance.schema import LanceSchema
from support.data.merging import Merge
from support.data.tables import SCHEMA, base_state, rows, state
from support.oracles.native import everything, ordered

import memwal
from memwal.base_table.commit import update_details
from memwal.base_table.snapshot import BaseTable
from memwal.errors import TableSetupError
from memwal.format.memwal_index import IndexDetails
from memwal.region.manifest_store import read_manifests
from memwal.region.spec import RegionSpec
from memwal.resharding import add_region_spec

NAME = "shared"
OURS = {
    "multi_bucket": RegionSpec.multi_bucket(["id"], 4),
    "truncate": RegionSpec.truncate("id", 10),
    "year": RegionSpec.year("text", immutable=True),
    "expression": RegionSpec.expression("col0 % 3", ["id"], pa.int64()),
    "two fields": RegionSpec.combine(RegionSpec.identity("id"), RegionSpec.bucket("id", 2)),
}
SHARED = {
    "bucket": RegionSpec.bucket("id", 4),
    "identity": RegionSpec.identity("id"),
    "unsharded": RegionSpec.unsharded(),
}


def create(folder: Path, spec: RegionSpec | None) -> memwal.Table:
    return memwal.create(folder / f"{NAME}.lance", SCHEMA, primary_key="id", region_spec=spec)


def upsert(folder: Path, values: dict[int, int | None]) -> None:
    """Upsert with a LanceDB that opens the table now."""
    table = lancedb.connect(str(folder)).open_table(NAME)
    builder = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    builder.execute(rows(values))
    table.close_lsm_writers()


def store_name(table: memwal.Table, name: str, parameters: dict[str, str]) -> None:
    """Store the spec of a table as before: the transform by a name of its own."""

    def change(base: BaseTable) -> IndexDetails:
        (stored,) = base.details.region_specs
        field = replace(stored.fields[0], transform=name, expression=None, parameters=parameters)
        return replace(base.details, region_specs=(replace(stored, fields=(field,)),))

    update_details(table.location, change)


@pytest.mark.parametrize("spec", OURS.values(), ids=OURS)
def test_lancedb_refuses_to_write(tmp_path: Path, spec: RegionSpec) -> None:
    """LanceDB 0.40 evaluates no expression. Everything else of it works."""
    table = create(tmp_path, spec)
    with pytest.raises(RuntimeError, match=r"unsupported sharding transform|expected exactly one"):
        upsert(tmp_path, {1: 1})
    assert read_manifests(table.location.store) == {}
    theirs = lancedb.connect(str(tmp_path)).open_table(NAME)
    builder = theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    builder.use_lsm(False).execute(rows({1: 1}))
    theirs.optimize()
    assert state(theirs.search().limit(10).to_arrow()) == {1: 1}
    assert state(table) == {1: 1}


def test_lance_evaluates_no_expression() -> None:
    schema = pa.schema([("id", pa.int64())])
    field = ShardingField("bucket", [0], None, "col0 - (col0 % 10)", "int64")
    with pytest.raises(ValueError, match="Unsupported MemWAL sharding transform"):
        evaluate_sharding_spec(
            pa.record_batch([pa.array([1])], schema=schema),
            ShardingSpec(1, [field]),
            LanceSchema.from_pyarrow(schema),
        )


def test_a_table_that_stores_the_name_of_a_transform_is_converted(
    tmp_path: Path, merge: Merge
) -> None:
    table = create(tmp_path, OURS["truncate"])
    store_name(table, "truncate", {"width": "10"})
    assert table.region_spec()[1] == OURS["truncate"]
    values: dict[int, int | None] = {1: 1, 11: 1, 12: 1, 25: 1}
    table.upsert(rows(values))
    before = set(read_manifests(table.location.store))
    table.upsert(rows({12: 2}))
    assert set(read_manifests(table.location.store)) == before
    add_region_spec(table.uri, OURS["truncate"])
    assert table.region_spec() == (2, OURS["truncate"])
    stored = table.base().details.region_specs[-1].fields[0]
    assert (stored.transform, stored.expression) == (None, "col0 - (col0 % 10)")
    # A second conversion changes nothing.
    add_region_spec(table.uri, OURS["truncate"])
    assert table.region_spec()[0] == 2
    table.upsert(rows({11: 3}))
    merge(table)
    assert base_state(table) == {**values, 12: 2, 11: 3}


def test_lancedb_reads_what_ours_wrote_and_merged(tmp_path: Path, merge: Merge) -> None:
    table = create(tmp_path, OURS["two fields"])
    table.upsert(rows({1: 1, 2: 2, 3: 3}))
    wanted = {1: 1, 2: 2, 3: 3}
    assert {row["id"]: row["n"] for row in everything(table)} == wanted
    merge(table)
    found = lancedb.connect(str(tmp_path)).open_table(NAME).search().limit(10).to_arrow()
    assert ordered(found) == everything(table)


@pytest.mark.parametrize("first", SHARED.values(), ids=SHARED)
def test_lance_refuses_to_write_to_a_table_with_several_specs(
    tmp_path: Path, first: RegionSpec
) -> None:
    table = create(tmp_path, first)
    upsert(tmp_path, {1: 1})
    (region_id,) = read_manifests(table.location.store)
    add_region_spec(table.uri, RegionSpec.bucket("id", 8))
    with pytest.raises(RuntimeError, match="at most one sharding spec"):
        upsert(tmp_path, {1: 2})
    for shard in (region_id, uuid.uuid4()):
        with pytest.raises((OSError, RuntimeError), match="at most one sharding spec"):
            lance.dataset(table.uri).mem_wal_writer(str(shard))
    assert state(table) == {1: 1}


def test_a_writer_of_lance_that_is_open_is_fenced(tmp_path: Path) -> None:
    """What it acknowledged is there; what it writes after is refused."""
    table = create(tmp_path, SHARED["unsharded"])
    region_id = table.region_ids()[0]
    native = lance.dataset(table.uri).mem_wal_writer(str(region_id))
    native.put(rows({1: 1, 2: 2}))
    add_region_spec(table.uri, RegionSpec.multi_bucket(["id"], 2))
    assert state(table) == {1: 1, 2: 2}
    with pytest.raises((OSError, RuntimeError), match=r"fenced|[Ss]ealed|epoch"):
        native.put(rows({1: 9}))
    table.upsert(rows({2: 3}))
    with pytest.raises((OSError, RuntimeError)):
        native.close()
    assert state(table) == {1: 1, 2: 3}


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary(1),
        pa.date32(),
        pa.date64(),
        pa.time32("s"),
        pa.time64("us"),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.decimal128(5, 2),
        pa.decimal256(5, 2),
    ],
    ids=str,
)
def test_identity_of_a_type_that_lancedb_does_not_divide_by(
    tmp_path: Path, kind: pa.DataType, merge: Merge
) -> None:
    """It has ids of our own, and must therefore be refused by LanceDB."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("c", kind)])
    table = memwal.create(
        tmp_path / f"{NAME}.lance",
        schema,
        primary_key="id",
        region_spec=RegionSpec.identity("c", immutable=True),
    )
    zeros = pa.Array.from_buffers(pa.binary(32), 1, [None, pa.py_buffer(bytes(32))])
    value = (
        pa.array([b"a"], kind)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        else pa.Array.from_buffers(kind, 1, zeros.buffers())
    )
    data = pa.table([pa.array([1]), value], schema=schema)
    theirs = lancedb.connect(str(tmp_path)).open_table(NAME)
    builder = theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    with pytest.raises(ValueError, match="identity sharding does not support column dtype"):
        builder.execute(data)
    table.upsert(data)
    merge(table)
    assert table.scan().to_table().to_pylist() == data.to_pylist()


def test_manual_regions_are_shared_with_pylance(tmp_path: Path) -> None:
    table = create(tmp_path, None)
    with pytest.raises(TableSetupError):
        table.region_spec()
    shard = uuid.uuid4()
    with lance.dataset(table.uri).mem_wal_writer(str(shard)) as native:
        native.put(rows({1: 1}))
    assert read_manifests(table.location.store)[shard].spec_id == 0
    assert state(table) == {1: 1}
    add_region_spec(table.uri, RegionSpec.bucket("id", 2))
    table.upsert(rows({1: 2, 2: 2}))
    assert state(table) == {1: 2, 2: 2}
    # The first spec of a table is one that LanceDB knows.
    upsert(tmp_path, {2: 3})
    assert state(table) == {1: 2, 2: 3}
