"""Every error that memwal raises, split by what the caller would do about it.

| caller should          | type                                                        |
|------------------------|-------------------------------------------------------------|
| fix the input          | :class:`InvalidInputError`                                  |
| set the table up       | :class:`TableSetupError`                                    |
| install what it names  | :class:`MissingExtraError`                                  |
| choose another store   | :class:`UnsupportedStoreError`                              |
| fix credentials        | :class:`StoreAccessError`                                   |
| free space             | :class:`StoreFullError`                                     |
| retry                  | :class:`ConflictError`, :class:`StoreUnavailableError`,     |
|                        | :class:`BackPressureError`                                  |
| look before retrying   | :class:`OutcomeUnknownError`                                |
| write the rest again   | :class:`PartialWriteError`                                  |
| claim the region again | :class:`RegionFencedError`                                  |
| leave the region alone | :class:`RegionSealedError`                                  |
| open a new writer      | :class:`WriterClosedError`                                  |
| call a human           | :class:`CorruptDataError`                                   |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    import pyarrow as pa


class MemWalError(Exception):
    """Base of every error raised by memwal."""


class InvalidInputError(MemWalError, ValueError):
    """The argument or the data is wrong; nothing was written. Fix it and call again."""


class TableSetupError(MemWalError):
    """The table cannot be used this way: absent, without a primary key, or without MemWAL."""


class MissingExtraError(MemWalError, ImportError):
    """A part of memwal was asked for that is not installed; the message names the extra."""


class UnsupportedStoreError(MemWalError):
    """The object store lacks something the protocol cannot do without (put-if-absent)."""


class StoreError(MemWalError):
    """The object store refused or failed."""


class StoreAccessError(StoreError):
    """Credentials are missing, wrong or expired, or do not allow the operation."""


class StoreFullError(StoreError):
    """No space, or a quota was reached. Nothing that was acknowledged is affected."""


class StoreUnavailableError(StoreError):
    """The store did not answer properly. A read may be retried; a write may have happened."""


class ObjectExistsError(StoreError):
    """A put-if-absent found the name taken. This alone does not prove that somebody else took it:
    after an ambiguous answer it can be the caller's own object, so read it back."""


class ObjectNotFoundError(StoreError):
    """No object has this name."""


class ConflictError(MemWalError):
    """Somebody else changed the same thing first; nothing of ours was written. Safe to retry."""


class OutcomeUnknownError(MemWalError):
    """It is not known whether the change happened. Read the state before trying again."""


@dataclass(frozen=True, slots=True)
class RegionFailure:
    """What was not written of one region.

    Attributes
    ----------
    region_id : UUID
    error : MemWalError
        Why, and what to do.
    rows : pyarrow.Array of int64
        Which of the given rows: their positions.
    """

    region_id: UUID
    error: MemWalError
    rows: pa.Array


class PartialWriteError(MemWalError):
    """Some regions took their rows of a write, durably, and others did not.

    Attributes
    ----------
    failures : tuple of RegionFailure
        One per region that did not; all other rows are written.
    """

    def __init__(self, message: str, failures: Sequence[RegionFailure] = ()) -> None:
        super().__init__(message)
        self.failures = tuple(failures)


class RegionFencedError(MemWalError):
    """Another writer claimed the region. Writes that were not acknowledged may or may not be in
    its log; claim the region again to go on."""


class RegionSealedError(MemWalError):
    """The region takes no more writes."""


class BackPressureError(MemWalError):
    """Flushing cannot keep up and the deadline passed; the write was not accepted."""


class WriterClosedError(MemWalError):
    """The writer was closed, or stopped after a failure; open a new one."""


class CorruptDataError(MemWalError):
    """Bytes in the table do not mean what they must. Nothing was changed; keep them and look."""
