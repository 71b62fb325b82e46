"""Layout of a WAL entry: an Arrow IPC stream and its metadata (spec: WAL Entry Format).

The epoch and the generation stand in the schema's metadata, as Lance writes them. Beside them
memwal writes three things, which Lance ignores:

* the writer of the entry, so that an ambiguous answer of the store can be settled by reading the
  entry back;
* a checksum of every byte of the entry except the checksum's own digits, so that a torn or changed
  entry is never taken for a whole one;
* in an entry that is a step of a source, which steps the region has applied.

Applied steps are text, in the metadata of log entries and in the books that outlive them. The text
is JSON: an object from the name of each source to the version of its newest step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import pyarrow as pa

from memwal.errors import CorruptDataError
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
# Stands where the checksum goes while the checksum is computed; as long as 16 hex digits.
PLACEHOLDER = b"\x11memwal.unset.\x11\x11"
# Continuation marker and length of a message.
PREFIX = 8
MAX_U64 = (1 << 64) - 1

# A stream aligns its buffers to 8 bytes, and Lance panics at 16-byte values that are not aligned to
# theirs. Arrow's own idea of a type's alignment stops at 8 too.
ALIGNED = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)


def has_dictionaries(fields: Iterable[pa.Field]) -> bool:
    """Whether a column, or a part of one, is dictionary-encoded."""
    return any(
        pa.types.is_dictionary(_storage(field.type)) or has_dictionaries(children_of(field.type))
        for field in fields
    )


def has_wide_values(fields: Iterable[pa.Field]) -> bool:
    """Whether values somewhere in the columns are wider than what a stream aligns them to."""
    return any(
        pa.types.is_decimal128(_storage(field.type))
        or pa.types.is_decimal256(_storage(field.type))
        or pa.types.is_interval(_storage(field.type))
        or has_wide_values(children_of(field.type))
        for field in fields
    )


def children_of(data_type: pa.DataType) -> list[pa.Field]:
    """The fields inside a type, those of the values of a dictionary included."""
    stored = _storage(data_type)
    if pa.types.is_dictionary(stored):
        return [pa.field("values", stored.value_type)]
    return [stored.field(number) for number in range(stored.num_fields)]


def _storage(data_type: pa.DataType) -> pa.DataType:
    return data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type


AppliedSteps = Mapping[str, int]
"""Version of the newest step that was applied, by source."""


def encode_applied(applied: AppliedSteps) -> bytes:
    """Return the text of what was applied."""
    return json.dumps(dict(applied), sort_keys=True, separators=(",", ":")).encode()


def decode_applied(data: bytes, *, name: str) -> dict[str, int]:
    """Read what :func:`encode_applied` wrote.

    Parameters
    ----------
    data : bytes
    name : str
        Of the object it stands in, for the error.

    Raises
    ------
    CorruptDataError
        It is no such text.
    """
    try:
        found = read_json(data)
    except ValueError as error:
        raise _unreadable(name, str(error)) from error
    if not isinstance(found, dict):
        raise _unreadable(name, "it is no object")
    for source, version in found.items():
        if type(version) is not int or not 0 <= version <= MAX_U64:
            raise _unreadable(name, f"the version of {source!r} is {version!r}")
    return found


def newest_steps(one: AppliedSteps, other: AppliedSteps) -> dict[str, int]:
    """The newest step of each source, of two accounts of one region."""
    found = dict(one)
    for source, version in other.items():
        found[source] = max(version, found.get(source, version))
    return found


def _unreadable(name: str, reason: str) -> CorruptDataError:
    return CorruptDataError(
        f"{name} does not tell which steps were applied: {reason}; keep the object and look at it"
    )
