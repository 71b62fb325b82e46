"""Telling data that cannot be read from a store that does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memwal.errors import MemWalError, ObjectNotFoundError, StoreAccessError
from memwal.storage.base import ObjectStore


class Unreadable(Exception):
    """Lance cannot read what is stored."""


@contextmanager
def reading(store: ObjectStore, folder: str | None) -> Iterator[None]:
    """Turn what Lance raises at damaged data into :class:`Unreadable`.

    Lance tells neither a damaged file from a store that fails, nor does it always raise: it
    panics at some bytes. So the files of the folder are read once more, as bytes: where the store
    cannot, its own error goes up. Without a folder, the table's versions are listed instead.
    """
    try:
        yield
    except StoreAccessError:
        raise
    except BaseException as error:
        known = isinstance(error, (MemWalError, OSError, ValueError, RuntimeError, KeyError))
        if not known and type(error).__name__ != "PanicException":
            raise
        for info in store.list("_versions" if folder is None else folder):
            try:
                if folder is not None:
                    store.get(info.key)
            except ObjectNotFoundError:
                continue
        raise Unreadable(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
