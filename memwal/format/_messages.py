"""What the protobuf codecs have in common: parsing, region ids, rewriting of repeated entries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from google.protobuf.message import DecodeError, Message

from memwal.errors import CorruptDataError
from memwal.format.names import LARGEST

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
        A field is larger than :data:`~memwal.format.names.LARGEST`.
    """
    for field in fields:
        number = getattr(message, field)
        if number > LARGEST:
            raise CorruptDataError(
                f"{name} says that {field} is {number}, which nothing counts up to; keep the "
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
