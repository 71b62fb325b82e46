"""Claiming a region, with every step of it paused, killed or answered ambiguously."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from support.data.entries import append
from support.stores.faulty_store import REGION_MANIFEST, WAL, FaultyStore, Killed, skip_waits

from memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    OutcomeUnknownError,
    RegionFencedError,
    RegionLostError,
    RegionSealedError,
    StoreAccessError,
)
from memwal.format import wal_entry
from memwal.format.paths import (
    manifest_key,
    region_dir,
    region_marks_dir,
    version_hint_key,
    wal_key,
)
from memwal.format.region_manifest import RegionManifest, RegionStatus
from memwal.format.wal_entry import decode_entry
from memwal.lsm.wal.appender import LogAppender
from memwal.lsm.wal.claim import Claim, claim_region, seal_claimed, seal_region
from memwal.lsm.wal.log import read_log
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectInfo
from memwal.storage.open import open_store

REGION = uuid4()
SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def manifests(store: FaultyStore) -> RegionManifestStore:
    return RegionManifestStore(store, REGION)


class Appender:
    """A writer that has nothing but a log."""

    def __init__(self, store: FaultyStore, claim: Claim) -> None:
        self.claim = claim
        self._log = LogAppender(
            store,
            claim,
            schema=SCHEMA,
            convert=lambda position, entry: list(entry.batches),
            verify_epoch=self._verify,
            start_check=lambda: lambda: None,
            check_interval=0.0,
        )
        self._manifests = RegionManifestStore(store, REGION)

    def append(self, *ids: int) -> int:
        """Append an entry with these ids, and return its position."""
        batch = pa.record_batch({"id": pa.array(ids, pa.int64())})
        return append(self._log, [batch], generation=1).position

    def _verify(self) -> None:
        latest = self._manifests.read_latest()
        assert latest is not None
        if latest.writer_epoch != self.claim.manifest.writer_epoch:
            raise RegionFencedError("fenced")


def claim(store: FaultyStore) -> Appender:
    return Appender(store, claim_region(store, REGION))


def replayed(store: FaultyStore, claimed: Claim) -> list[int]:
    """The ids that whoever made the claim brings back."""
    entries = read_log(
        store,
        REGION,
        after=claimed.manifest.replay_after,
        epoch=claimed.manifest.writer_epoch,
    )
    return [
        value
        for position, entry in entries
        if position < claimed.next_position
        for batch in entry.batches
        for value in batch.column("id").to_pylist()
    ]


class TestFirstClaim:
    def test_writes_the_first_manifest(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        made = claim_region(store, REGION, spec_id=3, region_fields=(("bucket", b"\1\0\0\0"),))

        assert manifests.read_latest() == RegionManifest(
            region_id=REGION,
            version=1,
            writer_epoch=1,
            spec_id=3,
            region_fields=(("bucket", b"\1\0\0\0"),),
        )
        assert made.next_position == 1
        assert replayed(store, made) == []

    def test_an_existing_region_keeps_its_spec_and_values(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        claim_region(store, REGION, spec_id=3, region_fields=(("bucket", b"\1\0\0\0"),))
        claim_region(store, REGION, spec_id=9)

        latest = manifests.read_latest()
        assert latest is not None
        assert (latest.spec_id, latest.region_fields) == (3, (("bucket", b"\1\0\0\0"),))

    def test_an_answer_that_got_lost_costs_an_epoch_at_most(self, store: FaultyStore) -> None:
        store.fail("create", REGION_MANIFEST, after=True)

        made = claim(store)

        assert made.claim.manifest.writer_epoch == 2
        made.append(1)
        assert replayed(store, claim(store).claim) == [1]


class TestLaterClaim:
    def test_raises_the_epoch_puts_a_sentinel_and_notes_where(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        first = claim(store)
        assert first.append(1) == 1
        store.clear()

        second = claim(store)

        created = [key for operation, key in store.calls if operation == "create"]
        assert ["/wal/" in key for key in created] == [False, True, False]
        assert second.claim.manifest.writer_epoch == 2
        assert second.claim.next_position == 3
        entry = decode_entry(store.get(wal_key(REGION, 2)), name="entry")
        assert (entry.is_sentinel, entry.writer_epoch) == (True, 2)
        assert entry.writer_id == second.claim.writer_id
        latest = manifests.read_latest()
        assert latest is not None
        assert (latest.version, latest.writer_epoch, latest.wal_last_seen) == (3, 2, 2)

    def test_what_it_builds_on_is_durable_first(self, store: FaultyStore) -> None:
        """The manifest and the entry before its own may be of a client that does not sync."""
        first = claim(store)
        position = first.append(1)
        before = first.claim.manifest.version
        store.clear()

        claim(store)

        for old, new in (
            (manifest_key(REGION, before), manifest_key(REGION, before + 1)),
            (wal_key(REGION, position), wal_key(REGION, position + 1)),
        ):
            assert store.calls.index(("barrier", old)) < store.calls.index(("create", new))

    def test_replays_what_was_written_and_fences_who_wrote_it(self, store: FaultyStore) -> None:
        first = claim(store)
        for number in range(20):
            first.append(number)

        second = claim(store)

        assert replayed(store, second.claim) == list(range(20))
        with pytest.raises(RegionFencedError):
            first.append(99)
        second.append(20)
        third = claim(store)
        assert replayed(store, third.claim) == list(range(21))
        with pytest.raises(RegionFencedError):
            replayed(store, replace(second.claim, next_position=1000))

    @pytest.mark.parametrize("status", [RegionStatus.SEALED, 7])
    def test_a_sealed_region_is_left_alone(
        self, store: FaultyStore, manifests: RegionManifestStore, status: RegionStatus | int
    ) -> None:
        claim(store)
        manifests.update(lambda latest: replace(latest, status=status))
        store.clear()

        with pytest.raises(RegionSealedError):
            claim(store)

        assert not store.count("create")


class TestAmbiguousAnswers:
    @pytest.mark.parametrize(
        "disturb",
        [
            pytest.param(lambda s: s.fail("create", REGION_MANIFEST), id="manifest-not-there"),
            pytest.param(
                lambda s: s.fail("create", REGION_MANIFEST, after=True), id="manifest-there"
            ),
            pytest.param(
                lambda s: s.claim_exists("create", REGION_MANIFEST), id="manifest-our-own"
            ),
            pytest.param(lambda s: s.fail("create", WAL), id="sentinel-not-there"),
            pytest.param(lambda s: s.fail("create", WAL, after=True), id="sentinel-there"),
            pytest.param(lambda s: s.claim_exists("create", WAL), id="sentinel-our-own"),
            pytest.param(lambda s: s.fail("get", WAL), id="sentinel-cannot-be-read-back"),
            pytest.param(lambda s: s.fail("get", REGION_MANIFEST), id="manifest-not-read"),
        ],
    )
    def test_are_settled(
        self, store: FaultyStore, disturb: Callable[[FaultyStore], object]
    ) -> None:
        first = claim(store)
        first.append(1)
        disturb(store)

        second = claim(store)
        store.clear()

        assert replayed(store, second.claim) == [1]
        assert second.append(2) == second.claim.next_position
        with pytest.raises(RegionFencedError):
            first.append(3)
        assert replayed(store, claim(store).claim) == [1, 2]

    def test_a_tip_that_cannot_be_noted_is_only_a_longer_search(self, store: FaultyStore) -> None:
        first = claim(store)
        first.append(1)
        store.fail("create", REGION_MANIFEST, StoreAccessError("no"), skip=1)

        second = claim(store)

        second.append(2)
        assert replayed(store, claim(store).claim) == [1, 2]

    def test_a_claim_that_is_overtaken_when_it_notes_its_tip_is_refused(
        self, store: FaultyStore
    ) -> None:
        claim(store).append(1)
        pause = store.pause("create", REGION_MANIFEST, skip=1)
        with pause.holding(claim, store) as claiming:
            assert claim(FaultyStore(store.inner)).append(2) == 4

        assert isinstance(claiming.exception(), RegionFencedError)

    def test_a_store_that_keeps_failing_is_reported(self, store: FaultyStore) -> None:
        claim(store).append(1)
        store.fail("create", WAL, times=1000)

        with pytest.raises(OutcomeUnknownError):
            claim(store)

        store.clear()
        assert replayed(store, claim(store).claim) == [1]

    def test_missing_rights_are_reported_at_once(self, store: FaultyStore) -> None:
        store.fail("create", REGION_MANIFEST, StoreAccessError("no"), times=1000)

        with pytest.raises(StoreAccessError):
            claim(store)

        assert store.count("create") == 1


class TestTornTip:
    """What a crash of a client leaves that does not fsync. Nobody was told that it is durable."""

    @staticmethod
    def tear(store: FaultyStore, writer: Appender, size: int) -> int:
        """Append an entry and cut it off."""
        position = writer.append(666)
        whole = store.get(wal_key(REGION, position))
        store.put(wal_key(REGION, position), whole[:size])
        return position

    @pytest.mark.parametrize("size", [0, 1, 7, 100, -1])
    @pytest.mark.parametrize("place", ["behind an entry", "behind the noted tip", "first of all"])
    def test_is_as_if_absent_for_a_claim(self, store: FaultyStore, place: str, size: int) -> None:
        writer, before = claim(store), []
        if place != "first of all":
            writer.append(1)
            before = [1]
        if place == "behind the noted tip":
            writer = claim(store)
        self.tear(store, writer, size)

        second = claim(store)

        assert replayed(store, second.claim) == before
        second.append(2)
        assert replayed(store, claim(store).claim) == [*before, 2]

    def test_with_entries_behind_it_is_corruption(self, store: FaultyStore) -> None:
        first = claim(store)
        torn = self.tear(store, first, 7)
        first.append(1)
        before = store.get(wal_key(REGION, torn))

        with pytest.raises(CorruptDataError):
            second = claim_region(store, REGION)
            replayed(store, second)

        assert store.get(wal_key(REGION, torn)) == before
        assert decode_entry(store.get(wal_key(REGION, torn + 1)), name="entry").batches


def test_a_claim_that_always_loses_gives_up(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(store)
    skip_waits(monkeypatch)
    store.fail("create", REGION_MANIFEST, ConflictError("lost"), times=1000)

    with pytest.raises(MemWalError) as caught:
        claim(store)

    assert isinstance(caught.value, ConflictError)


class TestBusyWriter:
    """A writer that commits manifests, and collects, faster than its log can be listed."""

    @staticmethod
    def busy(
        store: FaultyStore, writer: Appender, monkeypatch: pytest.MonkeyPatch, *, entries: int = 1
    ) -> None:
        """During each listing, append, flush all but the last two entries, and collect those."""
        whole = store.inner.list
        manifests = RegionManifestStore(store.inner, REGION)
        ids = iter(range(100, 1_000_000))

        def listing(prefix: str) -> list[ObjectInfo]:
            found = list(whole(prefix))
            if prefix.endswith("/wal/") and TestBusyWriter.is_in_force(manifests, writer):
                for _ in range(entries):
                    newest = writer.append(next(ids))
                flushed = manifests.update(
                    lambda m: replace(m, replay_after=max(m.replay_after, newest - 2))
                )
                for position in range(1, flushed.replay_after):
                    store.inner.delete(wal_key(REGION, position))
            return found

        monkeypatch.setattr(store.inner, "list", listing)

    @staticmethod
    def is_in_force(manifests: RegionManifestStore, writer: Appender) -> bool:
        latest = manifests.read_latest()
        return latest is not None and latest.writer_epoch == writer.claim.manifest.writer_epoch

    @pytest.mark.parametrize("entries", [1, 2, 5])
    def test_does_not_keep_a_claim_from_winning(
        self, store: FaultyStore, monkeypatch: pytest.MonkeyPatch, entries: int
    ) -> None:
        skip_waits(monkeypatch)
        writer = claim(store)
        for key in range(6):
            writer.append(key)
        self.busy(store, writer, monkeypatch, entries=entries)

        second = claim(store)

        assert store.count("list", "*/wal/") == 2, "one for each claim"
        assert second.claim.manifest.writer_epoch == 2
        acknowledged = [*range(6), *range(100, 100 + entries)]
        assert replayed(store, second.claim) == acknowledged[-2:]
        with pytest.raises(RegionFencedError):
            writer.append(7)

    def test_that_appends_much_has_its_log_listed_again(
        self, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        skip_waits(monkeypatch)
        writer = claim(store)
        writer.append(0)
        whole = store.inner.list

        def listing(prefix: str) -> list[ObjectInfo]:
            found = list(whole(prefix))
            if prefix.endswith("/wal/") and store.count("list", "*/wal/") == 2:
                for key in range(1, 100):
                    writer.append(key)
                RegionManifestStore(store.inner, REGION).update(lambda m: replace(m))
            return found

        monkeypatch.setattr(store.inner, "list", listing)
        second = claim(store)

        assert store.count("list", "*/wal/") == 3
        assert replayed(store, second.claim) == list(range(100))

    @pytest.mark.parametrize("lost", [7, 8, 9])
    def test_that_loses_an_entry_after_the_listing_keeps_its_region(
        self, store: FaultyStore, monkeypatch: pytest.MonkeyPatch, lost: int
    ) -> None:
        """Also where the claim would put its sentinel into the place of the lost entry."""
        skip_waits(monkeypatch)
        writer = claim(store)
        for key in range(1, 7):
            writer.append(key)
        whole = store.inner.list
        manifests = RegionManifestStore(store.inner, REGION)

        def listing(prefix: str) -> list[ObjectInfo]:
            found = list(whole(prefix))
            if prefix.endswith("/wal/") and store.count("list", "*/wal/") == 2:
                for key in range(7, 11):
                    writer.append(key)
                store.inner.delete(wal_key(REGION, lost))
                manifests.update(lambda m: replace(m))
            return found

        monkeypatch.setattr(store.inner, "list", listing)
        with pytest.raises(CorruptDataError, match=wal_key(REGION, lost)):
            claim(store)

        latest = manifests.read_latest()
        assert latest is not None
        assert latest.writer_epoch == 1
        assert writer.append(11) == 11

    def test_is_fenced_by_a_claim_that_pauses_at_any_request(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the claim stands still, the writer appends, flushes and collects."""
        skip_waits(monkeypatch)
        number, fenced = 0, set()
        while True:
            store = FaultyStore(open_store(tmp_path / f"call-{number}", durable=False))
            writer = claim(FaultyStore(store.inner))
            for key in range(6):
                writer.append(key)
            with monkeypatch.context() as patch:
                self.busy(store, writer, patch)
                pause = store.pause("*", skip=number)
                try:
                    with pause.holding(claim, store) as claiming:
                        acknowledged = self.go_on(store, writer)
                except AssertionError:
                    break
            second = claiming.result()
            fenced.add(len(acknowledged))
            behind = second.claim.manifest.replay_after
            stored = {position: ids for position, ids in acknowledged if position > behind}
            found = replayed(store, second.claim)
            assert set(stored.values()) <= set(found), f"paused at request {number}"
            with pytest.raises(RegionFencedError):
                writer.append(9)
            number += 1
        assert number > 12
        assert fenced == {0, 3}, "the pauses did not cover both sides of the fence"

    @staticmethod
    def go_on(store: FaultyStore, writer: Appender) -> list[tuple[int, int]]:
        """Append three entries, flush up to the first, collect; return what was acknowledged."""
        acknowledged = []
        for key in (201, 202, 203):
            with suppress(RegionFencedError):
                acknowledged.append((writer.append(key), key))
        if acknowledged:

            def flush(latest: RegionManifest) -> RegionManifest | None:
                if latest.writer_epoch != 1:
                    return None
                return replace(latest, replay_after=acknowledged[0][0])

            flushed = RegionManifestStore(store.inner, REGION).update(flush)
            for position in range(1, flushed.replay_after + 1):
                store.inner.delete(wal_key(REGION, position))
        return acknowledged


class TestGap:
    """Whoever has the region may still have in memory what is missing."""

    @staticmethod
    def log_with(store: FaultyStore, *missing: int) -> Appender:
        writer = claim(store)
        for number in range(1, 7):
            writer.append(number)
        for position in missing:
            store.inner.delete(wal_key(REGION, position))
        return writer

    @pytest.mark.parametrize("missing", [(1,), (3,), (3, 4), (2, 5)])
    def test_stops_a_claim_before_anything_is_changed(
        self, store: FaultyStore, manifests: RegionManifestStore, missing: tuple[int, ...]
    ) -> None:
        writer = self.log_with(store, *missing)
        before = manifests.read_latest()
        store.clear()

        with pytest.raises(CorruptDataError, match=wal_key(REGION, missing[0])):
            claim_region(store, REGION)

        assert not store.count("create")
        assert manifests.read_latest() == before
        # It is not fenced, and may flush.
        assert writer.append(7) == 7

    def test_before_what_was_flushed_is_none(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        self.log_with(store, 1, 2, 4)
        manifests.update(lambda latest: replace(latest, replay_after=4))

        second = claim(store)

        assert replayed(store, second.claim) == [5, 6]

    def test_up_to_a_position_that_the_manifest_knows_is_one(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        """Nothing follows it, but it was there."""
        self.log_with(store, 5, 6)
        manifests.update(lambda latest: replace(latest, wal_last_seen=6))

        with pytest.raises(CorruptDataError, match=wal_key(REGION, 5)):
            claim_region(store, REGION)

    def test_is_no_hindrance_for_who_does_not_replay(self, store: FaultyStore) -> None:
        writer = self.log_with(store, 3)

        made = claim_region(store, REGION, replay=False)

        assert made.next_position == 8
        assert made.survey.missing == 3
        with pytest.raises(RegionFencedError):
            writer.append(7)

    def test_that_a_flush_and_a_collection_make_during_a_claim_is_none(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        self.log_with(store)
        with store.pause("list", "*/wal/").holding(claim, store) as claiming:
            manifests.update(lambda latest: replace(latest, replay_after=4))
            for position in (1, 2, 3):
                store.inner.delete(wal_key(REGION, position))

        assert replayed(store, claiming.result().claim) == [5, 6]

    def test_that_only_a_listing_has_is_none(
        self, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.log_with(store)
        whole = store.inner.list

        def some(prefix: str) -> list[ObjectInfo]:
            left_out = {wal_key(REGION, position) for position in (2, 3, 6)}
            return [info for info in whole(prefix) if info.key not in left_out]

        monkeypatch.setattr(store.inner, "list", some)

        assert replayed(store, claim(store).claim) == [1, 2, 3, 4, 5, 6]


def test_a_log_without_a_manifest_is_not_taken_for_a_new_region(store: FaultyStore) -> None:
    claim(store).append(1)
    store.inner.delete(manifest_key(REGION, 1))
    store.inner.delete(version_hint_key(REGION))
    store.inner.delete_folder(region_marks_dir(REGION))

    for replay in (True, False):
        with pytest.raises(CorruptDataError):
            claim_region(store, REGION, replay=replay)

    assert not store.exists(manifest_key(REGION, 1))


@pytest.mark.parametrize("merged", [0, 1])
def test_a_region_that_must_exist_does_not_start_over(store: FaultyStore, merged: int) -> None:
    other = UUID(int=9)
    claim_region(store, other)
    claim_region(store, REGION)
    store.inner.delete(manifest_key(REGION, 1))
    store.inner.delete(version_hint_key(REGION))
    if merged:
        store.inner.delete_folder(region_marks_dir(REGION))

    for replay in (True, False):
        with pytest.raises(RegionLostError, match=str(REGION)):
            claim_region(store, REGION, merged=merged, replay=replay)

    assert not store.exists(manifest_key(REGION, 1))


def test_a_log_that_is_lost_though_all_of_it_was_flushed_is_not_taken_for_empty(
    store: FaultyStore, manifests: RegionManifestStore
) -> None:
    """What was appended since, and acknowledged, is lost with it."""
    claim(store).append(1)
    manifests.update(lambda latest: replace(latest, replay_after=1, current_generation=2))
    store.inner.delete(wal_key(REGION, 1))

    with pytest.raises(CorruptDataError, match=wal_key(REGION, 1)):
        claim_region(store, REGION)

    assert claim_region(store, REGION, replay=False).next_position == 3


def test_a_new_region_is_not_made_where_nothing_is_left_of_others(store: FaultyStore) -> None:
    """The disk of the regions is not mounted."""
    other = UUID(int=9)
    claim_region(store, other)
    for info in list(store.inner.list(region_dir(other))):
        store.inner.delete(info.key)

    with pytest.raises(RegionLostError, match=str(other)):
        claim_region(store, REGION)

    assert not list(store.list(region_dir(REGION)))


def test_first_claims_at_the_same_time_do_not_take_the_log_for_a_strange_one(
    store: FaultyStore,
) -> None:
    with store.pause("list", "*/wal/").holding(claim, store) as slow:
        claim(store).append(1)

    assert slow.result().claim.manifest.writer_epoch == 2
    assert replayed(store, slow.result().claim) == [1]


class TestVerifiedAt:
    """From then on an append may rely on it, as on any other look at the epoch."""

    @staticmethod
    def clock_of(store: FaultyStore) -> Callable[[], float]:
        return lambda: float(len(store.calls))

    @pytest.mark.parametrize("earlier", [0, 1])
    def test_is_before_the_last_manifest_was_written(
        self, store: FaultyStore, earlier: int
    ) -> None:
        for _ in range(earlier):
            claim(store)
        store.clear()

        made = claim_region(store, REGION, clock=self.clock_of(store))

        last = max(
            number
            for number, (operation, key) in enumerate(store.calls)
            if operation == "create" and "/manifest/" in key
        )
        assert made.verified_at <= last
        assert RegionManifestStore(store, REGION).is_latest(made.manifest)

    def test_is_the_epochs_when_the_tip_could_not_be_noted(self, store: FaultyStore) -> None:
        claim(store)
        store.clear()
        store.fail("create", REGION_MANIFEST, StoreAccessError("no"), skip=1)

        made = claim_region(store, REGION, clock=self.clock_of(store))

        first = next(n for n, (operation, _) in enumerate(store.calls) if operation == "create")
        assert made.verified_at <= first


class TestSealRegion:
    def test_takes_no_more_writers(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        writer = claim(store)
        before = manifests.read_latest()
        assert before is not None

        sealed = seal_region(store, REGION)

        assert sealed == manifests.read_latest()
        assert sealed.status == RegionStatus.SEALED
        assert sealed.writer_epoch == before.writer_epoch + 1
        with pytest.raises(RegionFencedError):
            writer.append(1)
        with pytest.raises(RegionSealedError):
            claim_region(store, REGION)

    def test_twice_is_once(self, store: FaultyStore) -> None:
        claim(store)
        first = seal_region(store, REGION)

        assert seal_region(store, REGION) == first

    def test_with_unflushed_rows_is_refused_and_fences_nobody(self, store: FaultyStore) -> None:
        writer = claim(store)
        writer.append(1)
        store.clear()

        with pytest.raises(InvalidInputError):
            seal_region(store, REGION)

        assert not store.count("create")
        assert writer.append(2) == 2

    def test_when_all_rows_are_flushed(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        claim(store).append(1)
        manifests.update(lambda latest: replace(latest, replay_after=1, current_generation=2))

        assert seal_region(store, REGION).status == RegionStatus.SEALED

    def test_with_rows_that_came_while_it_claimed_is_refused(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        writer = claim(store)
        store.clear()
        with (
            store.pause("create", WAL).holding(seal_region, store, REGION) as sealing,
            pytest.raises(RegionFencedError),
        ):
            # Its epoch is checked after the entry was stored.
            writer.append(1)

        assert isinstance(sealing.exception(), InvalidInputError)
        latest = manifests.read_latest()
        assert latest is not None
        assert latest.status == RegionStatus.ACTIVE
        assert replayed(store, claim(store).claim) == [1]

    def test_of_a_region_that_somebody_else_claims_meanwhile_is_refused(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        first = claim(store).claim
        claim(store)

        with pytest.raises(RegionFencedError):
            seal_claimed(store, REGION, epoch=first.manifest.writer_epoch)

        latest = manifests.read_latest()
        assert latest is not None
        assert latest.status == RegionStatus.ACTIVE

    def test_of_a_region_that_nobody_claimed_is_refused(self, store: FaultyStore) -> None:
        with pytest.raises(InvalidInputError):
            seal_region(store, REGION)

    def test_of_a_status_that_is_not_known_is_refused(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        claim(store)
        manifests.update(lambda latest: replace(latest, status=7))

        with pytest.raises(RegionSealedError):
            seal_region(store, REGION)

    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    def test_that_dies_at_any_request_is_done_or_can_be_repeated(
        self, tmp_path: Path, after: bool
    ) -> None:
        number, died = 0, True
        while died:
            store = FaultyStore(open_store(tmp_path / f"{number}", durable=False))
            claim(store)
            store.clear()
            rule = store.kill("*", skip=number, after=after)
            with suppress(Killed):
                seal_region(store, REGION)
            died = bool(rule.hits)
            store.clear()
            assert seal_region(store, REGION).status == RegionStatus.SEALED
            number += 1
        assert number > 8

    def test_whose_answer_got_lost_is_sealed(self, store: FaultyStore) -> None:
        claim(store)
        store.fail("create", REGION_MANIFEST, after=True, skip=2)

        assert seal_region(store, REGION).status == RegionStatus.SEALED


def test_an_entry_that_cannot_be_read_here_is_not_replaced(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum tells that it is whole: a claim by another process brings its rows back."""
    position = claim(store).append(1)
    stored = store.get(wal_key(REGION, position))

    def fail(batches: object) -> None:
        raise pa.ArrowInvalid("no thread could be started")

    with monkeypatch.context() as patch, pytest.raises(CorruptDataError):
        patch.setattr(wal_entry, "_validate", fail)
        claim(store)
    assert store.get(wal_key(REGION, position)) == stored
    assert replayed(store, claim(store).claim) == [1]
