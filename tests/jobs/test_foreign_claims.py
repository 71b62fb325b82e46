"""A live writer of Lance keeps what it may read, until it is gone for long, or too much is kept."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from support.data.tables import MakeTable, generations, later, manifest, manifests, rows, state
from support.faults.collecting import DAY, HOUR, collect
from support.oracles import native
from support.stores.faulty_store import REGION_MANIFEST, FaultyStores

import memwal
from memwal.jobs.backlog import read_status
from memwal.jobs.foreign_claims import find_foreign_claim
from memwal.jobs.gc.decision import Reason
from memwal.jobs.options import GcOptions


@pytest.fixture
def table(quick_faults: FaultyStores, make_table: MakeTable) -> memwal.Table:
    """Return a table on a disk that does not sync, with one merged generation of memwal."""
    table = make_table()
    table.upsert(rows({1: 0, 2: 0}))
    table.merge()
    return table


WRITTEN = {0: 2, 1: 1, 2: 2, 3: 3}


@pytest.fixture
def shard(table: memwal.Table) -> Iterator[Any]:
    """Return a live writer of Lance; the table has merged three generations since its claim."""
    shard = native.writer(table, max_memtable_rows=2)
    for n in range(3):
        native.put(shard, table, rows({0: n, n + 1: n + 1}))
    while len(generations(table)) < 4:
        time.sleep(0.01)
    table.merge()
    yield shard
    # It may have been fenced.
    with suppress(OSError):
        shard.close()


def collect_twice(table: memwal.Table, seconds: float = 2 * HOUR, **options: Any) -> None:
    """Drop, and delete the folders a grace period later."""
    options.setdefault("foreign_claim_seconds", DAY)
    collect(table, seconds, **options)
    collect(table, seconds + HOUR, **options)


def test_it_reads_its_own_rows(table: memwal.Table, shard: Any) -> None:
    before = generations(table)
    collect_twice(table)
    assert generations(table) == before
    assert state(shard.lsm_scanner().to_table()) == WRITTEN
    assert state(table) == WRITTEN


def test_without_protection_its_reads_are_stale(table: memwal.Table, shard: Any) -> None:
    """What Lance does, so that the protection is needed."""
    collect_twice(table, foreign_claim_seconds=0)
    assert generations(table) == []
    assert state(table) == WRITTEN
    with suppress(OSError):
        assert state(shard.lsm_scanner().to_table()) != WRITTEN


def test_the_reason_and_the_time(table: memwal.Table, shard: Any) -> None:
    result = collect(table, HOUR, dry_run=True, explain=True, foreign_claim_seconds=DAY)
    held = [d for d in result.decisions if d.reason is Reason.FOREIGN_CLAIM]
    assert len(held) == 4
    claim = find_foreign_claim(table.location.store, manifest(table))
    assert claim is not None
    ends = claim.last_entry + timedelta(seconds=DAY)
    assert {datetime.fromisoformat(d.until or "") for d in held} == {ends.replace(microsecond=0)}


def test_a_claim_of_memwal_ends_it(table: memwal.Table, shard: Any) -> None:
    with table.writer() as writer:
        writer.claim()
    assert find_foreign_claim(table.location.store, manifest(table)) is None
    collect_twice(table)
    assert generations(table) == []


def test_a_claim_without_its_fence_counts(table: memwal.Table) -> None:
    """A client of Lance may be between the two steps of a claim."""
    assert find_foreign_claim(table.location.store, manifest(table)) is None
    manifests(table).update(lambda m: replace(m, writer_epoch=m.writer_epoch + 1))
    assert find_foreign_claim(table.location.store, manifest(table)) is not None


def test_age_and_bytes(table: memwal.Table, shard: Any) -> None:
    sizes = [flushed.memory_bytes or 0 for flushed in manifest(table).flushed]
    limit = sizes[-1] + sizes[-2]
    collect(table, HOUR, foreign_claim_seconds=DAY, foreign_claim_bytes=limit)
    assert generations(table) == [3, 4]
    collect(table, 2 * DAY, foreign_claim_seconds=DAY)
    assert generations(table) == []


def test_the_status_tells(table: memwal.Table, shard: Any) -> None:
    status = table.status()
    (region,) = status.regions
    assert (region.held_generations, region.reclaimable_generations) == (4, 0)
    assert status.held_bytes == sum(f.memory_bytes or 0 for f in manifest(table).flushed)
    late = read_status(table.location, clock=later(2 * DAY)).regions[0]
    assert (late.held_generations, late.reclaimable_generations) == (0, 4)
    off = table.status(collection=GcOptions(foreign_claim_bytes=0)).regions[0]
    assert (off.held_generations, off.reclaimable_generations) == (0, 4)


def test_a_claim_just_before_the_drop(table: memwal.Table, quick_faults: FaultyStores) -> None:
    """The collector saw the claim of memwal, and a writer of Lance claims before it commits."""
    shards = []
    store = quick_faults.of(table.location)
    claim = lambda: shards.append(native.writer(table))  # noqa: E731
    store.act("create", claim, key=REGION_MANIFEST)
    collect(table, HOUR, foreign_claim_seconds=DAY)
    assert generations(table) == [1]
    assert state(shards[0].lsm_scanner().to_table()) == {1: 0, 2: 0}
    shards[0].close()
