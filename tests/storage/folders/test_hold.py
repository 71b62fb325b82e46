"""A writer's store writes into the folders that were there at the claim, or fails."""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.data.tables import listing
from support.faults.between_calls import before_call
from support.systems import systems, take_away

from memwal.errors import ConflictError, ObjectExistsError, TableReplacedError
from memwal.storage import local
from memwal.storage.local import LocalStore
from memwal.util import system

FOLDERS = ("_mem_wal/r", "_mem_wal/r/wal")
WRITES: dict[str, Callable[[Any], Any]] = {
    "create": lambda store: store.create("_mem_wal/r/wal/2", b"new"),
    "put": lambda store: store.put("_mem_wal/r/wal/2", b"new"),
    "put_chunks": lambda store: store.put_chunks("_mem_wal/r/wal/2", [b"n", b"ew"]),
    "replace": lambda store: store.replace("_mem_wal/r/wal/1", b"new", expected=b"old"),
    "create in a new folder": lambda store: store.create("_mem_wal/r/applied/1", b"new"),
}


@pytest.fixture(autouse=True, params=systems("O_TMPFILE", "statx", "/proc"))
def _system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    path.mkdir()
    return path


@pytest.fixture
def held(root: Path) -> Any:
    store = LocalStore(root).hold(FOLDERS)
    store.create("_mem_wal/r/wal/1", b"old")
    return store


def contents_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def backup_of(root: Path) -> Path:
    return Path(shutil.copytree(root, root.with_name("backup")))


@pytest.mark.parametrize("write", WRITES)
def test_what_stays_in_its_place_is_written_to(root: Path, held: Any, write: str) -> None:
    WRITES[write](held)

    held.check_held()
    assert {info.key for info in held.list("")} >= {"_mem_wal/r/wal/1"}
    assert b"new" in {path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(ObjectExistsError):
        held.create("_mem_wal/r/wal/1", b"other")
    with pytest.raises(ConflictError):
        held.replace("_mem_wal/r/wal/1", b"other", expected=b"never")


@pytest.mark.few(30)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("moved", ["", "_mem_wal", "_mem_wal/r"])
@pytest.mark.parametrize("then", ["nothing", "backup", "link"])
def test_what_was_moved_or_replaced_is_left_alone(
    root: Path, held: Any, write: str, moved: str, then: str
) -> None:
    backup = backup_of(root)
    (root / moved).rename(root.with_name("aside"))
    if then == "backup":
        shutil.copytree(backup / moved, root / moved)
    elif then == "link":
        (root / moved).symlink_to(backup / moved)
    before = listing(root.parent)

    for call in (WRITES[write], lambda store: store.check_held()):
        with pytest.raises(TableReplacedError):
            call(held)

    assert listing(root.parent) == before
    assert (root / moved).exists() is (then != "nothing")


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("call", ["open", "link", "replace", "fsync", "stat"])
def test_a_move_during_a_write_spares_what_replaces_the_table(
    tmp_path: Path, write: str, call: str
) -> None:
    """Before each call of the system, the table is moved and a backup put in its place."""

    def moved_before(number: int) -> int:
        root = tmp_path / str(number) / "table"
        root.mkdir(parents=True)
        held = LocalStore(root).hold(FOLDERS)
        held.create("_mem_wal/r/wal/1", b"old")
        backup = backup_of(root)
        before = contents_of(backup)

        def move() -> None:
            root.rename(root.with_name("aside"))
            backup.rename(root)

        acknowledged = False
        with before_call(call, number, move) as calls, suppress(TableReplacedError):
            WRITES[write](held)
            acknowledged = True
        if calls.count > number:
            # What was acknowledged was in this table before it moved. Nothing goes into the other
            # table, if a path can lead to a folder that is open.
            assert contents_of(root) == before or (not acknowledged and is_path_all)
            assert not acknowledged or b"new" in contents_of(root.with_name("aside")).values()
        else:
            assert acknowledged
        return calls.count

    is_path_all = system.open_files() is None
    number = 0
    while moved_before(number) > number:
        number += 1
    assert number or call in ("link", "replace")


def test_a_folder_with_the_inode_of_a_deleted_one_is_another(root: Path, held: Any) -> None:
    wal = root / FOLDERS[1]
    inode = wal.stat().st_ino
    # Two folders that are made within one tick of the system's clock have the same time of birth.
    time.sleep(0.05)
    for _ in range(100):
        shutil.rmtree(wal)
        wal.mkdir()
        if wal.stat().st_ino == inode:
            break

    with pytest.raises(TableReplacedError):
        held.create("_mem_wal/r/wal/2", b"new")


def test_a_claim_makes_no_table(root: Path) -> None:
    store = LocalStore(root)
    store.create("_mem_wal/r/wal/1", b"old")
    root.rename(root.with_name("aside"))

    with pytest.raises(TableReplacedError):
        store.hold(FOLDERS)

    assert not root.exists()


def test_a_folder_behind_a_link_is_held(root: Path, tmp_path: Path) -> None:
    (tmp_path / "disk" / "r").mkdir(parents=True)
    (root / "_mem_wal").symlink_to(tmp_path / "disk")

    LocalStore(root).hold(FOLDERS).create("_mem_wal/r/wal/1", b"x")

    assert (tmp_path / "disk" / "r" / "wal" / "1").read_bytes() == b"x"


def test_other_folders_of_the_table_are_written_as_before(root: Path, held: Any) -> None:
    held.create("_mem_wal/other/wal/1", b"x")
    held.put("data/1", b"x")

    assert held.get("_mem_wal/other/wal/1") == held.get("data/1") == b"x"


@pytest.mark.parametrize("way", ["unnamed", "named"])
def test_a_held_folder_changes_no_order(
    root: Path, held: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    held = LocalStore(root).hold(FOLDERS)
    is_unnamed = way == "unnamed" and None not in (system.O_TMPFILE, system.open_files())
    monkeypatch.setattr(local, "keeps_unnamed_files", lambda _folder: is_unnamed)
    calls: list[str] = []
    for name in ("write", "fsync", "link", "unlink", "mkdir"):
        real = getattr(os, name)

        def recording(*arguments: Any, name: str = name, real: Any = real, **options: Any) -> Any:
            calls.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, recording)

    held.create("_mem_wal/r/wal/2", b"new")

    unlinked = [] if is_unnamed else ["unlink"]
    assert calls == ["write", "fsync", "link", *unlinked, "fsync"]
