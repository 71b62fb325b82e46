"""A local disk that loses its power: what was synced is there afterwards, the rest perhaps.

A recorder keeps every call that changed a folder or made some of it durable, whoever made it, see
:mod:`support.faults.syscalls`. From that record come the disks that a crash at any moment may
leave, see :mod:`support.faults.torn_disk`.
"""

import itertools
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pytest
from support.faults.syscalls import SYNCS, Call, watch
from support.faults.torn_disk import Content, Disk, outcomes, read_disk
from support.stores.faulty_store import FaultyStores

Known = TypeVar("Known")

BEGINNING, END = "the beginning", "the end"


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
    disk: Content
    known: Known

    def restore(self, folder: Path) -> None:
        """Write the disk into an empty folder."""
        folder.mkdir(parents=True)
        for path, content in sorted(self.disk.items()):
            if content is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(content)


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
        self._before: Content = {}
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
        disk = Disk(self._before)
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
            for outcome in outcomes(dice, chances):
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
        disk = Disk(self._before)
        for call in self.calls:
            if call.name not in (*SYNCS, "note"):
                disk.do(call)
        disk.sync_all(len(self.calls) + (1 << 62))
        (outcome, *_) = outcomes(random.Random(0), 0)
        told, there = outcome.disk(disk), read_disk(self._root)
        different = sorted({*told.items()} ^ {*there.items()})
        assert told == there, f"the record does not tell of {[path for path, _ in different]}"


def _told(call: Call) -> str:
    return f"{call.name} {call.path}"


def survive(
    found: Sequence[Crash[Known]],
    folder: Path,
    check: Callable[[Path, Crash[Known]], None],
    *,
    most: int | None = None,
) -> None:
    """Check the disks that crashes leave: all, or so many from all over."""
    assert found
    wrong = list(problems(_spread(found, min(most or len(found), len(found))), folder, check))
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
    left = since(found, after)
    # Many syncs are missed at the end, when all else is durable; the others only for a while.
    anywhere = random.Random(17).sample(left, len(left))
    tried = itertools.chain.from_iterable(zip(reversed(left), anywhere, strict=True))
    noticed = next(problems(tried, folder, check), None)
    assert noticed is not None, f"nobody needs {missing}"


def since(found: Iterable[Crash[Known]], what: str) -> list[Crash[Known]]:
    """The crashes from a note on."""
    left = list(itertools.dropwhile(lambda crash: crash.when != what, found))
    assert left, f"nobody noted {what}"
    return left
