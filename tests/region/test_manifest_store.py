"""Reading and committing the manifest of one region."""

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from support.faults.between_calls import away_between, moments_away
from support.stores.faulty_store import REGION_MANIFEST, VERSION_HINT, FaultyStore, Killed

from memwal.errors import (
    ConflictError,
    CorruptDataError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreAccessError,
    StoreUnavailableError,
)
from memwal.format.paths import manifest_dir, manifest_key, region_dir, version_hint_key
from memwal.format.region_manifest import RegionManifest
from memwal.region.manifest_store import RegionManifestStore, parallel_scans, read_manifests
from memwal.storage.folders import locks
from memwal.storage.open import open_store

REGION = UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff")
FIRST = RegionManifest(region_id=REGION, version=1, writer_epoch=1)


@pytest.fixture
def manifests(store: FaultyStore) -> RegionManifestStore:
    return RegionManifestStore(store, REGION)


def test_a_commit_does_not_wait_for_a_process_that_stands_still_in_the_hint(
    manifests: RegionManifestStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.05)
    manifests.commit(FIRST)
    descriptor = os.open(tmp_path / "table" / manifest_dir(REGION), os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        manifests.commit(replace(FIRST, version=2, writer_epoch=2))
    finally:
        os.close(descriptor)

    assert manifests.read_latest() == replace(FIRST, version=2, writer_epoch=2)
    manifests.commit(replace(FIRST, version=3, writer_epoch=3))
    assert manifests.read_latest() == replace(FIRST, version=3, writer_epoch=3)


def fill(manifests: RegionManifestStore, versions: int, *, first: int = 1) -> RegionManifest:
    """Commit versions up to this one, each with the epoch of its number."""
    for version in range(first, versions + 1):
        manifests.commit(replace(FIRST, version=version, writer_epoch=version))
    latest = manifests.read_latest()
    assert latest is not None
    return latest


def set_hint(store: FaultyStore, hint: bytes) -> None:
    store.put(version_hint_key(REGION), hint)


def test_a_region_that_was_never_claimed_has_no_manifest(manifests: RegionManifestStore) -> None:
    assert manifests.read_latest() is None
    assert manifests.list_versions() == {}
    with pytest.raises(ObjectNotFoundError):
        manifests.read(1)


def test_what_is_committed_is_read(store: FaultyStore, manifests: RegionManifestStore) -> None:
    fill(manifests, 3)

    assert manifests.read(2) == replace(FIRST, version=2, writer_epoch=2)
    assert json.loads(store.get(version_hint_key(REGION))) == {"version": 3}
    assert sorted(manifests.list_versions()) == [1, 2, 3]


@pytest.mark.parametrize(
    "hint",
    [
        b'{"version": 1}',
        b'{"version": 4}',
        b'{"version": 0}',
        b'{"version": -3}',
        b'{"version": "4"}',
        b'{"version": true}',
        b"[]",
        b"null",
        b"",
        b"\xff\xfe",
        None,
    ],
)
def test_any_hint_leads_to_the_newest_version(
    store: FaultyStore, manifests: RegionManifestStore, hint: bytes | None
) -> None:
    fill(manifests, 5)
    if hint is None:
        store.delete(version_hint_key(REGION))
    else:
        set_hint(store, hint)

    assert manifests.read_latest() == replace(FIRST, version=5, writer_epoch=5)


@pytest.mark.parametrize("left", [(1, 2, 3, 4), (1, 2), (), (1,)])
def test_a_newest_version_that_is_lost_is_not_passed_over(
    store: FaultyStore, manifests: RegionManifestStore, left: tuple[int, ...]
) -> None:
    fill(manifests, 5)
    for version in {1, 2, 3, 4, 5}.difference(left):
        store.delete(manifest_key(REGION, version))

    for read in (manifests.read_latest, lambda: read_manifests(store)):
        with pytest.raises(CorruptDataError, match=manifest_key(REGION, 5)):
            read()
    with pytest.raises(CorruptDataError):
        manifests.update(lambda latest: replace(latest, wal_last_seen=9))


def test_a_hint_of_another_table_is_read_again(
    store: FaultyStore, manifests: RegionManifestStore
) -> None:
    """A backup is put in the place of the table between two requests."""
    fill(manifests, 5)

    def restore() -> None:
        for version in (3, 4, 5):
            store.inner.delete(manifest_key(REGION, version))
        store.inner.put(version_hint_key(REGION), b'{"version": 2}')

    store.act("get", restore, key=VERSION_HINT, after=True)

    latest = manifests.read_latest()
    assert latest is not None
    assert latest.version == 2


@pytest.mark.parametrize("makes", ["link to itself", "folder"])
def test_a_hint_that_is_no_file_counts_as_absent(tmp_path: Path, makes: str) -> None:
    manifests = RegionManifestStore(open_store(tmp_path), REGION)
    fill(manifests, 2)
    hint = tmp_path / version_hint_key(REGION)
    hint.unlink()
    if makes == "folder":
        hint.mkdir()
    else:
        hint.symlink_to(hint.name)

    assert fill(manifests, 4, first=3).version == 4
    assert manifests.is_latest(manifests.read(4))
    with pytest.raises((ConflictError, CorruptDataError)):
        manifests.refresh_hint(4)


def test_a_hint_at_a_collected_version_leads_to_the_newest_one(
    store: FaultyStore, manifests: RegionManifestStore
) -> None:
    fill(manifests, 5)
    for version in (1, 2, 3):
        store.delete(manifest_key(REGION, version))
    set_hint(store, b'{"version": 2}')

    assert manifests.read_latest() == replace(FIRST, version=5, writer_epoch=5)


def test_a_hint_that_cannot_be_written_does_not_fail_the_commit(
    store: FaultyStore, manifests: RegionManifestStore
) -> None:
    refusals = [
        store.fail(write, VERSION_HINT, StoreAccessError("no")) for write in ("create", "replace")
    ]

    # The first makes none, the second makes one, the third cannot replace that.
    latest = fill(manifests, 3)

    assert [refusal.hits for refusal in refusals] == [1, 1]
    assert latest.version == 3


def test_a_hint_that_cannot_be_read_is_an_error(
    store: FaultyStore, manifests: RegionManifestStore
) -> None:
    fill(manifests, 2)
    store.fail("get", VERSION_HINT)

    with pytest.raises(StoreUnavailableError):
        manifests.read_latest()


def test_a_version_that_says_it_is_another_one_is_refused(
    store: FaultyStore, manifests: RegionManifestStore
) -> None:
    store.create(manifest_key(REGION, 2), FIRST.encode())

    with pytest.raises(CorruptDataError):
        manifests.read(2)
    with pytest.raises(CorruptDataError):
        manifests.read_latest()


@pytest.mark.parametrize("data", [b"", b"\x08", b"not a manifest"])
def test_bytes_that_are_no_manifest_are_refused(
    store: FaultyStore, manifests: RegionManifestStore, data: bytes
) -> None:
    store.create(manifest_key(REGION, 1), data)

    with pytest.raises(CorruptDataError):
        manifests.read_latest()


def test_other_objects_in_the_folder_are_no_versions(
    store: FaultyStore, manifests: RegionManifestStore
) -> None:
    fill(manifests, 1)
    store.create(f"_mem_wal/{REGION}/manifest/notes.txt", b"x")
    store.create(f"_mem_wal/{REGION}/manifest/0101.binpb", b"x")

    assert list(manifests.list_versions()) == [1]


def test_two_different_commits_of_one_version_do_not_both_succeed(
    manifests: RegionManifestStore,
) -> None:
    manifests.commit(FIRST)

    with pytest.raises(ConflictError):
        manifests.commit(replace(FIRST, writer_epoch=7))

    assert manifests.read_latest() == FIRST


def test_the_same_change_made_twice_is_made(manifests: RegionManifestStore) -> None:
    manifests.commit(FIRST)

    manifests.commit(FIRST)

    assert list(manifests.list_versions()) == [1]


def test_an_exclusive_commit_never_shares_its_version(manifests: RegionManifestStore) -> None:
    manifests.commit_exclusively(FIRST)

    with pytest.raises(ConflictError):
        manifests.commit_exclusively(FIRST)


@pytest.mark.parametrize("has_hint", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("instead", [None, ["manifest/version_hint.json"]])
def test_a_newer_version_is_not_missed_while_the_region_is_away(
    store: FaultyStore,
    manifests: RegionManifestStore,
    has_hint: bool,
    known: bool,
    instead: list[str] | None,
) -> None:
    newest = fill(manifests, 3)
    older = replace(newest, version=2)
    if not has_hint:
        store.delete(version_hint_key(REGION))

    def look() -> bool:
        assert manifests.has_successor(older.version)
        return manifests.read_latest(recent=2, known=older if known else None) in (newest, None)

    path = Path(store.uri) / region_dir(REGION)
    for first, last in moments_away(path, look):
        with (
            away_between(path, first, last, instead=instead),
            suppress(CorruptDataError, ObjectNotFoundError, StoreUnavailableError),
        ):
            assert look()


class TestAmbiguousAnswers:
    @pytest.mark.parametrize(
        "disturb",
        [
            pytest.param(lambda s: s.fail("create", REGION_MANIFEST), id="not-there"),
            pytest.param(lambda s: s.fail("create", REGION_MANIFEST, after=True), id="there"),
            pytest.param(lambda s: s.claim_exists("create", REGION_MANIFEST), id="our-own"),
        ],
    )
    def test_of_a_commit_are_settled(
        self,
        store: FaultyStore,
        manifests: RegionManifestStore,
        disturb: Callable[[FaultyStore], object],
    ) -> None:
        disturb(store)

        manifests.commit(FIRST)

        assert manifests.read_latest() == FIRST

    def test_a_commit_that_lost_meanwhile_is_a_conflict(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        store.fail("create", REGION_MANIFEST)
        other = replace(FIRST, writer_epoch=7)
        store.inner.create(manifest_key(REGION, 1), other.encode())

        with pytest.raises(ConflictError):
            manifests.commit(FIRST)

        assert manifests.read_latest() == other

    def test_a_store_that_keeps_failing_leaves_the_outcome_unknown(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        store.fail("create", REGION_MANIFEST, times=1000)

        with pytest.raises(OutcomeUnknownError):
            manifests.commit(FIRST)

    def test_a_refusal_after_an_ambiguous_answer_does_not_deny_the_first_try(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        """The first try may have stored the object: "access denied" would say that it did not."""
        store.fail("create", REGION_MANIFEST, after=True)
        store.fail("create", REGION_MANIFEST, StoreAccessError("the credentials ran out"))

        with pytest.raises(OutcomeUnknownError):
            manifests.commit(FIRST)

        assert manifests.read_latest() == FIRST

    def test_an_exclusive_commit_leaves_the_doubt_to_its_caller(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        store.fail("create", REGION_MANIFEST, after=True)
        with pytest.raises(StoreUnavailableError):
            manifests.commit_exclusively(FIRST)

        store.claim_exists("create", REGION_MANIFEST)
        with pytest.raises(ConflictError):
            manifests.commit_exclusively(replace(FIRST, version=2))


class TestIsLatest:
    def test_the_newest_is(self, manifests: RegionManifestStore) -> None:
        assert manifests.is_latest(fill(manifests, 2))

    def test_an_older_one_is_not(self, manifests: RegionManifestStore) -> None:
        fill(manifests, 3)

        assert not manifests.is_latest(manifests.read(2))

    def test_one_whose_successors_were_collected_is_not(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        """A writer that slept for long holds a manifest from before everything that is stored."""
        fill(manifests, 5)
        old = manifests.read(2)
        for version in (1, 2, 3, 4):
            store.delete(manifest_key(REGION, version))

        assert not manifests.is_latest(old)

    @pytest.mark.parametrize("version", [1, 2])
    def test_one_that_was_collected_and_made_anew_is_not(
        self, store: FaultyStore, manifests: RegionManifestStore, version: int
    ) -> None:
        """Two wanted the version; the one that lost slept until it was trimmed, and made it."""
        fill(manifests, 5)
        known = manifests.read(version)
        for trimmed in (1, 2, 3, 4):
            store.delete(manifest_key(REGION, trimmed))

        with pytest.raises(ConflictError):
            manifests.commit_exclusively(known)

        assert store.exists(manifest_key(REGION, version))
        assert not manifests.is_latest(known)
        latest = manifests.read_latest()
        assert latest is not None
        assert latest.version == 5

    def test_a_hint_at_what_never_was_is_not_believed(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        newest = fill(manifests, 2)
        store.put(version_hint_key(REGION), b'{"version": 9}')

        assert manifests.is_latest(newest)


class TestCommitBehindTheCollector:
    """A committer that slept finds the name of its version free again: it was collected."""

    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("late", [1, 3])
    def test_a_version_from_before_all_that_is_stored_is_a_conflict(
        self, store: FaultyStore, manifests: RegionManifestStore, exclusive: bool, late: int
    ) -> None:
        fill(manifests, 6)
        for version in (1, 2, 3, 4):
            store.delete(manifest_key(REGION, version))
        made = replace(FIRST, version=late, writer_epoch=77)

        with pytest.raises(ConflictError):
            (manifests.commit_exclusively if exclusive else manifests.commit)(made)

        assert manifests.read_latest() == replace(FIRST, version=6, writer_epoch=6)

    @pytest.mark.parametrize("exclusive", [False, True])
    def test_nobody_who_dies_in_the_middle_makes_it_the_newest_one(
        self, store: FaultyStore, manifests: RegionManifestStore, exclusive: bool
    ) -> None:
        made = replace(FIRST, version=3, writer_epoch=77)
        commit = manifests.commit_exclusively if exclusive else manifests.commit
        steps = 0
        while True:
            fill(manifests, 6)
            for version in (1, 2, 3, 4):
                store.delete(manifest_key(REGION, version))
            store.clear()
            death = store.fail("*", "*", Killed(), after=True, skip=steps)

            with pytest.raises((ConflictError, Killed)):
                commit(made)

            store.clear()
            latest = RegionManifestStore(store, REGION).read_latest()
            assert latest is not None
            assert latest.version == 6
            if not death.hits:
                break
            steps += 1
            store.delete_folder(manifest_dir(REGION))
        assert steps >= 3


class TestUpdate:
    def test_changes_the_newest(self, manifests: RegionManifestStore) -> None:
        fill(manifests, 3)

        changed = manifests.update(lambda latest: replace(latest, wal_last_seen=9))

        assert changed == replace(FIRST, version=4, writer_epoch=3, wal_last_seen=9)
        assert manifests.read_latest() == changed

    def test_reads_only_a_recent_version_if_it_is_the_newest(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        latest = fill(manifests, 3)
        before = store.count("get"), store.count("head")

        changed = manifests.update(lambda m: replace(m, wal_last_seen=9), recent=3)

        assert changed == replace(latest, version=4, wal_last_seen=9) == manifests.read_latest()
        # The version, and the hint twice for the commit.
        assert store.count("get") - before[0] <= 4

    @pytest.mark.parametrize("recent", [1, 2, 9])
    def test_a_version_that_is_not_the_newest_is_never_built_on(
        self, manifests: RegionManifestStore, recent: int
    ) -> None:
        fill(manifests, 3)
        seen = []

        def change(latest: RegionManifest) -> RegionManifest:
            seen.append(latest.version)
            return replace(latest, wal_last_seen=9)

        changed = manifests.update(change, recent=recent)

        assert changed == manifests.read_latest()
        assert (changed.version, changed.writer_epoch) == (4, 3)
        assert seen == ([recent, 3] if recent < 3 else [3])
        assert sorted(manifests.list_versions()) == [1, 2, 3, 4]

    def test_a_recent_version_of_another_table_is_read(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        """A backup has another content under the version that a writer saw last."""
        seen = fill(manifests, 3)
        store.delete_folder(manifest_dir(REGION))
        for version in (1, 2, 3):
            manifests.commit(replace(seen, version=version, writer_epoch=7, wal_last_seen=version))

        changed = manifests.update(lambda m: replace(m, current_generation=4), recent=3)

        assert (changed.version, changed.writer_epoch, changed.wal_last_seen) == (4, 7, 3)

    def test_a_recent_version_that_is_gone_is_not_followed(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        """An older state of the table was put in its place: nothing is written behind a gap."""
        fill(manifests, 5)
        for version in (4, 5):
            store.delete(manifest_key(REGION, version))
        set_hint(store, b'{"version": 3}')

        changed = manifests.update(lambda m: replace(m, wal_last_seen=9), recent=5)

        assert changed.version == 4
        assert sorted(manifests.list_versions()) == [1, 2, 3, 4]

    def test_no_change_writes_nothing(self, manifests: RegionManifestStore) -> None:
        latest = fill(manifests, 3)

        assert manifests.update(lambda _: None) == latest
        assert sorted(manifests.list_versions()) == [1, 2, 3]

    def test_a_region_without_manifest_cannot_be_changed(
        self, manifests: RegionManifestStore
    ) -> None:
        with pytest.raises(ObjectNotFoundError):
            manifests.update(lambda latest: latest)

    def test_starts_over_on_what_landed_meanwhile(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        fill(manifests, 1)
        seen = []

        def change(latest: RegionManifest) -> RegionManifest:
            seen.append(latest.version)
            if len(seen) == 1:
                manifests.commit(replace(latest, version=2, current_generation=5))
            return replace(latest, wal_last_seen=9)

        changed = manifests.update(change)

        assert seen == [1, 2]
        assert (changed.version, changed.current_generation, changed.wal_last_seen) == (3, 5, 9)

    def test_asks_again_when_others_built_on_it_at_once(
        self, store: FaultyStore, manifests: RegionManifestStore
    ) -> None:
        # Whether it was built on, or stands in a gap, cannot be told: the change looks.
        fill(manifests, 1)
        others = RegionManifestStore(store, REGION)
        seen = []

        def change(latest: RegionManifest) -> RegionManifest | None:
            seen.append(latest.version)
            return None if latest.wal_last_seen == 9 else replace(latest, wal_last_seen=9)

        def build_on_it() -> None:
            theirs = others.read_latest()
            assert theirs is not None
            others.commit(replace(theirs, version=3, current_generation=5))

        store.act("create", build_on_it, key=manifest_key(REGION, 2), after=True)
        changed = manifests.update(change)

        assert seen == [1, 3]
        assert (changed.version, changed.current_generation, changed.wal_last_seen) == (3, 5, 9)

    def test_gives_up_after_so_many_races(self, manifests: RegionManifestStore) -> None:
        fill(manifests, 1)
        seen = []

        def change(latest: RegionManifest) -> RegionManifest:
            seen.append(latest.version)
            manifests.commit(replace(latest, version=latest.version + 1))
            return replace(latest, wal_last_seen=9)

        with pytest.raises(ConflictError):
            manifests.update(change, attempts=3)
        assert seen == [1, 2, 3]


def test_reading_costs_three_requests_at_most(
    store: FaultyStore, manifests: RegionManifestStore
) -> None:
    fill(manifests, 20)
    store.clear()

    manifests.read_latest()

    assert len(store.calls) <= 3


def test_scans_of_a_local_disk_have_a_processor_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    assert parallel_scans(is_local=True) == 2
    assert parallel_scans(is_local=False) > 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert parallel_scans(is_local=True) == 1
