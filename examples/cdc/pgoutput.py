"""Messages of PostgreSQL's plug-in ``pgoutput``, version 1 of its protocol.

See "Logical Replication Message Formats" in PostgreSQL's manual.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final


class Unchanged:
    """Marks a value that was not sent: it is stored out of line and did not change."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()

Value = str | None | Unchanged
Row = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's schema at the time of the changes that follow this message.

    Attributes
    ----------
    name : str
        With its schema.
    columns : tuple of (str, int)
        Name and type (its oid) of each column.
    """

    oid: int
    name: str
    columns: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin of a transaction, which is sent as a whole after its commit."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction.

    Attributes
    ----------
    lsn, end : int
        Position of the commit, and of its end. Transactions arrive in the order of these.
    """

    lsn: int
    end: int


@dataclass(frozen=True, slots=True)
class Change:
    """A row that was inserted or updated (``new``), or deleted (None).

    Attributes
    ----------
    old : dict or None
        Columns of the old row: the key, if it changed or the row was deleted; all columns with
        REPLICA IDENTITY FULL. None for an insert, and for an update that keeps the key.
    """

    relation: int
    old: Row | None
    new: Row | None
    is_insert: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of some tables were deleted."""

    relations: tuple[int, ...]


Message = Relation | Begin | Commit | Change | Truncate | None


class Decoder:
    """Decodes messages in their order, and remembers the tables' schemas."""

    def __init__(self) -> None:
        self._relations: dict[int, Relation] = {}

    def decode(self, data: bytes) -> Message:
        """Read one message; None for a message that changes no row."""
        reader = _Reader(data)
        kind = reader.text(1)
        if kind == "B":
            return Begin()
        if kind == "C":
            reader.number("B")
            return Commit(reader.number("Q"), reader.number("Q"))
        if kind == "R":
            relation = self._relation(reader)
            self._relations[relation.oid] = relation
            return relation
        if kind == "T":
            count = reader.number("I")
            reader.number("B")
            return Truncate(tuple(reader.number("I") for _ in range(count)))
        if kind in "IUD":
            return self._change(reader, is_insert=kind == "I")
        return None

    def _relation(self, reader: _Reader) -> Relation:
        oid = reader.number("I")
        name = f"{reader.string()}.{reader.string()}"
        reader.number("B")
        columns = []
        for _ in range(reader.number("H")):
            reader.number("B")
            columns.append((reader.string(), reader.number("I")))
            reader.number("i")
        return Relation(oid, name, tuple(columns))

    def _change(self, reader: _Reader, *, is_insert: bool) -> Change:
        relation = self._relations[reader.number("I")]
        old = new = None
        while not reader.at_end:
            part = reader.text(1)
            row = self._row(reader, relation)
            if part == "N":
                new = row
            else:
                # If only the key is sent ("K"), the other columns are nulls without meaning.
                old = {k: v for k, v in row.items() if part == "O" or v is not None}
        return Change(relation.oid, old, new, is_insert)

    def _row(self, reader: _Reader, relation: Relation) -> Row:
        reader.number("H")
        row: Row = {}
        for name, _ in relation.columns:
            kind = reader.text(1)
            if kind == "t":
                row[name] = reader.text(reader.number("I"))
            else:
                row[name] = UNCHANGED if kind == "u" else None
        return row


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def number(self, code: str) -> int:
        (found,) = struct.unpack_from(f"!{code}", self._data, self._at)
        self._at += struct.calcsize(f"!{code}")
        return int(found)

    def text(self, length: int) -> str:
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def string(self) -> str:
        found = self.text(self._data.index(0, self._at) - self._at)
        self._at += 1
        return found
