"""Codec of the MemWAL index details: configuration and progress (spec: MemWAL Index Details).

Includes what the protobuf codecs share: parsing, region ids, bounds of counters, and rewriting of
repeated entries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from google.protobuf.message import DecodeError, Message

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format._proto import memwal_pb2
from memwal.format.paths import MAX_COUNTER

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

_M = TypeVar("_M", bound=Message)
_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


def parse_message(message_type: type[_M], data: bytes, *, name: str) -> _M:
    """Parse ``data``; ``name`` says in an error which object has to be looked at.

    Raises
    ------
    CorruptDataError
        When the bytes are no such message.
    """
    try:
        return message_type.FromString(data)
    except DecodeError as error:
        raise CorruptDataError(
            f"{name} ({len(data)} bytes) cannot be parsed as {message_type.DESCRIPTOR.name}: "
            f"{error}; keep the object and look at its bytes"
        ) from error


def parse_uuid(data: bytes, *, name: str) -> UUID:
    """Return the UUID whose 16 bytes are given.

    Raises
    ------
    CorruptDataError
        When there are not 16 bytes.
    """
    if len(data) != 16:
        raise CorruptDataError(
            f"{name} holds a UUID of {len(data)} bytes instead of 16; keep the object and look at "
            "its bytes"
        )
    return UUID(bytes=data)


def check_counters(message: Message, fields: Iterable[str], *, name: str) -> None:
    """Refuse numbers that nothing counts up to: what is computed from them would have no name.

    Raises
    ------
    CorruptDataError
        A field is larger than :data:`~memwal.format.paths.MAX_COUNTER`.
    """
    for counter in fields:
        number = getattr(message, counter)
        if number > MAX_COUNTER:
            raise CorruptDataError(
                f"{name} says that {counter} is {number}, which nothing counts up to; keep the "
                "object and look at its bytes"
            )


def rewrite_entries(
    entries: RepeatedCompositeFieldContainer[_M],
    wanted: Iterable[tuple[_K, _V]],
    *,
    key: Callable[[_M], _K],
    fill: Callable[[_M, _V], None],
) -> None:
    """Make ``entries`` hold exactly ``wanted``, in that order.

    Each one starts from the entry that had its key before, if any, so that its unknown fields
    survive; ``fill`` then sets every known field.
    """
    before = {}
    for entry in entries:
        copy = type(entry)()
        copy.CopyFrom(entry)
        before[key(entry)] = copy
    del entries[:]
    for wanted_key, value in wanted:
        entry = entries.add()
        if wanted_key in before:
            entry.CopyFrom(before[wanted_key])
        fill(entry, value)


DETAILS_TYPE_URL = "/lance.table.MemWalIndexDetails"

# The end of the year 9999, after which there are no dates.
_LAST_MOMENT = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class RegionFieldSpec:
    """How one region value is computed from a row.

    Parameters
    ----------
    field_id : str
        Name of the value, unique within its spec.
    source_ids : tuple of int
        Lance field ids of the source columns.
    transform : str or None
        A well-known transform such as ``bucket``; None when ``expression`` is given.
    expression : str or None
        A DataFusion SQL expression over ``col0``, ``col1``, ...; None when ``transform`` is given.
    result_type : str
        Name of the value's type, such as ``int32``.
    parameters : mapping of str to str
        Parameters of the transform, such as ``{"num_buckets": "16"}``.
    """

    field_id: str
    _: KW_ONLY
    source_ids: tuple[int, ...]
    transform: str | None = None
    expression: str | None = None
    result_type: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredRegionSpec:
    """A region spec as the table stores it: its id, which is never used twice, and its fields."""

    spec_id: int
    fields: tuple[RegionFieldSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDetails:
    """Details of the index named ``__lance_mem_wal``.

    Parameters
    ----------
    snapshot_ts_millis : int, default 0
        When the region snapshots were taken, in milliseconds since the epoch; 0 when never.
    num_regions : int, default 0
        Regions in the snapshots. Lance sets it to the number of buckets when it sets a table up.
    inline_snapshots : bytes or None, default None
        A Lance file with one row per region.
    region_specs : tuple of StoredRegionSpec, default ()
        How rows map to regions.
    maintained_indexes : tuple of str, default ()
        Indexes of the base table that flushed generations carry too.
    merged : mapping of UUID to int, default {}
        Newest generation merged into the base table, by region.
    catchup : mapping of str to mapping of UUID to int, default {}
        Newest merged generation that an index covers, by index and region.
    writer_config_defaults : mapping of str to str, default {}
        Defaults for writers of this table.
    maintain_all_indexes : bool, default False
        Whether every index of the base table is maintained.
    raw : bytes, default b""
        The message this was read from, so that fields unknown here survive a rewrite.
    """

    snapshot_ts_millis: int = 0
    num_regions: int = 0
    inline_snapshots: bytes | None = None
    region_specs: tuple[StoredRegionSpec, ...] = ()
    maintained_indexes: tuple[str, ...] = ()
    merged: Mapping[UUID, int] = field(default_factory=dict)
    catchup: Mapping[str, Mapping[UUID, int]] = field(default_factory=dict)
    writer_config_defaults: Mapping[str, str] = field(default_factory=dict)
    maintain_all_indexes: bool = False
    raw: bytes = field(default=b"", repr=False, compare=False)

    def encode(self) -> bytes:
        """Return the bytes of the details.

        Raises
        ------
        InvalidInputError
            When a number does not fit its field.
        CorruptDataError
            When ``raw`` is not such a message.
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
        """Read the bytes of the details.

        Parameters
        ----------
        data : bytes
            The message, without the type that stands beside it.
        name : str, default "the MemWAL index details"
            What error messages call it.

        Raises
        ------
        CorruptDataError
            When the bytes are no such message.
        """
        message = parse_message(memwal_pb2.MemWalIndexDetails, data, name=name)
        if not 0 <= message.snapshot_ts_millis <= _LAST_MOMENT:
            raise CorruptDataError(
                f"{name} says that the region snapshot is of millisecond "
                f"{message.snapshot_ts_millis}, which is no date; keep the table's manifest and "
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
        if self.inline_snapshots is None:
            message.ClearField("inline_snapshots")
        else:
            message.inline_snapshots = self.inline_snapshots
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
        # Lance writes a false explicitly; one that an older client left out stays out.
        if self.maintain_all_indexes or not self.raw or message.HasField("maintain_all_indexes"):
            message.maintain_all_indexes = self.maintain_all_indexes


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
    if entry.transform is None:
        message.ClearField("transform")
    else:
        message.transform = entry.transform
    if entry.expression is None:
        message.ClearField("expression")
    else:
        message.expression = entry.expression
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
    found = {}
    for entry in entries:
        check_counters(entry, ("generation",), name=name)
        found[parse_uuid(entry.region_id.uuid, name=name)] = entry.generation
    return found
