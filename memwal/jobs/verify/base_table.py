"""Checks of the base table: newest version whole, all its files present, no repeated keys.

Repeated keys are found in bounded memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, open_base, read_table_manifest
from memwal.errors import CorruptDataError, ObjectNotFoundError, TableSetupError
from memwal.format.lance_manifest import read_index_section
from memwal.jobs.verify.findings import Finding
from memwal.jobs.verify.task import Unreadable, reading, wrong_files
from memwal.lsm.memtable.hashing import hash_rows
from memwal.region.rows import key_column
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectInfo, ObjectStore

_MAX_U64 = (1 << 64) - 1
_FOLDER = "_versions"
_SUFFIX = ".manifest"
# The newer naming counts down, in so many digits.
_DIGITS = 20
# Position, version and magic at the end of a manifest file.
_FOOTER = 16
_MAGIC = b"LANC"
_PARALLEL_READS = 16


@dataclass(frozen=True, slots=True)
class NewestBase:
    """The newest version of the base table that can be read.

    Attributes
    ----------
    base : BaseTable or None
        None when no version is whole.
    findings : tuple of Finding
        The newer ones that are not.
    """

    base: BaseTable | None
    findings: tuple[Finding, ...]


def open_newest(location: TableLocation) -> NewestBase:
    """Open the newest version of a table that is whole.

    Raises
    ------
    TableSetupError
        There is no table, or it has no MemWAL.
    """
    torn: list[Finding] = []
    keys = _version_keys(location)
    if not keys:
        raise TableSetupError(
            f"there is no Lance table at {location}; create one with memwal.create(uri, schema, "
            "...)"
        )
    for version in sorted(keys, reverse=True):
        key = keys[version]
        try:
            read_index_section(location.store.get(key), name=key)
        except ObjectNotFoundError:
            continue
        except CorruptDataError as error:
            torn.append(Finding.of("table-torn", key, str(error)))
            continue
        try:
            with reading(location.store, None):
                # Without anything wrong so far, the newest: by now it may be a newer one.
                base = open_base(location, version=version if torn else None)
        except Unreadable as error:
            if isinstance(error.__cause__, TableSetupError):
                raise error.__cause__ from None
            torn.append(Finding.of("table-torn", key, str(error)))
            continue
        if not torn:
            base.require_mem_wal()
        known = base.index is not None and bool(base.primary_key)
        return NewestBase(base if known else None, tuple(torn))
    return NewestBase(None, tuple(torn))


def _version_keys(location: TableLocation) -> dict[int, str]:
    return {version: info.key for version, info in _versions(location.store)}


def _versions(store: ObjectStore) -> Iterator[tuple[int, ObjectInfo]]:
    for info in store.list(_FOLDER):
        name = info.key.removeprefix(f"{_FOLDER}/")
        number = name.removesuffix(_SUFFIX)
        if number != name and number.isdecimal():
            yield _MAX_U64 - int(number) if len(number) == _DIGITS else int(number), info


def check_older_versions(base: BaseTable) -> Iterator[Finding]:
    """See whether versions before the newest end as a manifest must: a small request for each."""
    store = base.location.store
    older = [(version, info) for version, info in _versions(store) if version < base.version]
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        whole = pool.map(lambda one: _ends_well(store, one[1]), older)
        for (version, info), well in zip(older, whole, strict=True):
            if not well:
                text = f"version {version} has {info.size} bytes and no end"
                yield Finding.of("old-version-torn", info.key, text)


def _ends_well(store: ObjectStore, info: ObjectInfo) -> bool:
    if info.size < _FOOTER:
        return False
    try:
        end = store.get_range(info.key, start=info.size - _FOOTER, length=_FOOTER)
    except ObjectNotFoundError:
        # Cleaned up meanwhile.
        return True
    return end.endswith(_MAGIC)


def check_files(base: BaseTable) -> Iterator[Finding]:
    """See whether every file of a version is there."""
    try:
        manifest = read_table_manifest(base.location, base.version)
    except TableSetupError:
        # Cleaned up since: newer ones are there.
        return
    for key, wrong in wrong_files(base.location, "", base.dataset, manifest):
        if wrong is None:
            yield Finding.of("table-file-missing", key, f"version {base.version} names it")
        else:
            yield Finding.of("table-file-damaged", key, wrong)


DEFAULT_BYTES: Final = 256 << 20
"""How much memory the hashes of one part may take."""

_HASHED: Final = np.dtype([("hash", "<u8"), ("row", "<u8")])
# Of the file as it is read, and of its hashes as they are sorted and compared.
_COPIES: Final = 3
_MAX_PARTS: Final = 256
_SHOWN: Final = 3


def check_repeated_keys(base: BaseTable, *, max_bytes: int = DEFAULT_BYTES) -> Iterator[Finding]:
    """Look for keys that have several rows.

    One pass over the key columns writes the hash of each key to one of several temporary files by
    its value; each file is then sorted on its own, and keys of equal hashes are compared.

    Parameters
    ----------
    max_bytes : int, default 256 MiB
        Bounds the memory, up to a table of some billion rows.
    """
    rows = base.dataset.count_rows()
    needed = rows * _HASHED.itemsize * _COPIES
    parts = min(_MAX_PARTS, max(1, -(-needed // max_bytes)))
    surplus, keys, shown = 0, 0, list[Any]()
    with tempfile.TemporaryDirectory(prefix="memwal-verify-") as folder:
        files = [Path(folder, str(part)) for part in range(parts)]
        _spread(_hashed(base), files)
        for file in files:
            too_many, several, some = _repeated(base, np.fromfile(file, _HASHED))
            surplus, keys = surplus + too_many, keys + several
            shown += some
            file.unlink()
    if surplus:
        examples = ", ".join(map(str, shown[:_SHOWN]))
        yield Finding.of(
            "base-key-repeated",
            "base table",
            f"keys with several rows: {keys}; rows too many: {surplus}; such as {examples}",
        )


def _hashed(base: BaseTable) -> Iterator[npt.NDArray[Any]]:
    scanner = base.dataset.scanner(columns=list(base.primary_key), with_row_id=True)
    for batch in scanner.to_batches():
        if not batch.num_rows:
            continue
        found = np.empty(batch.num_rows, _HASHED)
        found["hash"] = hash_rows([batch.column(name) for name in base.primary_key])
        found["row"] = batch.column("_rowid").to_numpy()
        yield found


def _spread(batches: Iterable[npt.NDArray[Any]], files: list[Path]) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(file.open("wb")) for file in files]
        for batch in batches:
            if len(files) == 1:
                batch.tofile(opened[0])
                continue
            part = batch["hash"] % np.uint64(len(files))
            order = np.argsort(part, kind="stable")
            ends = np.cumsum(np.bincount(part.astype(np.int64), minlength=len(files)))
            for file, piece in zip(opened, np.split(batch[order], ends[:-1]), strict=True):
                piece.tofile(file)


def _repeated(base: BaseTable, hashed: npt.NDArray[Any]) -> tuple[int, int, list[Any]]:
    """How many rows are too many in one part, for how many keys, and some of these."""
    ordered = np.sort(hashed["hash"])
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return 0, 0, []
    wanted = np.sort(hashed["row"][np.isin(hashed["hash"], twice)])
    rows = base.dataset._take_rows(wanted.tolist(), columns=list(base.primary_key))
    encoded = key_column(rows, base.primary_key).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.bincount(codes)
    several = np.flatnonzero(counts > 1)
    if not len(several):
        # Different keys with one hash.
        return 0, 0, []
    _, first = np.unique(codes, return_index=True)
    examples = rows.take(pa.array(first[several[:_SHOWN]])).to_pylist()
    surplus = int((counts[several] - 1).sum())
    return surplus, len(several), [tuple(key.values()) for key in examples]
