"""The manifest of a region (spec: Region Manifest)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final
from uuid import UUID

from memwal.errors import InvalidInputError
from memwal.format._proto import memwal_pb2
from memwal.format.memwal_index import (
    check_counters,
    parse_message,
    parse_uuid,
    rewrite_entries,
    set_optional,
)

INCARNATION_NUMBERS: Final = 1 << 32
"""Numbers of one incarnation of a region: generations, versions, epochs and log positions.

A region that was lost and starts over takes them from the next multiple on.
"""

_COUNTERS = ("version", "writer_epoch", "replay_after", "wal_last_seen", "current_generation")
_SIZES = ("memory_bytes", "rows", "key_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedGeneration:
    """A MemTable that was flushed to a Lance table in the region's folder."""

    region_id: UUID
    generation: int  # a higher one is newer
    path: str  # name of the folder, relative to the region's folder
    memory_bytes: int | None = None  # of the MemTable
    rows: int | None = None  # superseded ones and tombstones included; None if not recorded
    key_bytes: int | None = None  # of the primary keys


class RegionStatus(IntEnum):
    """Whether writers may claim a region."""

    ACTIVE = 0
    SEALED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionManifest:
    """One version of a region's state."""

    region_id: UUID
    version: int  # of this manifest, starting at 1
    writer_epoch: int  # fencing token of the newest writer
    current_generation: int = 1  # the one that the next flush writes
    replay_after: int = 0  # last WAL position that flushed generations cover; 0 if none does
    # A hint: the highest WAL position known to the process that wrote this version.
    wal_last_seen: int = 0
    flushed: tuple[FlushedGeneration, ...] = ()  # those that are still listed, oldest first
    spec_id: int = 0  # 0 if the region id was chosen by hand
    # Region values by field id, scalars as little-endian bytes.
    region_fields: tuple[tuple[str, bytes], ...] = ()
    # An int if a newer client wrote a status that this version of memwal does not know.
    status: RegionStatus | int = RegionStatus.ACTIVE
    # The message this was decoded from, so that unknown fields survive a rewrite.
    raw: bytes = field(default=b"", repr=False, compare=False)

    @property
    def oldest_kept(self) -> int:
        """Oldest flushed generation that is listed; the next to be flushed if none is."""
        return min((entry.generation for entry in self.flushed), default=self.current_generation)

    @property
    def incarnation(self) -> int:
        """Number of times that the region was lost and started over."""
        return (self.current_generation - 1) // INCARNATION_NUMBERS

    @property
    def last_logged(self) -> int:
        """Position of a log entry that the region had when this version was written; 0 for none."""
        return max(self.replay_after, self.wal_last_seen)

    def encode(self) -> bytes:
        """Return the bytes of the manifest object.

        Raises InvalidInputError if a number does not fit its field, and CorruptDataError if ``raw``
        is not a manifest.
        """
        message = parse_message(
            memwal_pb2.RegionManifest, self.raw, name="the manifest that was read before"
        )
        try:
            message.version = self.version
            message.writer_epoch = self.writer_epoch
            message.replay_after = self.replay_after
            message.wal_last_seen = self.wal_last_seen
            message.current_generation = self.current_generation
            message.spec_id = self.spec_id
            # Protobuf enums are open: an unknown status is kept as its number.
            message.status = int(self.status)  # type: ignore[assignment]
            message.region_id.uuid = self.region_id.bytes
            rewrite_entries(
                message.flushed,
                (((entry.generation, entry.path), entry) for entry in self.flushed),
                key=lambda entry: (entry.generation, entry.path),
                fill=_fill_flushed,
            )
            rewrite_entries(
                message.region_fields,
                ((field_id, (field_id, value)) for field_id, value in self.region_fields),
                key=lambda entry: entry.field_id,
                fill=_fill_region_field,
            )
        except ValueError as error:
            raise InvalidInputError(
                f"version {self.version} of the manifest of region {self.region_id} has a number "
                f"out of range: {error}"
            ) from error
        return message.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, data: bytes, *, name: str = "a region manifest") -> RegionManifest:
        """Decode a manifest object, or raise CorruptDataError with its name, the object's key."""
        message = parse_message(memwal_pb2.RegionManifest, data, name=name)
        check_counters(message, _COUNTERS, name=name)
        for entry in message.flushed:
            check_counters(entry, ("generation", *_SIZES), name=name)
        region_id = parse_uuid(message.region_id.uuid, name=name)
        return cls(
            region_id=region_id,
            version=message.version,
            writer_epoch=message.writer_epoch,
            current_generation=message.current_generation,
            replay_after=message.replay_after,
            wal_last_seen=message.wal_last_seen,
            flushed=tuple(_flushed_from(entry, region_id) for entry in message.flushed),
            spec_id=message.spec_id,
            region_fields=tuple((entry.field_id, entry.value) for entry in message.region_fields),
            status=_status_from(message.status),
            raw=bytes(data),
        )


def _fill_flushed(message: memwal_pb2.FlushedGeneration, entry: FlushedGeneration) -> None:
    message.generation = entry.generation
    message.path = entry.path
    for number in _SIZES:
        set_optional(message, number, getattr(entry, number))


def _fill_region_field(message: memwal_pb2.RegionFieldEntry, entry: tuple[str, bytes]) -> None:
    message.field_id, message.value = entry


def _flushed_from(message: memwal_pb2.FlushedGeneration, region_id: UUID) -> FlushedGeneration:
    return FlushedGeneration(
        region_id=region_id,
        generation=message.generation,
        path=message.path,
        memory_bytes=message.memory_bytes if message.HasField("memory_bytes") else None,
        rows=message.rows if message.HasField("rows") else None,
        key_bytes=message.key_bytes if message.HasField("key_bytes") else None,
    )


def _status_from(number: int) -> RegionStatus | int:
    try:
        return RegionStatus(number)
    except ValueError:
        return number
