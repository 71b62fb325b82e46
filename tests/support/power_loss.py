"""A local disk that loses its power: what was fsynced is there afterwards, the rest perhaps.

The recorder watches the calls that make things durable and, at each of them, keeps what the disk
would hold if the power went at that moment. What Lance writes past Python is seen too: the folder
is read as it is, and only fsync and syncfs make any of it safe.
"""

from __future__ import annotations

import os
import random
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from memwal.storage import durability, folders, local

Known = TypeVar("Known")

Disk = Mapping[str, bytes | None]
"""Path below the root to content; None for a folder."""

# A file that is overwritten or whose number is used again has another time of change.
_FileId = tuple[int, int]


@dataclass(frozen=True)
class Crash(Generic[Known]):
    """What a disk holds after the power went.

    Attributes
    ----------
    when : str
        The call before which it went.
    how : str
        What became of that which was not fsynced.
    disk : mapping
        The disk.
    known : object
        What the test said it knew at the time.
    """

    when: str
    how: str
    disk: Disk
    known: Known

    def restore(self, folder: Path) -> None:
        """Write the disk into an empty folder."""
        folder.mkdir()
        for path, content in sorted(self.disk.items()):
            if content is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(content)


@dataclass
class _Durable:
    """What is safe: the content of files, and the names in folders."""

    content: dict[_FileId, bytes] = field(default_factory=dict)
    # Folder (path below the root) to its names; None names a folder.
    names: dict[str, dict[str, _FileId | None]] = field(default_factory=dict)


# What may become of a file whose name is there and whose content was not fsynced.
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "torn": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
}


class Recorder(Generic[Known]):
    """Keeps what the power going at any moment would leave of a folder.

    Parameters
    ----------
    root : Path
        The folder. What is in it when recording starts is durable.
    known : callable
        What the test knows at the moment; kept with each crash.
    names : callable
        Whether a name that was not fsynced may be there after the crash, by its path. One that
        may not is there only once it was fsynced.
    """

    def __init__(
        self,
        root: Path,
        known: Callable[[], Known],
        *,
        names: Callable[[str], bool] = lambda path: True,
    ) -> None:
        self._root = str(root)
        self._known = known
        self._names = names
        self._durable = _Durable()
        self._lock = threading.RLock()
        self._dice = random.Random(17)
        self._seen: set[int] = set()
        self.crashes: list[Crash[Known]] = []

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Record from now on, until the patches are undone."""
        for name in ("fsync", "fdatasync", "link", "rename", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))
        whole = self._watched("syncfs", durability.sync_file_system)
        for module in (durability, folders, local):
            monkeypatch.setattr(module, "sync_file_system", whole)

    def sync(self) -> None:
        """Everything that is there is durable."""
        with self._lock:
            tree = self._tree()
            contents = self._contents(tree)
            self._durable = _Durable(
                {file: contents[path] for path, file in tree.items() if file is not None},
                {
                    folder: self._entries(tree, folder)
                    for folder in ("", *(path for path, file in tree.items() if file is None))
                },
            )

    def lose_power(self, when: str) -> None:
        """Keep what a crash at this moment would leave."""
        with self._lock:
            known, tree = self._known(), self._tree()
            contents = self._contents(tree)
            self._keep(when, "only what was fsynced", self._least(), known)
            for how, change in CONTENTS.items():
                self._keep(when, f"{how} files", self._most(tree, contents, change), known)
            self._keep(when, "some of it", self._some(tree, contents), known)

    # Watching

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            # Of a link the new name counts: the old one may be that of an open file.
            path = self._path_of(args[1] if name == "link" else args[0])
            if path is None:
                return call(*args, **kwargs)
            with self._lock:
                self.lose_power(f"{name} {path}")
                result = call(*args, **kwargs)
                if name in ("fsync", "fdatasync"):
                    self._fsynced(path, args[0])
                elif name == "syncfs":
                    self.sync()
                return result

        return watched

    def _path_of(self, target: int | str | os.PathLike[str]) -> str | None:
        """Path below the root, or None for anything else."""
        full = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
        if full == self._root:
            return ""
        if not full.startswith(self._root + os.sep):
            return None
        return os.path.relpath(full, self._root)

    def _fsynced(self, path: str, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._durable.names[path] = self._entries(self._tree(), path)
        else:
            # By the descriptor, since the file may have no name yet.
            content = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            self._durable.content[(status.st_ino, status.st_mtime_ns)] = content

    # The disk as it is

    def _tree(self) -> dict[str, _FileId | None]:
        found: dict[str, _FileId | None] = {}
        pending = [self._root]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    path = os.path.relpath(entry.path, self._root)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                        found[path] = None
                    else:
                        status = entry.stat(follow_symlinks=False)
                        found[path] = (status.st_ino, status.st_mtime_ns)
        return found

    def _entries(
        self, tree: Mapping[str, _FileId | None], folder: str
    ) -> dict[str, _FileId | None]:
        return {
            os.path.basename(path): file
            for path, file in tree.items()
            if os.path.dirname(path) == folder
        }

    def _contents(self, tree: dict[str, _FileId | None]) -> dict[str, bytes]:
        """Contents of all files; one that is gone by now is taken out of the tree."""
        found: dict[str, bytes] = {}
        for path in [path for path, file in tree.items() if file is not None]:
            try:
                found[path] = Path(self._root, path).read_bytes()
            except FileNotFoundError:
                del tree[path]
        return found

    # The disk as it may be

    def _least(self) -> Disk:
        """Names and contents that were fsynced, deletes undone."""
        found: dict[str, bytes | None] = {}

        def walk(folder: str) -> None:
            for name, file in self._durable.names.get(folder, {}).items():
                path = os.path.join(folder, name)
                if file is None:
                    found[path] = None
                    walk(path)
                else:
                    found[path] = self._durable.content.get(file, b"")

        walk("")
        return found

    def _most(
        self,
        tree: Mapping[str, _FileId | None],
        contents: Mapping[str, bytes],
        change: Callable[[bytes], bytes],
    ) -> Disk:
        """Every name as it is, but contents only where they were fsynced."""
        found: dict[str, bytes | None] = dict(self._least())
        for path, file in tree.items():
            if path in found or self._names(path):
                safe = file is None or file in self._durable.content
                found[path] = (
                    None if file is None else contents[path] if safe else change(contents[path])
                )
        for path in set(found) - set(tree):
            if self._names(path):
                self._remove(found, path)
        return found

    def _some(self, tree: Mapping[str, _FileId | None], contents: Mapping[str, bytes]) -> Disk:
        """Any of the names that were not fsynced, with any contents."""
        least = self._least()
        found: dict[str, bytes | None] = dict(least)
        for path, file in sorted(tree.items()):
            parent = os.path.dirname(path)
            if parent and parent not in found:
                continue
            if path not in least and not (self._names(path) and self._dice.random() < 0.5):
                continue
            if path in least and self._dice.random() < 0.5:
                # As it was before it was overwritten, if it was.
                continue
            if file is None:
                found[path] = None
            elif file in self._durable.content:
                found[path] = contents[path]
            else:
                changes = [*CONTENTS.values(), bytes]
                found[path] = self._dice.choice(changes)(contents[path])
        for path in sorted(set(least) - set(tree)):
            if self._names(path) and self._dice.random() < 0.5:
                self._remove(found, path)
        return found

    def _remove(self, disk: dict[str, bytes | None], path: str) -> None:
        for inner in [p for p in disk if p == path or p.startswith(path + os.sep)]:
            del disk[inner]

    def _keep(self, when: str, how: str, disk: Disk, known: Known) -> None:
        mark = hash((frozenset(disk.items()), repr(known)))
        if mark not in self._seen:
            self._seen.add(mark)
            self.crashes.append(Crash(when, how, disk, known))
