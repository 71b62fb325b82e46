from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.dataset import Index, LanceOperation

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.lance_manifest import find_mem_wal_index
from memwal.format.memwal_index import (
    DETAILS_TYPE_URL,
    IndexDetails,
    RegionFieldSpec,
    StoredRegionSpec,
)
from memwal.format.paths import MAX_COUNTER, MEM_WAL_INDEX_NAME

COUNTERS = st.integers(0, MAX_COUNTER)
I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(max_size=8)
UNKNOWN = b"\x98\x06\x07"

generations = st.dictionaries(st.uuids(), COUNTERS, max_size=4)
field_specs = st.builds(
    RegionFieldSpec,
    TEXT,
    source_ids=st.lists(I32, max_size=3).map(tuple),
    transform=st.none() | TEXT,
    expression=st.none() | TEXT,
    result_type=TEXT,
    parameters=st.dictionaries(TEXT, TEXT, max_size=3),
)
details = st.builds(
    IndexDetails,
    snapshot_ts_millis=st.integers(0, 253_402_300_799_999),
    num_regions=st.integers(0, 2**32 - 1),
    inline_snapshots=st.none() | st.binary(max_size=9),
    region_specs=st.lists(
        st.builds(
            StoredRegionSpec,
            spec_id=st.integers(0, 2**32 - 1),
            fields=st.lists(field_specs, max_size=3).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    maintained_indexes=st.lists(TEXT, max_size=3).map(tuple),
    merged=generations,
    catchup=st.dictionaries(TEXT, generations, max_size=3),
    writer_config_defaults=st.dictionaries(TEXT, TEXT, max_size=3),
    maintain_all_indexes=st.booleans(),
)


def read_golden(golden: Path, name: str) -> bytes:
    entry = find_mem_wal_index((golden / "table" / f"{name}.manifest").read_bytes())
    assert entry is not None
    return entry.details


@settings(deadline=None)
@given(details)
def test_round_trip(written: IndexDetails) -> None:
    data = written.encode()
    read = IndexDetails.decode(data)
    assert read == written
    assert read.encode() == data


@pytest.mark.parametrize("name", ["configured", "merged"])
def test_lance_details_are_written_byte_for_byte(golden: Path, name: str) -> None:
    data = read_golden(golden, name)
    read = IndexDetails.decode(data)
    assert read.encode() == data
    assert replace(read, raw=b"").encode() == data


def test_what_lance_configured(golden: Path, told: dict[str, Any]) -> None:
    table = told["table"]
    bucket = RegionFieldSpec(
        "bucket",
        source_ids=(0,),
        transform="bucket",
        result_type="int32",
        parameters={"num_buckets": str(table["num_buckets"])},
    )
    assert IndexDetails.decode(read_golden(golden, "configured")) == IndexDetails(
        num_regions=table["num_buckets"],
        region_specs=(StoredRegionSpec(spec_id=1, fields=(bucket,)),),
        maintained_indexes=tuple(table["maintained_indexes"]),
    )


def test_what_lance_merged(golden: Path, told: dict[str, Any]) -> None:
    def by_region(generations: dict[str, int]) -> dict[UUID, int]:
        return {UUID(region): generation for region, generation in generations.items()}

    read = IndexDetails.decode(read_golden(golden, "merged"))
    assert read.merged == by_region(told["table"]["merged"])
    assert read.catchup == {
        index: by_region(generations) for index, generations in told["table"]["catchup"].items()
    }


def test_defaults_of_lance(golden: Path, told: dict[str, Any]) -> None:
    data = read_golden(golden, "defaults")
    read = IndexDetails.decode(data)
    assert read.maintain_all_indexes
    assert read.maintained_indexes == ()
    assert read.writer_config_defaults["max_memtable_rows"] == str(
        told["table"]["max_memtable_rows"]
    )
    (spec,) = read.region_specs
    assert [(field.transform, field.source_ids) for field in spec.fields] == [("identity", (0,))]
    # Lance writes the entries of a map in no certain order, so only their bytes can be the same.
    assert sorted(read.encode()) == sorted(data)


def test_lance_reads_what_was_written_here(tmp_path: Path) -> None:
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=key)])
    dataset = lance.write_dataset(pa.table({"id": [1]}, schema=schema), tmp_path / "t.lance")
    region = uuid4()
    bucket = RegionFieldSpec(
        "bucket",
        source_ids=(0,),
        transform="bucket",
        result_type="int32",
        parameters={"num_buckets": "16"},
    )
    written = IndexDetails(
        snapshot_ts_millis=1234,
        num_regions=16,
        region_specs=(StoredRegionSpec(spec_id=1, fields=(bucket,)),),
        maintained_indexes=("some_idx",),
        merged={region: 5},
        writer_config_defaults={"durable_write": "true"},
    )
    index = Index(
        uuid=str(uuid4()),
        name=MEM_WAL_INDEX_NAME,
        fields=[],
        dataset_version=dataset.version,
        fragment_ids=set(),
        index_version=0,
        created_at=datetime.now(UTC),
        index_details=(DETAILS_TYPE_URL, written.encode()),
    )
    committed = lance.LanceDataset.commit(
        dataset.uri,
        LanceOperation.CreateIndex(new_indices=[index], removed_indices=[]),
        read_version=dataset.version,
    )
    seen = committed.mem_wal_index_details()
    assert seen["num_shards"] == 16
    assert seen["maintained_indexes"] == ["some_idx"]
    merge = committed.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.mark_sstables_as_compacted([lance.mem_wal.CompactedSsTable(str(region), 6)])
    merge.execute(pa.table({"id": [2]}, schema=schema))
    newest = lance.dataset(dataset.uri).version
    manifest = (
        tmp_path / "t.lance" / "_versions" / f"{2**64 - 1 - newest:020d}.manifest"
    ).read_bytes()
    entry = find_mem_wal_index(manifest)
    assert entry is not None
    assert IndexDetails.decode(entry.details) == replace(written, merged={region: 6})


def test_fields_unknown_here_survive_a_rewrite() -> None:
    region, other = uuid4(), uuid4()
    merged = b"\x0a\x12\x0a\x10" + region.bytes + b"\x10\x05" + UNKNOWN
    caught_up = b"\x0a\x03idx\x12" + bytes([len(merged)]) + merged + UNKNOWN
    field = b"\x0a\x01f\x2a\x05int32" + UNKNOWN
    spec = b"\x08\x01\x12" + bytes([len(field)]) + field + UNKNOWN
    data = b"".join(
        tag + bytes([len(part)]) + part
        for tag, part in ((b"\x3a", spec), (b"\x4a", merged), (b"\x52", caught_up))
    )
    read = IndexDetails.decode(data + UNKNOWN)
    assert read.merged == {region: 5}
    assert read.encode() == data + UNKNOWN

    changed = replace(read, snapshot_ts_millis=9, merged={other: 1, region: 5}).encode()
    for part in (spec, merged, caught_up):
        assert part in changed
    assert changed.endswith(UNKNOWN)
    assert IndexDetails.decode(changed).merged == {other: 1, region: 5}


def test_maintain_all_indexes_is_left_out_only_where_it_was() -> None:
    written = IndexDetails(maintain_all_indexes=True).encode()
    assert written == b"\x60\x01"
    unset = replace(IndexDetails.decode(written), maintain_all_indexes=False)
    assert unset.encode() == b"\x60\x00"
    assert IndexDetails().encode() == b"\x60\x00"
    older = IndexDetails.decode(b"\x42\x01a")
    assert older.encode() == b"\x42\x01a"


def test_snapshots_can_be_taken_away() -> None:
    read = IndexDetails.decode(IndexDetails(inline_snapshots=b"abc").encode())
    assert read.inline_snapshots == b"abc"
    assert IndexDetails.decode(replace(read, inline_snapshots=None).encode()) == IndexDetails()


def test_defaults_of_writers_can_be_taken_away() -> None:
    written = IndexDetails(writer_config_defaults={"a": "1", "b": "2"}).encode()
    changed = replace(IndexDetails.decode(written), writer_config_defaults={"b": "3"}).encode()
    assert IndexDetails.decode(changed).writer_config_defaults == {"b": "3"}


@pytest.mark.parametrize(
    "changes", [{"num_regions": -1}, {"merged": {uuid4(): 2**64}}, {"snapshot_ts_millis": 2**63}]
)
def test_numbers_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        replace(IndexDetails(), **changes).encode()


@pytest.mark.parametrize("data", [b"\xff", b"garbage", b"\x4a\x05\x0a\x03\x0a\x01\x00"])
def test_garbage_is_told_by_name(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="version 7"):
        IndexDetails.decode(data, name="version 7")
