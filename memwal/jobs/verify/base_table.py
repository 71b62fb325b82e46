"""Checks of the base table: newest version complete, all its files present, no repeated keys."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table.blobs import needed_blob_files
from memwal.base_table.named_files import find_bad_external_files, stored_blobs
from memwal.base_table.refs import find_lost_refs, list_refs
from memwal.base_table.snapshot import (
    BaseTable,
    no_table,
    open_base,
    read_table_manifest,
    stored_versions,
)
from memwal.errors import CorruptDataError, ObjectNotFoundError, TableSetupError
from memwal.format.lance_manifest import find_mem_wal_index, named_files
from memwal.format.paths import VERSIONS_DIR
from memwal.jobs.gc.history import StoredVersions
from memwal.jobs.verify.damage import Unreadable, damage_as_unreadable, find_bad_data_files
from memwal.jobs.verify.findings import Finding
from memwal.lsm.key_hashes import hash_rows
from memwal.region.rows import key_column
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectInfo, ObjectStore
from memwal.util.concurrency import map_parallel

# Position, version and magic at the end of a manifest file.
_FOOTER_BYTES = 16
_MAGIC = b"LANC"


@dataclass(frozen=True, slots=True)
class ReadableBase:
    """Newest version of the base table that can be read."""

    # None if no version can be read, or if it is an older one, from before MemWAL was enabled.
    base: BaseTable | None
    findings: tuple[Finding, ...]  # damaged versions that are newer


def open_newest(location: TableLocation) -> ReadableBase:
    """Open the newest version of a table that is not damaged.

    Raises TableSetupError if there is no table.
    """
    torn: list[Finding] = []
    manifests = StoredVersions.list(location).manifests
    if not manifests:
        raise no_table(location)
    for version in sorted(manifests, reverse=True):
        key = manifests[version].key
        try:
            find_mem_wal_index(location.store.get(key), name=key)
        except ObjectNotFoundError:
            continue
        except CorruptDataError as error:
            torn.append(Finding("table-torn", key, str(error)))
            continue
        try:
            with damage_as_unreadable(location.store, None):
                # If no version was damaged so far, open the newest one, which may be newer by now.
                base = open_base(location, version=version if torn else None)
        except Unreadable as error:
            if isinstance(error.__cause__, TableSetupError):
                raise error.__cause__ from None
            torn.append(Finding("table-torn", key, str(error)))
            continue
        base.check_supported()
        is_known = base.index is not None or not torn
        return ReadableBase(base if is_known else None, tuple(torn))
    return ReadableBase(None, tuple(torn))


def check_older_versions(base: BaseTable) -> Iterator[Finding]:
    """Check that each older version ends as a manifest must, with one small request each."""
    store = base.location.store
    stored = StoredVersions.list(base.location).manifests
    older = [(version, info) for version, info in stored.items() if version < base.version]
    complete = map_parallel(lambda version: _has_footer(store, version[1]), older)
    for (version, info), is_complete in zip(older, complete, strict=True):
        if not is_complete:
            text = f"version {version} has {info.size} bytes and no footer"
            yield Finding("old-version-torn", info.key, text)


def check_refs(base: BaseTable) -> Iterator[Finding]:
    """Check that the version of each tag and branch is known and stored."""
    versions = stored_versions(base.location)
    for ref, problem in find_lost_refs(base.version, versions, list_refs(base.location)).items():
        code = "tag-damaged" if ref.version is None else "tag-version-missing"
        yield Finding(code, ref.key, problem)


def _has_footer(store: ObjectStore, info: ObjectInfo) -> bool:
    if info.size < _FOOTER_BYTES:
        return False
    try:
        end = store.get_range(info.key, start=info.size - _FOOTER_BYTES, length=_FOOTER_BYTES)
    except ObjectNotFoundError:
        # Cleaned up meanwhile.
        return True
    return end.endswith(_MAGIC)


def check_files(base: BaseTable) -> Iterator[Finding]:
    """Check that every file of a version with rows is stored, and has its size."""
    try:
        manifest = read_table_manifest(base.location, base.version)
    except TableSetupError:
        # Cleaned up since it was listed, so there are newer versions.
        return
    for file in (
        *find_bad_data_files(base.location.store, "", named_files(manifest, name=VERSIONS_DIR)),
        *find_bad_external_files(base.location, manifest),
    ):
        if file.problem is None:
            yield Finding("table-file-missing", file.key, f"version {base.version} names it")
        else:
            yield Finding("table-file-damaged", file.key, file.problem)


def check_blobs(base: BaseTable) -> Iterator[Finding]:
    """Check that the blobs outside of data files are stored, and as long as the rows say."""
    needed = needed_blob_files(base.dataset)
    if not needed:
        return
    stored = stored_blobs(base.location, read_table_manifest(base.location, base.version))
    for key, end in needed.items():
        if key not in stored:
            yield Finding("table-file-missing", key, f"version {base.version} has blobs in it")
        elif (size := stored[key].size or 0) < end:
            yield Finding("table-file-damaged", key, f"it has {size} bytes instead of {end}")


DEFAULT_BYTES: Final = 256 << 20
"""Maximum memory for the hashes of one partition."""

_KEY_HASH: Final = np.dtype([("hash", "<u8"), ("row", "<u8")])
# Copies in memory: the file as it is read, and its hashes as they are sorted and compared.
_COPIES: Final = 3
_MAX_PARTS: Final = 256
_MAX_EXAMPLES: Final = 3


def check_repeated_keys(base: BaseTable, *, max_bytes: int = DEFAULT_BYTES) -> Iterator[Finding]:
    """Find keys that have several rows, in bounded memory.

    One pass over the key columns partitions the hashes of the keys into temporary files. Each file
    is then sorted on its own, and keys with equal hashes are compared. ``max_bytes`` bounds the
    memory for a table of up to some billion rows. Yields nothing for a table without a key.
    """
    if not base.primary_key:
        return
    rows = base.dataset.count_rows()
    needed = rows * _KEY_HASH.itemsize * _COPIES
    parts = min(_MAX_PARTS, max(1, -(-needed // max_bytes)))
    surplus, keys, examples = 0, 0, list[tuple[object, ...]]()
    with tempfile.TemporaryDirectory(prefix="memwal-verify-") as folder:
        files = [Path(folder, str(part)) for part in range(parts)]
        _partition(_hash_keys(base), files)
        for file in files:
            part_surplus, part_keys, part_examples = _find_repeated(
                base, np.fromfile(file, _KEY_HASH)
            )
            surplus, keys = surplus + part_surplus, keys + part_keys
            examples += part_examples
            file.unlink()
    if surplus:
        shown = ", ".join(map(str, examples[:_MAX_EXAMPLES]))
        yield Finding(
            "base-key-repeated",
            "base table",
            f"keys with several rows: {keys}; surplus rows: {surplus}; for example {shown}",
        )


def _hash_keys(base: BaseTable) -> Iterator[npt.NDArray[np.void]]:
    scanner = base.dataset.scanner(columns=list(base.primary_key), with_row_id=True)
    for batch in scanner.to_batches():
        if not batch.num_rows:
            continue
        hashes = np.empty(batch.num_rows, _KEY_HASH)
        hashes["hash"] = hash_rows([batch.column(name) for name in base.primary_key])
        hashes["row"] = batch.column("_rowid").to_numpy()
        yield hashes


def _partition(batches: Iterable[npt.NDArray[np.void]], files: list[Path]) -> None:
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


def _find_repeated(
    base: BaseTable, hashed: npt.NDArray[np.void]
) -> tuple[int, int, list[tuple[object, ...]]]:
    """Return the surplus rows of one partition, the number of their keys, and some of these."""
    ordered = np.sort(hashed["hash"])
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return 0, 0, []
    row_ids = np.sort(hashed["row"][np.isin(hashed["hash"], twice)])
    rows = base.dataset._take_rows(row_ids.tolist(), columns=list(base.primary_key))
    encoded = key_column(rows, base.primary_key).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.bincount(codes)
    several = np.flatnonzero(counts > 1)
    if not len(several):
        # Different keys have the same hash.
        return 0, 0, []
    _, first = np.unique(codes, return_index=True)
    examples = rows.take(pa.array(first[several[:_MAX_EXAMPLES]])).to_pylist()
    surplus = int((counts[several] - 1).sum())
    return surplus, len(several), [tuple(key.values()) for key in examples]
