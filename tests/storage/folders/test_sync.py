"""Where no whole file system can be synced, a barrier syncs each file, whoever wrote it, once."""

import errno
import os
import shutil
import time
from pathlib import Path

import pytest
from support.systems import BARE, Drive, take_away

from memwal.errors import ObjectNotFoundError, StoreUnavailableError
from memwal.storage.folders import sync
from memwal.storage.local import LocalStore

REGION = "_mem_wal/r"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, BARE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table that somebody else wrote, a minute ago by the clock of this process."""
    root = tmp_path / "table"
    for name in (
        "data/1",
        "_versions/1",
        f"{REGION}/wal/1",
        f"{REGION}/manifest/1",
        f"{REGION}/g/1",
    ):
        write(root, name)
    return root


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the clocks are ahead: of the wall and of the machine, or of the wall alone."""
    ahead = [60.0, 0.0]
    wall, monotonic = time.time, time.monotonic
    monkeypatch.setattr(sync.time, "time", lambda: wall() + sum(ahead))
    monkeypatch.setattr(sync.time, "monotonic", lambda: monotonic() + ahead[0])
    return ahead


@pytest.fixture
def synced(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What fsync is called for, below the folder of the table."""
    calls: list[str] = []

    def fsync(descriptor: int) -> None:
        calls.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), root))

    monkeypatch.setattr(os, "fsync", fsync)
    return calls


def write(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(b"x")


def taken(calls: list[str]) -> list[str]:
    """What was called for, which is over."""
    found = calls[:]
    calls.clear()
    return found


def test_all_files_are_synced_and_then_all_names(root: Path, synced: list[str]) -> None:
    LocalStore(root).barrier()

    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    folders = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}
    assert set(synced[: len(files)]) == files
    assert set(synced[len(files) :]) == {*folders, ".", ".."}
    assert synced.index(REGION) < synced.index("_mem_wal") < synced.index(".") < len(synced) - 1


def test_what_is_durable_is_not_synced_again(
    root: Path, synced: list[str], later: list[float]
) -> None:
    store = LocalStore(root)
    store.barrier()
    taken(synced)

    store.barrier()
    assert taken(synced) == []

    write(root, "data/2")
    (root / "data/1").write_bytes(b"changed")
    later[0] += 60
    store.barrier()
    assert sorted(taken(synced)) == ["data", "data/1", "data/2"]

    later[0] += 60
    store.barrier()
    assert taken(synced) == []

    # Of the folders above a region, only the names.
    store.barrier(up_to=f"{REGION}/wal/1")
    assert taken(synced) == ["_mem_wal", "."]

    # Another file with the name of one that is durable.
    os.replace(shutil.copy(root / "data/2", root / "data/3"), root / "data/1")
    store.barrier()
    assert sorted(taken(synced)) == ["data", "data/1"]


def test_a_moment_ago_the_time_of_a_file_does_not_tell(root: Path, synced: list[str]) -> None:
    store = LocalStore(root)
    store.barrier()
    everything = set(taken(synced)) - {".."}

    store.barrier()

    assert set(synced) == everything


def test_after_the_clock_was_set_no_time_tells(
    root: Path, synced: list[str], later: list[float]
) -> None:
    store = LocalStore(root)
    store.barrier()
    everything = set(taken(synced)) - {".."}

    later[1] = -3_600
    store.barrier()

    assert set(synced) == everything


def test_a_sync_that_fails_is_repeated(
    root: Path, synced: list[str], later: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(root)
    with monkeypatch.context() as patch:

        def failing(descriptor: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(os, "fsync", failing)
        with pytest.raises(StoreUnavailableError):
            store.barrier()

    store.barrier()

    assert "data/1" in synced


@pytest.mark.parametrize("name", ["wal/1", "manifest/1"])
def test_up_to_an_object_of_a_region_all_of_it_is_synced(
    root: Path, synced: list[str], name: str
) -> None:
    """The generations too, which a manifest names."""
    LocalStore(root).barrier(up_to=f"{REGION}/{name}")

    files = {f"{REGION}/{file}" for file in ("wal/1", "manifest/1", "g/1")}
    assert set(synced[:3]) == files
    assert {REGION, "_mem_wal", ".", ".."} < set(synced)
    assert "data" not in synced


def test_up_to_any_other_object_everything_is_synced(root: Path, synced: list[str]) -> None:
    store = LocalStore(root)
    store.barrier(up_to="_versions/1")
    assert {"data/1", f"{REGION}/wal/1"} < set(taken(synced))

    store.barrier(up_to="_versions/gone")
    assert synced == []


def test_files_behind_links_are_synced(root: Path, tmp_path: Path, synced: list[str]) -> None:
    write(tmp_path, "disk/1")
    (root / "_mem_wal/linked").symlink_to(tmp_path / "disk")
    (root / "data/linked").symlink_to(tmp_path / "disk/1")
    (root / "data/broken").symlink_to(tmp_path / "nowhere")

    LocalStore(root).barrier()

    assert {"../disk/1", "../disk"} < set(synced)


def test_a_table_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        LocalStore(tmp_path / "gone").barrier()
    assert not (tmp_path / "gone").exists()


def test_files_that_come_and_go_meanwhile_are_no_error(
    root: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def vanishing(path: str, flags: int, *arguments: int) -> int:
        if path.endswith("data/1"):
            os.unlink(path)
        return real(path, flags, *arguments)

    monkeypatch.setattr(os, "open", vanishing)

    LocalStore(root).barrier()

    assert "data" in synced
    assert "data/1" not in synced


def test_a_drive_empties_its_cache_once_after_all_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = Drive(monkeypatch)
    files = {str(path) for path in root.rglob("*")}

    LocalStore(root).barrier()
    assert files < set(drive.emptied[0])

    drive.emptied.clear()
    LocalStore(root).sync(REGION)
    assert {path for path in files if REGION in path} <= set(drive.emptied[0])


def test_a_drive_empties_its_cache_for_each_object(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = Drive(monkeypatch)
    store = LocalStore(root)

    store.create("data/2", b"x")
    store.put("data/2", b"y")
    store.replace("data/2", b"z", expected=b"y")
    store.put_chunks("data/2", [b"z"])

    assert drive.handed == []
    assert [files[-1] for files in drive.emptied].count(str(root / "data")) == 4


@pytest.mark.parametrize("refused", [errno.ENOTSUP, errno.ENOTTY, errno.EINVAL])
def test_where_a_drive_knows_no_cache_fsync_does(
    root: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    drive = Drive(monkeypatch, refuses=refused)
    store = LocalStore(root)

    store.create("data/2", b"x")
    store.barrier()

    assert str(root / "data") in drive.handed


def test_an_error_of_a_drive_is_not_silent(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Drive(monkeypatch, refuses=errno.EIO)
    store = LocalStore(root)

    for write_something in (lambda: store.put("data/2", b"x"), store.barrier):
        with pytest.raises(StoreUnavailableError):
            write_something()
