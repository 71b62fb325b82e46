"""Reads that go on without an index that cannot be read.

An index only saves time: its answers are in the rows too. A file of an index that is missing, or
was not written whole, therefore must not keep a table from being read. Lance evaluates a scan's
filter by its scalar indexes before the first batch, so that a scan that fails there has returned
nothing and starts over, without indexes. Searches of vectors and texts choose their index
themselves: a segment that failed once is left out from then on, by its UUID, which no other segment
ever has. A rebuilt index has other segments, and is used again.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import lance
import pyarrow as pa

from memwal.boundary.lance_errors import first_line, is_panic, translate_lance_error
from memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError
from memwal.util.log import warn_once

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_lock = threading.Lock()
_unreadable: set[str] = set()


class UnreadableIndexError(CorruptDataError):
    """A search met an index that cannot be read, which is left out of searches from now on."""


def is_readable(index: IndexDescription) -> bool:
    """Return whether no read of a segment of an index has failed in this process."""
    return _unreadable.isdisjoint(segment.uuid for segment in index.segments)


def readable(index: IndexDescription | None) -> IndexDescription | None:
    """Return an index, or None instead of one that cannot be read."""
    return index if index is not None and is_readable(index) else None


def leave_out(where: str, segments: Iterable[str], error: BaseException) -> UnreadableIndexError:
    """Leave segments out of searches from now on; return the error to raise, and warn once."""
    with _lock:
        _unreadable.update(segments)
    _warn(where)
    return UnreadableIndexError(f"an index of {where} cannot be read: {first_line(error)}")


def num_left_out() -> int:
    """Return the number of segments left out so far: part of the cache keys of some reads."""
    return len(_unreadable)


def retry_unreadable(search: Callable[[], Result]) -> Result:
    """Run a search, and again without each index that turns out to be unreadable."""
    while True:
        before = num_left_out()
        try:
            return search()
        except UnreadableIndexError:
            if num_left_out() == before:
                raise


def is_index_damage(error: BaseException) -> bool:
    """Return whether an error of a read may come from a damaged or missing index file."""
    if is_panic(error):
        return True
    if not isinstance(error, (OSError, RuntimeError, ValueError, MemWalError)):
        return False
    translated = translate_lance_error(error, "reading")
    if isinstance(translated, ObjectNotFoundError):
        # Not a file of rows: then the version was cleaned up, and must be read again.
        return "_indices/" in str(error)
    return isinstance(translated, CorruptDataError)


def scan_batches(
    dataset: lance.LanceDataset, *, filter: str | None, **options: object
) -> Iterator[pa.RecordBatch]:
    """Scan a data set; without its scalar indexes if one of them cannot be read."""

    def start(scanner: lance.LanceScanner) -> Iterator[pa.RecordBatch]:
        batches = iter(scanner.to_batches())
        return itertools.chain(list(itertools.islice(batches, 1)), batches)

    yield from _with_indexes_or_without(dataset, filter, options, start)


def scan_table(dataset: lance.LanceDataset, *, filter: str | None, **options: object) -> pa.Table:
    """Scan a data set into memory as :func:`scan_batches` does."""
    return _with_indexes_or_without(dataset, filter, options, lambda scan: scan.to_table())


def count_rows(dataset: lance.LanceDataset, filter: str, **options: object) -> int:
    """Count the rows that pass a filter; without scalar indexes if one of them cannot be read."""
    return _with_indexes_or_without(dataset, filter, options, lambda scan: int(scan.count_rows()))


def _with_indexes_or_without(
    dataset: lance.LanceDataset,
    filter: str | None,
    options: Mapping[str, object],
    run: Callable[[lance.LanceScanner], Result],
) -> Result:
    try:
        return run(dataset.scanner(filter=filter, **options))
    except BaseException as error:
        if filter is None or not is_index_damage(error):
            raise
        result = run(dataset.scanner(filter=filter, **{**options, "use_scalar_index": False}))
        _warn(str(dataset.uri))
        return result


def _warn(where: str) -> None:
    """Warn once per process and table."""
    warn_once(
        logger,
        "an index of %s cannot be read, and reads go on without it, which takes longer; memwal "
        "verify names it, and memwal index builds it again",
        where,
    )
