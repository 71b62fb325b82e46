import struct
from pathlib import Path
from uuid import UUID

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import CorruptDataError, MemWalError
from memwal.format._proto import lance_manifest_pb2
from memwal.format.lance_manifest import IndexEntry, find_mem_wal_index, read_index_section
from memwal.format.paths import MEM_WAL_INDEX_NAME, table_manifest_keys


def read_golden(golden: Path, name: str) -> bytes:
    return (golden / "table" / f"{name}.manifest").read_bytes()


def test_a_table_without_indexes(golden: Path) -> None:
    manifest = read_golden(golden, "plain")
    assert read_index_section(manifest) == []
    assert find_mem_wal_index(manifest) is None


def test_indexes_of_a_lance_table(golden: Path) -> None:
    entries = {entry.name: entry for entry in read_index_section(read_golden(golden, "configured"))}
    assert sorted(entries) == ["__lance_mem_wal", "k0_idx"]
    btree = entries["k0_idx"]
    assert btree.fields == (0,)
    assert btree.dataset_version == 1
    assert btree.fragment_bitmap
    assert entries["__lance_mem_wal"].fields == ()


def test_entries_are_those_that_lance_lists(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "t.lance")
    dataset.create_scalar_index("a", "BTREE", name="a_idx")
    dataset.create_scalar_index("b", "BITMAP", name="b_idx")
    manifest = (tmp_path / "t.lance" / table_manifest_keys(dataset.version)[0]).read_bytes()
    listed = {
        (UUID(segment.uuid), index.name)
        for index in dataset.describe_indices()
        for segment in index.segments
    }
    assert len(listed) == 2
    assert {(entry.uuid, entry.name) for entry in read_index_section(manifest)} == listed
    assert find_mem_wal_index(manifest) is None


def test_two_mem_wal_indexes_are_refused(golden: Path) -> None:
    (entry,) = [
        each
        for each in read_index_section(read_golden(golden, "merged"))
        if each.name == MEM_WAL_INDEX_NAME
    ]
    section = lance_manifest_pb2.IndexSection()
    for number in (1, 2):
        added = section.indices.add(name=entry.name)
        added.uuid.uuid = bytes([number]) * 16
    manifest = manifest_with(section.SerializeToString())
    assert len(read_index_section(manifest)) == 2
    with pytest.raises(CorruptDataError):
        find_mem_wal_index(manifest)


def test_what_an_entry_leaves_out() -> None:
    section = lance_manifest_pb2.IndexSection()
    section.indices.add(name="a").uuid.uuid = b"u" * 16
    assert read_index_section(manifest_with(section.SerializeToString())) == [
        IndexEntry(
            UUID(bytes=b"u" * 16),
            name="a",
            fields=(),
            dataset_version=0,
            index_version=0,
            details=b"",
            fragment_bitmap=None,
        )
    ]


def test_an_entry_without_an_id_is_refused() -> None:
    section = lance_manifest_pb2.IndexSection()
    section.indices.add(name="a")
    with pytest.raises(CorruptDataError):
        read_index_section(manifest_with(section.SerializeToString()))


def manifest_with(section: bytes) -> bytes:
    """Return a manifest file that holds an index section and nothing else."""
    message = lance_manifest_pb2.Manifest(index_section=0).SerializeToString()
    parts = [struct.pack("<I", len(part)) + part for part in (section, message)]
    return b"".join(parts) + struct.pack("<QHH4s", len(parts[0]), 0, 2, b"LANC")


@pytest.mark.parametrize("size", [0, 3, 15])
def test_too_short_for_a_manifest(size: int) -> None:
    with pytest.raises(CorruptDataError, match=r"7\.manifest"):
        read_index_section(b"x" * size, name="7.manifest")


def test_no_magic_at_the_end(golden: Path) -> None:
    with pytest.raises(CorruptDataError):
        read_index_section(read_golden(golden, "merged")[:-1])


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_changed_bytes_never_raise_anything_else(golden: Path, data: st.DataObject) -> None:
    content = bytearray(read_golden(golden, "merged"))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    start = data.draw(st.integers(0, 30))
    try:
        find_mem_wal_index(bytes(content[start:]))
    except MemWalError:
        return
