"""Tables that no released Lance writes: stored manifests that are changed by hand."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import lance
import pyarrow as pa
from google.protobuf.internal.encoder import _VarintBytes as VarintBytes
from google.protobuf.message import Message
from lance.dataset import LanceOperation
from lance.file import LanceFileWriter
from lance.fragment import DataFile

from memwal.format._proto import lance_manifest_pb2
from memwal.format.paths import table_manifest_keys

OVERLAYS: Final = "LANCE_ENABLE_UNSTABLE_DATA_OVERLAY_FILES"
"""Environment variable without which Lance refuses tables with data overlay files."""

_FOOTER: Final = struct.Struct("<QHH4s")
_LENGTH: Final = struct.Struct("<I")
_VERSION_FIELD: Final = b"\x18"  # the last one of several counts


def set_unknown_field(message: Message) -> None:
    """Give a message the field 999, of which no release knows."""
    message.MergeFromString(VarintBytes(999 << 3) + b"\x01")


def add_version(
    folder: Path,
    change: Callable[[lance_manifest_pb2.Manifest], None] = lambda _: None,
    *,
    change_indexes: Callable[[lance_manifest_pb2.IndexSection], None] | None = None,
    commit_record: bytes = b"",
) -> Path:
    """Store a version that differs from the newest by changes, or by the record of its commit."""
    version = lance.dataset(str(folder)).version
    data = (folder / table_manifest_keys(version)[0]).read_bytes()
    position, *rest = _FOOTER.unpack(data[-_FOOTER.size :])
    (length,) = _LENGTH.unpack_from(data, position)
    start = position + _LENGTH.size
    message = lance_manifest_pb2.Manifest.FromString(data[start : start + length])
    body = data[:position]
    if commit_record:
        message.transaction_section = len(body)
        body += _LENGTH.pack(len(commit_record)) + commit_record
    if change_indexes is not None:
        (length,) = _LENGTH.unpack_from(data, message.index_section)
        start = message.index_section + _LENGTH.size
        indexes = lance_manifest_pb2.IndexSection.FromString(data[start : start + length])
        change_indexes(indexes)
        message.index_section, section = len(body), indexes.SerializeToString()
        body += _LENGTH.pack(len(section)) + section
    change(message)
    number = VarintBytes(version + 1)
    changed = message.SerializeToString() + _VERSION_FIELD + number
    path = folder / table_manifest_keys(version + 1)[0]
    path.write_bytes(body + _LENGTH.pack(len(changed)) + changed + _FOOTER.pack(len(body), *rest))
    return path


def add_overlay(folder: Path, column: str, value: str, *, offset: int = 0) -> None:
    """Commit a data overlay file: another value in a text column of the oldest fragment."""
    dataset = lance.dataset(str(folder))
    fragment = dataset.get_fragments()[0]
    name = "overlay.lance" if not fragment.metadata.overlays else "another.lance"
    with LanceFileWriter(str(folder / "data" / name), pa.schema([(column, pa.string())])) as file:
        file.write_batch(pa.table({column: [value]}))
    like = fragment.metadata.files[0]
    (field_id,) = (f.id() for f in dataset.lance_schema.fields() if f.name() == column)
    values = DataFile(
        name,
        [field_id],
        [0],
        like.file_major_version,
        like.file_minor_version,
        (folder / "data" / name).stat().st_size,
    )
    group = LanceOperation.DataOverlayGroup(
        fragment.fragment_id, [LanceOperation.DataOverlayFile(values, [offset])]
    )
    lance.LanceDataset.commit(
        str(folder), LanceOperation.DataOverlay([group]), read_version=dataset.version
    )
