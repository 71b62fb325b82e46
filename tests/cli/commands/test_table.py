"""Commands that make tables."""

from uuid import UUID

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.tables import REGION, folder, listing, log, rows, state

import memwal
from memwal.errors import CorruptDataError
from memwal.format.paths import wal_key
from memwal.lsm.wal.abandon import read_abandoned

VECTOR = pa.list_(pa.float32(), 4)


def test_create_from_columns(cli, tmp_path):
    uri = tmp_path / "t.lance"
    answer = cli(
        *("create", uri, "--column", "id:int64", "--column", "day:string"),
        *("--column", "vec:float32[4]", "--primary-key", "id", "--primary-key", "day"),
        *("--regions", "bucket:id:4", "--maintain", "id_idx", "--json"),
    )
    assert answer.json == {
        "uri": str(uri),
        "version": memwal.open(str(uri)).base().version,
        "columns": {"id": "int64", "day": "string", "vec": str(VECTOR)},
        "primary_key": ["id", "day"],
        "regions": "bucket(id, 4)",
        "maintained_indexes": ["id_idx"],
        "maintain_all_indexes": False,
    }
    table = memwal.open(str(uri))
    assert table.primary_key == ("id", "day")
    assert table.region_spec()[1] == memwal.RegionSpec.bucket("id", 4)
    assert table.schema.field("vec").type == VECTOR


def test_create_from_a_file(cli, tmp_path):
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", "b"]}), tmp_path / "s.parquet")
    answer = cli(
        *("create", tmp_path / "t.lance", "--schema", tmp_path / "s.parquet"),
        *("--primary-key", "id", "--regions", "unsharded", "--data-storage-version", "2.1"),
        "--stable-row-ids",
    )
    assert answer.code == 0
    assert str(tmp_path / "t.lance") in answer.stdout
    assert "unsharded()" in answer.stdout
    dataset = lance.dataset(tmp_path / "t.lance")
    assert dataset.schema.names == ["id", "name"]
    assert dataset.count_rows() == 0
    assert dataset.data_storage_version == "2.1"
    assert dataset.has_stable_row_ids


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--no-primary-key"),
        (["--primary-key", "id", "--no-primary-key"], "--no-primary-key"),
        (["--primary-key", "nope"], "nope"),
        (["--primary-key", ""], "''"),
        (["--primary-key", "id", "--maintain", "x_idx"], "x_idx"),
        (["--primary-key", "id", "--column", "x:int65"], "int65"),
        (["--primary-key", "id", "--schema", "s.parquet"], "--schema"),
    ],
)
def test_create_with_wrong_input(cli, tmp_path, arguments, named):
    uri = tmp_path / "t.lance"
    answer = cli("create", uri, "--regions", "unsharded", "--column", "id:int64", *arguments)
    assert answer.code == 2
    assert named in answer.stderr
    assert not uri.exists()


def test_create_twice(cli, table):
    answer = cli(
        *("create", table.uri, "--column", "id:int64", "--primary-key", "id"),
        *("--regions", "unsharded"),
    )
    assert answer.code == 2
    assert table.uri in answer.stderr


@pytest.fixture
def plain(tmp_path):
    """Address of a Lance table without MemWAL that has an index."""
    uri = str(tmp_path / "plain.lance")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
    dataset = lance.write_dataset(pa.table({"id": [1], "n": [2]}, schema=schema), uri)
    dataset.create_scalar_index("id", "BTREE", name="by_id")
    return uri


def test_enable(cli, plain):
    answer = cli(
        *("enable", plain, "--regions", "bucket:id:2", "--primary-key", "id"),
        *("--maintain", "by_id", "--json"),
    )
    assert answer.json["regions"] == "bucket(id, 2)"
    assert answer.json["maintained_indexes"] == ["by_id"]
    assert memwal.open(plain).primary_key == ("id",)


def test_enable_maintaining_all(cli, plain):
    arguments = ["enable", plain, "--regions", "unsharded", "--primary-key", "id"]
    refused = cli(*arguments, "--maintain-all", "--maintain", "by_id")
    assert refused.code == 2
    answer = cli(*arguments, "--maintain-all", "--json")
    assert answer.json["maintain_all_indexes"] is True
    assert answer.json["maintained_indexes"] == ["by_id"]


def test_enable_without_a_key(cli, plain):
    answer = cli("enable", plain, "--regions", "unsharded")
    assert answer.code == 2
    assert "primary_key" in answer.stderr


def test_without_a_key_when_told_so(cli, plain, tmp_path):
    created = tmp_path / "t.lance"
    answer = cli("create", created, "--no-primary-key", "--column", "at:int64", "--json")
    assert answer.json["primary_key"] == []
    assert cli("enable", plain, "--no-primary-key").code == 0
    table = memwal.open(plain)
    table.append({"id": [1], "n": [2]})
    for command in ("merge", "status", "read", "verify", "inspect", "checkpoint"):
        assert cli(command, *(["details"] if command == "inspect" else []), plain).code == 0
    assert table.primary_key == memwal.open(created).primary_key == ()
    assert table.count_rows() == 2


def test_copy(cli, tmp_path):
    table = memwal.create(tmp_path / "t.lance", pa.schema([("id", pa.int64())]), primary_key="id")
    table.upsert(pa.table({"id": [1, 2]}))
    answer = cli("copy", table.uri, tmp_path / "copy.lance", "--json")
    assert answer.json["job"] == "copy"
    assert answer.json["metrics"]["generations"] == 1
    assert memwal.open(str(tmp_path / "copy.lance")).scan().count_rows() == 2
    assert cli("copy", table.uri, "/proc/a/b").code == 2
    again = cli("copy", table.uri, tmp_path / "copy.lance")
    assert again.code == 2
    assert "copy.lance" in again.stderr


def test_abandon_makes_a_region_with_a_gap_usable(cli, make_table):
    table = make_table()
    writer = table.writer()
    for number in range(3):
        writer.upsert(rows({number: number}))
    writer.abort()
    table.location.store.delete(wal_key(REGION, min(log(table)) + 1))
    arguments = ("abandon", table.uri, str(REGION))
    with pytest.raises(CorruptDataError) as gap, table.writer() as writer:
        writer.claim()
    assert "memwal abandon" in str(gap.value)
    before = listing(folder(table))

    assert cli(*arguments).code == 2
    assert cli("abandon", table.uri, str(UUID(int=7)), "--yes").code == 2
    assert listing(folder(table)) == before
    answer = cli(*arguments, "--yes", "--json")

    (record,) = read_abandoned(table.location.store, REGION)
    assert answer.json == {
        "region": str(REGION),
        "rows": record.rows,
        "entries": record.entries,
        "records": [record.key],
    }
    assert record.rows == 2
    assert record.missing
    table.upsert(rows({9: 9}))
    assert state(table) == {9: 9}


def test_defaults_of_writers_are_set_shown_and_reset(cli, make_table):
    table = make_table()

    answer = cli(
        *("writer-defaults", table.uri, "--set", "max_memtable_age=2.5"),
        *("--set", "indexed=true", "--set", "release_idle_after=never", "--json"),
    )

    expected = {"max_memtable_age": 2.5, "indexed": True, "release_idle_after": "never"}
    assert answer.json == {"table": table.uri, "writer_defaults": expected}
    assert table.writer_defaults["release_idle_after"] == float("inf")
    assert cli("writer-defaults", table.uri, "--reset", "indexed").code == 0
    assert "indexed" not in table.writer_defaults
    for wrong in (
        "fsync=true",
        "indexed=maybe",
        "max_memtable_rows=1.5",
        "max_memtable_age",
        "x=1",
    ):
        assert cli("writer-defaults", table.uri, "--set", wrong).code == 2
    assert table.writer_defaults.keys() == {"max_memtable_age", "release_idle_after"}


def test_recover_flushes_what_a_dead_writer_left(cli, make_table):
    table = make_table()
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    writer.abort()

    assert cli("recover", table.uri, "--json").json["metrics"]["unflushed_regions"] == 1
    answer = cli("recover", table.uri, "--min-age-seconds", "0", "--json")

    assert answer.json["metrics"]["recovered_rows"] == 1
    assert state(table) == {1: 1}


def test_retire_a_region(cli, make_table):
    table = make_table()
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        writer.abort()
    answer = cli("retire-region", table.uri, REGION, "--json")
    assert answer.json["metrics"]["rows_upserted"] == 1
    assert state(table.base().dataset.to_table()) == {1: 1}
    assert cli("retire-region", table.uri, UUID(int=1)).code != 0
