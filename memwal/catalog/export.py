"""Export of the catalog's tables to one JSON file, for readers that need speed and no database.

Airflow parses its DAG files all the time; they are built from this file. Nothing of SQLAlchemy is
imported here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from memwal.catalog.records import ManagedTable
from memwal.errors import InvalidInputError, ObjectNotFoundError
from memwal.util.safe_json import read_json

FORMAT = 2
PATH_VARIABLE = "MEMWAL_CATALOG_SNAPSHOT"


def read_snapshot(path: str | Path) -> list[ManagedTable]:
    """Read the tables of a snapshot, enabled or not, by name.

    Parameters
    ----------
    path : str or Path
        A file written by :meth:`memwal.catalog.Catalog.export_snapshot`.

    Raises
    ------
    ObjectNotFoundError
        There is no such file.
    InvalidInputError
        The file is not a snapshot, or was written by a newer memwal.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ObjectNotFoundError(
            f"There is no catalog snapshot at {path}; set {PATH_VARIABLE} where tables are "
            "registered, or call Catalog(url).export_snapshot(path)."
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"The catalog snapshot {path} cannot be read ({type(error).__name__}); export it again."
        ) from error
    try:
        content = read_json(text)
    except ValueError as error:
        raise InvalidInputError(
            f"{path} is not a catalog snapshot ({error}); export it again."
        ) from error
    tables = content.get("tables") if isinstance(content, dict) else None
    if not isinstance(tables, list) or content.get("format") != FORMAT:
        raise InvalidInputError(
            f"{path} is not a catalog snapshot of format {FORMAT}; export it again with the "
            "memwal that reads it."
        )
    return [ManagedTable.from_dict(values) for values in tables]


def write_snapshot(path: str | Path, tables: Sequence[ManagedTable]) -> None:
    """Write a snapshot so that readers see the old file or the new one, never a part.

    Hold :func:`snapshot_lock` from before the tables are read, so that of two writers the one
    that knows more wins.
    """
    target = Path(path)
    content = {"format": FORMAT, "tables": [table.to_dict() for table in tables]}
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp gives 0600; the DAG processor may run as another user, and no secret is inside.
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def snapshot_lock(path: str | Path) -> Iterator[None]:
    """Hold the writers' lock of a snapshot (a file beside it); makes the folder when absent."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(f".{target.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
