"""Files of Lance that lost their last bytes, as on a disk that was full for a moment."""

import os
from collections.abc import Callable
from pathlib import Path

from support.data.tables import folder

import memwal
from memwal.base_table.named_files import BadFile, find_bad_files
from memwal.base_table.snapshot import read_table_manifest
from memwal.format.lance_manifest import named_files

SOURCE = Path(__file__).with_name("lost_writes.c")
"""Library by which some of a process's writes fail, see :func:`failing_writes`."""


def failing_writes(uri: str, log: Path, *, rate: int, seed: int) -> dict[str, str]:
    """What has to be in the environment of a process that has loaded :data:`SOURCE`.

    Parameters
    ----------
    uri : str
        Folder of the table whose files are concerned.
    log : Path
        Gets a byte for each call that failed.
    rate : int
        How many of a million calls fail.
    """
    return {
        "LOST_WRITES_BELOW": uri,
        "LOST_WRITES_RATE": str(rate),
        "LOST_WRITES_SEED": str(seed),
        "LOST_WRITES_LOG": str(log),
    }


def cut_new_files(table: memwal.Table, pattern: str, size: int = 0) -> Callable[[], None]:
    """A function that cuts off every file of a pattern that was written since this call."""
    root = folder(table)
    before = set(root.glob(pattern))

    def cut() -> None:
        for path in set(root.glob(pattern)) - before:
            os.truncate(path, min(size, path.stat().st_size - 1) if path.stat().st_size else 0)

    return cut


def bad_files(table: memwal.Table) -> list[BadFile]:
    """Files of the newest version of the base table that were not written whole."""
    manifest = read_table_manifest(table.location, table.base().version)
    return find_bad_files(table.location.store, named_files(manifest))
