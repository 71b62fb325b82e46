"""What the status says of files and versions, and what it costs."""

from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support.data.tables import collect_now
from support.stores.faulty_store import FaultyStores
from support.stores.s3_emulator import S3Emulator
from support.stores.store_gateway import gateway_before

import memwal
from memwal.jobs import backlog
from memwal.jobs.options import GcOptions
from memwal.jobs.status import TableStatus

ROWS = pa.table({"id": range(50), "text": ["a"] * 50})


@pytest.fixture
def plain(tmp_path: Path) -> memwal.Table:
    """A table without MemWAL: 11 fragments, one of which its indexes do not cover, 14 versions."""
    path = tmp_path / "table"
    for _ in range(10):
        dataset = lance.write_dataset(ROWS, path, mode="append" if path.exists() else "create")
    dataset.create_scalar_index("id", "BTREE", name="by_id")
    dataset.create_scalar_index("text", "INVERTED", name="by_text")
    dataset.insert(ROWS)
    dataset.delete("id = 7")
    return memwal.open(str(path))


def test_of_a_plain_table_says_what_each_job_would_gain(plain: memwal.Table) -> None:
    found = plain.status()

    assert not found.mem_wal
    assert (found.fragments, found.small_fragments, found.deleted_rows) == (11, 10, 11)
    assert {lag.name: lag.rows for lag in found.indexes} == {"by_id": 49, "by_text": 49}
    assert found.versions == 14
    assert found.oldest_version_seconds is not None
    assert list(found.gains) == ["index", "compact", "gc"]
    assert TableStatus.from_dict(found.to_dict()) == found
    for job, gain in found.gains.items():
        assert job in repr(found)
        assert f"{job}: {gain}" in found._repr_html_()

    plain.build_indexes()
    plain.compact()
    collect_now(plain, version_retention_seconds=0)
    clean = plain.status()
    assert (clean.gains, clean.versions, clean.old_bytes) == ({}, 1, 0)


def test_few_small_fragments_are_no_gain(tmp_path: Path) -> None:
    for _ in range(3):
        lance.write_dataset(ROWS, tmp_path / "table", mode="append")
    found = memwal.open(tmp_path / "table").status()
    assert (found.small_fragments, found.min_fragments) == (3, 8)
    assert "compact" not in found.gains


@pytest.mark.parametrize("with_blobs", [False, True])
def test_old_bytes_are_those_that_a_clean_up_frees(plain: memwal.Table, with_blobs: bool) -> None:
    path = plain.location.local_path
    if with_blobs:
        schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("blob")])
        for size in (1, 200_000):
            blobs = lance.blob_array([b"b" * size])
            lance.write_dataset(
                pa.table([pa.array([1]), blobs], schema=schema),
                path,
                mode="overwrite",
                data_storage_version="2.2",
            )
    before = plain.status().old_bytes

    freed = lance.dataset(plain.uri).cleanup_old_versions(timedelta(0)).bytes_removed

    assert freed > 0
    assert before == freed
    assert plain.status().old_bytes == 0


def test_versions_older_than_the_retention_are_counted(plain: memwal.Table) -> None:
    def expired(seconds: float) -> int | None:
        options = GcOptions(version_retention_seconds=seconds, retention_seconds=0, grace_seconds=0)
        return plain.status(collection=options).expired_versions

    assert plain.status().expired_versions is None
    assert expired(0) == 13
    assert expired(3600) == 0


def test_many_versions_in_an_object_store_are_not_listed_to_the_end(
    plain: memwal.Table, faults: FaultyStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults.of(plain.location), "is_local", False)
    assert (plain.status().versions, plain.status().old_bytes) == (14, None)
    monkeypatch.setattr(backlog, "_MAX_LISTED", 13)

    found = plain.status()

    assert (found.versions, found.oldest_version_seconds, found.old_bytes) == (None, None, None)
    asked = plain.status(old_bytes=True)
    assert asked.versions == 14
    assert asked.old_bytes


def test_the_requests_do_not_grow_with_the_fragments(emulator: S3Emulator) -> None:
    with gateway_before(emulator.endpoint) as proxy:
        options = {**emulator.storage_options, "aws_endpoint": proxy.endpoint}
        uri = f"s3://{emulator.create_bucket()}/table"
        dataset = lance.write_dataset(ROWS, uri, storage_options=options)
        for column, kind in (("id", "BTREE"), ("id", "BITMAP"), ("text", "INVERTED")):
            dataset.create_scalar_index(column, kind, name=kind)
        # The status reads no data file: one does for all fragments.
        (fragment,) = (part.metadata for part in dataset.get_fragments())
        append = lance.LanceOperation.Append([fragment] * 9_999)
        lance.LanceDataset.commit(
            uri, append, read_version=dataset.version, storage_options=options
        )
        table = memwal.open(uri, storage_options=options)
        proxy.taken()

        found = table.status()

        requests = proxy.taken()
        assert (found.fragments, found.small_fragments, found.versions) == (10_000, 9_999, 5)
        assert len(requests) <= 11, requests
