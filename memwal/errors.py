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
|                        | :class:`BackPressureError`, :class:`LeaseLostError`         |
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
    """Base of every error raised by memwal.

    What to do: catch the types below that you can act on; let the rest end the call.
    """


class InvalidInputError(MemWalError, ValueError):
    """The argument or the data is wrong; nothing was written.

    What to do: correct what the message names, and call again.
    """


class TableSetupError(MemWalError):
    """The table cannot be used this way: absent, without a primary key, or without MemWAL.

    What to do: look at the address; ``memwal.create`` makes a table, and ``memwal.enable`` turns
    MemWAL on for one that exists.
    """


class MissingExtraError(MemWalError, ImportError):
    """A part of memwal was asked for that is not installed; the message names the extra.

    What to do: install it, as in ``pip install 'memwal[catalog]'``.
    """


class UnsupportedStoreError(MemWalError):
    """The object store lacks something the protocol cannot do without (put-if-absent).

    What to do: use another store, or let a database decide about names
    (``memwal_commits_in``).
    """


class StoreError(MemWalError):
    """The object store refused or failed.

    What to do: see the types below; every error of a store is one of them.
    """


class StoreAccessError(StoreError):
    """Credentials are missing, wrong or expired, or do not allow the operation.

    What to do: renew them or extend their rights, and open the table again.
    """


class StoreFullError(StoreError):
    """No space, or a quota was reached. Nothing that was acknowledged is affected.

    What to do: make room, by merging and collecting rather than by deleting files, and write again.
    """


class StoreUnavailableError(StoreError):
    """The store did not answer properly. A read may be retried; a write may have happened.

    What to do: call again after a pause. Writing the same rows again is always right.
    """


class ObjectExistsError(StoreError):
    """A put-if-absent found the name taken. This alone does not prove that somebody else took it:
    after an ambiguous answer it can be the caller's own object.

    What to do: read the object back, and compare.
    """


class ObjectNotFoundError(StoreError):
    """No object has this name.

    What to do: look at the name. If it was there before, a collection took it: open the table
    again and read anew.
    """


class ConflictError(MemWalError):
    """Somebody else changed the same thing first; nothing of ours was written.

    What to do: call again, after a pause. It is safe any number of times.
    """


class LeaseLostError(ConflictError):
    """The lease under which a job runs is over; the job stopped before its next commit.

    What to do: run the job again. What was committed stays.
    """


class OutcomeUnknownError(MemWalError):
    """It is not known whether the change happened.

    What to do: read the state that it would have changed, and call again if it is the old one.
    """


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

    What to do: for each of ``failures``, act on its error, and write the rows that it names again.

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
    its log.

    What to do: make sure that no second producer is meant to write this region, open a new writer,
    which claims it again, and write the same rows again.
    """


class RegionSealedError(MemWalError):
    """The region takes no more writes.

    What to do: leave the region alone. A table that was divided anew is opened again, and its
    writer knows the new regions.
    """


class BackPressureError(MemWalError):
    """Flushing cannot keep up and the deadline passed; the write was not accepted.

    What to do: write the same rows again after a pause. When it happens often: larger MemTables,
    more regions, a faster store.
    """


class WriterClosedError(MemWalError):
    """The writer was closed, or stopped after a failure.

    What to do: open a new writer. After a failure, what was not acknowledged is written again.
    """


class CorruptDataError(MemWalError):
    """Bytes in the table do not mean what they must. Nothing was changed.

    What to do: keep every object, stop the writers of the region, run ``memwal verify``, and do as
    its findings say.
    """
