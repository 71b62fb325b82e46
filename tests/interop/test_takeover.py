"""One writer goes on where another kind of writer stopped, was killed, or still writes."""

import time
from collections.abc import Callable

import pyarrow as pa
import pytest
from support.data.merging import Merge
from support.data.tables import (
    base_state,
    generations,
    keys,
    log,
    manifest,
    numbered,
    region_folders,
    rows,
    state,
)
from support.oracles import native
from support.oracles.native import collect_all, shown
from support.processes import running_python
from support.stores.faulty_store import REGION_MANIFEST, WAL, FaultyStores, Rule

import memwal
from memwal.errors import RegionFencedError


def test_ours_takes_over_what_lance_closed(table: memwal.Table, merge: Merge) -> None:
    with native.writer(table) as shard:
        native.put(shard, table, rows({1: 1, 2: 2, 3: 3}))
        native.put(shard, table, rows({2: 20}))
        shard.delete(pa.table({"id": [3]}))
    assert shown(table) == {1: 1, 2: 20}
    with table.writer() as writer:
        writer.upsert(rows({2: 200, 4: 4}))
        writer.delete(keys(1))
    assert shown(table) == {2: 200, 4: 4}
    merge(table)
    assert base_state(table) == shown(table) == {2: 200, 4: 4}
    table.build_snapshot()
    collect_all(table)
    assert not region_folders(table)
    assert shown(table) == {2: 200, 4: 4}


def test_ours_replays_what_lance_did_not_flush(table: memwal.Table) -> None:
    shard = native.writer(table)
    native.put(shard, table, rows({1: 1, 2: 2}))
    shard.delete(pa.table({"id": [2]}))
    native.put(shard, table, rows({3: 3}))
    with table.writer() as writer:
        writer.claim()
        assert state(writer) == {1: 1, 3: 3}
        writer.upsert(rows({1: 10}))
        assert state(writer) == {1: 10, 3: 3}
    with pytest.raises(OSError, match="fenced"):
        native.put(shard, table, rows({9: 9}))
    assert shown(table) == {1: 10, 3: 3}


def test_lance_replays_what_ours_did_not_flush(table: memwal.Table) -> None:
    writer = table.writer()
    writer.upsert(rows({1: 1, 2: 2}))
    writer.flush()
    writer.upsert(rows({2: 20, 3: 3}))
    writer.delete(keys(1))
    with native.writer(table) as shard:
        assert state(shard.lsm_scanner().to_table()) == {2: 20, 3: 3}
        with pytest.raises(RegionFencedError):
            writer.upsert(rows({9: 9}))
        native.put(shard, table, rows({4: 4}))
        shard.delete(pa.table({"id": [3]}))
    writer.abort()
    assert shown(table) == {2: 20, 4: 4}


def test_many_takeovers_with_collections_between(table: memwal.Table, merge: Merge) -> None:
    """Positions, epochs and generations go on as if nothing had been collected."""
    wanted: dict[int, int | None] = {}
    for turn in range(8):
        wanted |= {turn: turn, 100: turn}
        update = rows({turn: turn, 100: turn})
        if turn % 2:
            shard = native.writer(table)
            native.put(shard, table, update)
            if turn % 4 == 1:
                shard.close()
        else:
            writer = table.writer()
            writer.upsert(update)
            if turn % 4 == 0:
                writer.close()
            else:
                writer.abort()
        if turn % 3 == 2:
            merge(table)
            collect_all(table)
    table.writer().claim()
    with table.writer() as writer:
        writer.claim()
    assert shown(table) == wanted
    assert manifest(table).writer_epoch == 10
    merge(table)
    collect_all(table)
    assert base_state(table) == shown(table) == wanted
    assert all(entry.is_sentinel for entry in log(table).values())
    native.upsert(table, rows({100: -1}))
    assert shown(table) == {**wanted, 100: -1}


def test_a_collection_under_a_native_writer(table: memwal.Table, merge: Merge) -> None:
    """The collector changes the manifest without a claim; the writer goes on."""
    with native.writer(table, max_memtable_rows=4) as shard:
        for start in range(0, 12, 3):
            native.put(shard, table, numbered(start, 3))
        while len(generations(table)) < 3:
            time.sleep(0.01)
        merge(table)
        collect_all(table)
        assert not generations(table)
        native.put(shard, table, numbered(100, 3))
    assert shown(table) == dict.fromkeys((*range(12), 100, 101, 102), 0)


def test_a_native_writer_that_never_pauses_is_fenced(
    faults: FaultyStores, table: memwal.Table
) -> None:
    """A claim must win against a writer that appends faster than an attempt at the fence takes."""
    with table.writer() as first:
        first.upsert(rows({0: 0}))
    shard = native.writer(table, max_wal_flush_interval_ms=1)
    written: dict[int, int | None] = {0: 0}
    attempts = 0

    def write_meanwhile() -> None:
        nonlocal attempts
        attempts += 1
        assert attempts < 20, "the fence runs behind the tip of the log for ever"
        if attempts % 2:
            for _ in range(2):
                key = len(written)
                native.put(shard, table, rows({key: key}))
                written[key] = key

    faults.of(table.location)._add(Rule("create", WAL, write_meanwhile, False, 0, 1000))
    with table.writer() as writer:
        writer.claim()
        with pytest.raises(OSError, match="fenced"):
            native.put(shard, table, rows({-1: -1}))
    assert shown(table) == written


def test_a_generation_stays_as_small_as_lance_can_replay(
    faults: FaultyStores, table: memwal.Table
) -> None:
    """Lance refuses a log with more rows of one generation than its MemTable may hold."""
    options = memwal.WriterOptions(max_memtable_rows=100, flush_attempts=1)
    writer = table.writer(options=options)
    writer.claim()
    faults.of(table.location).fail("create", REGION_MANIFEST, times=1000)
    writer.upsert(numbered(0, 60))
    writer.upsert(numbered(60, 60))
    writer.abort()
    assert not generations(table)
    with native.writer(table, max_memtable_rows=100) as shard:
        native.put(shard, table, numbered(200, 1))
    assert shown(table) == dict.fromkeys((*range(120), 200), 0)


@pytest.mark.slow
def test_lance_takes_over_many_small_writes(
    monkeypatch: pytest.MonkeyPatch, make_table: Callable[..., memwal.Table]
) -> None:
    """With its defaults and ours: Lance replays at most 8,000 batches of one generation."""
    FaultyStores(monkeypatch, durable=False)
    table = make_table()
    writer = table.writer(options=memwal.WriterOptions(epoch_check_interval=60))
    for batch in numbered(0, 8_050).to_batches(max_chunksize=1):
        writer.upsert(batch)
    writer.abort()
    native.upsert(table, rows({-1: 0}))
    assert shown(table) == dict.fromkeys(range(-1, 8050), 0)


KILLED = """
import itertools, sys
from support.oracles import native
from support.data.tables import rows
import memwal
table = memwal.open(sys.argv[1])
if sys.argv[2] == "native":
    shard = native.writer(table, max_memtable_rows=10, max_wal_flush_interval_ms=1)
    put = lambda data: native.put(shard, table, data)
else:
    put = table.writer(options=memwal.WriterOptions(max_memtable_rows=10)).upsert
for key in itertools.count():
    put(rows({key: key, -1: key}))
    print(key, flush=True)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(("killed", "taker"), [("native", "ours"), ("ours", "native")])
def test_a_killed_writer_loses_nothing(
    table: memwal.Table, killed: str, taker: str, merge: Merge
) -> None:
    with running_python(KILLED, table.uri, killed) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == 47:
                break
        child.kill()
        rest = child.communicate()[0].split()
    acknowledged = int(rest[-1]) if rest else 47
    if taker == "ours":
        table.upsert(rows({-2: 0}))
    else:
        native.upsert(table, rows({-2: 0}))
    found = shown(table)
    assert found.pop(-2) == 0
    last = found.pop(-1)
    # The write that was on its way may have made it, as a whole.
    assert last in (acknowledged, acknowledged + 1)
    assert found == {key: key for key in range(last + 1)}
    merge(table)
    assert base_state(table) == {**found, -1: last, -2: 0}
