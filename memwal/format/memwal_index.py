"""Codec of the MemWAL index details: configuration and progress (spec: MemWAL Index Details).

Also has the helpers that all protobuf codecs share: parsing, UUIDs, bounds of counters, and
rewriting of repeated entries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from typing import TypeVar
from uuid import UUID

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import DecodeError, Message

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format._proto import memwal_pb2
from memwal.format.paths import MAX_COUNTER

DETAILS_TYPE_URL = "/lance.table.MemWalIndexDetails"

# The end of the year 9999, the last that Python's dates can represent.
_MAX_MILLIS = 253_402_300_799_999
_M = TypeVar("_M", bound=Message)
_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class RegionFieldSpec:
    """A stored rule for computing one region value from a row."""

    field_id: str  # name of the value, unique within its spec
    _: KW_ONLY
    source_ids: tuple[int, ...]  # Lance field ids of the source columns
    # A well-known transform such as ``bucket``; None if ``expression`` is set.
    transform: str | None = None
    # DataFusion SQL over ``col0``, ``col1``, ...; None if ``transform`` is set.
    expression: str | None = None
    result_type: str  # name of the value's type, such as ``int32``
    # Of the transform, such as ``{"num_buckets": "16"}``.
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredRegionSpec:
    """A stored region spec: its fields, and its id, which is never reused."""

    spec_id: int
    fields: tuple[RegionFieldSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDetails:
    """Details of the index named ``__lance_mem_wal``."""

    # Time of the region snapshots, since the epoch; 0 if there are none.
    snapshot_ts_millis: int = 0
    # Regions that the region spec maps rows to, as Lance stores it; 0 if that depends on the rows.
    num_regions: int = 0
    inline_snapshots: bytes | None = None  # a Lance file with one row per region
    region_specs: tuple[StoredRegionSpec, ...] = ()  # how rows map to regions
    maintained_indexes: tuple[str, ...] = ()  # those that are also built on flushed generations
    # Newest generation merged into the base table, by region.
    merged: Mapping[UUID, int] = field(default_factory=dict)
    # Newest merged generation that an index covers, by index and region.
    catchup: Mapping[str, Mapping[UUID, int]] = field(default_factory=dict)
    writer_config_defaults: Mapping[str, str] = field(default_factory=dict)
    maintain_all_indexes: bool = False  # whether every index of the base table is maintained
    # The message this was decoded from, so that unknown fields survive a rewrite.
    raw: bytes = field(default=b"", repr=False, compare=False)

    def encode(self) -> bytes:
        """Return the bytes of the details.

        Raises InvalidInputError if a number does not fit its field, and CorruptDataError if ``raw``
        is not such a message.
        """
        message = parse_message(
            memwal_pb2.MemWalIndexDetails, self.raw, name="the MemWAL details that were read before"
        )
        try:
            self._write_to(message)
        except ValueError as error:
            raise InvalidInputError(f"the MemWAL details cannot be written: {error}") from error
        return message.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, data: bytes, *, name: str = "the MemWAL index details") -> IndexDetails:
        """Decode the message, without its type URL, or raise CorruptDataError with its name."""
        message = parse_message(memwal_pb2.MemWalIndexDetails, data, name=name)
        if not 0 <= message.snapshot_ts_millis <= _MAX_MILLIS:
            raise CorruptDataError(
                f"{name} has a region snapshot of millisecond "
                f"{message.snapshot_ts_millis}, which is not a date; keep the table's manifest and "
                "look at its bytes"
            )
        return cls(
            snapshot_ts_millis=message.snapshot_ts_millis,
            num_regions=message.num_regions,
            inline_snapshots=(
                message.inline_snapshots if message.HasField("inline_snapshots") else None
            ),
            region_specs=tuple(_spec_from(spec) for spec in message.region_specs),
            maintained_indexes=tuple(message.maintained_indexes),
            merged=_generations_from(message.merged, name=name),
            catchup={
                entry.index_name: _generations_from(entry.caught_up, name=name)
                for entry in message.index_catchup
            },
            writer_config_defaults=dict(message.writer_config_defaults),
            maintain_all_indexes=message.maintain_all_indexes,
            raw=bytes(data),
        )

    def _write_to(self, message: memwal_pb2.MemWalIndexDetails) -> None:
        message.snapshot_ts_millis = self.snapshot_ts_millis
        message.num_regions = self.num_regions
        set_optional(message, "inline_snapshots", self.inline_snapshots)
        rewrite_entries(
            message.region_specs,
            ((spec.spec_id, spec) for spec in self.region_specs),
            key=lambda entry: entry.spec_id,
            fill=_fill_spec,
        )
        message.maintained_indexes[:] = self.maintained_indexes
        _rewrite_generations(message.merged, self.merged)
        rewrite_entries(
            message.index_catchup,
            ((name, (name, generations)) for name, generations in self.catchup.items()),
            key=lambda entry: entry.index_name,
            fill=_fill_catchup,
        )
        message.writer_config_defaults.clear()
        message.writer_config_defaults.update(self.writer_config_defaults)
        # Lance writes False explicitly; a field that an older client left out stays absent.
        if self.maintain_all_indexes or not self.raw or message.HasField("maintain_all_indexes"):
            message.maintain_all_indexes = self.maintain_all_indexes


def parse_message(message_type: type[_M], data: bytes, *, name: str) -> _M:
    """Parse a protobuf message, or raise CorruptDataError with the name of the object."""
    try:
        return message_type.FromString(data)
    except DecodeError as error:
        raise CorruptDataError(
            f"{name} ({len(data)} bytes) cannot be parsed as {message_type.DESCRIPTOR.name}: "
            f"{error}; keep the object and look at its bytes"
        ) from error


def parse_uuid(data: bytes, *, name: str) -> UUID:
    """Return the UUID with these bytes, or raise CorruptDataError if they are not 16."""
    if len(data) != 16:
        raise CorruptDataError(
            f"{name} holds a UUID of {len(data)} bytes instead of 16; keep the object and look at "
            "its bytes"
        )
    return _uuid_of(data)


# Each index of a version, and each version, has the ids of the same regions.
@lru_cache(maxsize=1 << 14)
def _uuid_of(data: bytes) -> UUID:
    return UUID(bytes=data)


def check_counters(message: Message, fields: Iterable[str], *, name: str) -> None:
    """Raise CorruptDataError for counters that no client reaches: their successors have no name."""
    for counter in fields:
        number = getattr(message, counter)
        if number > MAX_COUNTER:
            raise CorruptDataError(
                f"{name} has {counter} {number}, which no client can have written; keep the "
                "object and look at its bytes"
            )


def set_optional(message: Message, field_name: str, value: object) -> None:
    """Set a field of a message; None clears it."""
    if value is None:
        message.ClearField(field_name)
    else:
        setattr(message, field_name, value)


def rewrite_entries(
    entries: RepeatedCompositeFieldContainer[_M],
    values: Iterable[tuple[_K, _V]],
    *,
    key: Callable[[_M], _K],
    fill: Callable[[_M, _V], None],
) -> None:
    """Make ``entries`` contain exactly ``values``, in that order.

    Each new entry starts as a copy of the old entry with its key, if any, so that unknown fields
    survive; ``fill`` then sets every known field.
    """
    before = {}
    for entry in entries:
        copy = type(entry)()
        copy.CopyFrom(entry)
        before[key(entry)] = copy
    del entries[:]
    for entry_key, value in values:
        entry = entries.add()
        if entry_key in before:
            entry.CopyFrom(before[entry_key])
        fill(entry, value)


def _fill_spec(message: memwal_pb2.RegionSpec, spec: StoredRegionSpec) -> None:
    message.spec_id = spec.spec_id
    rewrite_entries(
        message.fields,
        ((entry.field_id, entry) for entry in spec.fields),
        key=lambda entry: entry.field_id,
        fill=_fill_field,
    )


def _fill_field(message: memwal_pb2.RegionFieldSpec, entry: RegionFieldSpec) -> None:
    message.field_id = entry.field_id
    message.source_ids[:] = entry.source_ids
    message.result_type = entry.result_type
    set_optional(message, "transform", entry.transform)
    set_optional(message, "expression", entry.expression)
    message.parameters.clear()
    message.parameters.update(entry.parameters)


def _fill_catchup(message: memwal_pb2.IndexCatchup, entry: tuple[str, Mapping[UUID, int]]) -> None:
    message.index_name, generations = entry
    _rewrite_generations(message.caught_up, generations)


def _rewrite_generations(
    entries: RepeatedCompositeFieldContainer[memwal_pb2.MergedGeneration],
    generations: Mapping[UUID, int],
) -> None:
    rewrite_entries(
        entries,
        ((region_id.bytes, (region_id, number)) for region_id, number in generations.items()),
        key=lambda entry: entry.region_id.uuid,
        fill=_fill_generation,
    )


def _fill_generation(message: memwal_pb2.MergedGeneration, entry: tuple[UUID, int]) -> None:
    region_id, message.generation = entry
    message.region_id.uuid = region_id.bytes


def _spec_from(message: memwal_pb2.RegionSpec) -> StoredRegionSpec:
    return StoredRegionSpec(
        spec_id=message.spec_id,
        fields=tuple(
            RegionFieldSpec(
                entry.field_id,
                source_ids=tuple(entry.source_ids),
                transform=entry.transform if entry.HasField("transform") else None,
                expression=entry.expression if entry.HasField("expression") else None,
                result_type=entry.result_type,
                parameters=dict(entry.parameters),
            )
            for entry in message.fields
        ),
    )


def _generations_from(
    entries: Iterable[memwal_pb2.MergedGeneration], *, name: str
) -> dict[UUID, int]:
    generations = {}
    for entry in entries:
        check_counters(entry, ("generation",), name=name)
        generations[parse_uuid(entry.region_id.uuid, name=name)] = entry.generation
    return generations
