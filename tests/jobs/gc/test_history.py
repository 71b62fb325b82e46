"""Reading as little as possible of the versions of a region's manifest."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from support.data.tables import REGION
from support.stores.faulty_store import FaultyStore

from memwal.errors import ObjectNotFoundError
from memwal.format.paths import generation_name, manifest_key
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.jobs.gc.history import ManifestVersions, read_history
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.local import LocalStore
from memwal.storage.object_store import ObjectInfo

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Dated(RegionManifestStore):
    """Versions that were written a minute after one another, the newest at ``NOW``."""

    def list_versions(self) -> dict[int, ObjectInfo]:
        stored = super().list_versions()
        newest = max(stored, default=0)
        return {
            version: replace(info, modified=NOW - timedelta(minutes=newest - version))
            for version, info in stored.items()
        }


Store = Callable[[Sequence[RegionManifest]], tuple[Dated, FaultyStore]]


@pytest.fixture
def stored(tmp_path_factory: pytest.TempPathFactory) -> Store:
    def store(versions: Sequence[RegionManifest]) -> tuple[Dated, FaultyStore]:
        faulty = FaultyStore(LocalStore(tmp_path_factory.mktemp("table"), durable=False))
        for manifest in versions:
            faulty.create(manifest_key(REGION, manifest.version), manifest.encode())
        faulty.clear()
        return Dated(faulty, REGION), faulty

    return store


def version(number: int, *, current: int, named: Sequence[int] = ()) -> RegionManifest:
    return RegionManifest(
        region_id=REGION,
        version=number,
        writer_epoch=1,
        current_generation=current,
        replay_after=current - 1,
        flushed=tuple(
            FlushedGeneration(region_id=REGION, generation=g, path=generation_name(g, f"{g:08x}"))
            for g in named
        ),
    )


def read(manifests: Dated, *, minutes: float) -> ManifestVersions:
    history = read_history(manifests, expired=NOW - timedelta(minutes=minutes))
    assert history is not None
    return history


def test_a_region_without_manifests_has_none(stored: Store) -> None:
    assert read_history(stored([])[0], expired=NOW) is None


def test_what_was_the_newest_then(stored: Store) -> None:
    manifests, _ = stored([version(n, current=n) for n in range(1, 11)])
    for minutes, expected in ((0, 10), (0.5, 9), (3, 7), (9, 1)):
        history = read(manifests, minutes=minutes)
        assert history.then is not None
        assert history.then.version == expected
        assert history.settled == history.then
    assert read(manifests, minutes=9.5).then is None
    assert read(manifests, minutes=9.5).settled is None


def test_the_log_is_bounded_by_the_newest_version_before_what_is_kept(stored: Store) -> None:
    versions = [version(n, current=n, named=range(1, n)) for n in range(1, 65)]
    versions.append(version(65, current=64, named=range(40, 64)))
    manifests, store = stored(versions)
    history = read(manifests, minutes=2)
    assert history.settled is not None
    assert history.settled.current_generation == 40
    # The hint, the newest and an earlier version, and a bisection.
    assert store.count("get") <= 3 + 6


@pytest.mark.parametrize("kept", [1, 2, 31, 63])
def test_every_bound_is_found(stored: Store, kept: int) -> None:
    versions = [version(n, current=n) for n in range(1, 65)]
    manifests, _ = stored([*versions, version(65, current=64, named=[kept])])
    settled = read(manifests, minutes=1).settled
    assert settled is not None
    assert settled.current_generation == kept


def test_a_version_in_front_of_a_gap_tells_nothing(stored: Store) -> None:
    """A process that slept through a trim put it there."""
    stray = version(3, current=3, named=[1, 2])
    manifests, _ = stored([stray, *(version(n, current=n) for n in range(8, 11))])
    history = read(manifests, minutes=5)
    assert history.then is None
    assert history.settled is None
    assert set(history.objects) == {3, 8, 9, 10}


def test_it_is_listed_again_when_somebody_trims_it(stored: Store) -> None:
    manifests, store = stored([version(n, current=n) for n in range(1, 6)])
    store.fail("get", manifest_key(REGION, 2), ObjectNotFoundError("trimmed"))
    then = read(manifests, minutes=3).then
    assert then is not None
    assert then.version == 2
    assert store.count("list") == 2


def test_one_that_vanishes_again_and_again_is_an_error(stored: Store) -> None:
    manifests, store = stored([version(1, current=1)])
    store.fail("get", "*", ObjectNotFoundError("trimmed"), times=100)
    with pytest.raises(ObjectNotFoundError):
        read(manifests, minutes=0)
