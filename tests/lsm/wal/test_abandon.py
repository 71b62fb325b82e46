"""Giving up the unflushed rows of a region, with every step of it killed, repeated or disturbed."""

import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from support.data.entries import encode_entry
from support.stores.faulty_store import REGION_MANIFEST, WAL, FaultyStore, Killed

from memwal.errors import CorruptDataError, RegionFencedError, StoreAccessError
from memwal.format.paths import wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_encoder import encode_sentinel
from memwal.lsm.wal.abandon import AbandonedRows, abandon_log, abandoned_entries, read_abandoned
from memwal.lsm.wal.claim import Claim, claim_region
from memwal.lsm.wal.log import needs_replay, read_log
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.open import open_store

REGION = uuid4()
SCHEMA = pa.schema([("id", pa.int64())])
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
RECORD = "_mem_wal/*/abandoned/*.json"


def entry(*ids: int, generation: int, epoch: int = 1) -> bytes:
    return bytes(
        encode_entry(
            [pa.record_batch({"id": pa.array(ids, pa.int64())})],
            schema=SCHEMA,
            writer_epoch=epoch,
            generation=generation,
            writer_id="other",
        )
    )


def write_log(store: FaultyStore, *, missing: int = 0, torn: int = 0) -> None:
    """Entries 1 and 2 are flushed, 3 to 7 are not: of generations 2 to 4, the last a sentinel."""
    RegionManifestStore(store, REGION).commit(
        RegionManifest(
            region_id=REGION, version=1, writer_epoch=1, current_generation=2, replay_after=2
        )
    )
    for position, data in enumerate(
        [
            entry(1, generation=1),
            entry(2, generation=1),
            entry(3, 33, generation=2),
            entry(4, generation=2),
            entry(5, 55, generation=3),
            entry(6, generation=4),
            encode_sentinel(writer_epoch=1),
        ],
        start=1,
    ):
        if position != missing:
            data = b"" if position == torn else data
            store.inner.create(wal_key(REGION, position), data)


def manifest(store: FaultyStore) -> RegionManifest:
    latest = RegionManifestStore(store, REGION).read_latest()
    assert latest is not None
    return latest


def abandon(store: FaultyStore) -> Claim:
    return abandon_log(store, claim_region(store, REGION, replay=False), clock=lambda: NOON)


def unflushed(store: FaultyStore) -> list[int]:
    """Ids that whoever claims the region next brings back."""
    made = claim_region(store, REGION)
    return [
        value
        for _, found in read_log(
            store,
            REGION,
            after=made.manifest.replay_after,
            before=made.next_position,
            epoch=made.manifest.writer_epoch,
        )
        if needs_replay(found, current_generation=made.manifest.current_generation)
        for batch in found.batches
        for value in batch["id"].to_pylist()
    ]


def read_back(store: FaultyStore, record: AbandonedRows) -> dict[int, list[int]]:
    return {
        position: [value for batch in found.batches for value in batch["id"].to_pylist()]
        for position, found in abandoned_entries(store, record)
    }


class TestAbandon:
    def test_moves_replay_after_behind_all_entries(self, store: FaultyStore) -> None:
        write_log(store)

        made = abandon(store)

        assert made.next_position == 9
        assert made.manifest == manifest(store)
        assert (made.manifest.replay_after, made.manifest.wal_last_seen) == (8, 8)
        assert made.manifest.current_generation == 5
        assert made.manifest.writer_epoch == 2
        assert unflushed(store) == []

    def test_is_recorded_and_logged(
        self, store: FaultyStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_log(store)
        size = sum(len(store.get(wal_key(REGION, position))) for position in (3, 4, 5, 6))

        made = abandon(store)

        (record,) = read_abandoned(store, REGION)
        assert (record.first_position, record.last_position) == (3, 8)
        assert (record.entries, record.rows, record.entry_bytes) == (4, 6, size)
        assert (record.newest_generation, record.missing, record.damaged) == (4, (), ())
        assert (record.epoch, record.writer_id) == (2, made.writer_id)
        assert (record.region_id, record.time, record.carried_out) == (REGION, NOON, True)
        assert record.host
        assert store.exists(record.key)
        assert AbandonedRows.decode(record.encode(), name="record") == record
        (message,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert {"4", "6"} <= set(re.findall(r"\d+", message))
        assert record.key in message

    def test_leaves_entries_that_can_be_read(self, store: FaultyStore) -> None:
        write_log(store, torn=4)

        abandon(store)

        (record,) = read_abandoned(store, REGION)
        assert read_back(store, record) == {3: [3, 33], 5: [5, 55], 6: [6]}
        store.inner.delete(wal_key(REGION, 3))
        assert read_back(store, record) == {5: [5, 55], 6: [6]}

    def test_without_unflushed_rows_changes_nothing(self, store: FaultyStore) -> None:
        write_log(store)
        abandon(store)
        before = manifest(store)

        made = abandon(store)

        after = manifest(store)
        assert (after.replay_after, after.current_generation) == (8, 5)
        assert after.writer_epoch == before.writer_epoch + 1
        assert made.manifest == after
        assert len(read_abandoned(store, REGION)) == 1

    @pytest.mark.parametrize(
        ("damage", "told"), [("missing", (((4, 4),), ())), ("torn", ((), (4,)))]
    )
    def test_makes_a_damaged_log_writable_again(
        self, store: FaultyStore, damage: str, told: tuple[object, object]
    ) -> None:
        write_log(store, **{damage: 4})
        with pytest.raises(CorruptDataError):
            unflushed(store)

        abandon(store)

        assert unflushed(store) == []
        (record,) = read_abandoned(store, REGION)
        assert (record.entries, record.missing, record.damaged) == (3, *told)

    def test_includes_entries_appended_before_the_fence(self, store: FaultyStore) -> None:
        write_log(store)
        with store.pause("create", WAL).holding(abandon, store) as abandoning:
            store.inner.create(wal_key(REGION, 8), entry(7, generation=9))

        assert abandoning.result().manifest.current_generation == 10
        (record,) = read_abandoned(store, REGION)
        assert (record.entries, record.last_position) == (5, 9)
        assert unflushed(store) == []

    def test_several_times_keeps_every_record(self, store: FaultyStore) -> None:
        write_log(store)
        made = abandon(store)
        store.inner.create(wal_key(REGION, made.next_position), entry(8, generation=5, epoch=2))

        abandon(store)

        first, second = read_abandoned(store, REGION)
        assert (first.last_position, second.first_position, second.last_position) == (8, 9, 10)
        assert (second.entries, second.newest_generation) == (1, 5)
        assert manifest(store).current_generation == 6


class TestInterruption:
    @pytest.mark.few(1)
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    def test_by_death_at_any_request_is_all_or_nothing_and_can_be_repeated(
        self, tmp_path: Path, after: bool
    ) -> None:
        number, died = 0, True
        outcomes = set()
        while died:
            store = FaultyStore(open_store(tmp_path / f"{number}", durable=False))
            write_log(store)
            rule = store.kill("*", skip=number, after=after)
            with suppress(Killed):
                abandon(store)
            died = bool(rule.hits)
            store.clear()
            given_up = manifest(store).replay_after > 2
            records = read_abandoned(store, REGION)
            outcomes.add((given_up, tuple(r.carried_out for r in records)))
            if not given_up:
                # Whoever opens a writer as usual has every row.
                assert not any(record.carried_out for record in records)
                assert unflushed(store) == [3, 33, 4, 5, 55, 6]

            abandon(store)

            assert unflushed(store) == []
            assert manifest(store).current_generation == 5
            done = [r for r in read_abandoned(store, REGION) if r.carried_out]
            assert [(r.entries, r.rows) for r in done] == [(4, 6)]
            number += 1
        assert outcomes == {(False, ()), (False, (False,)), (True, (False,)), (True, (True,))}

    def test_a_newer_claim_abandons_nothing(self, store: FaultyStore) -> None:
        write_log(store)
        with store.pause("create", RECORD).holding(abandon, store) as abandoning:
            assert unflushed(store) == [3, 33, 4, 5, 55, 6]

        assert isinstance(abandoning.exception(), RegionFencedError)
        assert unflushed(store) == [3, 33, 4, 5, 55, 6]
        assert [record.carried_out for record in read_abandoned(store, REGION)] == [False]

    @pytest.mark.parametrize("pattern", [RECORD, REGION_MANIFEST])
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    def test_by_an_answer_that_got_lost_is_settled(
        self, store: FaultyStore, pattern: str, after: bool
    ) -> None:
        write_log(store)
        claim = claim_region(store, REGION, replay=False)
        store.fail("create", pattern, after=after)

        abandon_log(store, claim)

        assert unflushed(store) == []
        assert [record.carried_out for record in read_abandoned(store, REGION)] == [True]

    def test_a_store_that_refuses_abandons_nothing(self, store: FaultyStore) -> None:
        write_log(store)
        store.fail("create", RECORD, StoreAccessError("no"))

        with pytest.raises(StoreAccessError):
            abandon(store)

        assert unflushed(store) == [3, 33, 4, 5, 55, 6]

    def test_a_record_that_could_not_be_marked_is_marked_by_the_next_writer(
        self, store: FaultyStore
    ) -> None:
        write_log(store)
        store.fail("put", RECORD, StoreAccessError("no"))

        abandon(store)

        assert [record.carried_out for record in read_abandoned(store, REGION)] == [False]
        assert unflushed(store) == []
        abandon(store)
        assert [record.carried_out for record in read_abandoned(store, REGION)] == [True]

    def test_by_a_collector_between_manifests_goes_on(self, store: FaultyStore) -> None:
        """It commits versions of its own, with the writer's epoch."""
        write_log(store)
        with store.pause("create", RECORD).holding(abandon, store) as abandoning:
            RegionManifestStore(store, REGION).update(
                lambda latest: replace(latest, wal_last_seen=latest.wal_last_seen)
            )

        assert abandoning.result().manifest == manifest(store)
        assert manifest(store).replay_after == 8


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"region_id": "x"}', b"\xff"])
def test_data_that_is_not_a_record_is_refused(store: FaultyStore, data: bytes) -> None:
    write_log(store)
    abandon(store)
    (record,) = read_abandoned(store, REGION)
    store.put(record.key, data)

    with pytest.raises(CorruptDataError):
        read_abandoned(store, REGION)
