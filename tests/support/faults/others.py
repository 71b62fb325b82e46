"""What others do to a table while a job is under way, each acknowledged to the auditor."""

import random
import shutil
from collections.abc import Callable
from dataclasses import replace

import lance
import pyarrow as pa
import pytest
from support.data.tables import folder, keys, listing, rows, undivided_tasks
from support.oracles import native
from support.oracles.auditor import Auditor, Values, tag

import memwal
from memwal.errors import TableReplacedError
from memwal.jobs.merge.job import run_merge_task
from memwal.jobs.options import CompactOptions
from memwal.jobs.table.compact import compact
from memwal.region.router import Router

DIRECT = 1_000
"""First of the keys that are only written directly."""

LOGGED = range(40)
"""Keys that are only written through the log."""

Other = Callable[[memwal.Table, Auditor], None]


def _changes(auditor: Auditor) -> tuple[Values, list[int]]:
    """New values of some keys, and keys to delete: the same ones after the same history."""
    turn = _turn(auditor)
    dice = random.Random(turn)
    gone = dice.sample(LOGGED, dice.choice([0, 6]))
    return dict.fromkeys(dice.sample(LOGGED, 8), turn), gone


def _turn(auditor: Auditor) -> int:
    """A number that was never written."""
    return 100 + len(auditor.truth.writes)


def our_writer(table: memwal.Table, auditor: Auditor) -> None:
    """Claim regions, upsert, flush, delete, flush."""
    values, gone = _changes(auditor)
    with table.writer() as writer:
        writer.upsert(rows(values))
        writer.flush()
        if gone:
            writer.delete(keys(*gone))
    auditor.wrote(values, gone)


def native_writer(table: memwal.Table, auditor: Auditor) -> None:
    """Do the same with Lance's own writer, which takes one region at a time."""
    values, gone = _changes(auditor)
    native.upsert(table, rows(values))
    _, spec = table.region_spec()
    removed = Router(spec, table.schema).route(rows(dict.fromkeys(gone, 0))) if gone else []
    for assignment, part in removed:
        with native.writer(table, assignment.region_id) as shard:
            shard.delete(pa.Table.from_batches([part]).select(["id"]))
    auditor.wrote(values, gone)


def append(table: memwal.Table, auditor: Auditor) -> None:
    """Append keys that nobody has to the base table."""
    turn = _turn(auditor)
    values: Values = {DIRECT + turn: turn, DIRECT + turn + 1: turn}
    lance.write_dataset(rows(values), table.uri, mode="append")
    auditor.wrote(values, logged=False)


def update(table: memwal.Table, auditor: Auditor) -> None:
    """Update rows of the base table, which are in a fragment with others."""
    turn = _turn(auditor)
    values: Values = {DIRECT: turn, DIRECT + 1: turn}
    (
        lance.dataset(table.uri)
        .merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(rows(values))
    )
    auditor.wrote(values, logged=False)


def delete(table: memwal.Table, auditor: Auditor) -> None:
    """Delete a row of the base table."""
    there = [key for key in auditor.truth.expected() if key > DIRECT + 1]
    if there:
        lance.dataset(table.uri).delete(f"id = {there[0]}")
        auditor.wrote({}, there[:1], logged=False)


def compact_files(table: memwal.Table, auditor: Auditor) -> None:
    """Compact the base table with Lance's own call."""
    lance.dataset(table.uri).optimize.compact_files()


def create_index(table: memwal.Table, auditor: Auditor) -> None:
    """Build an index that nobody maintains."""
    lance.dataset(table.uri).create_scalar_index("text", "BTREE", name="text_idx", replace=True)


def make_tag(table: memwal.Table, auditor: Auditor) -> None:
    """Tag the newest version."""
    tag(table, auditor, f"tag-{len(auditor.tags)}")


def native_merger(table: memwal.Table, auditor: Auditor) -> None:
    """Merge with Lance's own calls, as LanceDB's users must."""
    native.merge(table)


def merger(table: memwal.Table, auditor: Auditor) -> None:
    """Merge everything."""
    table.merge()


def dividing_merger(table: memwal.Table, auditor: Auditor) -> None:
    """Merge everything in parts."""
    table.merge(divide_bytes=0, commit_bytes=1_000, max_tasks=2)


def first_merger(table: memwal.Table, auditor: Auditor) -> None:
    """Merge the oldest generation of one region only."""
    table.merge(run_bytes=1)


def oldest_merger(table: memwal.Table, auditor: Auditor) -> None:
    """Merge the oldest generation of each region, and no more."""
    for task in undivided_tasks(table):
        first = tuple(replace(b, generations=b.generations[:1]) for b in task.regions)
        run_merge_task(replace(task, regions=first))


def indexer(table: memwal.Table, auditor: Auditor) -> None:
    """Build the indexes."""
    table.build_indexes()


def snapshots(table: memwal.Table, auditor: Auditor) -> None:
    """Publish the regions."""
    auditor.snapshot_begins()
    table.build_snapshot()


def compactor(table: memwal.Table, auditor: Auditor) -> None:
    """Compact the base table."""
    compact(table.location, CompactOptions(min_fragments=2))


def collector(table: memwal.Table, auditor: Auditor) -> None:
    """Collect when the grace has passed, twice: what is dropped is deleted as well."""
    native.collect_all(table)


def a_move(table: memwal.Table, auditor: Auditor) -> None:
    """Put a copy in the place of the table while a writer is open, which goes on in neither."""
    values, _ = _changes(auditor)
    path = folder(table)
    copy, aside = path.with_name("restored"), path.with_name("aside")
    writer = table.writer()
    writer.claim()
    writer.upsert(rows(values))
    writer.flush()
    auditor.wrote(values)
    # A region behind a link is in the copy as what it leads to, and no longer shared.
    shutil.copytree(path, copy)
    path.rename(aside)
    copy.rename(path)
    moved = listing(aside)
    with pytest.raises(TableReplacedError):
        writer.upsert(rows(dict.fromkeys(LOGGED, -1)))
    writer.abort()
    assert listing(aside) == moved
    shutil.rmtree(aside)


def a_whole_day(table: memwal.Table, auditor: Auditor) -> None:
    """Everything that happens to a table, so that whoever slept finds nothing as it was."""
    for happens in (merger, our_writer, indexer, collector, append, our_writer, merger, compactor):
        happens(table, auditor)
    for happens in (indexer, snapshots, collector, update, native_writer):
        happens(table, auditor)


OTHERS: dict[str, Other] = {
    "our writer": our_writer,
    "native writer": native_writer,
    "append": append,
    "update": update,
    "delete": delete,
    "compaction by Lance": compact_files,
    "a new index": create_index,
    "a tag": make_tag,
    "native merger": native_merger,
    "merger": merger,
    "dividing merger": dividing_merger,
    "merger of one generation": first_merger,
    "merger of the oldest": oldest_merger,
    "index build": indexer,
    "snapshot build": snapshots,
    "compaction": compactor,
    "collection": collector,
    "a move": a_move,
    "a whole day": a_whole_day,
}
