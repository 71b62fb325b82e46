"""Links are followed by what reads, lists and writes; broken ones are never taken for absent."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memwal.errors import CorruptDataError
from memwal.storage import local_files
from memwal.storage.local import LocalStore


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Another disk, with a folder and a file."""
    (tmp_path / "disk" / "region" / "wal").mkdir(parents=True)
    (tmp_path / "disk" / "region" / "wal" / "1").write_bytes(b"one")
    return tmp_path / "disk"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "table")
    store.create("_mem_wal/here/wal/1", b"here")
    return store


def keys_of(store: LocalStore, prefix: str = "") -> list[str]:
    return sorted(info.key for info in store.list(prefix))


def root_of(store: LocalStore) -> Path:
    return Path(store.uri)


def test_a_folder_behind_a_link_is_one_of_the_table(store: LocalStore, disk: Path) -> None:
    (root_of(store) / "_mem_wal" / "there").symlink_to(disk / "region")

    store.create("_mem_wal/there/wal/2", b"two")
    store.put("_mem_wal/there/new/1", b"new")
    store.replace("_mem_wal/there/wal/2", b"2", expected=b"two")
    store.sync("_mem_wal/there")

    assert store.list_folders("_mem_wal") == ["here", "there"]
    assert store.list_folders("_mem_wal/there") == ["new", "wal"]
    there = ["_mem_wal/there/new/1", "_mem_wal/there/wal/1", "_mem_wal/there/wal/2"]
    assert keys_of(store) == ["_mem_wal/here/wal/1", *there]
    assert keys_of(store, "_mem_wal/there") == there
    assert store.get("_mem_wal/there/wal/1") == b"one"
    assert (disk / "region" / "wal" / "2").read_bytes() == b"2"
    (link,) = store.list_links("")
    assert link.key == "_mem_wal/there"
    assert link.target == str(disk / "region")
    assert link.is_folder
    assert not link.is_broken


def test_a_file_behind_a_link_is_an_object(store: LocalStore, disk: Path) -> None:
    (root_of(store) / "_mem_wal" / "here" / "wal" / "2").symlink_to(disk / "region" / "wal" / "1")

    infos = {info.key: info.size for info in store.list("")}
    assert infos == {"_mem_wal/here/wal/1": 4, "_mem_wal/here/wal/2": 3}
    assert store.get("_mem_wal/here/wal/2") == b"one"
    assert [(link.is_folder, link.is_broken) for link in store.list_links("")] == [(False, False)]


READS: dict[str, Callable[[LocalStore, str], Any]] = {
    "get": lambda store, key: store.get(key),
    "get_range": lambda store, key: store.get_range(key, start=0, length=1),
    "head": lambda store, key: store.head(key),
    "exists": lambda store, key: store.exists(key),
    "list": lambda store, key: list(store.list(key)),
    "list_folders": lambda store, key: store.list_folders(key),
    "create": lambda store, key: store.create(f"{key}/new", b""),
    "put": lambda store, key: store.put(f"{key}/new", b""),
}


@pytest.mark.parametrize("target", ["absent", "broken"])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("below", ["", "/wal/1"])
def test_a_broken_link_is_named_by_whatever_needs_it(
    store: LocalStore, target: str, read: str, below: str
) -> None:
    link = root_of(store) / "_mem_wal" / "broken"
    link.symlink_to(target)

    with pytest.raises(CorruptDataError) as error:
        READS[read](store, f"_mem_wal/broken{below}")

    assert str(link) in str(error.value)
    # It could be either, and is listed as both.
    assert store.list_folders("_mem_wal") == ["broken", "here"]
    assert keys_of(store) == ["_mem_wal/broken", "_mem_wal/here/wal/1"]
    assert [(link.key, link.is_broken) for link in store.list_links("")] == [
        ("_mem_wal/broken", True)
    ]


@pytest.mark.parametrize("target", [".", "..", "../..", "/"])
def test_a_link_to_a_folder_above_it_is_not_followed_for_ever(
    store: LocalStore, target: str
) -> None:
    (root_of(store) / "_mem_wal" / "loop").symlink_to(target)

    assert keys_of(store) == ["_mem_wal/here/wal/1", "_mem_wal/loop"]
    assert store.list_folders("_mem_wal") == ["here", "loop"]
    with pytest.raises(CorruptDataError):
        store.get("_mem_wal/loop")
    assert [link.is_broken for link in store.list_links("")] == [True]
    store.sync("_mem_wal")


def test_what_is_absent_below_a_link_is_absent(store: LocalStore, disk: Path) -> None:
    (root_of(store) / "_mem_wal" / "there").symlink_to(disk / "region")

    assert store.head("_mem_wal/there/none") is None
    assert not store.exists("_mem_wal/none/1")
    assert keys_of(store, "_mem_wal/there/none") == []


@pytest.mark.parametrize("link", ["data", "_mem_wal", "_mem_wal/region", "_mem_wal/region/wal"])
def test_a_barrier_reaches_the_disks_behind_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    root = tmp_path / "table"
    (root / link).parent.mkdir(parents=True)
    # The folder of the tests is in memory, or on a disk.
    device = tmp_path.stat().st_dev
    places = (Path("/dev/shm"), Path(tempfile.gettempdir()))
    place = next(place for place in places if place.stat().st_dev != device)
    other = place / f".memwal-{os.getpid()}-{tmp_path.name}"
    other.mkdir()
    try:
        (root / link).symlink_to(other)
        synced: list[str] = []
        real = local_files.syncfs

        def recording(descriptor: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            real(descriptor)

        monkeypatch.setattr(local_files, "syncfs", recording)
        store = LocalStore(root)
        store.barrier()
        assert synced == [str(root), str(other)]

        store.create(f"{link}/1", b"x")
        synced.clear()
        store.barrier(up_to=f"{link}/1")
        assert synced == [str(root), str(other)]
    finally:
        for path in other.iterdir():
            path.unlink()
        other.rmdir()
