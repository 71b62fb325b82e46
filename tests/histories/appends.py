"""Plays around a table without a primary key, in which each row is there once.

Two of memwal's writers and one of Lance's append to the same regions and take them from each other;
two processes merge, one runs the other jobs, and one reads. All of them are killed again and again.
``PYTHONPATH=tests python -m histories.appends SEED [SECONDS]`` runs one play.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import lance
import pyarrow as pa
from histories.plain import BATCH, BrokenPromise, Notes, check_batches, noted, play, rows_of

import memwal
from memwal.region.router import Router

ROLES = ("append", "append", "native", "merge", "merge", "jobs", "read")
PARTS = 2
# Longer than any read takes.
RETENTION_SECONDS = 15.0


def part_rows(first: int, part: int) -> pa.Table:
    """Return a batch of rows of one region."""
    parts = pa.array([part] * BATCH, pa.int64())
    return rows_of(range(first, first + BATCH)).append_column("part", parts)


def live(role: str, folder: Path, number: int, seed: int) -> None:
    """Do what a role does until killed."""
    dice, notes = Random(seed), Notes(folder / f"{number}.{role}.notes")
    table = memwal.open(folder / "t.lance")
    first = (number << 32) + BATCH * (seed % (1 << 20)) * 1000
    while True:
        match role:
            case "append":
                first = _append(table, first, dice, notes)
            case "native":
                first = _put(table, first, dice, notes)
            case "merge":
                _merge(table, dice, notes)
            case "jobs":
                _run_job(table, dice, notes)
            case "read":
                with notes.call("read"):
                    check(folder)
        time.sleep(dice.uniform(0, 0.2))


def _append(table: memwal.Table, first: int, dice: Random, notes: Notes) -> int:
    options = memwal.WriterOptions(reopen=True, max_memtable_rows=BATCH * dice.choice([3, 30]))
    with notes.call("writer"), table.writer(options=options) as writer:
        for _ in range(dice.randint(1, 30)):
            with notes.call("add", first):
                writer.append(part_rows(first, dice.randrange(PARTS)))
            first += BATCH
            time.sleep(dice.uniform(0, 0.05))
    return first + BATCH


def _put(table: memwal.Table, first: int, dice: Random, notes: Notes) -> int:
    part = dice.randrange(PARTS)
    (batch,) = part_rows(first, part).to_batches()
    ((region, _),) = Router(table.region_spec()[1], table.schema).route(batch)
    shard = lance.dataset(table.uri).mem_wal_writer
    with notes.call("shard"), shard(str(region.region_id)) as writer:
        for _ in range(dice.randint(1, 10)):
            with notes.call("add", first):
                writer.put(part_rows(first, part))
            first += BATCH
    return first + BATCH


def _merge(table: memwal.Table, dice: Random, notes: Notes) -> None:
    options = dice.choice([{}, {"divide_bytes": 0, "commit_bytes": 1 << 12, "max_tasks": 2}])
    with notes.call("merge"):
        table.merge(**options)


def _run_job(table: memwal.Table, dice: Random, notes: Notes) -> None:
    jobs: dict[str, Callable[[], object]] = {
        "compact": lambda: table.compact(target_rows=1000, min_fragments=4),
        "index": table.build_indexes,
        "snapshot": table.build_snapshot,
        "verify": lambda: _verify(table),
        "gc": lambda: table.collect_garbage(
            dry_run=False,
            grace_seconds=RETENTION_SECONDS,
            retention_seconds=RETENTION_SECONDS,
            version_retention_seconds=RETENTION_SECONDS,
            foreign_claim_seconds=RETENTION_SECONDS,
        ),
    }
    kind = dice.choice(list(jobs))
    with notes.call(kind):
        jobs[kind]()


def _verify(table: memwal.Table) -> None:
    errors = [f for f in table.verify().findings if f.severity.value == "error"]
    if errors:
        raise BrokenPromise(f"verify finds {errors}")


def check(folder: Path, *, exactly: bool = False) -> None:
    """Compare what readers see with the notes; ``exactly`` if all is in the base table."""
    done = noted(folder)
    table = memwal.open(folder / "t.lance")
    readers = {
        "fresh": table.fresh(),
        "flushed": table,
        "eventual": table.at_most(3600),
        "merged": table.at(table.version),
    }
    for name, queries in readers.items():
        ids = queries.scan(columns=["id"]).to_table().column("id").to_pylist()
        complete = name == "fresh" or exactly
        check_batches(name, ids, done, noted(folder, "begin"), complete=complete)


def create(folder: Path) -> None:
    """Make the table, with a row group in each region."""
    table = memwal.create(
        folder / "t.lance",
        part_rows(0, 0).schema,
        primary_key=None,
        region_spec="identity:part",
        maintained_indexes=["id_idx"],
    )
    notes = Notes(folder / "first.notes")
    for part in range(PARTS):
        with notes.call("add", BATCH * part):
            table.append(part_rows(BATCH * part, part))


def finish(folder: Path) -> None:
    """Take over what is in the logs, merge it, and look at the base table."""
    table = memwal.open(folder / "t.lance")
    check(folder)
    table.recover(min_age_seconds=0)
    table.checkpoint()
    check(folder, exactly=True)
    base = lance.dataset(table.uri)
    for filter in ("id % 3 = 0", f"id = {BATCH}"):
        if base.count_rows(filter) != table.count_rows(filter=filter):
            raise BrokenPromise(f"an index answers otherwise for {filter}")
    _verify(table)


def run(seed: int, seconds: float) -> Counter[str]:
    """Run a play. Returns how many calls of each kind were acknowledged, and the kills."""
    return play("appends", ROLES, create, finish, seed, seconds)


if __name__ == "__main__":
    if sys.argv[1] == "live":
        live(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        print(run(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 40.0))
