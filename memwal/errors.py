"""Errors of memwal, by the reaction of the caller.

The last paragraph of each docstring, *What to do*, tells it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from uuid import UUID

if TYPE_CHECKING:
    import pyarrow as pa


class MemWalError(Exception):
    """Base class of all errors of memwal.

    What to do: catch the types below that you can act on; let the others end the call.
    """


class InvalidInputError(MemWalError, ValueError):
    """An argument or the data is invalid; nothing was written.

    What to do: correct what the message names, and call again.
    """


class ArgumentTypeError(InvalidInputError, TypeError):
    """An argument has a wrong type, is missing, or is not one of this call; nothing was done.

    What to do: pass what the message says, and call again.
    """


class SourceRestartedError(InvalidInputError):
    """A source counts its steps anew, or two of one name write; this call wrote nothing.

    What to do: decide which numbering counts: ``on_restart`` of a stream's sink, or ``replaces`` of
    ``writer.apply``. If two sources have one name, give them two.
    """


class TokenExpiredError(MemWalError):
    """A feed cannot go on from its token: changes after it were cleaned up, or the table was
    replaced.

    What to do: begin again with the whole table, ``changes(after=None)``, and keep versions of the
    base table for longer (``version_retention``) than a consumer may pause.
    """


class ConsumerExpiredError(TokenExpiredError):
    """A consumer was behind for longer than the policy keeps changes for it.

    What to do: begin again: ``consumer.reset()`` reads the whole table; remove the rows that it
    does not return. Raise ``gc_consumer_seconds`` or ``gc_consumer_bytes`` if it may be behind for
    longer.
    """


class ConsumerFencedError(MemWalError):
    """Another process claimed the consumer, or dropped it. This call changed nothing.

    What to do: let one process at a time read for a consumer. The one that is to go on opens it
    again.
    """


class TableSetupError(MemWalError):
    """The table is not ready for this call: absent, without a primary key, or without MemWAL.

    What to do: check the address. ``memwal.create`` makes a table, and ``memwal.enable`` enables
    MemWAL on an existing one.
    """


class MissingExtraError(MemWalError, ImportError):
    """An optional part of memwal is not installed; the message names the extra.

    What to do: run the command at the end of the message.
    """


class NewerFormatError(MemWalError):
    """The table uses a feature that this release of memwal, or of Lance, does not know.

    Nothing was changed or deleted. Raised for unknown feature flags, fields of manifests, formats
    of files and columns, before any of their rows could be misread or lost.

    What to do: upgrade memwal and pylance to releases that know the feature that the message names.
    """


class UnsupportedStoreError(MemWalError):
    """The store lacks an operation that the protocol requires (put-if-absent, locks on folders).

    What to do: use another store, or let a database decide the commits (``memwal_commits_in``); on
    Windows, use local tables in WSL.
    """


class StoreError(MemWalError):
    """The object store refused a request or failed.

    What to do: see the types below; every error of a store has one of them.
    """


class StoreAccessError(StoreError):
    """Credentials are missing, wrong or expired, or do not allow the operation.

    What to do: renew them or extend their rights, and open the table again.
    """


class StoreFullError(StoreError):
    """The store has no space left, or a quota is reached. Acknowledged data are not affected.

    What to do: free space, by merging and collecting garbage rather than by deleting files, and
    write again.
    """


class ResourceLimitError(StoreError):
    """The process has no more open files, memory or threads. This call wrote nothing.

    What to do: raise the limit (``ulimit -n``, ``ulimit -u``, the container's memory), or do less
    at once. Calls work again when there is room.
    """


class StoreUnavailableError(StoreError):
    """The store did not answer correctly. A write may have happened.

    What to do: call again after a pause. Reading again, and writing the same rows again, is always
    safe.
    """


class SparkUnavailableError(MemWalError):
    """The Spark Connect server does not answer, or opens no session. The call ran nothing.

    What to do: start the server, or correct its address or its token, and call again.
    """


class LinkRefusedError(StoreError):
    """A symbolic link lies on the way to an object to delete; nothing behind it was deleted.

    What to do: mount the other disk in place of the link (``mount --bind``), or delete by hand the
    files that the table does not need any more.
    """


class ObjectExistsError(StoreError):
    """A put-if-absent found that the key exists.

    This does not prove that another process created it: after an ambiguous answer, it can be the
    caller's own object.

    What to do: read the object back, and compare.
    """


class ObjectNotFoundError(StoreError):
    """No object has this key.

    What to do: check the key. If the object existed before, the garbage collector deleted it: open
    the table again, and read again.
    """


class NotRegisteredError(ObjectNotFoundError):
    """The catalog has no table, or no folder, of this name.

    What to do: ``memwal catalog list`` shows the names; register the table.
    """


class ConflictError(MemWalError):
    """Another process made a conflicting change first; this call wrote nothing.

    What to do: call again after a pause. This is safe any number of times.
    """


class LeaseLostError(ConflictError):
    """The lease under which a job runs is over; the job stopped before its next commit.

    What to do: run the job again. Earlier commits stay.
    """


class OutcomeUnknownError(MemWalError):
    """It is not known whether the change happened.

    What to do: read the state that the call would have changed, and call again if it is unchanged.
    """


@dataclass(frozen=True, slots=True)
class RegionFailure:
    """Rows of a write that one region did not take."""

    region_id: UUID
    """The region."""
    error: MemWalError
    """The reason, and what to do."""
    rows: pa.Array
    """Positions of the rows in the data of the call."""


class PartialWriteError(MemWalError):
    """Some regions stored their rows of a write durably, and others did not.

    What to do: for each of ``failures``, act on its error, and write its rows again.

    Attributes
    ----------
    failures : tuple of RegionFailure
        One per region that failed; all other rows are written.
    """

    def __init__(self, message: str, failures: Sequence[RegionFailure] = ()) -> None:
        super().__init__(message)
        self.failures = tuple(failures)


class RegionFencedError(MemWalError):
    """Another writer claimed the region.

    Writes that were not acknowledged may or may not be in its log.

    What to do: make sure that no second producer writes to this region, open a new writer, which
    claims the region again, and write the same rows again. If several producers share the region,
    open their writers with ``reopen=True``.

    Attributes
    ----------
    not_logged : bool
        True if the rows of the write are certainly not in the log.
    """

    def __init__(self, message: str, *, not_logged: bool = False) -> None:
        super().__init__(message)
        self.not_logged = not_logged


class TableReplacedError(RegionFencedError):
    """The table was moved, deleted, or replaced by another one (a backup) under an open writer.

    Writes that were not acknowledged may or may not be in the log of the table that was there.

    What to do: check which table is at the address now. If it is the right table, open it again
    with a new writer, and write again the rows that were written since that state.
    """


class RegionSealedError(MemWalError):
    """The region is sealed: it accepts no more writes.

    What to do: do not write to this region. If the table has a new region spec, open the table
    again: its new writer uses the new regions.
    """


class BackPressureError(MemWalError):
    """Flushes did not keep up before the deadline; the write was not accepted.

    What to do: write the same rows again after a pause. If it happens often, use larger MemTables,
    more regions or a faster store.
    """


class ReadTimeoutError(MemWalError):
    """A read had to see a write that is not in the table's logs in time.

    What to do: look whether the write went to this table; wait longer.
    """


class WriterClosedError(MemWalError):
    """The writer was closed, or stopped after a failure.

    What to do: open a new writer. After a failure, write the rows again that were not acknowledged.
    """


class CorruptDataError(MemWalError):
    """Stored data are invalid. Nothing was changed.

    What to do: keep every object, stop the writers of the region, run ``memwal verify``, and follow
    its findings.
    """


class ProgressLostError(MemWalError):
    """The base table went back behind generations that were merged into it; nothing was changed.

    Its MemWAL index was taken away and made anew, an older version was restored, or an older base
    table was put in its place. Reads leave these generations out, and writers go on.

    What to do: decide with ``memwal recover TABLE --after-restore`` whether the rows of the base
    table stay as they are, or the generations are merged again.
    """

    @classmethod
    def of(cls, lost: Mapping[UUID, int] | Mapping[str, int]) -> Self:
        """Make the error; ``lost`` has the newest generation that was merged, by region.

        Empty if MemWAL was enabled anew before anything was merged.
        """
        if not lost:
            return cls(
                "MemWAL was taken away from the table and enabled again, and rows were written to "
                "the base table in between: generations that were flushed before are older. "
                "Nothing is merged until you decide whether they count: memwal recover TABLE "
                "--after-restore"
            )
        region_id, merged = next(iter(lost.items()))
        return cls(
            f"the base table went back behind generations that were merged into it (regions: "
            f"{len(lost)}, of which {region_id} up to generation {merged}): an older version was "
            "restored, MemWAL was taken away and enabled again, or an older base table was put in "
            "place. Nothing is merged or collected until you decide what counts: memwal recover "
            "TABLE --after-restore"
        )


class RegionLostError(CorruptDataError):
    """A region that the table must have is not found. Nothing was changed.

    What to do: mount the disk that it is on, or put its folder back. If it is lost for good, give
    its unmerged rows up with ``memwal recover TABLE --region-lost REGION``.
    """


class InternalError(MemWalError):
    """A bug, or an error of a library that memwal does not foresee; its cause is attached.

    What to do: look whether the call changed anything before you repeat it, and report it with the
    traceback.
    """
