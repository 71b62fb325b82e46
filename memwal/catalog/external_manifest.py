"""Put-if-absent for a store that has none, decided by a row of the catalog's database.

This is Lance's protocol of the external manifest store, for the objects that memwal creates: region
manifests, log entries, records of abandoned log entries, and the versions of the base table that
memwal commits itself. One creation takes five steps:

1. Store the object under a unique staging name.
2. Insert a row that maps the final name to the staging name. The final name is the row's key, so
   that only one insert succeeds: **this is the commit**.
3. Store the object under the final name.
4. Mark the row as final.
5. Delete the staging object.

If a process dies, it leaves behind:

* after step 1: a staging object that no row names. The final name is still free.
  :meth:`ExternalManifestStore.delete_stale_temporaries` collects the staging object, and inserts a
  row in its place, so that a process that was only paused cannot commit it afterwards.
* after step 2: a committed object that is not stored under its final name yet. A process that reads
  it through this class does steps 3 to 5 first. Doing them twice, or at the same time, is harmless:
  all of them write the same bytes.
* after step 3 or 4: an object that can be read, and a row or a staging object that the next reader,
  or the collection, finishes.

Limits:

* Every process that writes the table must go through this class and the same database. Lance's own
  writers trust the store's put-if-absent, and would overwrite.
* A reader that does not know of the database, such as Lance's own, sees the objects under final
  names. It can be one commit behind a process that died after step 2, and never sees anything that
  was not committed.
* **Of the commits to the base table, only the commits are protected whose version memwal creates**:
  the maintenance jobs, and changes of the MemWAL details. Commits that Lance makes alone are not:
  ``create`` and ``enable``, a new index, and every append, update or compaction without memwal.
  Such a commit overwrites a version that another process committed at the same moment, protected or
  not. Such a table must therefore be written by memwal only, and be set up by one process. A lease
  keeps two processes apart only as long as neither is paused past the end of its lease between its
  check and its commit.
* Lance does not see a version of the base table whose committer died after step 2 before the next
  commit, or a read of that version through this class, has finished it.
* A deleted name is free again, as in any store. A creator that is paused between steps 2 and 3 for
  so long that its object is collected during the pause stores it again when it wakes, even over an
  object that was created since. The grace period of the collection prevents that.
"""

from __future__ import annotations

import builtins
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from uuid import uuid4

from sqlalchemy import ColumnElement, Select, delete, select, update
from sqlalchemy.exc import IntegrityError

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
from memwal.format.paths import VERSIONS_DIR, parse_region_mark_key
from memwal.storage.object_store import (
    Data,
    LinkInfo,
    ObjectInfo,
    ObjectStore,
    check_key,
    check_prefix,
)

logger = logging.getLogger(__name__)

# Folder of a table for staged objects; no reader of Lance looks there.
STAGING = "_memwal_staging"

_COVERED = re.compile(
    r"_mem_wal/[^/]+/(manifest|wal|abandoned)/[^/]+|_versions/[0-9]+\.manifest|_probe-[0-9a-f]+"
)
_MAX_ROOT = 500
_MAX_KEY = 300
_KEYS_AT_ONCE = 400
_ATTEMPTS = 5
# How long a collected staging name stays refused. A process that was paused for longer is assumed
# dead.
_REFUSED_FOR = timedelta(days=30)


def external_store(inner: ObjectStore, variable: str) -> ObjectStore:
    """Wrap a store, with the database whose URL is in an environment variable.

    Raises ``InvalidInputError`` if the variable is not set.
    """
    url = os.environ.get(variable)
    if not url:
        raise InvalidInputError(
            f"the environment variable {variable}, which names the database that decides the "
            f"commits of {inner.uri}, is not set"
        )
    return ExternalManifestStore(inner, Database(url))


class ExternalManifestStore(ObjectStore):
    """Store whose :meth:`create` is decided by a database; see the module for its limits.

    ``create`` of the inner store is never called. The database is that of a migrated catalog, the
    same one for every process that writes the table; SQLite works for processes on one machine. A
    creation costs a lookup, two writes and a delete in the store and two transactions; a lookup of
    an absent object costs a query. The address of a table has at most 500 characters.
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
        """Store an object under a free name.

        Raises
        ------
        ObjectExistsError
            The name is taken.
        UnsupportedStoreError
            memwal creates no object of this name.
        StoreUnavailableError
            The store or the database did not answer; the object may be committed.
        """
        if parse_region_mark_key(key) is not None:
            # Of marks the name is the fact: an object that overwrites one is equal to it.
            self._inner.put(key, data)
            return
        if not _covers(check_key(key)):
            raise UnsupportedStoreError(
                f"{key} cannot be created in {self.uri}: only manifests and logs are kept apart "
                "by the catalog, and the store itself cannot do it"
            )
        # An object that is older than the use of the catalog has no row.
        if self._inner.exists(key):
            raise ObjectExistsError(f"{self.uri}/{key} exists already")
        content = bytes(data)
        staged = self._stage_and_commit(key, content)
        try:
            self._finish(key, staged, content)
        except StoreError as error:
            logger.warning("%s is committed, and not under its name yet: %s", key, error)

    def finish_commits(self, prefix: str = "") -> int:
        """Finish the commits below a folder (steps 3 to 5); return how many were unfinished.

        Call it before the table is copied or moved, or read without this class.
        """
        folder = check_prefix(prefix)
        query = self._below(folder).where(ExternalObjectRow.final.is_(False))
        with self._database.reading() as session:
            unfinished = [(row.key, row.staged) for row in session.scalars(query)]
        for key, staged in unfinished:
            self._finish_other(key, staged)
        return len(unfinished)

    def put(self, key: str, data: Data) -> None:
        self._inner.put(key, data)

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> None:
        self._inner.put_chunks(key, chunks)

    def replace(self, key: str, data: Data, *, expected: bytes) -> None:
        self._inner.replace(key, data, expected=expected)

    def get(self, key: str) -> bytes:
        return self._read_committed(key, lambda: self._inner.get(key))

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        return self._read_committed(
            key, lambda: self._inner.get_range(key, start=start, length=length)
        )

    def _read_committed(self, key: str, read: Callable[[], bytes]) -> bytes:
        """Read an object, after storing it under its final name if it is only committed."""
        try:
            return read()
        except ObjectNotFoundError:
            if not self._finish_commit(key):
                raise
            return read()

    def head(self, key: str) -> ObjectInfo | None:
        info = self._inner.head(key)
        if info is None and self._finish_commit(key):
            info = self._inner.head(key)
        return info

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object below a folder, including manifests that were committed since."""
        self.finish_commits(prefix)
        lists_staging = check_prefix(prefix).startswith(STAGING)
        for info in self._inner.list(prefix):
            if lists_staging or not info.key.startswith(f"{STAGING}/"):
                yield info

    def list_folders(self, prefix: str) -> builtins.list[str]:
        self.finish_commits(prefix)
        return [name for name in self._inner.list_folders(prefix) if prefix or name != STAGING]

    def expect_new_table(self) -> None:
        """Delete the rows that a table left which was deleted without this class."""
        self._inner.expect_new_table()
        # Without a version there is no table. Should it only be away, nothing is lost: an object
        # that exists refuses a second one without its row. Rows of unfinished commits stay, and
        # those that refuse a collected staging name.
        if not any(self._inner.list(VERSIONS_DIR)):
            is_name = ExternalObjectRow.key != ExternalObjectRow.staged
            self._delete_rows(ExternalObjectRow.final & is_name)

    def list_links(self, prefix: str) -> Iterator[LinkInfo]:
        return self._inner.list_links(prefix)

    def list_temporaries(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._inner.list_temporaries(prefix)

    def check_no_link(self, prefix: str) -> None:
        self._inner.check_no_link(prefix)

    def hold(self, folders: Iterable[str]) -> ObjectStore:
        return ExternalManifestStore(self._inner.hold(folders), self._database)

    def check_held(self) -> None:
        self._inner.check_held()

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects and their rows."""
        iterator = iter(keys)
        while chunk := builtins.list(islice(iterator, _KEYS_AT_ONCE)):
            covered = [key for key in chunk if _covers(check_key(key))]
            staged = self._delete_rows(ExternalObjectRow.key.in_(covered)) if covered else []
            # Rows are deleted before their objects: a process that dies in between leaves an object
            # that exists, and not a name that is taken without an object.
            self._inner.delete_many([*chunk, *staged])

    def delete_folder(self, prefix: str) -> None:
        """Delete everything below a folder, and its rows."""
        folder = check_prefix(prefix)
        staged = self._delete_rows(ExternalObjectRow.key.startswith(f"{folder}/", autoescape=True))
        self._inner.delete_folder(prefix)
        self._inner.delete_many(staged)

    def delete_stale_temporaries(self, prefix: str, *, older_than: timedelta) -> int:
        """Delete temporaries of dead processes, and staging objects if ``prefix`` is the root."""
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
        self._inner.sync(prefix)

    def keeps_versions(self, key: str) -> bool | None:
        return self._inner.keeps_versions(key)

    def barrier(self, *, up_to: str | None = None) -> None:
        self._inner.barrier(up_to=up_to)

    def _stage_and_commit(self, key: str, content: bytes) -> str:
        """Do steps 1 and 2; return the staging name."""
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
            # The staging object was collected while this process was paused, or the name was
            # deleted since then: try again.
        raise OutcomeUnknownError(
            f"{key} could not be committed in {_ATTEMPTS} attempts; it may or may not be there"
        )

    def _insert(self, key: str, staged: str, *, final: bool) -> bool:
        """Insert a row; return False if the final name is taken, or the staged object has a row."""
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
        """Do steps 3 to 5; another process may have done each of them."""
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
        """Store a committed object under its final name, from its staging object."""
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

    def _finish_commit(self, key: str) -> bool:
        """Store an object under its final name if it is committed; return whether it is."""
        if not _covers(key):
            return False
        with self._database.reading() as session:
            row = session.get(ExternalObjectRow, (self.uri, key))
            if row is None:
                return False
            staged, final = row.staged, row.final
        if not final:
            self._finish_other(key, staged)
        return True

    def _collect(self, staged: str) -> None:
        """Delete a staging object, after making sure that no process can commit it any more."""
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

    def _delete_rows(self, condition: ColumnElement[bool]) -> builtins.list[str]:
        """Delete rows, and return the staging names of the rows that were not final."""
        where = (ExternalObjectRow.root == self.uri, condition)
        query = select(ExternalObjectRow.staged, ExternalObjectRow.final).where(*where)
        with self._database.writing() as session:
            rows = session.execute(query.with_for_update()).all()
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
            # It takes space until the next collection, and has no other effect.
            logger.info("%s was not deleted: %s", staged, error)


def _covers(key: str) -> bool:
    return _COVERED.fullmatch(key) is not None
