"""The trace that commits of a region's manifest leave in an object store."""

import threading
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from support.stores.faulty_store import REGION_MANIFEST, FaultyStore

from memwal.errors import StoreAccessError
from memwal.format.paths import CHANGE_TRACE_KEY
from memwal.format.region_manifest import RegionManifest
from memwal.region import change_trace
from memwal.region.change_trace import finish_traces, wait_for_traces
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.open import open_store

REGION = UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff")
FIRST = RegionManifest(region_id=REGION, version=1, writer_epoch=1)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    monkeypatch.setattr(change_trace, "PAUSE_SECONDS", 0)
    return FaultyStore(open_store(f"memory://{uuid4()}/table"))


def commit(store: FaultyStore, *versions: int) -> None:
    manifests = RegionManifestStore(store, REGION)
    for version in versions:
        manifests.commit(replace(FIRST, version=version, writer_epoch=version))


def trace(store: FaultyStore) -> str | None:
    assert wait_for_traces(60)
    info = store.inner.head(CHANGE_TRACE_KEY)
    return None if info is None else info.e_tag


def test_each_commit_changes_the_trace_afterwards(store: FaultyStore) -> None:
    assert trace(store) is None
    seen = set()
    store.clear()
    for version in (1, 2, 3):
        commit(store, version)
        seen.add(trace(store))
    assert len(seen - {None}) == 3
    made = [
        operation
        for operation, key in store.calls
        if key == CHANGE_TRACE_KEY or (operation == "create" and fnmatchcase(key, REGION_MANIFEST))
    ]
    assert made[:4] == ["create", "put"] * 2


def test_a_claim_leaves_a_trace_too(store: FaultyStore) -> None:
    RegionManifestStore(store, REGION).commit_exclusively(FIRST)
    assert trace(store) is not None


def test_a_commit_that_failed_leaves_none(store: FaultyStore) -> None:
    store.fail("create", REGION_MANIFEST, StoreAccessError("no"))
    with pytest.raises(StoreAccessError):
        commit(store, 1)
    assert trace(store) is None


def test_no_commit_waits_for_a_trace_and_many_leave_few(store: FaultyStore) -> None:
    pause = store.pause("put", CHANGE_TRACE_KEY)
    commit(store, 1)
    assert pause.wait_until_reached()
    commit(store, 2, 3, 4, 5)
    pause.release()
    # What stood still has the content of the first commit: one more follows for the others.
    assert trace(store) is not None
    assert store.count("put", CHANGE_TRACE_KEY) == 2


def test_a_put_that_fails_is_tried_again(store: FaultyStore) -> None:
    store.fail("put", CHANGE_TRACE_KEY, times=3)
    commit(store, 1)
    assert trace(store) is not None


def test_a_put_that_is_refused_is_not_tried_again_until_the_next_commit(
    store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.fail("put", CHANGE_TRACE_KEY, StoreAccessError("no"))
    commit(store, 1)
    assert trace(store) is None
    assert store.uri in caplog.text
    assert store.count("put", CHANGE_TRACE_KEY) == 1
    commit(store, 2)
    assert trace(store) is not None


def test_a_process_that_ends_leaves_its_last_trace(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_trace, "PAUSE_SECONDS", 3_600)
    monkeypatch.setattr(change_trace, "_ending", threading.Event())
    pause = store.pause("put", CHANGE_TRACE_KEY)
    commit(store, 1)
    assert pause.wait_until_reached()
    commit(store, 2)
    pause.release()
    finish_traces()
    assert store.count("put", CHANGE_TRACE_KEY) == 2
    commit(store, 3)
    assert store.count("put", CHANGE_TRACE_KEY) == 3


def test_a_local_table_has_none(tmp_path: Path) -> None:
    local = FaultyStore(open_store(tmp_path / "table", durable=False))
    commit(local, 1)
    assert trace(local) is None
