"""What is done to the folder of a table on a local disk: moved away and back, restored, linked.

Moments at which the table is away are counted in a file, so that processes can tell which of their
errors may come of that.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

_COUNT = "moves"


def moves(folder: Path) -> int:
    """How often the table was moved, odd while it is away; ``folder`` is where processes write."""
    path = folder / _COUNT
    return path.stat().st_size if path.exists() else 0


class TableFolder:
    """The folder of a table, and where to put what was in it.

    Parameters
    ----------
    path : Path
        Of the table.
    processes : Path
        Folder in which processes write down what happens.

    Attributes
    ----------
    made_anew : int
        How often there was something at the address of the table when it was moved back.
    """

    def __init__(self, path: Path, processes: Path) -> None:
        self.made_anew = 0
        self._path = path
        self._count = processes / _COUNT
        self._elsewhere = processes.with_name("elsewhere")
        self._elsewhere.mkdir()
        self._numbers = itertools.count()
        self._links: list[tuple[Path, Path]] = []

    @contextmanager
    def away(self) -> Iterator[None]:
        """Move the table elsewhere while the block runs, and back."""
        place = self._new_place()
        self._count_move()
        self._path.rename(place)
        yield
        # Lance makes folders for what it writes: a flush that was under way when the table went.
        if self._path.exists():
            self.made_anew += 1
            self._path.rename(self._new_place())
        place.rename(self._path)
        self._count_move()

    def restore(self) -> None:
        """Put a copy in the place of the table, as of this moment, and delete the table.

        Nobody may write meanwhile.
        """
        copy, old = self._new_place(), self._new_place()
        shutil.copytree(self._path, copy, symlinks=True)
        self._count_move()
        self._path.rename(old)
        copy.rename(self._path)
        self._count_move()
        shutil.rmtree(old)

    def link(self, dice: Random) -> None:
        """Put one of the table's folders elsewhere, with a link to it in its place.

        Nobody may look meanwhile.
        """
        folders = [
            path
            for pattern in ("data", "_indices", "_mem_wal", "_mem_wal/*", "_mem_wal/*/*")
            for path in sorted(self._path.glob(pattern))
            if path.is_dir() and not path.is_symlink()
        ]
        if not folders:
            return
        path, place = dice.choice(folders), self._new_place()
        path.rename(place)
        path.symlink_to(place)
        self._links.append((path, place))

    def unlink(self, dice: Random) -> None:
        """Put one of those folders back in its place. Nobody may look meanwhile."""
        if not self._links:
            return
        path, place = self._links.pop(dice.randrange(len(self._links)))
        path.unlink()
        place.rename(path)

    def _new_place(self) -> Path:
        return self._elsewhere / str(next(self._numbers))

    def _count_move(self) -> None:
        with self._count.open("ab") as file:
            os.write(file.fileno(), b"x")
