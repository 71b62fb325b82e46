"""The index section of a Lance table's manifest file, which no call of pylance returns whole."""

from __future__ import annotations

import struct
from dataclasses import KW_ONLY, dataclass
from uuid import UUID

from memwal.errors import CorruptDataError
from memwal.format._messages import parse_message, parse_uuid
from memwal.format._proto import lance_manifest_pb2
from memwal.format.names import MEM_WAL_INDEX_NAME

_MAGIC = b"LANC"
# Position of the manifest message, major and minor version of the file, magic.
_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What a table's manifest says of one segment of an index.

    Parameters
    ----------
    uuid : UUID
        Names the segment's folder below ``_indices``.
    name : str
        Name of the index.
    fields : tuple of int
        Lance field ids of the indexed columns.
    dataset_version : int
        Version of the table that it was built on.
    index_version : int
        Version of the index format; 0 when absent.
    details_type : str
        Type of ``details``; empty when absent.
    details : bytes
        Details of the index as a protobuf message; empty when absent.
    fragment_bitmap : bytes or None
        Fragments it covers, as a serialised 32-bit roaring bitmap.
    created_at_millis : int or None
        When it was made, in milliseconds since the epoch.
    """

    uuid: UUID
    _: KW_ONLY
    name: str
    fields: tuple[int, ...]
    dataset_version: int
    index_version: int
    details_type: str
    details: bytes
    fragment_bitmap: bytes | None
    created_at_millis: int | None


def read_index_section(manifest: bytes, *, name: str = "the table's manifest") -> list[IndexEntry]:
    """Return every index entry of a table's manifest file, in the order of the file.

    Parameters
    ----------
    manifest : bytes
        The whole manifest file.
    name : str, default "the table's manifest"
        What error messages call it; give its key.

    Raises
    ------
    CorruptDataError
        When the bytes are no Lance manifest, or a length or position in them leads outside.
    """
    message = _message(manifest, name)
    if not message.HasField("index_section"):
        return []
    section = parse_message(
        lance_manifest_pb2.IndexSection,
        _prefixed(manifest, message.index_section, name),
        name=name,
    )
    return [_entry_from(entry, name) for entry in section.indices]


def branch_of(manifest: bytes, *, name: str = "the table's manifest") -> str | None:
    """Return the branch that a table's manifest file belongs to; None for the main one.

    Raises
    ------
    CorruptDataError
        See :func:`read_index_section`.
    """
    message = _message(manifest, name)
    return message.branch if message.HasField("branch") else None


def find_mem_wal_index(manifest: bytes, *, name: str = "the table's manifest") -> IndexEntry | None:
    """Return the entry of the MemWAL index in a table's manifest file; None when there is none.

    Parameters
    ----------
    manifest : bytes
        The whole manifest file.
    name : str, default "the table's manifest"
        What error messages call it; give its key.

    Raises
    ------
    CorruptDataError
        When the bytes are no Lance manifest, or it has more than one MemWAL index.
    """
    entries = [
        entry
        for entry in read_index_section(manifest, name=name)
        if entry.name == MEM_WAL_INDEX_NAME
    ]
    if len(entries) > 1:
        raise CorruptDataError(
            f"{name} has {len(entries)} entries named {MEM_WAL_INDEX_NAME} where at most one may "
            "be; look at the commits before it"
        )
    return entries[0] if entries else None


def _message(manifest: bytes, name: str) -> lance_manifest_pb2.Manifest:
    position = _manifest_position(manifest, name)
    return parse_message(
        lance_manifest_pb2.Manifest, _prefixed(manifest, position, name), name=name
    )


def _manifest_position(manifest: bytes, name: str) -> int:
    if len(manifest) < _FOOTER.size:
        raise CorruptDataError(
            f"{name} has {len(manifest)} bytes, which is no Lance manifest; it may not have been "
            "written to its end"
        )
    position, _, _, magic = _FOOTER.unpack_from(manifest, len(manifest) - _FOOTER.size)
    if magic != _MAGIC:
        raise CorruptDataError(
            f"{name} ends in {magic!r} instead of {_MAGIC!r}; it may not have been written to its "
            "end"
        )
    return int(position)


def _prefixed(manifest: bytes, position: int, name: str) -> bytes:
    start = position + _LENGTH.size
    if start > len(manifest):
        raise CorruptDataError(
            f"{name} says that a message starts at byte {position} of {len(manifest)}; keep the "
            "object and look at its bytes"
        )
    (length,) = _LENGTH.unpack_from(manifest, position)
    if start + length > len(manifest):
        raise CorruptDataError(
            f"{name} says that {length} bytes follow byte {start} of {len(manifest)}; keep the "
            "object and look at its bytes"
        )
    return manifest[start : start + length]


def _entry_from(entry: lance_manifest_pb2.IndexMetadata, name: str) -> IndexEntry:
    return IndexEntry(
        parse_uuid(entry.uuid.uuid, name=name),
        name=entry.name,
        fields=tuple(entry.fields),
        dataset_version=entry.dataset_version,
        index_version=entry.index_version,
        details_type=entry.index_details.type_url,
        details=entry.index_details.value,
        fragment_bitmap=entry.fragment_bitmap if entry.HasField("fragment_bitmap") else None,
        created_at_millis=entry.created_at if entry.HasField("created_at") else None,
    )
