"""Transactions on their way into the table: what is left of them per key, written as one step.

A step is told by the position of its last commit, and each region takes it once: what PostgreSQL
sends again after a crash neither undoes nor repeats anything (``TableWriter.apply``). Where the
batches end may be another place then; a region that has the first part of a batch gets all of it
once more, which ends in the same rows.

A row whose key changed, and that has values which were not sent, is the exception: they stand in
the row of the old key, which may be in another region. Such a transaction is a batch of its own, of
two steps: first all rows, then the deletes. As long as some region lacks its rows, the old row is
there to be read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pgoutput import UNCHANGED, Change, Commit, Row, Truncate, Unchanged
from target import Target

from memwal.table import Writer

Key = tuple[str, ...]

MAX_SECONDS = 0.5
"""How long a transaction waits for others that go with it."""


@dataclass(slots=True)
class _Pending:
    """What becomes of the keys: a row, or None for a delete.

    Attributes
    ----------
    moved : dict
        For a row that lacks values: the key under which they stand.
    emptied : bool
        Whether all that was there before is deleted.
    """

    rows: dict[Key, Row | None] = field(default_factory=dict)
    moved: dict[Key, Key] = field(default_factory=dict)
    emptied: bool = False


class Pending:
    """Collects transactions and writes them.

    Parameters
    ----------
    writer : memwal.table.Writer
        Has every region.
    source : str
        Name under which regions remember how far they are.

    Attributes
    ----------
    in_transaction : bool
        Whether a transaction was begun and is not through.
    """

    def __init__(self, target: Target, writer: Writer, source: str) -> None:
        self._target = target
        self._writer = writer
        self._source = source
        # What is sent again is known by these; for what is new, the writer keeps the account.
        self._had = target.table.applied(source)
        self._committed = _Pending()
        self._open: list[Change | Truncate] = []
        self._since = 0.0
        self.in_transaction = False
        self._commit = Commit(0, 0)
        self._written = 0

    def begin(self) -> None:
        """A transaction is about to be sent."""
        self.in_transaction = True

    def add(self, change: Change | Truncate) -> None:
        """A change of the transaction that is being sent."""
        if isinstance(change, Change) and change.new is not None:
            # Columns that are gone, or were not there yet when this happened.
            absent = None if change.is_insert else UNCHANGED
            names = self._target.schema.names
            change = replace(change, new={name: change.new.get(name, absent) for name in names})
        self._open.append(change)

    def commit(self, commit: Commit, *, at_most: int) -> int:
        """The transaction is through. Written once there are enough rows, or they waited enough.

        Returns
        -------
        int
            Up to where everything is safe.
        """
        changes, self._open, self.in_transaction = self._open, [], False
        if any(self._moves_unsent(change) for change in changes):
            self.write()
            self._collect(changes, commit)
            return self._write_in_two_steps()
        self._collect(changes, commit)
        waited = time.monotonic() - self._since
        enough = len(self._committed.rows) >= at_most or waited > MAX_SECONDS
        return self.write() if enough else self._written

    def write(self) -> int:
        """Write what is committed.

        Returns
        -------
        int
            Up to where everything is safe.
        """
        if self._commit.end > self._written:
            upserts, deletes = self._taken()
            self._apply(upserts, deletes, 2 * self._commit.lsn + 1)
        return self._written

    def _write_in_two_steps(self) -> int:
        upserts, deletes = self._taken()
        self._apply(upserts, None, 2 * self._commit.lsn)
        self._apply(None, deletes, 2 * self._commit.lsn + 1)
        return self._written

    def _apply(self, upserts: pa.Table | None, deletes: pa.Table | None, version: int) -> None:
        self._writer.apply(upserts=upserts, deletes=deletes, source=self._source, version=version)
        self._written = self._commit.end if version % 2 else self._written

    def _moves_unsent(self, change: Change | Truncate) -> bool:
        if isinstance(change, Truncate) or change.new is None or change.old is None:
            return False
        missing = [name for name, value in change.new.items() if value is UNCHANGED]
        return self._key(change.old) != self._key(change.new) and any(
            change.old.get(name, UNCHANGED) is UNCHANGED for name in missing
        )

    def _collect(self, changes: list[Change | Truncate], commit: Commit) -> None:
        if self._commit.end == self._written:
            self._since = time.monotonic()
        self._commit = commit
        pending = self._committed
        for change in changes:
            if isinstance(change, Truncate):
                pending = self._committed = _Pending(emptied=True)
            elif change.new is None:
                self._forget(pending, self._key(change.old or {}))
            else:
                self._put(pending, change.old, dict(change.new))

    def _put(self, pending: _Pending, old: Row | None, new: Row) -> None:
        key = self._key(new)
        before = key if old is None else self._key(old)
        known = pending.rows.get(before) or {}
        for name, value in new.items():
            if value is UNCHANGED:
                sent = (old or {}).get(name, UNCHANGED)
                new[name] = known.get(name, UNCHANGED) if sent is UNCHANGED else sent
        origin = pending.moved.get(before, before)
        if before != key:
            self._forget(pending, before)
        pending.rows[key] = new
        if UNCHANGED in new.values():
            pending.moved[key] = origin
        else:
            pending.moved.pop(key, None)

    @staticmethod
    def _forget(pending: _Pending, key: Key) -> None:
        pending.rows[key] = None
        pending.moved.pop(key, None)

    def _taken(self) -> tuple[pa.Table, pa.Table]:
        """Everything that is committed, as whole rows and as keys."""
        pending, self._committed = self._committed, _Pending()
        self._complete(pending)
        rows = [_sent(row) for row in pending.rows.values() if row is not None]
        deletes = self._target.keys(key for key, row in pending.rows.items() if row is None)
        upserts = self._target.rows(rows)
        if pending.emptied:
            there = self._writer.scan(columns=list(self._target.key)).to_table()
            kept = upserts.select(self._target.key)
            deletes = there.join(kept, list(self._target.key), join_type="left anti")
        return upserts, deletes

    def _complete(self, pending: _Pending) -> None:
        """Read the values that were not sent: they are those that the rows have now."""
        if not pending.moved:
            return
        origins = sorted(set(pending.moved.values()))
        found = self._writer.lookup(self._target.keys(origins))
        texts = self._target.texts(found)
        for key, origin in pending.moved.items():
            there = texts.get(origin)
            if there is None and self._has(key):
                # Sent again, and gone since: its region takes nothing of this step.
                del pending.rows[key]
                continue
            if there is None:
                raise LookupError(
                    f"{self._target.source} has a row {origin} that the table has not, though it "
                    "should: somebody else writes into it. Drop the slot, to copy it anew"
                )
            pending.rows[key] = {
                name: there[name] if value is UNCHANGED else value
                for name, value in (pending.rows[key] or {}).items()
            }

    def _has(self, key: Key) -> bool:
        """Whether a key's region had the newest transaction when this follower began."""
        had = self._had.get(self._target.region_of(key), -1)
        return had >= 2 * self._commit.lsn

    def _key(self, row: Row) -> Key:
        return tuple(str(row[name]) for name in self._target.key)


def _sent(row: Row) -> dict[str, str | None]:
    return {name: None if isinstance(value, Unchanged) else value for name, value in row.items()}
