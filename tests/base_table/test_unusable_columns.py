"""Columns that another client adds in a form that ``memwal.enable`` refuses."""

import itertools
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.dataset import LanceDataset
from support.data.tables import REGION, folder, log, manifest, rows, state

import memwal
from memwal.errors import ConflictError, InvalidInputError, TableSetupError
from memwal.format.paths import manifest_key
from memwal.jobs.gc import collect_garbage
from memwal.jobs.merge.job import merge
from memwal.jobs.options import GcOptions, MergeOptions
from memwal.region.manifest_store import RegionManifestStore

_BLOB = pa.field("image", pa.large_binary(), metadata={b"lance-encoding:blob": b"true"})
FIELDS = {
    "blob": pa.field("extra", pa.struct([_BLOB])),
    "vector of texts": pa.field("extra", pa.list_(pa.string(), 2)),
}
COLUMNS = ["id", "n", "text"]


def dataset(table: memwal.Table) -> LanceDataset:
    return lance.dataset(table.uri)


@pytest.fixture
def filled(table: memwal.Table) -> memwal.Table:
    """Merged, flushed and logged rows."""
    writer = table.writer()
    writer.upsert(rows({1: 1, 2: 2, 6: 6}))
    writer.flush()
    table.merge()
    writer.upsert(rows({2: 3}))
    writer.flush()
    writer.upsert(rows({4: 4}))
    writer.abort()
    return table


@pytest.mark.few(1)
@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_the_other_columns_go_on(filled: memwal.Table, tmp_path: Path, field: pa.Field) -> None:
    dataset(filled).add_columns(field)
    for refused in (
        lambda: filled.scan().to_table(),
        lambda: filled.scan(columns=["id", "extra"]).to_table(),
        lambda: filled.lookup([1]).to_table(),
        lambda: filled.head(),
    ):
        with pytest.raises(TableSetupError, match="extra"):
            refused()

    table = memwal.open(filled.uri)
    assert table.schema.names == COLUMNS
    assert state(table.scan(columns=COLUMNS).to_table()) == {1: 1, 2: 3, 6: 6}
    assert state(table.fresh().scan(columns=COLUMNS).to_table()) == {1: 1, 2: 3, 6: 6, 4: 4}
    assert state(table.lookup([2], columns=COLUMNS).to_table()) == {2: 3}
    assert table.scan().count_rows() == 3
    table.scan().explain()
    with table.writer() as writer:
        writer.upsert(rows({5: 5}))
        writer.upsert({"id": [1], "n": [10], "text": ["1=10"]}, partial=True)
        writer.delete(pa.array([6]))
    expected = {1: 10, 2: 3, 4: 4, 5: 5}
    assert table.merge(divide_bytes=0).warnings == ()
    assert state(table.scan(columns=COLUMNS).to_table()) == expected
    table.build_indexes()
    table.compact(min_fragments=2)
    collect_garbage(table.location, GcOptions(dry_run=False, grace_seconds=0, retention_seconds=0))
    assert table.status().base_rows == 4
    assert [finding.code for finding in table.verify().findings] == ["column-unusable"]
    table.copy_to(str(tmp_path / "copy"))
    assert state(memwal.open(tmp_path / "copy").scan(columns=COLUMNS).to_table()) == expected
    with pytest.raises(InvalidInputError):
        memwal.create(tmp_path / "new", dataset(table).schema, primary_key="id")

    dataset(table).drop_columns(["extra"])
    assert state(table) == expected
    assert table.verify().clean


@pytest.mark.parametrize("conflicts", [0, 5])
def test_a_merge_keeps_the_values_of_rows_that_it_updates(
    filled: memwal.Table, conflicts: int
) -> None:
    """Also where others commit so often that a divided merge would take over."""
    numbers = iter(range(100, 100 + conflicts))
    add_blobs(filled)

    def append() -> None:
        for number in itertools.islice(numbers, 1):
            lance.write_dataset(rows({number: number}), filled.uri, mode="append")

    merge(filled.location, MergeOptions(divide_bytes=0, max_tasks=2, guard=append))

    check_blobs(filled)


def test_a_merge_under_way_keeps_the_values_of_a_column_that_is_added(filled: memwal.Table) -> None:
    """A divided merge, which was planned before, would write updated rows without them."""
    options = MergeOptions(divide_bytes=0, max_tasks=2)
    guards = iter([lambda: add_blobs(filled)])
    with pytest.raises(ConflictError):
        merge(filled.location, replace(options, guard=lambda: next(guards, lambda: None)()))

    assert merge(filled.location, options).commits == 1
    check_blobs(filled)


def add_blobs(table: memwal.Table) -> None:
    """Add a column that cannot be used, and fill it."""
    dataset(table).add_columns(FIELDS["blob"])
    blobs = pa.table(
        {"id": [1, 2, 6], "extra": [{"image": b"one"}, {"image": b"two"}, {"image": b"six"}]},
        schema=pa.schema([pa.field("id", pa.int64(), nullable=False), FIELDS["blob"]]),
    )
    dataset(table).merge_insert("id").when_matched_update_all().execute(blobs)


def check_blobs(table: memwal.Table) -> None:
    """All rows are in the base table, with the values of the column."""
    now = dataset(table)
    found = now.scanner(filter="id < 100", blob_handling="all_binary").to_table()
    values = dict(zip(found["id"].to_pylist(), found["extra"].to_pylist(), strict=True))
    assert values == {1: {"image": b"one"}, 2: {"image": b"two"}, 6: {"image": b"six"}}
    assert dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True)) == {
        1: 1,
        2: 3,
        6: 6,
    }


def put_by_lance(table: memwal.Table) -> None:
    """Have Lance's own writer log and flush a row with a value in the unusable column."""
    dataset(table).add_columns(FIELDS["blob"])
    fields = [pa.field("id", pa.int64(), nullable=False), *map(table.schema.field, ("n", "text"))]
    with dataset(table).mem_wal_writer(str(REGION)) as native:
        native.put(
            pa.table(
                {
                    "id": [7],
                    "n": [7],
                    "text": ["7=7"],
                    "extra": [{"image": b"x"}],
                },
                schema=pa.schema([*fields, FIELDS["blob"]]),
            )
        )


def test_values_in_the_log_of_another_client_are_not_lost(table: memwal.Table) -> None:
    table.writer().close()
    put_by_lance(table)
    # As if that writer had died before its flush.
    found = manifest(table)
    for version in range(found.version, 0, -1):
        earlier = RegionManifestStore(table.location.store, REGION).read(version)
        if not earlier.flushed:
            break
    unflushed = replace(earlier, version=found.version + 1, writer_epoch=found.writer_epoch)
    path = folder(table) / manifest_key(REGION, unflushed.version)
    path.write_bytes(unflushed.encode())

    with pytest.raises(TableSetupError, match="extra"):
        table.writer().upsert(rows({8: 8}))
    with pytest.raises(TableSetupError, match="extra"):
        table.fresh().scan(columns=COLUMNS).to_table()

    assert manifest(table).flushed == ()
    assert any(batch.num_rows for entry in log(table).values() for batch in entry.batches)


def test_values_in_generations_of_another_client_are_not_lost(table: memwal.Table) -> None:
    put_by_lance(table)
    assert len(manifest(table).flushed) == 1

    assert table.merge().warnings

    assert table.base().details.merged.get(REGION, 0) == 0
    assert state(table.scan(columns=COLUMNS).to_table()) == {7: 7}
