"""Logs that are damaged, given up, sealed or large, between our writers and Lance's."""

from datetime import timedelta

import pytest
from support.data.merging import Merge
from support.data.sampled import every
from support.data.tables import (
    REGION,
    collect_now,
    generations,
    log,
    manifest,
    numbered,
    region_folders,
    rows,
    state,
)
from support.oracles import native
from support.oracles.native import shown
from support.stores.faulty_store import REGION_MANIFEST, FaultyStores, Killed

import memwal
from memwal.errors import CorruptDataError, RegionSealedError
from memwal.format.paths import wal_key
from memwal.format.region_manifest import RegionStatus
from memwal.lsm.wal.abandon import abandon_log, abandoned_entries, read_abandoned
from memwal.lsm.wal.claim import claim_region, seal_region

NO_TIME = timedelta(0)


def leave_unflushed(table: memwal.Table, kind: str) -> None:
    """Flush rows 0 and 1, and leave rows 2 to 5 in the log, one to an entry."""
    table.upsert(rows({0: 0, 1: 1}))
    if kind == "ours":
        writer = table.writer()
        for key in range(2, 6):
            writer.upsert(rows({key: key}))
        writer.abort()
    else:
        shard = native.writer(table)
        for key in range(2, 6):
            native.put(shard, table, rows({key: key}))


def leave_generations(faults: FaultyStores, table: memwal.Table) -> dict[int, int | None]:
    """Leave four sealed generations and an open one in the log; what they hold."""
    options = memwal.WriterOptions(max_memtable_rows=10, max_sealed_memtables=9, flush_attempts=1)
    writer = table.writer(options=options)
    writer.claim()
    faults.of(table.location).fail("create", REGION_MANIFEST, times=1000)
    for number in range(9):
        writer.upsert(numbered(number, 5, number))
    writer.abort()
    faults.of(table.location).clear()
    assert not generations(table)
    assert {e.generation for e in log(table).values() if not e.is_sentinel} == {1, 2, 3, 4, 5}
    return {key: min(key, 8) for key in range(13)}


def abandon(table: memwal.Table) -> None:
    store = table.location.store
    abandon_log(store, claim_region(store, REGION, replay=False))


KINDS = pytest.mark.parametrize("kind", ["ours", "native"])


class TestAbandoned:
    @KINDS
    def test_rows_come_back_to_nobody(self, table: memwal.Table, kind: str) -> None:
        leave_unflushed(table, kind)

        abandon(table)

        assert shown(table) == {0: 0, 1: 1}
        with native.writer(table) as shard:
            assert state(shard.lsm_scanner().to_table()) == {0: 0, 1: 1}
            native.put(shard, table, rows({7: 7}))
        with table.writer() as writer:
            writer.claim()
            assert state(writer) == {0: 0, 1: 1, 7: 7}
            writer.upsert(rows({8: 8}))
        assert shown(table) == {0: 0, 1: 1, 7: 7, 8: 8}
        assert generations(table) == [1, 3, 4]

    @KINDS
    def test_log_is_collected_and_the_record_stays(
        self, table: memwal.Table, kind: str, merge: Merge
    ) -> None:
        leave_unflushed(table, kind)
        abandon(table)
        store = table.location.store
        (record,) = read_abandoned(store, REGION)
        assert [
            key
            for _, entry in abandoned_entries(store, record)
            for batch in entry.batches
            for key in batch["id"].to_pylist()
        ] == [2, 3, 4, 5]

        merge(table)
        for _ in range(3):
            collect_now(table, foreign_claim_seconds=0)
        native.dataset(table).cleanup_old_versions(older_than=NO_TIME, delete_unverified=True)

        assert not region_folders(table)
        assert len(log(table)) == 1
        assert read_abandoned(store, REGION) == [record]
        assert list(abandoned_entries(store, record)) == []
        native.upsert(table, rows({7: 7}))
        merge(table)
        table.build_snapshot()
        assert shown(table) == {0: 0, 1: 1, 7: 7}

    def test_rows_of_a_native_writer_that_lives_are_not_flushed_by_it(
        self, table: memwal.Table
    ) -> None:
        shard = native.writer(table)
        native.put(shard, table, rows({1: 1}))

        abandon(table)

        for call in (lambda: native.put(shard, table, rows({2: 2})), shard.close):
            with pytest.raises(OSError, match="fenced"):
                call()
        assert shown(table) == {}


class TestGap:
    def test_is_passed_over_in_silence_by_lance(self, table: memwal.Table) -> None:
        """Why ours refuses: Lance replays up to the gap, and flushes past all that follows it."""
        shard = native.writer(table)
        for key in range(1, 5):
            native.put(shard, table, rows({key: key}))
        table.location.store.delete(wal_key(REGION, 2))

        with native.writer(table) as shard:
            assert log(table)[5].is_sentinel
            native.put(shard, table, rows({8: 8}))
            native.put(shard, table, rows({9: 9}))

        assert shown(table) == {1: 1, 8: 8, 9: 9}
        assert manifest(table).replay_after == max(log(table)) == 6

    def test_is_filled_by_the_fence_of_lance_when_the_manifest_has_a_hint(
        self, table: memwal.Table
    ) -> None:
        """It looks for the tip from there, and finds the gap. Nobody can see it afterwards."""
        leave_unflushed(table, "native")
        assert manifest(table).wal_last_seen == 2
        table.location.store.delete(wal_key(REGION, 4))

        with native.writer(table) as shard:
            assert log(table)[4].is_sentinel
            native.put(shard, table, rows({9: 9}))

        assert shown(table) == {0: 0, 1: 1, 2: 2, 4: 4, 5: 5, 9: 9}

    @KINDS
    def test_is_refused_and_leaves_its_writer_alone(self, table: memwal.Table, kind: str) -> None:
        leave_unflushed(table, kind)
        position = sorted(p for p, e in log(table).items() if e.batches)[-2]
        entry = table.location.store.get(wal_key(REGION, position))
        table.location.store.delete(wal_key(REGION, position))
        before = manifest(table)

        with pytest.raises(CorruptDataError, match=rf"\b{position}\b"):
            table.writer().claim()

        assert manifest(table) == before
        table.location.store.create(wal_key(REGION, position), entry)
        with table.writer() as writer:
            writer.claim()
            assert state(writer) == {key: key for key in range(6)}


class TestTornTip:
    @pytest.mark.parametrize("size", [0, 50])
    def test_that_lance_stumbled_over_is_mended_for_lance_too(
        self, table: memwal.Table, size: int
    ) -> None:
        leave_unflushed(table, "native")
        store, tip = table.location.store, max(log(table))
        store.put(wal_key(REGION, tip), store.get(wal_key(REGION, tip))[:size])
        with pytest.raises(OSError, match="WAL IPC stream"):
            native.writer(table)
        # Its sentinel stands behind the torn entry now.
        assert store.exists(wal_key(REGION, tip + 1))

        writer = table.writer()
        writer.claim()
        assert state(writer) == {key: key for key in range(5)}
        writer.abort()

        native.upsert(table, rows({9: 9}))
        assert shown(table) == {**{key: key for key in range(5)}, 9: 9}


class TestSealed:
    def test_takes_no_writer_of_either_kind(self, table: memwal.Table) -> None:
        table.upsert(rows({1: 1}))
        shard = native.writer(table)

        seal_region(table.location.store, REGION)

        with pytest.raises(OSError, match="fenced"):
            native.put(shard, table, rows({2: 2}))
        before = manifest(table)
        with pytest.raises(RegionSealedError):
            table.writer().claim()
        with pytest.raises((OSError, ValueError), match="sealed"):
            native.writer(table)
        assert manifest(table) == before

    def test_is_read_merged_and_collected_as_before(
        self, table: memwal.Table, merge: Merge
    ) -> None:
        table.upsert(rows({1: 1}))
        seal_region(table.location.store, REGION)

        assert shown(table) == {1: 1}
        table.build_snapshot()
        merge(table)
        native.collect_all(table)

        assert shown(table) == {1: 1}
        assert not region_folders(table)
        assert manifest(table).status == RegionStatus.SEALED
        assert table.status().regions[0].sealed


class TestLargeLog:
    """Flushed generation by generation before the writer opens."""

    @pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
    def test_is_taken_over_whole(
        self, faults: FaultyStores, table: memwal.Table, max_bytes: int
    ) -> None:
        wanted = leave_generations(faults, table)

        with table.writer(options=memwal.WriterOptions(max_memtable_bytes=max_bytes)) as writer:
            writer.claim()
            assert state(writer) == wanted
            writer.upsert(rows({100: 100}))

        assert shown(table) == {**wanted, 100: 100}
        assert generations(table)[:5] == [1, 2, 3, 4, 5]

    @pytest.mark.few(2)
    @pytest.mark.parametrize("taker", ["ours", "native"])
    @pytest.mark.parametrize("generation", every(2, [1, 2, 3, 5]))
    @pytest.mark.parametrize("step", ["before", "after"])
    def test_is_taken_over_by_the_next_when_one_dies_in_a_flush(
        self,
        faults: FaultyStores,
        table: memwal.Table,
        generation: int,
        taker: str,
        step: str,
    ) -> None:
        wanted = leave_generations(faults, table)
        store = faults.of(table.location)
        if step == "before":
            store.kill("sync", f"*_gen_{generation}")
        else:
            # Two are the claim's own.
            store.kill("create", REGION_MANIFEST, skip=generation + 1, after=True)
        with pytest.raises(Killed):
            table.writer(options=memwal.WriterOptions(max_memtable_bytes=1)).claim()
        store.clear()
        flushed = generation - (step == "before")
        assert generations(table) == list(range(1, flushed + 1))

        if taker == "ours":
            table.upsert(rows({100: 100}))
        else:
            native.upsert(table, rows({100: 100}))

        assert shown(table) == {**wanted, 100: 100}
