"""The base table, spoiled in one way each."""

import re
import shutil

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable
from support.data.tables import REGION, keys, numbered, rows

from memwal.errors import CorruptDataError, InvalidInputError, TableSetupError
from memwal.jobs.options import VerifyOptions
from memwal.jobs.verify import base_table, verify
from memwal.jobs.verify.findings import Finding
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.location import TableLocation


def numbers(finding: Finding) -> list[int]:
    """Return the numbers in the text of a finding, in order."""
    return [int(number) for number in re.findall(r"\d+", finding.text)]


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [0, 10, 300])
def test_a_torn_newest_version(spoiled, size):
    path = spoiled.base_manifest()
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(Exception):  # noqa: B017 - Lance's error is of no type
        lance.dataset(spoiled.table.uri)
    finding = spoiled.only("table-torn")
    assert finding.object.endswith(path.name)
    assert spoiled.verify().version > 0


def test_details_that_cannot_be_read(spoiled):
    index = spoiled.table.base().index
    assert index is not None
    path = spoiled.base_manifest()
    path.write_bytes(path.read_bytes().replace(index.details, b"\xff" * len(index.details)))
    with pytest.raises(CorruptDataError):
        spoiled.table.base()
    spoiled.only("table-torn")


def test_a_torn_older_version(spoiled):
    path = spoiled.base_manifest(2)
    path.write_bytes(path.read_bytes()[:20])
    assert spoiled.only("old-version-torn").object.endswith(path.name)
    assert spoiled.codes(quick=True) == []


def test_a_data_file_is_gone(spoiled):
    for path in (spoiled.root / "data").iterdir():
        path.unlink()
    codes = set(spoiled.codes(quick=True))
    assert codes == {"table-file-missing"}
    # And its rows cannot be compared with those of the generations.
    assert set(spoiled.codes()) == {"table-file-missing", "table-file-damaged"}


def test_a_data_file_is_cut_off(spoiled):
    path = max((spoiled.root / "data").iterdir(), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1])
    spoiled.only("table-file-damaged", quick=True)


def test_bytes_of_a_data_file_are_wrong(spoiled):
    for path in (spoiled.root / "data").iterdir():
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert set(spoiled.codes()) == {"table-file-damaged"}


def test_an_index_folder_is_gone(spoiled):
    shutil.rmtree(spoiled.root / "_indices")
    assert set(spoiled.codes(quick=True)) == {"index-damaged"}


def test_a_key_that_was_appended_beside(spoiled):
    spoiled.table.base().dataset.insert(rows({5: 1, 6: 1, 300: 1, 301: 1}))
    findings = [f for f in spoiled.verify().findings if f.code == "base-key-repeated"]
    assert numbers(findings[0])[:2] == [2, 2]
    assert set(spoiled.codes()) == {"base-key-repeated"}


def test_new_keys_appended_beside_are_fine(spoiled):
    spoiled.table.base().dataset.insert(rows({300: 1, 301: 1}))
    assert spoiled.codes() == []


def test_repeated_keys_are_found_in_small_memory(table):
    data = pa.concat_tables([numbered(0, 5_000), numbered(4_990, 20), numbered(4_995, 1)])
    table.base().dataset.insert(data)
    for max_bytes in (1 << 30, 10_000):
        (finding,) = base_table.check_repeated_keys(table.base(), max_bytes=max_bytes)
        assert numbers(finding)[:2] == [10, 11]


def test_equal_hashes_are_not_equal_keys(table, monkeypatch):
    table.base().dataset.insert(numbered(0, 100))
    monkeypatch.setattr(base_table, "hash_rows", lambda columns: np.uint64(7))
    assert list(base_table.check_repeated_keys(table.base())) == []


@pytest.mark.parametrize("client", ["ours", "native"])
def test_rows_that_were_deleted_beside(spoiled):
    spoiled.table.base().dataset.delete("id in (50, 51)")
    finding = spoiled.only("merged-row-changed")
    assert "merged-row-lost" in finding.object
    assert numbers(finding)[0] == 2


@pytest.mark.parametrize("client", ["ours", "native"])
def test_rows_that_were_updated_beside(spoiled):
    spoiled.table.base().dataset.update({"n": "77"}, where="id = 50")
    assert "merged-row-differs" in spoiled.only("merged-row-changed").object


def bad_merge(table, generation, data):
    """Merge a generation as it is not."""
    builder = (
        lance.dataset(table.uri)
        .merge_insert(["id"])
        .when_matched_update_all()
        .when_not_matched_insert_all()
    )
    builder.mark_sstables_as_compacted([CompactedSsTable(str(REGION), generation)])
    builder.execute(data)


def right(spoiled):
    dataset = lance.dataset(str(spoiled.generation(3)))
    return dataset.to_table(filter="not _tombstone").drop_columns(["_tombstone"])


@pytest.mark.parametrize("client", ["ours", "native"])
def test_a_right_merge(spoiled):
    bad_merge(spoiled.table, 3, right(spoiled))
    assert spoiled.codes() == []


@pytest.mark.parametrize("client", ["ours", "native"])
def test_a_merge_that_lost_rows(spoiled):
    # Key 20 is in the first two generations, and 10 in the third and the first.
    bad_merge(
        spoiled.table, 3, right(spoiled).filter(pa.array([True] * 5 + [False] * 3 + [True] * 90))
    )
    assert numbers(spoiled.only("merged-row-differs"))[:2] == [3, 99]


def test_a_merge_that_lost_new_rows(make_table):
    table = make_table()
    table.upsert(numbered(0, 10))
    bad_merge(table, 1, numbered(0, 7))
    (finding,) = verify(table.location).findings
    assert (finding.code, numbers(finding)[:2]) == ("merged-row-lost", [3, 10])


def test_a_merge_that_forgot_its_deletes(spoiled):
    data = pa.concat_tables([right(spoiled), rows({3: 9}).cast(right(spoiled).schema)])
    bad_merge(spoiled.table, 3, data)
    assert numbers(spoiled.only("deleted-row-present"))[0] == 1


def test_a_bad_merge_is_still_one_after_a_good_one(spoiled):
    bad_merge(spoiled.table, 3, right(spoiled).slice(4))
    spoiled.table.upsert(rows({1000: 1}))
    spoiled.table.checkpoint()
    assert spoiled.only("merged-row-differs").severity.value == "error"
    spoiled.table.base().dataset.insert(rows({2000: 1}))
    spoiled.only("merged-row-changed")


@pytest.mark.few(1)
@pytest.mark.parametrize("decision", ["keep", "discard", "restore"])
def test_a_bad_merge_after_the_base_table_went_back(make_table, decision):
    table = make_table()
    table.upsert(numbered(0, 10))
    table.merge()
    version = table.base().version
    table.upsert(rows({5: 77, 30: 77}))
    table.delete(keys(1))
    table.merge()
    table.upsert(rows({40: 1}))
    if decision != "restore":
        lance.dataset(table.uri, version=version).restore()
    table.restore(version if decision == "restore" else None, discard_pending=decision == "discard")
    assert verify(table.location).clean
    table.merge()
    table.upsert(rows({6: 88, 50: 88, 51: 88}))
    newest = RegionManifestStore(table.location.store, REGION).read_latest()
    bad_merge(table, newest.current_generation - 1, rows({6: 88, 50: 88}))
    (finding,) = verify(table.location).findings
    assert (finding.code, finding.severity.value) == ("merged-row-lost", "error")
    assert numbers(finding)[:2] == [1, 3]


def test_keys_that_the_next_merge_is_deleting_are_left_out(spoiled):
    spoiled.table.delete(keys(60))
    # The delete pass of a merge that died before its commit.
    remover = spoiled.table.base().dataset.merge_insert(["id"]).when_matched_delete()
    remover.execute(pa.table({"id": keys(60)}))
    assert spoiled.codes() == []


def test_no_table(tmp_path):
    with pytest.raises(TableSetupError):
        verify(TableLocation(str(tmp_path / "none")))


@pytest.mark.parametrize(
    "wrong", [{"sample_generations": 0}, {"max_tasks": 0}, {"quick": True, "sample_generations": 1}]
)
def test_wrong_arguments(table, wrong):
    with pytest.raises(InvalidInputError):
        verify(table.location, VerifyOptions(**wrong))
