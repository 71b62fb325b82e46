"""Tables that are made once in a run, of which each test gets a copy of its own."""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import memwal

_made: dict[str, Path] = {}
_home: list[Path] = []


def keep_in(folder: Path) -> None:
    """Keep what is made in a folder that outlives the tests and is on their file system."""
    _home[:] = [folder]
    _made.clear()


def lasting_folder() -> Path:
    """Make a folder that outlives the tests and is on their file system."""
    (home,) = _home
    return Path(mkdtemp(dir=home))


def copy_of(name: str, folder: Path, make: Callable[[Path], object], *, times: bool = True) -> None:
    """Copy into a folder what is made when it is asked for first.

    Parameters
    ----------
    name : str
        Of what is made, unlike any other.
    folder : Path
        The temporary folder of a test.
    make : callable
        Makes tables in the folder that it is given.
    times : bool
        Whether the files keep their times, so that a generation is as old as the run; else it was
        flushed a moment ago.
    """
    if name not in _made:
        made = lasting_folder()
        make(made)
        _made[name] = made
    # No links: some tests damage files in place.
    copy = shutil.copy2 if times else shutil.copyfile
    shutil.copytree(_made[name], folder, copy_function=copy, dirs_exist_ok=True)


def copied_table(name: str, path: Path, make: Callable[[str], object]) -> memwal.Table:
    """Open a copy of a table that ``make`` makes at an address when it is asked for first.

    The copy has the times of now. ``name`` is unlike that of any other table.
    """
    copy_of(name, path.parent, lambda made: make(str(made / path.name)), times=False)
    return memwal.open(str(path))
