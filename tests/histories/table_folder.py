"""What is done to the folder of a table on a local disk: moved away and back, restored, linked.

Times during which a part of the table is away are kept in a file, so that processes can tell which
of their errors may come of that.
"""

import errno
import itertools
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

from histories.toggle import parts_missing


class TableFolder:
    """The folder of a table, and where to put what was in it. Only a part of it is away at a time.

    Parameters
    ----------
    path : Path
        Of the table.
    processes : Path
        Folder in which processes write down what happens.

    """

    def __init__(self, path: Path, processes: Path) -> None:
        self._path = path
        self._away: tuple[Path, Path] | None = None
        self._missing = parts_missing(processes)
        self._elsewhere = path.with_name("elsewhere")
        self._elsewhere.mkdir()
        self._numbers = itertools.count()
        self._links: list[tuple[Path, Path]] = []

    @property
    def is_away(self) -> bool:
        """Whether the table or a part of it is elsewhere."""
        return self._away is not None

    def has(self, pattern: str) -> bool:
        """Return whether a folder matches a pattern, from where the table is."""
        return any(path.is_dir() for path in self._path.parent.glob(pattern))

    def unmount(self, pattern: str, dice: Random) -> None:
        """Move one of the folders elsewhere that match, from where the table is.

        Maybe leave an empty folder, as a place has where no disk is mounted.
        """
        folders = self._path.parent.glob(pattern)
        path = dice.choice(sorted(path for path in folders if path.is_dir()))
        self._away = path, self._new_place()
        self._missing.turn()
        path.rename(self._away[1])
        if dice.random() < 0.5:
            # A process may have begun to write there.
            path.mkdir(exist_ok=True)

    def mount(self) -> None:
        """Put it back, if it is away. What was written in its place meanwhile is gone."""
        if self._away is None:
            return
        path, place = self._away
        while True:
            with suppress(FileNotFoundError):
                path.rename(self._new_place())
            try:
                place.rename(path)
                break
            except OSError as error:
                # A process has written there since.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        self._away = None
        self._missing.turn()

    def restore(self) -> None:
        """Put a copy in the place of the table, as of this moment, and delete the table.

        Nobody may write meanwhile.
        """
        copy, old = self._new_place(), self._new_place()
        shutil.copytree(self._path, copy, symlinks=True)
        self._missing.turn()
        self._path.rename(old)
        copy.rename(self._path)
        self._missing.turn()
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
