"""Verifying a table on an object store."""

from __future__ import annotations

from support.data.tables import SCHEMA, later, numbered
from support.stores.s3_emulator import S3Emulator

import memwal
from memwal.format.paths import BLOOM_FILTER_NAME, PK_INDEX_DIR, generation_dir, version_hint_key
from memwal.jobs.verify import repair, verify
from memwal.region.manifest_store import read_manifests


def test_spoil_find_and_heal(emulator: S3Emulator) -> None:
    bucket = emulator.create_bucket()
    table = memwal.create(
        f"s3://{bucket}/lake/t.lance",
        SCHEMA,
        primary_key=["id"],
        region_spec="bucket:id:2",
        maintained_indexes=["id_idx"],
        storage_options=emulator.storage_options,
    )
    with table.writer() as writer:
        for n in range(2):
            writer.upsert(numbered(0, 100, n))
            writer.flush()
    table.checkpoint()
    table.build_snapshot()
    assert verify(table.location).findings == ()
    (one, first), (other, second) = read_manifests(table.location.store).items()
    store = table.location.store
    bloom = f"{generation_dir(one, first.flushed[0].path)}/{BLOOM_FILTER_NAME}"
    store.put(bloom, bytes(32_768))
    store.delete_folder(f"{generation_dir(one, first.flushed[1].path)}/{PK_INDEX_DIR}")
    store.delete(version_hint_key(other))
    lost = generation_dir(other, second.flushed[0].path)
    store.delete_folder(lost)
    report = verify(table.location, clock=later(60))
    assert {finding.code for finding in report.findings} == {
        "bloom-wrong",
        "key-index-missing",
        "hint-missing",
        "merged-generation-missing",
    }
    assert {a.state for a in repair(table.location, report, dry_run=False, clock=later(60))} == {
        "done"
    }
    (remaining,) = verify(table.location, clock=later(60)).findings
    assert (remaining.code, remaining.object) == ("merged-generation-missing", lost)
