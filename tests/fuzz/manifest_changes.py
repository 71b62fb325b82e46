"""Changes of the messages inside of a table's manifest file, with the frame around them whole."""

import struct
from collections.abc import Sequence
from random import Random
from typing import Final

from fuzz.protobuf_changes import message

from memwal.errors import MemWalError
from memwal.format._proto import lance_manifest_pb2
from memwal.format.lance_manifest import find_mem_wal_index

_FOOTER: Final = struct.Struct("<QHH4s")


def inside_manifest(dice: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Change the index section, the details of the MemWAL index in it, or the manifest itself."""
    section = lance_manifest_pb2.IndexSection()
    found = _mem_wal_details(data)
    if found is not None:
        details = message(dice, found, [found])
        entry = section.indices.add(name="__lance_mem_wal")
        entry.uuid.uuid = b"u" * 16
        entry.index_details.value = details
    parts = [
        section.SerializeToString(),
        lance_manifest_pb2.Manifest(index_section=0).SerializeToString(),
    ]
    at = dice.randrange(2)
    if dice.random() < 0.7:
        parts[at] = message(dice, parts[at], parts)
    return framed(*parts)


def framed(section: bytes, manifest: bytes) -> bytes:
    """A manifest file that holds an index section at its beginning, and a manifest behind it."""
    body = [struct.pack("<I", len(part)) + part for part in (section, manifest)]
    return b"".join((*body, _FOOTER.pack(len(body[0]), 0, 2, b"LANC")))


def _mem_wal_details(data: bytes) -> bytes | None:
    try:
        entry = find_mem_wal_index(data)
    except MemWalError:
        return None
    return None if entry is None else entry.details
