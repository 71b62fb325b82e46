"""Flushed generations, spoiled in one way each."""

import os
import shutil
import time
from dataclasses import replace
from uuid import UUID

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.bloom import build_bloom_filter
from support.data.tables import REGION, keys, manifest, rows
from support.oracles import native

import memwal
from memwal.format.paths import generation_dir, region_dir
from memwal.jobs.verify import verify
from memwal.lsm.flush.key_index import NewestKeys, write_key_index
from memwal.region.router import bucket_region_id


def data_file(folder):
    (path,) = (folder / "data").iterdir()
    return path


def test_a_generation_is_gone(spoiled):
    shutil.rmtree(spoiled.generation(3))
    assert spoiled.only("generation-missing").severity.value == "error"
    spoiled.only("generation-missing", quick=True)


def test_a_merged_generation_is_gone(spoiled):
    shutil.rmtree(spoiled.generation(2))
    assert spoiled.only("merged-generation-missing").severity.value == "warning"


def test_a_file_of_a_generation_is_gone(spoiled):
    path = data_file(spoiled.generation(3))
    path.unlink()
    assert path.name in spoiled.only("generation-damaged").text


def test_a_file_of_a_generation_is_cut_off(spoiled):
    path = data_file(spoiled.generation(3))
    path.write_bytes(path.read_bytes()[:-5])
    spoiled.only("generation-damaged", quick=True)


@pytest.mark.parametrize("number", [1, 3])
def test_bytes_of_a_generation_are_wrong(spoiled, number):
    path = data_file(spoiled.generation(number))
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert spoiled.codes(quick=True) == []
    spoiled.only("generation-damaged")


def test_a_torn_version_of_a_generation(spoiled):
    for path in (spoiled.generation(3) / "_versions").glob("*.manifest"):
        path.write_bytes(path.read_bytes()[:50])
    spoiled.only("generation-damaged")


def test_a_generation_of_another_table(spoiled):
    folder = spoiled.generation(3)
    bloom = {name: (folder / name).read_bytes() for name in ["bloom_filter.bin"]}
    kept_index = spoiled.root / "kept"
    shutil.copytree(folder / "_pk_index", kept_index)
    shutil.rmtree(folder)
    lance.write_dataset(pa.table({"id": ["text"], "_tombstone": [False]}), str(folder))
    for name, data in bloom.items():
        (folder / name).write_bytes(data)
    shutil.copytree(kept_index, folder / "_pk_index")
    assert "id" in spoiled.only("generation-schema").text.split()


def test_a_generation_without_tombstones(spoiled):
    folder = spoiled.generation(3)
    shutil.rmtree(folder)
    lance.write_dataset(rows({1: 1}), str(folder))
    assert "_tombstone" in spoiled.only("generation-schema").text


def test_a_manifest_that_counts_wrong(spoiled):
    flushed = manifest(spoiled.table).flushed
    spoiled.next_manifest(flushed=(*flushed[:-1], replace(flushed[-1], rows=7)))
    assert spoiled.only("generation-rows").text.endswith("7")


@pytest.mark.parametrize("client", ["ours", "native"])
def test_a_key_that_is_shown_twice(spoiled):
    folder = spoiled.generation(3)
    dataset = lance.dataset(str(folder))
    twice = dataset.to_table(limit=1)
    lance.write_dataset(twice, str(folder), mode="append")
    flushed = manifest(spoiled.table).flushed
    total = sum(f.physical_rows for f in lance.dataset(str(folder)).get_fragments())
    spoiled.next_manifest(flushed=(*flushed[:-1], replace(flushed[-1], rows=total)))
    assert set(spoiled.codes()) == {"generation-keys-repeated", "key-index-wrong"}


def test_no_bloom_filter(spoiled):
    (spoiled.generation(3) / "bloom_filter.bin").unlink()
    spoiled.only("bloom-missing", quick=True)


@pytest.mark.few(2)
@pytest.mark.parametrize("content", [b"", bytes(32_768), build_bloom_filter([pa.array([1, 2])])])
def test_a_wrong_bloom_filter(spoiled, content):
    (spoiled.generation(3) / "bloom_filter.bin").write_bytes(content)
    spoiled.only("bloom-wrong")
    assert spoiled.codes(quick=True) == []


@pytest.mark.parametrize("name", ["page_data.lance", "page_lookup.lance"])
def test_no_key_index(spoiled, name):
    (spoiled.generation(3) / "_pk_index" / name).unlink()
    assert spoiled.only("key-index-missing", quick=True).text.startswith(name)


@pytest.mark.parametrize("name", ["page_data.lance", "page_lookup.lance"])
def test_a_key_index_that_cannot_be_read(spoiled, name):
    path = spoiled.generation(3) / "_pk_index" / name
    path.write_bytes(path.read_bytes()[:60])
    spoiled.only("key-index-wrong")


def stored(spoiled):
    dataset = lance.dataset(str(spoiled.generation(3)))
    table = dataset.scanner(columns=["id"], with_row_address=True).to_table()
    order = np.argsort(table["id"].to_numpy())
    ids = table["id"].combine_chunks().take(pa.array(order))
    return ids, table["_rowaddr"].to_numpy()[order].astype(np.int64)


def put_key_index(spoiled, ids, positions):
    folder = spoiled.generation(3).relative_to(spoiled.root)
    newest = NewestKeys(np.arange(len(ids)), ids, positions.astype(np.int64))
    write_key_index(spoiled.table.location, f"{folder}/_pk_index", newest)


@pytest.mark.parametrize("client", ["ours", "native"])
def test_the_key_index_of_the_tests_is_right(spoiled):
    ids, positions = stored(spoiled)
    put_key_index(spoiled, ids, positions)
    assert spoiled.codes() == []


@pytest.mark.parametrize("client", ["ours", "native"])
def test_a_key_index_that_leads_to_other_rows(spoiled):
    ids, positions = stored(spoiled)
    put_key_index(spoiled, ids, np.roll(positions, 1))
    spoiled.only("key-index-wrong")


def test_a_key_index_that_lacks_keys(spoiled):
    ids, positions = stored(spoiled)
    put_key_index(spoiled, ids[1:], positions[1:])
    spoiled.only("key-index-wrong")


def test_a_key_index_out_of_order(spoiled):
    ids, positions = stored(spoiled)
    put_key_index(spoiled, ids.take(pa.array(np.arange(len(ids))[::-1])), positions[::-1])
    spoiled.only("key-index-wrong")


def test_a_key_index_beyond_the_rows(spoiled):
    ids, positions = stored(spoiled)
    positions = positions.copy()
    positions[0] = 10_000
    put_key_index(spoiled, ids, positions)
    assert spoiled.only("key-index-wrong").text.count("10000") == 1


def test_a_directory_of_other_pages(spoiled):
    one, other = (spoiled.generation(n) / "_pk_index" / "page_lookup.lance" for n in (3, 2))
    ids, positions = stored(spoiled)
    put_key_index(spoiled, ids[5:], positions[5:])
    wrong = one.read_bytes()
    put_key_index(spoiled, ids, positions)
    one.write_bytes(wrong)
    assert other.exists()
    spoiled.only("key-index-wrong")


def test_rows_in_the_region_of_others(make_divided):
    spoiled, region = make_divided
    table = spoiled.table
    (other,) = set(table.region_ids()) - {region}
    first, second = manifest(table, region), manifest(table, other)
    shutil.rmtree(spoiled.path(generation_dir(region, first.flushed[0].path)))
    shutil.copytree(
        spoiled.path(generation_dir(other, second.flushed[0].path)),
        spoiled.path(generation_dir(region, first.flushed[0].path)),
    )
    codes = {finding.code for finding in spoiled.verify().findings}
    assert "rows-misplaced" in codes
    assert codes <= {"rows-misplaced", "generation-rows"}


def test_native_rows_in_the_region_of_others(make_table):
    table = make_table(buckets=2)
    writer = native.writer(table, bucket_region_id(0))
    native.put(writer, table, rows(dict.fromkeys(range(100), 1)))
    writer.close()
    assert [f.code for f in verify(table.location).findings] == ["rows-misplaced"]


def test_a_region_by_hand_takes_what_it_gets(make_table):
    table = make_table(buckets=2)
    region = UUID("00000000-0000-4000-8000-000000000000")
    writer = native.writer(table, region)
    native.put(writer, table, rows(dict.fromkeys(range(100), 1)))
    writer.close()
    # Its rows are not misplaced: nothing says which belong there.
    assert [f.code for f in verify(table.location).findings] == ["region-place-unknown"]


def test_the_rest_of_a_flush_that_died(spoiled):
    folder = spoiled.path(f"{region_dir(REGION)}/01234567_gen_9")
    folder.mkdir()
    (folder / "bloom_filter.bin").write_bytes(b"x")
    assert spoiled.codes() == []
    two_days_ago = time.time() - 2 * 86_400
    os.utime(folder / "bloom_filter.bin", (two_days_ago, two_days_ago))
    assert spoiled.only("orphan-folder").severity.value == "information"


def test_a_sample_reads_some_generations_only(spoiled):
    for number in (1, 2, 3):
        (spoiled.generation(number) / "bloom_filter.bin").write_bytes(bytes(32_768))
    assert spoiled.codes() == ["bloom-wrong"] * 3
    assert spoiled.codes(sample_generations=2) == ["bloom-wrong"] * 2
    assert spoiled.codes(sample_generations=9) == ["bloom-wrong"] * 3


def test_one_region_only(make_divided):
    spoiled, region = make_divided
    (other,) = set(spoiled.table.region_ids()) - {region}
    (flushed,) = manifest(spoiled.table, other).flushed
    (spoiled.path(generation_dir(other, flushed.path)) / "bloom_filter.bin").unlink()
    assert spoiled.codes(regions=[region]) == []
    assert spoiled.codes(regions=[other]) == ["bloom-missing"]
    assert spoiled.codes(max_tasks=5) == ["bloom-missing"]


KEYS = {
    "text and number": (("a", pa.string()), ("b", pa.int32())),
    "bytes": (("a", pa.binary()),),
    "bool": (("a", pa.bool_()), ("b", pa.uint64())),
    "large text": (("a", pa.large_string()),),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("client", ["ours", "native"])
@pytest.mark.parametrize("kinds", KEYS.values(), ids=list(KEYS))
def test_keys_of_other_types(make_table, client, kinds):
    schema = pa.schema([*(pa.field(n, t, nullable=False) for n, t in kinds), ("v", pa.float32())])
    table = make_table(schema, primary_key=[name for name, _ in kinds])
    makers = {
        pa.string(): lambda n: f"key\x00 {n}",
        pa.large_string(): lambda n: f"key {n}",
        pa.binary(): lambda n: b"\x00" * (n % 3) + str(n).encode(),
        pa.int32(): lambda n: -n,
        pa.uint64(): lambda n: (1 << 63) + n,
        pa.bool_(): lambda n: bool(n % 2),
    }
    values = {name: [makers[kind](n) for n in range(300)] for name, kind in kinds}
    data = pa.table({**values, "v": [float("nan")] * 300}, schema=schema)
    if client == "ours":
        with table.writer() as writer:
            writer.upsert(data)
            writer.upsert(data.slice(100))
    else:
        shard = native.writer(table)
        native.put(shard, table, data)
        native.put(shard, table, data.slice(100))
        shard.close()
    assert verify(table.location).findings == ()
    table.merge()
    assert verify(table.location).findings == ()


def test_a_table_whose_columns_changed(make_table):
    table = make_table()
    table.upsert(rows(dict.fromkeys(range(20), 1)))
    table.merge()
    base = table.base().dataset
    base.add_columns(pa.schema([("more", pa.float64())]))
    base.drop_columns(["text"])
    memwal.open(table.uri).delete(keys(3))
    assert verify(table.location).findings == ()
    table.merge()
    assert verify(table.location).findings == ()
