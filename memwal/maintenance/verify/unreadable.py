"""Telling data that cannot be read from a store that does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memwal.errors import MemWalError, ObjectNotFoundError, StoreAccessError
from memwal.storage.base import ObjectStore
from memwal.table_index.base_table import first_line, is_panic


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
        if not known and not is_panic(error):
            raise
        for info in store.list("_versions" if folder is None else folder):
            try:
                if folder is not None:
                    store.get(info.key)
            except ObjectNotFoundError:
                continue
        raise Unreadable(first_line(error)) from error
