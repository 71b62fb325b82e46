"""Put-if-absent for a store that has none, decided by a row of the catalog's database.

This is Lance's protocol of the external manifest store, for what memwal itself creates: the
manifests of regions, the entries of their logs, the records of abandoned ones, and those versions
of the base table that memwal puts under their name itself. One creation goes through five steps:

1. The object is stored under a staging name of its own.
2. A row is inserted that gives the staging name to the final one. The final name is the row's key,
   so that only one insert succeeds: **this is the commit**.
3. The object is stored under the final name.
4. The row is marked as final.
5. The staging object is deleted.

What a process that dies leaves behind:

* after step 1: a staging object that nothing names. The name is still free.
  :meth:`ExternalManifestStore.delete_stale_temporaries` collects it, and leaves a row in its place
  which keeps a process that only slept from committing it afterwards.
* after step 2: a committed object that does not stand under its name yet. Whoever looks for it
  through this class does steps 3 to 5 first. Doing them twice, or at the same time, is harmless:
  all of them write the same bytes.
* after step 3 or 4: an object that can be read, and a row or a staging object that the next one
  who looks, or the collection, puts in order.

What this covers, and what not:

* Every process that writes the table must go through this class and the same database. A writer of
  Lance's own takes the store at its word, and would overwrite.
* A reader that does not know of the database, Lance's own among them, sees what stands under final
  names. It can be one commit behind of a process that died after step 2, and never sees anything
  that was not committed.
* **Of the commits to the base table, only those are covered that memwal creates the version of**:
  those of the maintenance jobs, and changes of the MemWAL details. Those that Lance makes alone are
  not: ``create`` and ``enable``, a new index, and every append, update or compaction by somebody
  else. One of those overwrites a version that another process committed at the same moment, covered
  or not. Such a table must therefore not be written past memwal, and be set up by one process. A
  lease keeps two apart only as long as neither is paused past its end between its look and its
  commit.
* A version of the base table whose committer died after step 2 is not seen by Lance before the
  next commit, or a look for it through this class, has finished it.
* A name that was deleted is free again, as in any store. A creator that is paused between steps 2
  and 3 for so long that its object is collected meanwhile stores it again when it wakes, even over
  one that was created since. The grace of the collection is what keeps that off.
"""

from __future__ import annotations

import builtins
import logging
import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from uuid import uuid4

from sqlalchemy import ColumnElement, Select, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from memwal.catalog.database import Database, database_time
from memwal.catalog.models import ExternalObjectRow
from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    ObjectExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreError,
    UnsupportedStoreError,
)
from memwal.storage.object_store import Data, ObjectInfo, ObjectStore, check_key, check_prefix

logger = logging.getLogger(__name__)

STAGING = "_memwal_staging"
"""Folder of a table that objects wait in; no reader of Lance looks there."""

_COVERED = re.compile(
    r"_mem_wal/[^/]+/(manifest|wal|abandoned)/[^/]+|_versions/[0-9]+\.manifest|_probe-[0-9a-f]+"
)
_MAX_ROOT = 500
_MAX_KEY = 300
_KEYS_AT_ONCE = 400
_ATTEMPTS = 5
# How long a collected staging name stays refused: a process that slept for longer is no more.
_REFUSED_FOR = timedelta(days=30)


def external_store(inner: ObjectStore, variable: str) -> ObjectStore:
    """The store whose commits are decided by the database that an environment variable names.

    Raises
    ------
    InvalidInputError
        The variable is not set.
    """
    url = os.environ.get(variable)
    if not url:
        raise InvalidInputError(
            f"the environment variable {variable}, which names the database that decides the "
            f"commits of {inner.uri}, is not set"
        )
    return ExternalManifestStore(inner, Database(url))


class ExternalManifestStore(ObjectStore):
    """A store whose :meth:`create` is decided by a database; see the module for what that covers.

    Parameters
    ----------
    inner : ObjectStore
        The store of the table. Its ``create`` is never called.
    database : Database
        A migrated catalog's database, the same one for every process that writes the table; on
        SQLite all of them are on one machine. A creation costs a look, two writes and a delete in
        the store and two transactions; a look for what is not there costs a query.

    Raises
    ------
    InvalidInputError
        The address of the table is longer than 500 characters.
    """

    def __init__(self, inner: ObjectStore, database: Database) -> None:
        if len(inner.uri) > _MAX_ROOT:
            raise InvalidInputError("The address of the table has more than 500 characters.")
        self.uri = inner.uri
        self.is_local = inner.is_local
        self._inner = inner
        self._database = database

    @property
    def lance_commits(self) -> bool:
        return False

    def create(self, key: str, data: Data) -> None:
        """Store an object under a name that is free.

        Raises
        ------
        ObjectExistsError
            The name is taken.
        UnsupportedStoreError
            The name is none of those that memwal creates.
        StoreUnavailableError
            The store or the database did not answer; the object may be committed.
        """
        if not _covers(check_key(key)):
            raise UnsupportedStoreError(
                f"{key} cannot be created in {self.uri}: only manifests and logs are kept apart "
                "by the catalog, and the store itself cannot do it"
            )
        # What is older than the use of the catalog, or its row, has no row.
        if self._inner.exists(key):
            raise ObjectExistsError(f"{self.uri}/{key} exists already")
        content = bytes(data)
        staged = self._stage_and_commit(key, content)
        try:
            self._finish(key, staged, content)
        except StoreError as error:
            logger.warning("%s is committed, and not under its name yet: %s", key, error)

    def finish_commits(self, prefix: str = "") -> int:
        """Give every committed object below a folder its name, and return how many had none.

        To be done before the table is copied or moved, or read by others as the truth.
        """
        folder = check_prefix(prefix)
        query = self._below(folder).where(ExternalObjectRow.final.is_(False))
        with self._database.reading() as session:
            found = [(row.key, row.staged) for row in session.scalars(query)]
        for key, staged in found:
            self._finish_other(key, staged)
        return len(found)

    def put(self, key: str, data: Data) -> None:
        """Store an object, over the one that has the name."""
        self._inner.put(key, data)

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> None:
        """Store an object of chunks, over the one that has the name."""
        self._inner.put_chunks(key, chunks)

    def replace(self, key: str, data: Data, *, expected: bytes) -> None:
        """Replace an object as the store does, which may be not at all."""
        self._inner.replace(key, data, expected=expected)

    def get(self, key: str) -> bytes:
        """Read an object, which gets its name before if it is only committed."""
        try:
            return self._inner.get(key)
        except ObjectNotFoundError:
            if not self._settle(key):
                raise
            return self._inner.get(key)

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        """Read a part of an object, which gets its name before if it is only committed."""
        try:
            return self._inner.get_range(key, start=start, length=length)
        except ObjectNotFoundError:
            if not self._settle(key):
                raise
            return self._inner.get_range(key, start=start, length=length)

    def head(self, key: str) -> ObjectInfo | None:
        """Tell size and time of an object, which gets its name before if it is only committed."""
        found = self._inner.head(key)
        if found is None and self._settle(key):
            found = self._inner.head(key)
        return found

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object below a folder, all that were committed by now among them."""
        self.finish_commits(prefix)
        shown = check_prefix(prefix)
        for info in self._inner.list(prefix):
            if not info.key.startswith(f"{STAGING}/") or shown.startswith(STAGING):
                yield info

    def list_folders(self, prefix: str) -> builtins.list[str]:
        """Return the names of the immediate sub-folders."""
        self.finish_commits(prefix)
        return [name for name in self._inner.list_folders(prefix) if prefix or name != STAGING]

    def delete(self, key: str) -> None:
        """Delete an object and its row."""
        self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete many objects and their rows."""
        given = iter(keys)
        while chunk := builtins.list(islice(given, _KEYS_AT_ONCE)):
            covered = [key for key in chunk if _covers(check_key(key))]
            staged = self._forget(ExternalObjectRow.key.in_(covered)) if covered else []
            # A row goes before its object: what is left by a death in between is an object that
            # exists, and not a name that is taken by nothing.
            self._inner.delete_many([*chunk, *staged])

    def delete_folder(self, prefix: str) -> None:
        """Delete everything below a folder, and the rows of it."""
        folder = check_prefix(prefix)
        staged = self._forget(ExternalObjectRow.key.startswith(f"{folder}/", autoescape=True))
        self._inner.delete_folder(prefix)
        self._inner.delete_many(staged)

    def delete_stale_temporaries(self, prefix: str, *, older_than: timedelta) -> int:
        """Delete what processes that died left; staging objects where ``prefix`` is the root."""
        deleted = self._inner.delete_stale_temporaries(prefix, older_than=older_than)
        if check_prefix(prefix) not in ("", STAGING):
            return deleted
        cutoff = datetime.now(UTC) - older_than
        for info in builtins.list(self._inner.list(STAGING)):
            if info.modified <= cutoff:
                self._collect(info.key)
                deleted += 1
        with self._database.writing() as session:
            session.execute(
                delete(ExternalObjectRow).where(
                    ExternalObjectRow.root == self.uri,
                    ExternalObjectRow.key == ExternalObjectRow.staged,
                    ExternalObjectRow.created_at < database_time(session) - _REFUSED_FOR,
                )
            )
        return deleted

    def sync(self, prefix: str) -> None:
        """Make everything below a folder durable."""
        self._inner.sync(prefix)

    def keeps_versions(self, key: str) -> bool | None:
        """Tell whether the store keeps what is overwritten and deleted."""
        return self._inner.keeps_versions(key)

    def barrier(self, *, up_to: str | None = None) -> None:
        """Make everything durable that was written to the file system."""
        self._inner.barrier(up_to=up_to)

    def _stage_and_commit(self, key: str, content: bytes) -> str:
        """Steps 1 and 2; the staging name."""
        for _ in range(_ATTEMPTS):
            staged = f"{STAGING}/{uuid4().hex}"
            self._inner.put(staged, content)
            if self._insert(key, staged, final=False):
                return staged
            with self._database.reading() as session:
                taken = session.get(ExternalObjectRow, (self.uri, key)) is not None
            if taken:
                self._discard(staged)
                raise ObjectExistsError(f"{self.uri}/{key} exists already")
            # It was collected while we slept, or the name was freed again: once more.
        raise OutcomeUnknownError(
            f"{key} could not be committed in {_ATTEMPTS} attempts; it may or may not be there"
        )

    def _insert(self, key: str, staged: str, *, final: bool) -> bool:
        """Insert a row; False when the name is taken, or the staged object."""
        if len(key) > _MAX_KEY:
            raise InvalidInputError(f"The name {key!r} has more than {_MAX_KEY} characters.")
        try:
            with self._database.writing() as session:
                session.add(
                    ExternalObjectRow(
                        root=self.uri,
                        key=key,
                        staged=staged,
                        final=final,
                        created_at=database_time(session),
                    )
                )
        except IntegrityError:
            return False
        return True

    def _finish(self, key: str, staged: str, content: bytes) -> None:
        """Steps 3 to 5, of which each can have been done by somebody else."""
        self._inner.put(key, content)
        with self._database.writing() as session:
            session.execute(
                update(ExternalObjectRow)
                .where(ExternalObjectRow.root == self.uri, ExternalObjectRow.key == key)
                .where(ExternalObjectRow.staged == staged)
                .values(final=True)
            )
        self._discard(staged)

    def _finish_other(self, key: str, staged: str) -> None:
        """Give a committed object its name, from what was staged."""
        try:
            content = self._inner.get(staged)
        except ObjectNotFoundError as error:
            with self._database.reading() as session:
                row = session.get(ExternalObjectRow, (self.uri, key))
                unfinished = row is not None and row.staged == staged and not row.final
            if unfinished and not self._inner.exists(key):
                raise CorruptDataError(
                    f"{key} is committed, but its staged object {staged} is gone; nothing was "
                    "changed, restore it from a backup"
                ) from error
            return
        self._finish(key, staged, content)

    def _settle(self, key: str) -> bool:
        """Finish what stands in the way of reading an object; whether to look again."""
        if not _covers(key):
            return False
        with self._database.reading() as session:
            row = session.get(ExternalObjectRow, (self.uri, key))
            found = None if row is None else (row.staged, row.final)
        if found is None:
            return False
        staged, final = found
        if not final:
            self._finish_other(key, staged)
        return True

    def _collect(self, staged: str) -> None:
        """Delete a staging object, once nobody can commit it any more."""
        if not self._insert(staged, staged, final=True):
            query = select(ExternalObjectRow).where(
                ExternalObjectRow.root == self.uri, ExternalObjectRow.staged == staged
            )
            with self._database.reading() as session:
                row = session.scalar(query)
                pending = None if row is None or row.final else row.key
            if pending is not None:
                self._finish_other(pending, staged)
                return
        self._inner.delete(staged)

    def _forget(self, condition: ColumnElement[bool]) -> builtins.list[str]:
        """Delete rows, and return what was staged for those that were not final."""
        where = (ExternalObjectRow.root == self.uri, condition)
        with self._database.writing() as session:
            rows = _locked_rows(session, where)
            session.execute(delete(ExternalObjectRow).where(*where))
        return [staged for staged, final in rows if not final]

    def _below(self, folder: str) -> Select[ExternalObjectRow]:
        query = select(ExternalObjectRow).where(ExternalObjectRow.root == self.uri)
        if folder:
            query = query.where(ExternalObjectRow.key.startswith(f"{folder}/", autoescape=True))
        return query.order_by(ExternalObjectRow.key)

    def _discard(self, staged: str) -> None:
        try:
            self._inner.delete(staged)
        except StoreError as error:
            # It takes space until the next collection, and means nothing.
            logger.info("%s was not deleted: %s", staged, error)


def _covers(key: str) -> bool:
    return _COVERED.fullmatch(key) is not None


def _locked_rows(
    session: Session, where: tuple[ColumnElement[bool], ...]
) -> builtins.list[tuple[str, bool]]:
    query = select(ExternalObjectRow.staged, ExternalObjectRow.final).where(*where)
    return [(staged, final) for staged, final in session.execute(query.with_for_update())]
