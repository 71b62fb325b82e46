"""Layout of a WAL entry: an Arrow IPC stream and its metadata (spec: WAL Entry Format).

The schema's metadata contains the epoch and the generation, as Lance writes them. memwal adds three
more values, which Lance ignores:

* the writer of the entry, so that an ambiguous answer of the store can be resolved by reading the
  entry back;
* a checksum of every byte of the entry except the checksum's own digits, so that a torn or changed
  entry is never taken for a complete one;
* in an entry that is a step of a source: the newest step of each source that the region has
  applied.

Applied steps are JSON, in the metadata of WAL entries and in the records that outlive them: an
object from the name of each source to the version of its newest step, or, if the source has an
incarnation, to a list of that version, the incarnation, and the incarnations that it replaced.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from memwal.errors import CorruptDataError
from memwal.format.paths import generation_name, parse_generation_name
from memwal.util.safe_json import read_json

EPOCH = b"writer_epoch"
GENERATION = b"generation"
SENTINEL = b"fence_sentinel"
WRITER_ID = b"memwal.writer_id"
CHECKSUM = b"memwal.checksum"
APPLIED = b"memwal.applied"
OWN_KEYS = frozenset({EPOCH, GENERATION, SENTINEL, WRITER_ID, CHECKSUM, APPLIED})
CONTINUATION = b"\xff\xff\xff\xff"
END_OF_STREAM = CONTINUATION + b"\0\0\0\0"

# In the place of the checksum while it is computed; as long as its 16 hex digits.
PLACEHOLDER = b"\x11memwal.unset.\x11\x11"

# Continuation marker and length of a message.
PREFIX = 8
MAX_U64 = (1 << 64) - 1

# A stream aligns its buffers to 8 bytes only, and Lance panics at 16-byte values that are not
# aligned to 16. Arrow's "data type specific" alignment stops at 8 too.
ALIGNED = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)


# Lance logs blobs of its version 2 under the name of a type whose values have another form. Arrow
# reads such a stream only if the key of that name is another one, of the same length.
_BLOB = b"lance.blob.v2"
_TYPE_KEY = b"ARROW:extension:name"
LOGGED_TYPE_KEYS = (_TYPE_KEY, _TYPE_KEY.lower())
"""Keys of the metadata of a field that may have the name of its type in the log."""


def importable(data: bytes | memoryview, header: int) -> bytes | memoryview:
    """Return a stream that Arrow can read; ``header`` bytes of ``data`` are its schema message."""
    schema = bytes(memoryview(data)[:header])
    if _BLOB not in schema:
        return data
    return schema.replace(*LOGGED_TYPE_KEYS) + memoryview(data)[header:]


_TARGET = b"mem_wal_target_"
_TARGET_FOLDER = _TARGET + b"generation_dir"
TARGET_FILE = _TARGET + b"data_file"
"""Key of the data file that Lance is going to flush the rows of an entry with blobs into."""

# Batches of a MemTable of Lance, as it replays them.
_TARGET_BATCHES = b"8000"


BlobTarget = Mapping[bytes, bytes]
"""Metadata of an entry that names the generation into which Lance is going to flush it; may be
empty.
"""


def blob_target(metadata: Mapping[bytes, bytes] | None) -> BlobTarget:
    """Return the target of an entry."""
    return {key: value for key, value in (metadata or {}).items() if key.startswith(_TARGET)}


def new_blob_target(generation: int, epoch: int) -> BlobTarget:
    """Return a target of a generation, as Lance's own writer makes one.

    Lance stores large blobs there before it logs them. It refuses to replay a generation of which
    some entries have a target and others none, or another one.
    """
    file = f"{secrets.randbits(24):024b}{secrets.token_hex(13)}.lance"
    folder = generation_name(generation, secrets.token_hex(4))
    return {
        _TARGET + b"batch_capacity": _TARGET_BATCHES,
        _TARGET + b"creator_epoch": str(epoch).encode(),
        TARGET_FILE: file.encode(),
        _TARGET + b"generation": str(generation).encode(),
        _TARGET_FOLDER: folder.encode(),
    }


def blob_folder(metadata: Mapping[bytes, bytes] | None) -> str | None:
    """Return the folder of a generation in which large blobs of an entry are; None if none are."""
    folder = (metadata or {}).get(_TARGET_FOLDER, b"").decode(errors="replace")
    return folder if parse_generation_name(folder) is not None else None


@dataclass(frozen=True, slots=True)
class NewestStep:
    """Newest step of a source that a region has applied."""

    version: int
    incarnation: str = ""  # the numbering that ``version`` belongs to; "" if the source has one
    replaced: tuple[str, ...] = ()  # earlier incarnations, whose steps are refused


AppliedSteps = Mapping[str, NewestStep]
"""Newest applied step, by source."""


def has_dictionaries(fields: Iterable[pa.Field]) -> bool:
    """Return whether a column, or a part of one, is dictionary-encoded."""
    return any(
        pa.types.is_dictionary(_storage(field.type)) or has_dictionaries(children_of(field.type))
        for field in fields
    )


def has_wide_values(fields: Iterable[pa.Field]) -> bool:
    """Return whether a column, or a part of one, has values wider than a stream's alignment."""
    return any(
        pa.types.is_decimal128(_storage(field.type))
        or pa.types.is_decimal256(_storage(field.type))
        or pa.types.is_interval(_storage(field.type))
        or has_wide_values(children_of(field.type))
        for field in fields
    )


def children_of(data_type: pa.DataType) -> list[pa.Field]:
    """Return the child fields of a type; for a dictionary, one field of its values."""
    stored = _storage(data_type)
    if pa.types.is_dictionary(stored):
        return [pa.field("values", stored.value_type)]
    return [stored.field(number) for number in range(stored.num_fields)]


def encode_applied(applied: AppliedSteps) -> bytes:
    """Encode applied steps as JSON."""
    as_json = {
        source: [step.version, step.incarnation, *step.replaced]
        if step.incarnation or step.replaced
        else step.version
        for source, step in applied.items()
    }
    return json.dumps(as_json, sort_keys=True, separators=(",", ":")).encode()


def decode_applied(data: bytes, *, name: str) -> dict[str, NewestStep]:
    """Decode applied steps from JSON, or raise CorruptDataError with the name of their object."""
    try:
        applied = read_json(data)
    except ValueError as error:
        raise _unreadable(name, str(error)) from error
    if not isinstance(applied, dict):
        raise _unreadable(name, "it is not an object")
    return {source: _decode_step(source, found, name) for source, found in applied.items()}


def newest_steps(first: AppliedSteps, second: AppliedSteps) -> dict[str, NewestStep]:
    """Merge two records of the applied steps of a region: the newest step of each source."""
    newest = dict(first)
    for source, step in second.items():
        newest[source] = _newer(step, newest.get(source, step))
    return newest


def _decode_step(source: str, found: object, name: str) -> NewestStep:
    version, *rest = found if isinstance(found, list) and found else [found]
    names = [value for value in rest if isinstance(value, str)]
    if type(version) is not int or not 0 <= version <= MAX_U64 or len(names) < len(rest):
        raise _unreadable(name, f"the version of {source!r} is {found!r}")
    return NewestStep(version, names[0] if names else "", tuple(names[1:]))


def _newer(one: NewestStep, other: NewestStep) -> NewestStep:
    if one.incarnation in other.replaced:
        return other
    if other.incarnation in one.replaced:
        return one
    return max(one, other, key=lambda step: (step.version, step.incarnation, step.replaced))


def _storage(data_type: pa.DataType) -> pa.DataType:
    return data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type


def _unreadable(name: str, reason: str) -> CorruptDataError:
    return CorruptDataError(
        f"{name} does not tell which steps were applied: {reason}; keep the object and look at it"
    )
