"""Reads that distinguish damaged data from a store that fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from memwal.base_table.named_files import BadFile
from memwal.boundary.lance_errors import first_line, is_panic
from memwal.errors import MemWalError, NewerFormatError, ObjectNotFoundError, StoreAccessError
from memwal.format.lance_files import FileKind, NamedFile
from memwal.format.paths import VERSIONS_DIR
from memwal.storage.object_store import ObjectStore


class Unreadable(Exception):
    """Lance cannot read data because it is damaged."""


@contextmanager
def damage_as_unreadable(store: ObjectStore, folder: str | None) -> Iterator[None]:
    """Translate Lance's errors about damaged data to :class:`Unreadable`.

    Lance does not distinguish a damaged file from a store that fails, and at some bytes it panics
    instead of raising. Therefore all files of the folder are read again as bytes: if that fails,
    the store's own error is raised. Without a folder, the table's versions are listed instead.
    """
    try:
        yield
    except (StoreAccessError, NewerFormatError):
        raise
    except BaseException as error:
        expected = isinstance(error, (MemWalError, OSError, ValueError, RuntimeError, KeyError))
        if not expected and not is_panic(error):
            raise
        for info in store.list(VERSIONS_DIR if folder is None else folder):
            try:
                if folder is not None:
                    store.get(info.key)
            except ObjectNotFoundError:
                continue
        raise Unreadable(first_line(error)) from error


def find_bad_data_files(
    store: ObjectStore, folder: str, files: Sequence[NamedFile]
) -> list[BadFile]:
    """Return those ``files`` of a data set that have rows and are missing, or have another size.

    ``folder`` is that of the data set, below the table; empty for the table itself. Costs two
    listings, for any number of files.
    """
    prefix = f"{folder}/" if folder else ""
    sizes = {
        info.key: info.size
        for part in ("data", "_deletions")
        for info in store.list(f"{prefix}{part}")
    }
    bad = []
    for file in files:
        key = f"{prefix}{file.key}"
        if file.index is not None or file.kind in (FileKind.PLAIN, FileKind.BLOBS):
            # Indexes and blobs are checked apart, and no reader needs the record of a commit.
            continue
        size = sizes.get(key)
        if size is None:
            bad.append(BadFile(key, None))
        elif file.size is not None and size != file.size:
            bad.append(BadFile(key, f"it has {size} bytes instead of {file.size}"))
        elif not size:
            bad.append(BadFile(key, "it is empty"))
    return bad
