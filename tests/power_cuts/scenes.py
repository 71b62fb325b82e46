"""What happens to a table until the power goes, and what must be so when it is back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.data.tables import keys, rows
from support.faults.power_loss import Crash, Recorder
from support.oracles.truth import Change, Truth

from memwal.reading_writer import Writer

DONE = "done"
WRITTEN = "after a write"


@dataclass(frozen=True)
class Known:
    """What was known at a moment: how much was done, and which rows were acknowledged."""

    count: int
    truth: Truth[int]


Crashes = list[Crash[Known]]


class Stage:
    """A table on a disk that is watched.

    Attributes
    ----------
    path : Path
        Of the table.
    truth : Truth
        What was written so far.
    """

    def __init__(self, folder: Path) -> None:
        disk = folder / "disk"
        disk.mkdir()
        self.path = disk / "table"
        self.truth: Truth[int] = Truth()
        self._count = 0
        self.recorder: Recorder[Known] = Recorder(
            disk, lambda: Known(self._count, copy.deepcopy(self.truth))
        )

    def done(self) -> None:
        """Say that something was acknowledged."""
        self._count += 1
        self.recorder.note(DONE)

    def write(self, writer: Writer, change: Change[int]) -> None:
        """Write rows, and note that they are acknowledged."""
        upserts = {key: n for key, n in change.items() if n is not None}
        writes = self.truth.begin(change)
        self.recorder.note("before a write")
        if upserts:
            writer.upsert(rows(upserts))
        else:
            writer.delete(keys(*change))
        self.truth.acknowledge(writes)
        self.recorder.note(WRITTEN)


@dataclass(frozen=True)
class Scene:
    """What happens to a table, and what must be so after a crash.

    Attributes
    ----------
    live : callable
        Is watched.
    check : callable
        Given a folder with the table, and the crash.
    prepare : callable
        What was there before.
    promised : callable
        The crashes after which anything is promised: before them Lance has written, and synced
        nothing.
    """

    live: Callable[[Stage], object]
    check: Callable[[Path, Crash[Known]], None]
    prepare: Callable[[Stage], object] = lambda stage: None
    promised: Callable[[Crashes], Crashes] = list

    def record(self, folder: Path) -> Recorder[Known]:
        """Live, watched."""
        stage = Stage(folder)
        self.prepare(stage)
        with stage.recorder.watch():
            self.live(stage)
        return stage.recorder
