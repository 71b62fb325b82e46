"""A process that is killed: it writes, or looks after a table, until it is no more.

``crash_child.py produce URI SEED START`` upserts and deletes from a few threads, each with keys of
its own, and prints a line for each write after it was acknowledged. ``crash_child.py upkeep URI``
merges, builds indexes and snapshots, and collects all that it may, over and over.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time

import pyarrow as pa
from support.data.tables import keys, rows

import memwal
from memwal.errors import ConflictError
from memwal.jobs.gc import collect_garbage
from memwal.jobs.options import GcOptions

THREADS = 3
KEYS = 40
"""Keys of each thread: those of thread t are t * KEYS to t * KEYS + KEYS - 1."""


def produce(uri: str, seed: int, start: int) -> None:
    """Write for ever; ``start`` is a number higher than all that were written before."""
    table = memwal.open(uri)
    options = memwal.WriterOptions(max_memtable_rows=60, flush_attempts=2)
    writer = table.writer(options=options)
    writer.claim()

    def go(thread: int) -> None:
        dice = random.Random(seed * 100 + thread)
        number = start
        while True:
            number += 1
            chosen = dice.sample(range(thread * KEYS, (thread + 1) * KEYS), dice.randint(1, 4))
            if dice.random() < 0.25:
                writer.delete(keys(*chosen))
                done = "-"
            else:
                writer.upsert(rows(dict.fromkeys(chosen, number)))
                done = str(number)
            # One system call a line: a kill leaves whole lines or nothing.
            os.write(1, f"{done} {' '.join(map(str, chosen))}\n".encode())

    threads = [threading.Thread(target=go, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def upkeep(uri: str) -> None:
    """Do every maintenance job again and again, and print a line for each round."""
    table = memwal.open(uri)
    while True:
        for job in (table.merge, table.build_indexes, table.build_snapshot):
            try:
                job()
            except ConflictError:
                continue
        # A clock that is ahead makes everything old enough, except what is still being written.
        collect_garbage(
            table.location,
            GcOptions(dry_run=False, grace_seconds=600, retention_seconds=0),
            clock=lambda: time.time() + 597,
        )
        os.write(1, b"round\n")


if __name__ == "__main__":
    pa.set_cpu_count(1)
    if sys.argv[1] == "produce":
        produce(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        upkeep(sys.argv[2])
