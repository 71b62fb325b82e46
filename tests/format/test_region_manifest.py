from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.paths import MAX_COUNTER
from memwal.format.region_manifest import FlushedGeneration, RegionManifest, RegionStatus

REGION = UUID("5b8e1f0c-6a34-4c1e-9d52-0f8a7b3c2d11")
COUNTERS = st.integers(0, MAX_COUNTER)
# Field 99, a varint of 7: something a newer client might write.
UNKNOWN = b"\x98\x06\x07"


def manifests(region_id: UUID) -> st.SearchStrategy[RegionManifest]:
    """Manifests of a region, whose generations are those of the region."""
    region = st.just(region_id)
    generations = st.builds(
        FlushedGeneration,
        region_id=region,
        generation=COUNTERS,
        path=st.text(max_size=20),
        memory_bytes=st.none() | COUNTERS,
        rows=st.none() | COUNTERS,
        key_bytes=st.none() | COUNTERS,
    )
    fields = st.tuples(st.text(max_size=9), st.binary(max_size=9))
    return st.builds(
        RegionManifest,
        region_id=region,
        version=COUNTERS,
        writer_epoch=COUNTERS,
        current_generation=COUNTERS,
        replay_after=COUNTERS,
        wal_last_seen=COUNTERS,
        flushed=st.lists(generations, max_size=4).map(tuple),
        spec_id=st.integers(0, 2**32 - 1),
        region_fields=st.lists(fields, max_size=3).map(tuple),
        status=st.sampled_from([RegionStatus.ACTIVE, RegionStatus.SEALED, 7]),
    )


@settings(deadline=None)
@given(st.uuids().flatmap(manifests))
def test_round_trip(manifest: RegionManifest) -> None:
    data = manifest.encode()
    again = RegionManifest.decode(data)
    assert again == manifest
    assert again.raw == data
    assert again.encode() == data


def test_lance_manifests_are_written_byte_for_byte(golden: Path, told: dict[str, Any]) -> None:
    region = UUID(told["region"]["region_id"])
    read = {}
    for path in (golden / "region" / "manifest").iterdir():
        data = path.read_bytes()
        manifest = RegionManifest.decode(data, name=path.name)
        assert manifest.encode() == data
        assert replace(manifest, raw=b"").encode() == data
        assert manifest.version == int(path.stem)
        assert manifest.region_id == region
        read[manifest.version] = manifest
    assert sorted(read) == [1, 2, 3, 4, 5]
    assert read[1] == RegionManifest(region_id=region, version=1, writer_epoch=1, spec_id=1)
    (first,) = read[2].flushed
    assert (first.generation, first.rows, first.key_bytes) == (1, 4, 32)
    assert first.path.endswith("_gen_1")
    assert read[3] == replace(read[2], version=3, writer_epoch=2)
    assert read[4] == replace(read[3], version=4, wal_last_seen=3)
    assert read[5].current_generation == 3
    assert read[5].replay_after == 5
    assert [generation.rows for generation in read[5].flushed] == [4, 2]


def test_fields_unknown_here_survive_a_rewrite() -> None:
    flushed = FlushedGeneration(region_id=REGION, generation=3, path="01234567_gen_3", rows=5)
    plain = RegionManifest(region_id=REGION, version=4, writer_epoch=2).encode()
    generation = b"\x08\x03\x12\x0e01234567_gen_3\x20\x05" + UNKNOWN
    data = plain + b"\x42" + bytes([len(generation)]) + generation + UNKNOWN
    manifest = RegionManifest.decode(data)
    assert manifest.flushed == (flushed,)

    older = FlushedGeneration(region_id=REGION, generation=2, path="89abcdef_gen_2")
    changed = replace(manifest, version=5, flushed=(older, *manifest.flushed)).encode()
    assert changed.endswith(UNKNOWN)
    assert generation in changed
    assert RegionManifest.decode(changed).flushed == (older, flushed)

    dropped = replace(manifest, version=5, flushed=()).encode()
    assert dropped.endswith(UNKNOWN)
    assert b"gen_3" not in dropped


def test_a_number_that_was_known_can_be_taken_away() -> None:
    with_rows = RegionManifest(
        region_id=REGION,
        version=1,
        writer_epoch=1,
        flushed=(FlushedGeneration(region_id=REGION, generation=1, path="01234567_gen_1", rows=5),),
    )
    read = RegionManifest.decode(with_rows.encode())
    without = replace(read, flushed=(replace(read.flushed[0], rows=None),))
    assert RegionManifest.decode(without.encode()).flushed[0].rows is None


@pytest.mark.parametrize(
    "changes",
    [
        {"version": -1},
        {"writer_epoch": 2**64},
        {"spec_id": 2**32},
        {"flushed": (FlushedGeneration(region_id=REGION, generation=-1, path="x"),)},
        {"flushed": (FlushedGeneration(region_id=REGION, generation=1, path="x", rows=2**64),)},
    ],
)
def test_numbers_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    manifest = RegionManifest(region_id=REGION, version=1, writer_epoch=1)
    with pytest.raises(InvalidInputError):
        replace(manifest, **changes).encode()


@pytest.mark.parametrize("data", [b"", b"\xff", b"garbage", b"\x08\x01\x5a\x03\x0a\x01\x00"])
def test_garbage_is_told_by_name(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match=r"here\.binpb"):
        RegionManifest.decode(data, name="here.binpb")
