"""Follow a table of PostgreSQL.

    python follow.py --dsn dbname=shop --source public.orders --publication p --table orders.lance

The publication must exist (``CREATE PUBLICATION p FOR TABLE orders``), and the server must run with
``wal_level = logical``. If it is killed, it resumes where it stopped.
"""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import psycopg
import pyarrow as pa
from pending import Pending
from pgoutput import Begin, Change, Commit, Decoder, Relation, Truncate
from slot import Slot
from target import Target

import memwal
from memwal.reading_writer import Writer

logger = logging.getLogger("follow")

COPY_ROWS = 5_000
BATCH_ROWS = 2_000
IDLE_SECONDS = 0.1
OPTIONS = memwal.WriterOptions(max_memtable_age=10.0)  # maximum delay of readers


def copy(slot: Slot, target: Target, writer: Writer) -> int:
    """Copy all rows of the snapshot from which the slot starts to send changes."""
    left_over = _keys(target, writer.scan(columns=list(target.key)).to_table())
    count = 0
    with slot.first_copy() as connection:
        columns = ", ".join(f'"{name}"' for name in target.schema.names)
        command = f"COPY (SELECT {columns} FROM {target.source}) TO STDOUT"  # noqa: S608
        with connection.cursor().copy(command) as rows:
            for chunk in _chunks(rows.rows(), COPY_ROWS):
                found = target.rows(
                    dict(zip(target.schema.names, row, strict=True)) for row in chunk
                )
                writer.upsert(found)
                left_over -= _keys(target, found)
                count += found.num_rows
        # Rows that an interrupted earlier copy wrote and that have been deleted since.
        if left_over:
            writer.delete(
                pa.Table.from_pylist([dict(key) for key in left_over], target.keys([]).schema)
            )
    return count


def follow(
    dsn: str,
    *,
    source: str,
    publication: str,
    uri: str,
    slot_name: str = "memwal",
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Copy the table unless that is done, then write its changes until ``stop`` returns true.

    Parameters
    ----------
    stop : callable
        Called while no message arrives.
    """
    with closing(psycopg.connect(dsn)) as connection:
        target = Target.open_or_create(uri, connection, source)
    with closing(Slot(dsn, slot_name)) as slot, target.table.writer(options=OPTIONS) as writer:
        # Claim all regions now: a follower that was paused must not come back with old rows.
        writer.claim()
        if not slot.exists():
            logger.info("%d rows copied", copy(slot, target, writer))
        pending = Pending(target, writer, f"postgres-{slot.system}-{slot_name}")
        decoder = Decoder()
        slot.start(publication)
        for data in slot.messages(idle_seconds=IDLE_SECONDS):
            if data is None:
                slot.confirm(pending.write())
                if not pending.in_transaction:
                    slot.confirm(slot.seen_until)
                if stop():
                    slot.tell(now=True)
                    return
                continue
            message = decoder.decode(data)
            if isinstance(message, Relation):
                slot.confirm(pending.write())
                slot.tell(now=True)
                target.check(message)
            elif isinstance(message, Begin):
                pending.begin()
            elif isinstance(message, Change | Truncate):
                pending.add(message)
            elif isinstance(message, Commit):
                slot.confirm(pending.commit(message, at_most=BATCH_ROWS))


def _keys(target: Target, rows: pa.Table) -> set[tuple[tuple[str, object], ...]]:
    return {tuple(row.items()) for row in rows.select(target.key).to_pylist()}


def _chunks(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while chunk := list(islice(rows, size)):
        yield chunk


def main() -> None:
    """Follow until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("dsn", "source", "publication", "table"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--slot", default="memwal", help="lower-case letters, digits and _")
    given = parser.parse_args()
    if not re.fullmatch(r"[a-z0-9_]{1,58}", given.slot):
        parser.error("--slot: lower-case letters, digits and _")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: told.append(number))
    follow(
        given.dsn,
        source=given.source,
        publication=given.publication,
        uri=given.table,
        slot_name=given.slot,
        stop=lambda: bool(told),
    )


if __name__ == "__main__":
    main()
