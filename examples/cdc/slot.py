"""A replication slot, in which PostgreSQL stores the position of a follower.

The slot is created when the first copy of the table is complete. Until then there is a temporary
slot, which ends with its connection, so that a follower that is killed in its first copy starts it
again.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
from psycopg import pq

# Makes the text of values independent of session settings.
SESSION = "-c datestyle=ISO -c timezone=UTC -c bytea_output=hex -c intervalstyle=iso_8601"

_EPOCH = 946_684_800  # PostgreSQL's epoch is the year 2000.
STATUS_SECONDS = 5.0


class Slot:
    """A connection for replication.

    Parameters
    ----------
    dsn : str
        Connects a user with the attribute REPLICATION.
    name : str
        Name of the slot.
    """

    def __init__(self, dsn: str, name: str) -> None:
        self.name = name
        self._dsn = dsn
        self._connection = psycopg.connect(
            dsn, autocommit=True, options=SESSION, replication="database"
        )
        self._pg = self._connection.pgconn
        self.system = self._ask("IDENTIFY_SYSTEM")[0][0]
        self.confirmed = 0
        self._told = 0.0

    def exists(self) -> bool:
        """Return whether the first copy is complete."""
        slots = self._ask("SELECT slot_name FROM pg_replication_slots WHERE NOT temporary")
        return (self.name,) in slots

    @contextmanager
    def first_copy(self) -> Iterator[psycopg.Connection]:
        """Open a transaction with the snapshot from which the slot will send changes.

        At the end of the block the slot exists durably.
        """
        temporary = f"{self.name}_copy"
        ((_, _, snapshot, _),) = self._ask(
            f"CREATE_REPLICATION_SLOT {temporary} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
        )
        with closing(psycopg.connect(self._dsn, options=SESSION)) as reading:
            reading.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reading.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            yield reading
        self._ask(f"SELECT pg_copy_logical_replication_slot('{temporary}', '{self.name}', false)")
        self._ask(f"DROP_REPLICATION_SLOT {temporary}")

    def start(self, publication: str) -> None:
        """Start to stream from the slot's position; the connection then takes no queries."""
        options = f"proto_version '1', publication_names '{publication}'"
        self._ask(f"START_REPLICATION SLOT {self.name} LOGICAL 0/0 ({options})")

    def messages(self, *, idle_seconds: float) -> Iterator[bytes | None]:
        """Yield the plug-in's messages as they arrive; None after ``idle_seconds`` without one."""
        while True:
            size, data = self._pg.get_copy_data(1)
            if size < 0:
                self._pg.get_result()
                raise ConnectionError(f"the stream ended: {self._pg.error_message.decode()}")
            if size == 0:
                self.tell()
                if select.select([self._pg.socket], [], [], idle_seconds)[0]:
                    self._pg.consume_input()
                else:
                    yield None
                continue
            kind, rest = bytes(data[:1]), bytes(data[1:])
            if kind == b"w":
                self.tell()
                yield rest[24:]
            elif kind == b"k":
                self.seen_until, _, wants_answer = struct.unpack("!QQB", rest)
                self.tell(now=bool(wants_answer))

    seen_until = 0
    """Where the server was at its last sign of life. It had sent what came before."""

    def confirm(self, lsn: int) -> None:
        """Mark everything before ``lsn`` as safe; the server need not send it again."""
        self.confirmed = max(self.confirmed, lsn)

    def tell(self, *, now: bool = False) -> None:
        """Report the confirmed position to the server, from time to time."""
        if not now and time.monotonic() < self._told + STATUS_SECONDS:
            return
        self._told = time.monotonic()
        moment = int((time.time() - _EPOCH) * 1_000_000)
        at = self.confirmed
        self._pg.put_copy_data(struct.pack("!cQQQqB", b"r", at, at, at, moment, 0))
        self._pg.flush()

    def close(self) -> None:
        """Close the connection; the slot stays."""
        self._connection.close()

    def _ask(self, command: str) -> list[tuple[str, ...]]:
        found = self._pg.exec_(command.encode())
        if found.status not in (
            pq.ExecStatus.TUPLES_OK,
            pq.ExecStatus.COMMAND_OK,
            pq.ExecStatus.COPY_BOTH,
        ):
            raise psycopg.OperationalError(found.error_message.decode().strip())
        value: Callable[[int, int], bytes | None] = found.get_value
        return [
            tuple((value(row, column) or b"").decode() for column in range(found.nfields))
            for row in range(found.ntuples)
        ]
