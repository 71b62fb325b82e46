"""Processes that read from afar, and those that look after the table."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
from histories.events import Level
from histories.process import BASE, OWN, Process, now, seen_of
from support.data.tables import keys
from support.oracles import native

import memwal
from memwal.jobs.merge.job import merge
from memwal.jobs.options import CompactOptions, MergeOptions
from memwal.jobs.table.compact import compact
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.follow import Followed, LogFollower, UnflushedLog
from memwal.lsm.wal.log import find_tip

STALENESS = 1.0
"""Seconds that some reads allow."""


def reader(process: Process) -> None:
    """Read in every way, as somebody who has no region."""

    def read() -> None:
        process.learn_keys()
        way = process.dice.choice(ways)
        # Lance's own readers do not begin anew when something was collected under them.
        others = (OSError, ValueError) if way in (_natively, _base) else ()
        with process.may_fail(f"reading: {way.__name__[1:]}", *others):
            way(process)

    _note_logs(process)
    ways = [_scan, _scan, _fresh, _fresh, _opened_anew, _look_up, _stale, _natively, _base]
    process.forever(read, 0.1)


def _note_logs(process: Process) -> None:
    """Write down what fresh reads find in each log."""
    real = LogFollower.follow

    def follow(
        self: LogFollower, log: UnflushedLog, row_schema: RowSchema, **options: Any
    ) -> Followed:
        found = real(self, log, row_schema, **options)
        process.recorder.note(
            "log",
            region=str(log.region_id),
            after=log.after,
            generation=log.generation,
            last=found.last_position,
            tip=find_tip(self._store, self._region_id, start=found.last_position + 1),
            rows=[part.snapshot.view.rows for part in found.rows],
            **options,
        )
        return found

    LogFollower.follow = follow  # type: ignore[method-assign]


def _scan(process: Process) -> None:
    begin = now()
    found = process.table.scan().to_table()
    process.record_read(begin, now(), seen_of(found, process.keys))


def _fresh(process: Process) -> None:
    begin = now()
    if process.dice.random() < 0.5:
        wanted = process.dice.sample(process.keys, 5)
        found = process.table.fresh().lookup(keys(*wanted)).to_table()
    else:
        wanted = process.keys
        found = process.table.fresh().scan().to_table()
    process.record_read(begin, now(), seen_of(found, wanted), level=OWN)


def _opened_anew(process: Process) -> None:
    begin = now()
    found = memwal.open(process.told.uri).scan(filter="n > -1").to_table()
    process.record_read(begin, now(), seen_of(found, process.keys))


def _look_up(process: Process) -> None:
    wanted = process.dice.sample(process.keys, 5)
    begin = now()
    found = process.table.lookup(keys(*wanted)).to_table()
    process.record_read(begin, now(), seen_of(found, wanted))


def _stale(process: Process) -> None:
    begin = now()
    found = process.table.at_most(timedelta(seconds=STALENESS)).scan().to_table()
    if process.told.clocks:
        # Then nobody knows how long ago that is; what is merged is seen all the same.
        level = (Level.MERGED, Level.FLUSHED)
        process.record_read(begin, now(), seen_of(found, process.keys), level=level)
    else:
        process.record_read(begin, now(), seen_of(found, process.keys), stale=STALENESS)


def _natively(process: Process) -> None:
    """Lance's scanner over what memwal's manifests tell."""
    begin = now()
    found = native.scan(process.table)
    process.record_read(begin, now(), seen_of(found, process.keys), by_lance=True)


def _base(process: Process) -> None:
    begin = now()
    found: pa.Table = lance.dataset(process.told.uri).to_table()
    process.record_read(begin, now(), seen_of(found, process.keys), level=BASE)


def jobs(process: Process) -> None:
    """Do every job of the maintenance but one, in any order."""

    def work() -> None:
        what = dice.choice(list(JOBS))
        with process.may_fail(what):
            JOBS[what](process)
            process.recorder.job(what)

    dice = process.dice
    process.forever(work, 0.2)


def lance_jobs(process: Process) -> None:
    """Compact and index the base table with Lance's own calls and LanceDB's, as any client may."""

    def work() -> None:
        what = process.dice.choice(list(JOBS_OF_LANCE))
        # Lance and LanceDB tell of conflicts with others in errors of several kinds.
        with process.may_fail(what, OSError, ValueError, RuntimeError):
            JOBS_OF_LANCE[what](process.told.uri)
            process.recorder.job(what)

    process.forever(work, 1.0)


def _compact_files(uri: str) -> None:
    lance.dataset(uri).optimize.compact_files()


def _optimize_indices(uri: str) -> None:
    lance.dataset(uri).optimize.optimize_indices()


def _optimize(uri: str) -> None:
    path = Path(uri)
    lancedb.connect(path.parent).open_table(path.stem).optimize()


def collector(process: Process) -> None:
    """Collect whatever may go, with a grace of seconds."""

    def collect() -> None:
        with process.may_fail("collecting"):
            _collect(process)
            process.recorder.job("collecting")

    process.forever(collect, 0.5)


def _merge(process: Process) -> None:
    """Merge, by one worker or divided into tasks."""
    options = MergeOptions(
        run_bytes=process.dice.choice([None, None, 1]),
        divide_bytes=process.dice.choice([0, 1 << 40]),
        max_tasks=2,
    )
    _told(process, merge(process.table.location, options).warnings)


def _checkpoint(process: Process) -> None:
    begin = now()
    _told(process, process.table.checkpoint(flush=False).warnings)
    process.recorder.bound(Level.MERGED, begin, None)


def _index(process: Process) -> None:
    process.table.build_indexes()


def _snapshot(process: Process) -> None:
    process.table.build_snapshot()


def _compact(process: Process) -> None:
    compact(process.table.location, CompactOptions(min_fragments=4))


def _collect(process: Process) -> None:
    grace, retention = timedelta(seconds=process.told.grace), process.told.retention
    result = process.table.collect_garbage(
        dry_run=False,
        grace_seconds=grace.total_seconds(),
        retention_seconds=retention,
        foreign_claim_seconds=0,
        orphan_grace_seconds=(2 * grace).total_seconds(),
        index_grace_seconds=(20 * grace).total_seconds(),
        version_retention_seconds=retention if process.dice.random() < 0.2 else None,
    )
    _told(process, result.warnings)


def _told(process: Process, warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        process.recorder.failed("a job told", RuntimeError(warning))


JOBS: dict[str, Callable[[Process], None]] = {
    "merging": _merge,
    "a checkpoint": _checkpoint,
    "indexing": _index,
    "a snapshot": _snapshot,
    "compacting": _compact,
}

JOBS_OF_LANCE: dict[str, Callable[[str], None]] = {
    "Lance's compact_files": _compact_files,
    "Lance's optimize_indices": _optimize_indices,
    "LanceDB's optimize": _optimize,
}
