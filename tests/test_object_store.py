"""The whole life of a table on an object store, as on a local disk."""

from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable
from support.oracles.native import collect_all, snapshots
from support.stores.s3_emulator import S3Emulator

import memwal
from memwal.base_table.commit import commit_details
from memwal.base_table.snapshot import open_base
from memwal.errors import ConflictError

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string())])


@pytest.fixture
def table(emulator: S3Emulator) -> memwal.Table:
    bucket = emulator.create_bucket()
    return memwal.create(
        f"s3://{bucket}/lake/t.lance",
        SCHEMA,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        maintained_indexes=["id_idx"],
        storage_options=emulator.storage_options,
    )


def rows(values: dict[int, str]) -> pa.Table:
    return pa.table({"id": list(values), "text": list(values.values())}, schema=SCHEMA)


def state(found: pa.Table) -> dict[int, str]:
    assert len(set(found["id"].to_pylist())) == found.num_rows
    return dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))


def test_write_crash_merge_index_publish_collect(table: memwal.Table) -> None:
    writer = table.writer()
    writer.upsert(rows(dict.fromkeys(range(50), "old")))
    writer.flush()
    writer.delete(pa.array([1, 2]))
    writer.upsert(rows({3: "new"}))
    expected = {n: "new" if n == 3 else "old" for n in range(50) if n not in (1, 2)}
    assert state(writer.scan().to_table()) == expected
    writer.abort()

    with table.writer() as second:
        second.claim()
        assert state(second.scan().to_table()) == expected
    base = open_base(table.location)
    native = lance.mem_wal.LsmScanner.from_snapshots(base.dataset, snapshots(table))
    assert state(native.to_table()) == expected

    assert table.checkpoint().warnings == ()
    assert table.build_snapshot().commits == 1
    collect_all(table)

    assert table.status().backlog_generations == 0
    assert state(open_base(table.location).dataset.to_table()) == expected
    assert state(table.scan().to_table()) == expected
    assert state(table.lookup(pa.array([1, 3, 4])).to_table()) == {3: "new", 4: "old"}
    assert "_gen_" not in " ".join(info.key for info in table.location.store.list("_mem_wal"))


def test_details_that_are_stale_are_refused(table: memwal.Table) -> None:
    stale = open_base(table.location)
    region = uuid4()
    builder = (
        open_base(table.location)
        .dataset.merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
    )
    builder.mark_sstables_as_compacted([CompactedSsTable(str(region), 1)])
    builder.execute(rows({1: "merged"}).cast(stale.schema))

    with pytest.raises(ConflictError):
        commit_details(stale, stale.details)

    assert open_base(table.location).details.merged == {region: 1}
    latest = open_base(table.location)
    assert commit_details(latest, latest.details) == latest.version + 1
    staged = [i.key for i in table.location.store.list("_versions") if ".manifest-" in i.key]
    assert staged == []
