"""A disk of which some is safe and the rest perhaps, and what it may hold after a crash.

Between two syncs of a file its content may be there, torn, zeroed or absent; between two syncs of a
folder each name in it may be as it was at any time between them, whatever became of other names.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.faults.syscalls import Call

Content = Mapping[str, bytes | None]
"""Path below the root to content; None for a folder."""

_Moment = int


@dataclass(eq=False, slots=True)
class _File:
    """Content that is safe, and what was written since, oldest first."""

    safe: bytes = b""
    since: list[tuple[_Moment, bytes]] = field(default_factory=list)
    position: int = 0

    @property
    def content(self) -> bytes:
        return self.since[-1][1] if self.since else self.safe

    def write(self, moment: _Moment, data: bytes, offset: int | None) -> None:
        start = self.position if offset is None else offset
        old = self.content
        self.since.append(
            (moment, old[:start].ljust(start, b"\0") + data + old[start + len(data) :])
        )
        if offset is None:
            self.position = start + len(data)

    def sync(self, began: _Moment) -> None:
        for moment, content in self.since:
            if moment < began:
                self.safe = content
        self.since = [(moment, content) for moment, content in self.since if moment >= began]


@dataclass(eq=False, slots=True)
class _Folder:
    """Names that are safe, and what was done to names since, oldest first; None removes one."""

    safe: dict[str, _Node] = field(default_factory=dict)
    since: list[tuple[_Moment, str, _Node | None]] = field(default_factory=list)
    names: dict[str, _Node] = field(default_factory=dict)

    def name(self, moment: _Moment, name: str, node: _Node | None) -> None:
        self.since.append((moment, name, node))
        _set(self.names, name, node)

    def sync(self, began: _Moment) -> None:
        for moment, name, node in self.since:
            if moment < began:
                _set(self.safe, name, node)
        self.since = [change for change in self.since if change[0] >= began]

    def possible(self) -> dict[str, list[_Node | None]]:
        """What each name may stand for, from what is safe to what was done last."""
        found: dict[str, list[_Node | None]] = {name: [node] for name, node in self.safe.items()}
        for _, name, node in self.since:
            found.setdefault(name, [None]).append(node)
        return found


_Node = _File | _Folder


def _set(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


class Disk:
    """A folder, as those see it who use it, and as much of it as is safe."""

    def __init__(self, content: Content) -> None:
        self.root = _Folder()
        self._nameless: dict[str, _File] = {}
        for path, data in sorted(content.items()):
            self._name(-1, path, _Folder() if data is None else _File(data))
        self.sync_all(0)

    def do(self, call: Call) -> None:
        """Do what a call did, apart from syncs."""
        at, path = call.ended, call.path
        if call.name == "open":
            self._open(call)
        elif call.name in ("write", "writev", "pwrite64"):
            file = self._nameless.get(path) or self.find(path)
            # Of a file that lost its name nothing will be seen.
            if isinstance(file, _File):
                file.write(at, call.data, call.offset)
        elif call.name == "copy_file_range":
            source, copy = self.find(path), self.find(call.target)
            assert isinstance(source, _File)
            assert isinstance(copy, _File)
            # From its beginning, in one go or several.
            copy.write(at, source.content[copy.position :][: call.size], None)
        elif call.name == "mkdir":
            self._name(at, path, _Folder())
        elif call.name in ("unlink", "rmdir"):
            self._name(at, path, None)
        elif call.name == "link":
            self._name(at, call.target, self._nameless.get(path) or self.find(path))
        elif call.name == "rename":
            node = self.find(path)
            self._name(at, call.target, node)
            self._name(at, path, None)
        else:
            raise AssertionError(f"what does {call.name} do?")

    def sync(self, call: Call) -> None:
        """Make safe what a sync found when it began."""
        if call.name == "syncfs":
            self.sync_all(call.began)
            return
        node = self._nameless.get(call.path) or self.find(call.path)
        if node is not None:
            node.sync(call.began)

    def sync_all(self, began: _Moment) -> None:
        for node in self._all(self.root):
            node.sync(began)

    def find(self, path: str) -> _Node | None:
        node: _Node | None = self.root
        for name in path.split(os.sep) if path else ():
            node = node.names.get(name) if isinstance(node, _Folder) else None
        return node

    def _open(self, call: Call) -> None:
        file = self.find(call.path)
        if file is None:
            file = _File()
            if call.path.endswith(" (deleted)"):
                self._nameless[call.path] = file
            else:
                self._name(call.ended, call.path, file)
        elif isinstance(file, _File):
            file.position = 0
            if call.fresh:
                file.since.append((call.ended, b""))

    def _name(self, moment: _Moment, path: str, node: _Node | None) -> None:
        folder = self.find(os.path.dirname(path))
        assert isinstance(folder, _Folder), path
        folder.name(moment, os.path.basename(path), node)

    def _all(self, folder: _Folder) -> Iterator[_Node]:
        """Everything that a sync of all makes safe: also what lost its name since the last."""
        yield folder
        for node in {id(n): n for n in (*folder.names.values(), *folder.safe.values())}.values():
            if isinstance(node, _Folder):
                yield from self._all(node)
            else:
                yield node


# What may become of content that was not synced: from what is safe and what was written.
CONTENTS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "empty": lambda safe, written: safe,
    "torn": lambda safe, written: safe + written[len(safe) : (len(safe) + len(written)) // 2],
    "zeros": lambda safe, written: safe + bytes(max(0, len(written) - len(safe))),
    "whole": lambda safe, written: written,
}

_Choice = Callable[[Sequence[_Node | None]], _Node | None]


@dataclass(frozen=True)
class Outcome:
    """What becomes of that which was not synced."""

    how: str
    name: _Choice
    content: Callable[[bytes, bytes], bytes]

    def disk(self, disk: Disk) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        files: dict[_File, bytes] = {}

        def walk(folder: _Folder, above: str) -> None:
            for name, states in sorted(folder.possible().items()):
                node = self.name(states) if len(states) > 1 else states[0]
                path = os.path.join(above, name)
                if isinstance(node, _Folder):
                    found[path] = None
                    walk(node, path)
                elif node is not None:
                    if node not in files:
                        new = node.content if node.since else node.safe
                        files[node] = self.content(node.safe, new) if node.since else new
                    found[path] = files[node]

        walk(disk.root, "")
        return found


def outcomes(dice: random.Random, count: int) -> Iterator[Outcome]:
    """The worst ones, and so many by chance."""

    def first(states: Sequence[_Node | None]) -> _Node | None:
        return states[0]

    def last(states: Sequence[_Node | None]) -> _Node | None:
        return states[-1]

    def removed(states: Sequence[_Node | None]) -> _Node | None:
        return states[-1] if states[-1] is None else states[0]

    yield Outcome("only what was synced", first, CONTENTS["empty"])
    yield Outcome("removals alone", removed, CONTENTS["empty"])
    for how, content in CONTENTS.items():
        yield Outcome(f"all names, {how} files", last, content)
    for _ in range(count):
        share = dice.choice((0.2, 0.5, 0.8))

        def thrown(states: Sequence[_Node | None], share: float = share) -> _Node | None:
            return dice.choice(states[1:]) if dice.random() < share else states[0]

        def any_content(safe: bytes, written: bytes) -> bytes:
            return dice.choice(list(CONTENTS.values()))(safe, written)

        yield Outcome("some of it", thrown, any_content)


def read_disk(root: Path) -> Content:
    """What a folder holds."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }
