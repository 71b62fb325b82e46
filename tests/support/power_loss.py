"""A local disk that loses its power: what was synced is there afterwards, the rest perhaps.

A recorder keeps every call that changed a folder or made some of it durable, whoever made it, see
:mod:`support.syscalls`. From that record come the disks that a crash at any moment may leave.
Between two syncs of a file its content may be there, torn, zeroed or absent; between two syncs of a
folder each name in it may be as it was at any time between them, whatever became of other names.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import pytest
from support.faulty_store import FaultyStores
from support.syscalls import SYNCS, Call, watch

Known = TypeVar("Known")

Disk = Mapping[str, bytes | None]
"""Path below the root to content; None for a folder."""

BEGINNING, END = "the beginning", "the end"

_Moment = int


@dataclass(frozen=True)
class Crash(Generic[Known]):
    """What a disk holds after the power went.

    Attributes
    ----------
    when : str
        The sync before which it went, or the note.
    how : str
        What became of that which was not synced.
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
        folder.mkdir(parents=True)
        for path, content in sorted(self.disk.items()):
            if content is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(content)


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


class _Disk:
    """A folder, as those see it who use it, and as much of it as is safe."""

    def __init__(self, content: Disk) -> None:
        self.root = _Folder()
        self._nameless: dict[str, _File] = {}
        for path, data in sorted(content.items()):
            self._name(-1, path, _Folder() if data is None else _File(data))
        self.sync_all(0)

    def do(self, call: Call) -> None:
        """Do what a call did, apart from syncs."""
        at, path = call.ended, call.path
        if call.name in ("open", "creat"):
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
class _Outcome:
    """What becomes of that which was not synced."""

    how: str
    name: _Choice
    content: Callable[[bytes, bytes], bytes]

    def disk(self, disk: _Disk) -> dict[str, bytes | None]:
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


def _outcomes(dice: random.Random, count: int) -> Iterator[_Outcome]:
    """The worst ones, and some by chance."""

    def first(states: Sequence[_Node | None]) -> _Node | None:
        return states[0]

    def last(states: Sequence[_Node | None]) -> _Node | None:
        return states[-1]

    def removed(states: Sequence[_Node | None]) -> _Node | None:
        return states[-1] if states[-1] is None else states[0]

    yield _Outcome("only what was synced", first, CONTENTS["empty"])
    yield _Outcome("removals alone", removed, CONTENTS["empty"])
    for how, content in CONTENTS.items():
        yield _Outcome(f"all names, {how} files", last, content)
    for _ in range(count):
        share = dice.choice((0.2, 0.5, 0.8))

        def thrown(states: Sequence[_Node | None], share: float = share) -> _Node | None:
            return dice.choice(states[1:]) if dice.random() < share else states[0]

        def any_content(safe: bytes, written: bytes) -> bytes:
            return dice.choice(list(CONTENTS.values()))(safe, written)

        yield _Outcome("some of it", thrown, any_content)


def _nothing(path: str) -> bool:
    return False


class Recorder(Generic[Known]):
    """Keeps what the power going at any moment would leave of a folder.

    Parameters
    ----------
    root : Path
        The folder. What is in it when recording starts is durable.
    known : callable
        What the test knows at the moment; asked at each note.
    """

    def __init__(self, root: Path, known: Callable[[], Known]) -> None:
        self._root = root
        self._known = known
        self._notes: list[tuple[str, Known]] = []
        self._before: Disk = {}
        self._note: Callable[[int], None] = lambda number: None
        self.calls: list[Call] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record while the block runs."""
        self._before = read_disk(self._root)
        self._notes = []
        with watch(self._root, self._root.with_name(f"{self._root.name}.record")) as found:
            self._note = found.note
            self.note(BEGINNING)
            yield
            self.note(END)
        self.calls = found.calls
        self._compare()

    def note(self, what: str) -> None:
        """Say that something happened, and keep what is known; a crash may come right now."""
        self._notes.append((what, self._known()))
        self._note(len(self._notes) - 1)

    def syncs(self) -> list[str]:
        """Every sync: the call and its path."""
        return [_told(call) for call in self.calls if call.name in SYNCS]

    def crashes(
        self,
        *,
        without: Callable[[str], bool] = _nothing,
        chances: int = 2,
        seed: int = 17,
    ) -> list[Crash[Known]]:
        """What crashes leave: before each sync, and at each note.

        Parameters
        ----------
        without : callable
            Syncs that count as if nobody had made them, by call and path: to see that somebody
            notices.
        chances : int
            How many disks that chance decides about, for each moment.
        """
        dice = random.Random(seed)
        seen: set[int] = set()
        found: list[Crash[Known]] = []
        disk = _Disk(self._before)
        known = 0
        for call in self.calls:
            if call.name == "note":
                known = int(call.path)
            elif call.name not in SYNCS:
                disk.do(call)
                continue
            elif without(_told(call)):
                continue
            when = self._notes[known][0] if call.name == "note" else _told(call)
            for outcome in _outcomes(dice, chances):
                left = outcome.disk(disk)
                mark = hash((frozenset(left.items()), known))
                if mark not in seen:
                    seen.add(mark)
                    found.append(Crash(when, outcome.how, left, self._notes[known][1]))
            if call.name != "note":
                disk.sync(call)
        return found

    def _compare(self) -> None:
        """The record tells everything: what it leads to is what is there."""
        disk = _Disk(self._before)
        for call in self.calls:
            if call.name not in (*SYNCS, "note"):
                disk.do(call)
        disk.sync_all(len(self.calls) + (1 << 62))
        (outcome, *_) = _outcomes(random.Random(0), 0)
        told, there = outcome.disk(disk), read_disk(self._root)
        different = sorted({*told.items()} ^ {*there.items()})
        assert told == there, f"the record does not tell of {[path for path, _ in different]}"


def _told(call: Call) -> str:
    return f"{call.name} {call.path}"


def read_disk(root: Path) -> Disk:
    """What a folder holds."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def survive(
    found: Sequence[Crash[Known]],
    folder: Path,
    check: Callable[[Path, Crash[Known]], None],
    *,
    most: int | None = None,
) -> None:
    """Check the disks that crashes leave: all, or so many from all over."""
    assert found
    wrong = list(problems(_spread(found, most or len(found)), folder, check))
    assert not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong)


def problems(
    found: Iterable[Crash[Known]], folder: Path, check: Callable[[Path, Crash[Known]], None]
) -> Iterator[str]:
    """Restore one disk after the other, and tell of each on which a check fails."""
    with pytest.MonkeyPatch.context() as patch:
        # What is restored need not survive another crash.
        FaultyStores(patch, durable=False)
        yield from _problems(found, folder, check)


def _problems(
    found: Iterable[Crash[Known]], folder: Path, check: Callable[[Path, Crash[Known]], None]
) -> Iterator[str]:
    for number, crash in enumerate(found):
        path = folder / f"crash-{number}"
        crash.restore(path)
        try:
            check(path, crash)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Whatever it is: where a disk is torn, Lance panics, which is no Exception.
            yield f"before {crash.when}, {crash.how}: {error!r}"[:1000]
        shutil.rmtree(path)


def _spread(found: Sequence[Crash[Known]], count: int) -> list[Crash[Known]]:
    return [found[(2 * number + 1) * len(found) // (2 * count)] for number in range(count)]


def survive_not(
    recorder: Recorder[Known],
    missing: str,
    folder: Path,
    check: Callable[[Path, Crash[Known]], None],
    *,
    after: str = BEGINNING,
) -> None:
    """See that a check fails when nobody had made the syncs that match a pattern.

    Parameters
    ----------
    after : str
        The note from which on something is promised.
    """
    assert any(re.search(missing, sync) for sync in recorder.syncs()), recorder.syncs()
    found = recorder.crashes(without=lambda sync: re.search(missing, sync) is not None)
    tried = since(found, after)
    random.Random(17).shuffle(tried)
    noticed = next(problems(tried, folder, check), None)
    assert noticed is not None, f"nobody needs {missing}"


def since(found: Iterable[Crash[Known]], what: str) -> list[Crash[Known]]:
    """The crashes from a note on."""
    left = list(itertools.dropwhile(lambda crash: crash.when != what, found))
    assert left, f"nobody noted {what}"
    return left
