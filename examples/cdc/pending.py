"""Collect transactions, reduce them to the last state per key, and write them as one step.

The version of a step is the position of its last commit, and each region applies a step once: what
PostgreSQL sends again after a crash neither undoes nor repeats anything (``TableWriter.apply``).
After a crash, batches may end at other positions. A region that has the first part of a batch then
gets the whole batch again, which results in the same rows.

The exception is a row whose key changed and that has values which were not sent: these values are
in the row of the old key, which may be in another region. Such a transaction is a separate batch of
three steps: moved rows, all other rows, deletes. As long as a region lacks a moved row, the old row
still exists and can be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pgoutput import UNCHANGED, Change, Commit, Row, Truncate, Unchanged
from target import Target

from memwal.reading_writer import Writer

Key = tuple[str, ...]

_LAST = 2  # The steps of a transaction are numbered from 0.

MAX_SECONDS = 0.5
"""How long a transaction waits for others that go with it."""


@dataclass(slots=True)
class _Pending:
    """The last state of each key: a row, or None for a delete.

    Attributes
    ----------
    moved : dict
        For a row that lacks values: the key of the row that has them.
    emptied : bool
        Whether all earlier rows are deleted.
    """

    rows: dict[Key, Row | None] = field(default_factory=dict)
    moved: dict[Key, Key] = field(default_factory=dict)
    emptied: bool = False


class Pending:
    """Collects transactions and writes them.

    Parameters
    ----------
    writer : memwal.Writer
        Has all regions.
    source : str
        Name under which regions store their newest step.

    Attributes
    ----------
    in_transaction : bool
        Whether a transaction has begun and not ended.
    """

    def __init__(self, target: Target, writer: Writer, source: str) -> None:
        self._target = target
        self._writer = writer
        self._source = source
        # Detects changes that are sent again; for new changes, the writer keeps the steps.
        self._had = target.table.applied(source)
        self._committed = _Pending()
        self._open: list[Change | Truncate] = []
        self._since = 0.0
        self.in_transaction = False
        self._commit = Commit(0, 0)
        self._written = 0

    def begin(self) -> None:
        """Begin a transaction."""
        self.in_transaction = True

    def add(self, change: Change | Truncate) -> None:
        """Add a change of the current transaction."""
        if isinstance(change, Change) and change.new is not None:
            # Columns that were dropped since, or did not exist yet at the time of this change.
            absent = None if change.is_insert else UNCHANGED
            names = self._target.schema.names
            change = replace(change, new={name: change.new.get(name, absent) for name in names})
        self._open.append(change)

    def commit(self, commit: Commit, *, at_most: int) -> int:
        """End the transaction. Write if there are enough rows, or they have waited long enough.

        Returns
        -------
        int
            Position before which everything is safe.
        """
        changes, self._open, self.in_transaction = self._open, [], False
        if any(self._moves_unsent(change) for change in changes):
            self.write()
            self._collect(changes, commit)
            return self._write_in_steps()
        self._collect(changes, commit)
        waited = time.monotonic() - self._since
        enough = len(self._committed.rows) >= at_most or waited > MAX_SECONDS
        return self.write() if enough else self._written

    def write(self) -> int:
        """Write the committed transactions.

        Returns
        -------
        int
            Position before which everything is safe.
        """
        if self._commit.end > self._written:
            pending, self._committed = self._committed, _Pending()
            self._complete(pending, lambda _: _LAST)
            self._apply(_LAST, self._rows(pending, pending.rows), self._deletes(pending))
            self._written = self._commit.end
        return self._written

    def _write_in_steps(self) -> int:
        pending, self._committed = self._committed, _Pending()
        moved = {key for key, origin in pending.moved.items() if key != origin}
        if moved & {pending.moved[key] for key in moved}:
            raise LookupError(
                f"one transaction of {self._target.source} put rows in each other's places, and "
                "some of their values were not sent: ALTER TABLE ... REPLICA IDENTITY FULL has "
                "them sent; drop the slot, to copy the table anew"
            )
        self._complete(pending, lambda key: 0 if key in moved else 1)
        self._apply(0, self._rows(pending, moved), None)
        self._apply(1, self._rows(pending, pending.rows.keys() - moved), None)
        self._apply(_LAST, None, self._deletes(pending))
        self._written = self._commit.end
        return self._written

    def _apply(self, step: int, upserts: pa.Table | None, deletes: pa.Table | None) -> None:
        version = self._version(step)
        self._writer.apply(upserts=upserts, deletes=deletes, source=self._source, version=version)

    def _version(self, step: int) -> int:
        return (_LAST + 1) * self._commit.lsn + step

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

    def _rows(self, pending: _Pending, keys: Collection[Key]) -> pa.Table:
        found = (row for key, row in pending.rows.items() if row is not None and key in keys)
        return self._target.rows(_sent(row) for row in found)

    def _deletes(self, pending: _Pending) -> pa.Table:
        if not pending.emptied:
            return self._target.keys(key for key, row in pending.rows.items() if row is None)
        there = self._writer.scan(columns=list(self._target.key)).to_table()
        kept = self._rows(pending, pending.rows).select(self._target.key)
        return there.join(kept, list(self._target.key), join_type="left anti")

    def _complete(self, pending: _Pending, step_of: Callable[[Key], int]) -> None:
        """Read the values that were not sent from the current rows."""
        if not pending.moved:
            return
        origins = sorted(set(pending.moved.values()))
        found = self._writer.lookup(self._target.keys(origins)).to_table()
        texts = self._target.texts(found)
        for key, origin in pending.moved.items():
            there = texts.get(origin)
            if there is None and self._has(key, self._version(step_of(key))):
                # Sent again, and deleted since: its region ignores all rows of this step.
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

    def _has(self, key: Key, version: int) -> bool:
        """Return whether a key's region had a step when this follower started."""
        return self._had.get(self._target.region_of(key), -1) >= version

    def _key(self, row: Row) -> Key:
        return tuple(str(row[name]) for name in self._target.key)


def _sent(row: Row) -> dict[str, str | None]:
    return {name: None if isinstance(value, Unchanged) else value for name, value in row.items()}
