"""What only a local table has: fsync, links, locks, crashes and full disks."""

import errno
import fcntl
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from support.processes import python_command, run_python
from support.systems import BARE, take_away

from memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreFullError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from memwal.storage import local, local_files
from memwal.storage.folders import locks
from memwal.storage.local import LocalStore

# The system's, before a test puts another in its place.
REAL_SYNCFS = local_files.syncfs

Call = tuple[str, ...]


def keys_of(store: LocalStore) -> list[str]:
    return sorted(info.key for info in store.list(""))


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def made_again_by_somebody_else(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.mkdir()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture(params=["unnamed", "named", BARE])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a new file is written, whatever file system the tests run on."""
    if request.param == BARE:
        take_away(monkeypatch, BARE)
        return "named"
    monkeypatch.setattr(local, "keeps_unnamed_files", lambda _folder: request.param == "unnamed")
    return str(request.param)


@pytest.fixture
def calls(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What is asked of the system, in order; names of temporary files are shown as TEMP."""
    recorded: list[Call] = []

    def shown(path: str | Path) -> str:
        text = str(path)
        is_temporary = text.endswith((".tmp", " (deleted)")) or text.startswith("/proc/self/fd/")
        return "TEMP" if is_temporary else os.path.relpath(text, root.parent)

    def record(name: str) -> None:
        real = getattr(os, name)

        def recording(first: int | str, *others: str, **options: object) -> object:
            result = real(first, *others, **options)
            told = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first
            recorded.append((name, *(shown(path) for path in (told, *map(str, others)))))
            return result

        monkeypatch.setattr(os, name, recording)

    for name in ("fsync", "link", "replace", "unlink"):
        record(name)
    real_mkdir = os.mkdir

    def mkdir(path: str, *mode: int) -> None:
        real_mkdir(path, *mode)
        recorded.append(("mkdir", shown(path)))

    monkeypatch.setattr(os, "mkdir", mkdir)
    return recorded


UNLINKED = {"unnamed": [], "named": [("unlink", "TEMP")]}


def test_create_makes_content_then_name_durable(root: Path, calls: list[Call], way: str) -> None:
    store = LocalStore(root)

    store.create("wal/1", b"x")
    store.create("wal/2", b"x")

    def created(path: str) -> list[Call]:
        return [
            ("fsync", "TEMP"),
            ("link", "TEMP", path),
            *UNLINKED[way],
            ("fsync", "table/wal"),
        ]

    folders = [("mkdir", "table"), ("fsync", "."), ("mkdir", "table/wal"), ("fsync", "table")]
    assert calls == [*folders, *created("table/wal/1"), *created("table/wal/2")]


def test_a_file_without_a_name_is_only_used_where_it_is_kept(
    root: Path, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    btrfs = 0x9123683E
    monkeypatch.setattr(local_files, "file_system_magic", lambda _path: btrfs)
    assert not local_files.keeps_unnamed_files(str(root))
    monkeypatch.setattr(local_files, "file_system_magic", lambda _path: 0xEF53)
    assert local_files.keeps_unnamed_files(str(root))
    for missing in ("O_TMPFILE", "/proc"):
        with monkeypatch.context() as patch:
            take_away(patch, missing)
            assert not local_files.keeps_unnamed_files(str(root))


def test_the_file_system_is_asked_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_files.file_system_magic("/proc") == 0x9FA0
    assert local_files.file_system_magic(str(root)) is None
    take_away(monkeypatch, "statfs")
    assert local_files.file_system_magic("/proc") is None


def test_where_an_unnamed_file_cannot_be_linked_a_named_one_is(
    root: Path, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "keeps_unnamed_files", lambda _folder: True)
    real = os.link

    def only_named(source: str, target: str, **options: int) -> None:
        if source.startswith("/proc"):
            raise PermissionError(errno.EPERM, "forbidden here", source)
        real(source, target, **options)

    monkeypatch.setattr(os, "link", only_named)
    store = LocalStore(root)

    for name in ("a", "b"):
        store.create(f"wal/{name}", b"x")

    assert calls.count(("unlink", "TEMP")) == 2
    assert files_below(root) == ["wal/a", "wal/b"]
    assert store.get("wal/b") == b"x"


def test_folders_that_somebody_else_made_are_made_durable_once(
    root: Path, calls: list[Call]
) -> None:
    (root / "a" / "b").mkdir(parents=True)
    calls.clear()
    store = LocalStore(root)

    store.create("a/b/1", b"x")
    store.create("a/b/2", b"x")

    synced = [call[1] for call in calls if call[0] == "fsync"]
    assert synced[:3] == [".", "table", "table/a"]
    assert synced.count("table/a") == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.put("a/1", b"y"),
        lambda store: store.replace("a/1", b"y", expected=b"x"),
        lambda store: store.put_chunks("a/1", [b"y", b"y"]),
    ],
    ids=["put", "replace", "put_chunks"],
)
def test_a_replacement_is_durable_before_it_has_the_name(
    root: Path, calls: list[Call], write: Callable[[LocalStore], None]
) -> None:
    store = LocalStore(root)
    store.put("a/1", b"x")
    calls.clear()

    write(store)

    assert calls == [
        ("fsync", "TEMP"),
        ("replace", "TEMP", "table/a/1"),
        ("fsync", "table/a"),
    ]


def test_a_name_that_is_taken_is_durable_when_create_says_so(root: Path, calls: list[Call]) -> None:
    store = LocalStore(root)
    store.create("a/1", b"x")
    calls.clear()

    with pytest.raises(ObjectExistsError):
        store.create("a/1", b"y")

    # Also what is in it: whoever put it there may sync nothing.
    assert calls[-2:] == [("fsync", "table/a/1"), ("fsync", "table/a")]


def test_sync_covers_files_folders_and_the_way_up(root: Path, calls: list[Call]) -> None:
    deep = root / "gen" / "data" / "deep"
    deep.mkdir(parents=True)
    (root / "other").mkdir()
    for path in (root / "gen" / "1", root / "gen" / "data" / "2", deep / "3", root / "other" / "4"):
        path.write_bytes(b"written by somebody else")
    calls.clear()

    LocalStore(root).sync("gen")

    synced = [call[1] for call in calls if call[0] == "fsync"]
    order = {path: synced.index(path) for path in synced}
    assert set(synced) == {
        "table/gen/1",
        "table/gen/data/2",
        "table/gen/data/deep/3",
        "table/gen/data/deep",
        "table/gen/data",
        "table/gen",
        "table",
        ".",
    }
    assert max(order[f"table/gen/{file}"] for file in ("1", "data/2", "data/deep/3")) < min(
        order[folder] for folder in ("table/gen/data/deep", "table/gen/data", "table/gen", "table")
    )


def test_sync_reaches_the_way_up_again_each_time(root: Path, calls: list[Call]) -> None:
    store = LocalStore(root)
    store.create("gen/x", b"")
    made_again_by_somebody_else(root / "gen")
    calls.clear()

    store.sync("gen")

    assert ("fsync", "table") in calls


def test_a_folder_that_was_deleted_is_made_durable_again(root: Path, calls: list[Call]) -> None:
    store = LocalStore(root)
    store.create("a/b/x", b"")
    store.delete_folder("a")
    (root / "a" / "b").mkdir(parents=True)
    calls.clear()

    store.create("a/b/x", b"")

    synced = [call[1] for call in calls if call[0] == "fsync"]
    assert synced == ["table", "table/a", "TEMP", "table/a/b"]


def test_a_folder_that_vanishes_before_the_link_is_made_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    store = LocalStore(root)
    store.create("a/1", b"")
    store.delete("a/1")
    real = os.link
    vanished: list[str] = []

    def vanish_once(source: str, target: str, **options: int) -> None:
        if not vanished:
            vanished.append(target)
            for file in (root / "a").iterdir():
                file.unlink()
            (root / "a").rmdir()
        real(source, target, **options)

    monkeypatch.setattr(os, "link", vanish_once)

    store.create("a/2", b"x")

    assert files_below(root) == ["a/2"]
    assert store.get("a/2") == b"x"


def test_sync_of_a_folder_that_is_gone_says_so(root: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="gen"):
        LocalStore(root).sync("gen")


def test_not_durable_means_no_fsync_at_all(root: Path, calls: list[Call]) -> None:
    store = LocalStore(root, durable=False)

    store.create("a/1", b"x")
    store.put("a/2", b"x")
    store.replace("a/2", b"y", expected=b"x")
    store.sync("a")
    store.barrier()

    assert "fsync" not in {call[0] for call in calls}
    assert keys_of(store) == ["a/1", "a/2"]


def file_systems_synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that ``syncfs`` is called for from now on; it is still called."""
    synced: list[str] = []

    def recording(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        REAL_SYNCFS(descriptor)

    monkeypatch.setattr(local_files, "syncfs", recording)
    return synced


def test_barrier_syncs_the_file_system_of_the_table(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = file_systems_synced(monkeypatch)
    store = LocalStore(root)
    store.create("a", b"x")

    store.barrier()

    assert synced == [str(root.resolve())]


def test_a_barrier_up_to_an_object_is_left_out_where_a_later_one_was(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(local_files, "syncfs", synced.append)
    store = LocalStore(root)
    store.create("a", b"x")

    changed = os.stat(root / "a").st_ctime

    def barriers(*, after: float, set_by: float = 0.0, up_to: str = "a") -> int:
        """How many are made so many seconds after the object was, on a clock that was set."""
        synced.clear()
        with monkeypatch.context() as patch:
            patch.setattr(local.time, "time", lambda: changed + after + set_by)
            patch.setattr(local.time, "monotonic", lambda: after)
            store.barrier(up_to=up_to)
        return len(synced)

    assert barriers(after=0.1) == 1
    assert barriers(after=0.2) == 1, "so soon, the times of files do not tell"
    assert barriers(after=60) == 1
    assert barriers(after=61) == 0
    assert barriers(after=62, set_by=3_600) == 1, "the clock was set since: who knows"
    assert barriers(after=63, set_by=3_600, up_to="gone") == 0


def test_a_barrier_that_fails_is_not_silent(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(root)
    store.create("a", b"x")
    # The real call, which answers -1.
    monkeypatch.setattr(local_files, "syncfs", lambda _descriptor: REAL_SYNCFS(-1))

    with pytest.raises(StoreUnavailableError):
        store.barrier()


def test_a_barrier_up_to_what_cannot_be_looked_at_says_so(root: Path) -> None:
    store = LocalStore(root)
    store.create("a", b"x")
    (root / "loop").symlink_to("loop")

    with pytest.raises(CorruptDataError):
        store.barrier(up_to="loop")


def test_a_closed_folder_above_the_table_is_synced_the_long_way(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    real_open = os.open
    synced = file_systems_synced(monkeypatch)

    def refusing(path: str, *arguments: int) -> int:
        if path == str(root.parent):
            raise PermissionError(errno.EACCES, "closed", path)
        return real_open(path, *arguments)

    monkeypatch.setattr(os, "open", refusing)

    LocalStore(root).create("a", b"x")

    assert synced == [str(root.resolve())]

    everything: list[str] = []
    take_away(monkeypatch, "syncfs")
    monkeypatch.setattr(local_files, "syncfs", REAL_SYNCFS)
    monkeypatch.setattr(os, "sync", lambda: everything.append("synced"))
    LocalStore(root).create("b", b"x")

    assert everything == ["synced"]


def test_temporaries_are_never_listed_and_age_before_they_go(root: Path) -> None:
    store = LocalStore(root)
    store.create("a/1", b"x")
    # Ours, and what Lance leaves when it dies: while staging a file, and while putting one.
    left_over = ["a/.0123456789abcdef.tmp", "a/.tmpAb3dE9", "a/2.manifest#1"]
    for name in left_over:
        (root / name).write_bytes(b"half")
    (root / "a" / ".tmpdir").mkdir()
    (root / "a" / ".tmpdir" / "2").write_bytes(b"an object all the same")

    assert keys_of(store) == ["a/.tmpdir/2", "a/1"]
    assert store.delete_stale_temporaries("", older_than=timedelta(hours=1)) == 0
    for name in left_over[:2]:
        os.utime(root / name, (0, 0))
    assert store.delete_stale_temporaries("other", older_than=timedelta(hours=1)) == 0
    assert store.delete_stale_temporaries("a", older_than=timedelta(hours=1)) == 2
    assert files_below(root) == ["a/.tmpdir/2", "a/1", "a/2.manifest#1"]


def test_a_write_in_progress_is_not_listed(
    root: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    store = LocalStore(root)
    listed: list[list[str]] = []
    real = os.link

    def link(source: str, target: str, **options: int) -> None:
        listed.append(keys_of(store))
        assert len(files_below(root)) == (1 if way == "named" else 0)
        real(source, target, **options)

    monkeypatch.setattr(os, "link", link)

    store.create("a/1", b"x")

    assert listed == [[]]
    assert files_below(root) == ["a/1"]


FILE_SIZE_LIMIT = """
import resource, sys
from memwal.errors import StoreFullError
from memwal.storage.local import LocalStore
store = LocalStore(sys.argv[1])
store.put("a/old", b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for write in (
    lambda: store.create("a/new", b"x" * 5000),
    lambda: store.put("a/old", b"x" * 5000),
    lambda: store.replace("a/old", b"x" * 5000, expected=b"old"),
):
    try:
        write()
    except StoreFullError:
        print("full")
store.create("a/small", b"fits")
"""


def test_a_quota_leaves_nothing_behind(root: Path) -> None:
    done = run_python(FILE_SIZE_LIMIT, root)

    assert done.stdout.split() == ["full"] * 3
    assert files_below(root) == ["a/old", "a/small"]
    assert (root / "a" / "old").read_bytes() == b"old"


def test_a_full_disk_leaves_nothing_behind(
    root: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    store = LocalStore(root)
    store.create("a/1", b"x")
    real = os.open

    def on_a_full_disk(path: str, flags: int, *mode: int) -> int:
        descriptor = real(path, flags, *mode)
        if flags & os.O_WRONLY:
            full = real("/dev/full", os.O_WRONLY)
            os.dup2(full, descriptor)
            os.close(full)
        return descriptor

    monkeypatch.setattr(os, "open", on_a_full_disk)
    with pytest.raises(StoreFullError) as caught:
        store.create("a/2", b"x")

    assert str(root / "a" / "2") in str(caught.value)
    assert files_below(root) == ["a/1"]


NO_ACCESS = """
import os, sys
from memwal.errors import StoreAccessError
from memwal.storage.local import LocalStore
if os.geteuid() == 0:
    os.setuid(65534)
store = LocalStore(sys.argv[1])
for call in (
    lambda: store.create("new", b"x"),
    lambda: store.put("old", b"x"),
    lambda: store.get("old"),
    lambda: store.delete("old"),
    lambda: store.delete_folder("folder"),
    lambda: list(store.list("")),
    lambda: store.head("old"),
):
    try:
        call()
    except StoreAccessError:
        print("denied")
"""


def test_without_permission_every_call_says_so(root: Path) -> None:
    store = LocalStore(root)
    store.create("old", b"x")
    store.create("folder/old", b"x")
    root.chmod(0)
    try:
        done = run_python(NO_ACCESS, root)
    finally:
        root.chmod(0o700)

    assert done.stdout.split() == ["denied"] * 7
    assert keys_of(store) == ["folder/old", "old"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_links_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int, way: str
) -> None:
    def refuse(_source: str, _target: str, **_options: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)

    with pytest.raises(UnsupportedStoreError):
        LocalStore(root).create("a/1", b"x")

    assert files_below(root) == []


def test_a_failed_fsync_of_the_content_stores_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    store = LocalStore(root)
    store.create("a/1", b"x")
    real = os.fsync

    def fail_for_files(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith((".tmp", " (deleted)")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_files)
    with pytest.raises(StoreUnavailableError):
        store.create("a/2", b"x")

    assert files_below(root) == ["a/1"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_fsync_of_the_name_leaves_the_outcome_open(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int, way: str
) -> None:
    store = LocalStore(root)
    store.create("a/1", b"x")
    real = os.fsync

    def fail_for_folders(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/a"):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fail_for_folders)
        with pytest.raises(StoreUnavailableError):
            store.create("a/2", b"mine")

    with pytest.raises(ObjectExistsError):
        store.create("a/2", b"mine")
    assert store.get("a/2") == b"mine"


def test_a_file_where_a_folder_must_be(root: Path) -> None:
    store = LocalStore(root)
    store.create("a", b"x")

    for write in (store.create, store.put):
        with pytest.raises(InvalidInputError):
            write("a/b/c", b"y")

    with pytest.raises(ConflictError):
        store.replace("a/b", b"y", expected=b"x")


def test_a_name_that_is_too_long_is_refused(root: Path) -> None:
    with pytest.raises(InvalidInputError):
        LocalStore(root).create("a/" + "n" * 300, b"x")


def test_a_folder_that_vanishes_all_the_time_is_reported(
    root: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    store = LocalStore(root)
    real = os.open

    def vanish(path: str, flags: int, *mode: int) -> int:
        if flags & os.O_WRONLY:
            os.rmdir(root / "a")
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", vanish)

    with pytest.raises(StoreUnavailableError):
        store.create("a/1", b"x")


def test_a_folder_deleted_by_another_process_is_made_again(root: Path) -> None:
    ours = LocalStore(root)
    ours.create("a/b/1", b"x")
    LocalStore(root).delete_folder("a")

    ours.create("a/b/2", b"x")
    ours.put("a/c/3", b"x")

    assert keys_of(ours) == ["a/b/2", "a/c/3"]


@pytest.mark.parametrize("change", ["put", "delete"])
def test_what_happens_during_a_replacement_happens_after_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    store = LocalStore(root)
    store.put("a/1", b"old")
    real = local_files.read_file
    changing: list[threading.Thread] = []

    def read_while_somebody_changes(path: str) -> bytes:
        content = real(path)
        other = LocalStore(root)
        work = (
            (lambda: other.put("a/1", b"put")) if change == "put" else lambda: other.delete("a/1")
        )
        thread = threading.Thread(target=work)
        thread.start()
        # Time enough to do it, if nothing held it up.
        thread.join(0.2)
        changing.append(thread)
        return content

    with monkeypatch.context() as slowed:
        slowed.setattr(local_files, "read_file", read_while_somebody_changes)
        store.replace("a/1", b"new", expected=b"old")
    for thread in changing:
        thread.join()

    if change == "put":
        assert store.get("a/1") == b"put"
    else:
        assert not store.exists("a/1")


def test_a_process_forked_inside_a_lock_does_not_keep_it(root: Path) -> None:
    script = """
        import fcntl, os, sys, time
        from memwal.storage.local import LocalStore
        store = LocalStore(sys.argv[1])
        store.put("a", b"1")
        real = os.replace
        def fork_then_replace(*paths):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            real(*paths)
        os.replace = fork_then_replace
        store.put("a", b"2")
        os.replace = real
        descriptor = os.open(sys.argv[1], os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("free", flush=True)
        os.killpg(0, 15)
    """
    process = subprocess.Popen(
        python_command(script, root),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    assert process.stdout is not None
    assert process.stdout.readline() == "free\n"
    process.communicate(timeout=240)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, as a process does that was stopped inside a replacement."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def test_nobody_waits_for_ever_for_a_process_that_stands_still(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(root)
    store.put("hint", b"1")
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.05)
    with held(root):
        for change in (
            lambda: store.replace("hint", b"2", expected=b"1"),
            lambda: store.put("hint", b"2"),
            lambda: store.delete("hint"),
        ):
            with pytest.raises(StoreUnavailableError):
                change()
        assert store.get("hint") == b"1"
        store.create("other", b"x")
    store.replace("hint", b"2", expected=b"1")
    store.delete("hint")
