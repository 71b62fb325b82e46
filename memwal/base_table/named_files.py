"""Check of files before a commit names them: stored, as long as stated, with a sound end.

Lance drops some errors of its writes: if a disk is full for a moment, a call returns although a
file has no byte, or lacks its last ones, and the version or generation that names the file cannot
be read any more. So each file of Lance is checked before it is named. The checks run where every
commit passes: for the base table in the namespace client that creates the version, for a generation
before its writer returns its entry for the region's manifest.

A process that pauses or dies during the checks has named nothing; its files are collected as those
of any attempt that was lost. The files have random names, and no other process writes them: a file
that was whole during the check is whole when it is named.

Lance numbers the values of a dictionary anew where it writes rows together. If there are more than
the type of the indices can number, it writes a file that no reader can decode. Such columns are
therefore decoded, before a commit names their file, and before the generations that the rows came
from are collected. Of other columns, the end of the file is checked. A process that pauses or dies
while it decodes has decoded in vain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

import lance

from memwal.base_table.blobs import needed_blob_files
from memwal.base_table.region_snapshot import external_key
from memwal.base_table.snapshot import (
    BaseTable,
    data_files,
    lance_errors,
    read_table_manifest,
)
from memwal.boundary.lance_errors import limit_error
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.lance_files import (
    FILE_FOOTER,
    FileKind,
    NamedFile,
    deletion_problem,
    end_problem,
)
from memwal.format.lance_manifest import (
    BasePath,
    as_version,
    data_file_names,
    external_files,
    external_segments,
    has_dictionary_fields,
    named_files,
    read_index_section,
    with_own_segments,
)
from memwal.format.paths import (
    DATA_DIR,
    INDICES_DIR,
    MEM_WAL_INDEX_NAME,
    SYSTEM_INDEX_PREFIX,
    VERSIONS_DIR,
    index_file_key,
    table_manifest_keys,
)
from memwal.format.wal_layout import has_dictionaries
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore
from memwal.util.concurrency import run_all
from memwal.util.retry import LostWriteError

_MAX_SHOWN = 3
# Folders of the files that versions name, and of their manifests.
_FOLDERS: Final = (DATA_DIR, "_deletions", INDICES_DIR, "_transactions", VERSIONS_DIR)
_LATEST_VERSION: Final = f"{VERSIONS_DIR}/latest_version_hint.json"


@dataclass(frozen=True, slots=True)
class BadFile:
    """File that differs from the manifest that names it."""

    key: str
    problem: str | None  # None if the file is missing
    index: str | None = None  # name of the index that it belongs to

    def __str__(self) -> str:
        return f"{self.key}: {self.problem or 'it is missing'}"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Place of an object."""

    location: TableLocation  # the table, or another folder with its files
    key: str
    size: int | None = None  # bytes, if they are known

    @property
    def store(self) -> ObjectStore:
        """Store that has the object."""
        return self.location.store


def find_bad_files(
    store: ObjectStore,
    files: Iterable[NamedFile],
    *,
    folder: str = "",
    listed: Mapping[str, int] = MappingProxyType({}),
) -> list[BadFile]:
    """Return the files that are missing or were not written whole.

    ``folder`` is that of the data set, below the table; empty for the table itself. Costs a request
    per file, or two if its size is not stated. On a store that is not local they run in parallel.
    A file that has its stated size in ``listed``, bytes by key, is whole and costs none.
    """
    prefix = f"{folder}/" if folder else ""
    checks = [
        partial(_check, store, prefix, file)
        for file in files
        if file.size is None or listed.get(prefix + file.key) != file.size
    ]
    results = [check() for check in checks] if store.is_local else run_all(checks)
    return [bad for result in results for bad in result]


def check_new_files(store: ObjectStore, manifest: bytes, *, before: bytes | None) -> bytes:
    """Check the files that a table's manifest names and its predecessor ``before`` does not.

    Returns the manifest to commit, see :func:`_correct_segments`. Raises LostWriteError if one of
    the files, or the manifest itself, was not written whole.
    """
    try:
        manifest = _correct_segments(store, manifest, before)
        files = named_files(manifest)
    except CorruptDataError as error:
        raise LostWriteError(f"{error}; nothing was committed") from error
    if before is not None:
        named_before = set(named_files(before))
        files = [file for file in files if file not in named_before]
    refuse(find_bad_files(store, files))
    return manifest


def _correct_segments(store: ObjectStore, manifest: bytes, before: bytes | None) -> bytes:
    """Return a manifest that says where the files of new index segments are.

    When Lance remaps a segment of the table that a shallow clone was made from, it stores the files
    in the clone, and still names the other table, where no reader finds them.
    """
    segments = external_segments(manifest)
    if segments and before is not None:
        segments -= external_segments(before)
    own = {
        segment
        for segment in segments
        if any(True for _ in store.list(index_file_key(segment, "").rstrip("/")))
    }
    return with_own_segments(manifest, own) if own else manifest


def stored_objects(base: BaseTable) -> dict[str, StoredObject]:
    """Return where all objects are that a version names, directly or by an index of Lance's own.

    Each key is the one that the object has in the table, or would have there. The manifest of the
    version and the files of regions are left out.
    """
    table = base.location
    manifest = read_table_manifest(table, base.version)
    objects: dict[str, StoredObject] = {}

    def add(file: NamedFile, location: TableLocation, key: str) -> None:
        if file.kind is FileKind.SEGMENT:
            folder = len(key)
            objects.update(
                {
                    file.key + info.key[folder:]: StoredObject(location, info.key, info.size)
                    for info in location.store.list(key)
                }
            )
        else:
            objects[file.key] = StoredObject(location, key, file.size)

    for file in named_files(manifest):
        if file.kind is not FileKind.BLOBS:
            add(file, table, file.key)
    for file, outside in external_files(manifest):
        if file.kind is not FileKind.BLOBS:
            add(file, table.beside(outside.uri), outside.key_of(file))
    objects |= stored_blobs(table, manifest)
    for entry in read_index_section(manifest):
        # Of these, entries do not state the files.
        if entry.name.startswith(SYSTEM_INDEX_PREFIX) and entry.name != MEM_WAL_INDEX_NAME:
            folder = index_file_key(entry.uuid, "").rstrip("/")
            add(NamedFile(folder, FileKind.SEGMENT), table, folder)
    snapshot = external_key(base.details)
    if snapshot is not None and table.store.exists(snapshot):
        objects[snapshot] = StoredObject(table, snapshot)
    return objects


def unnamed_bytes(base: BaseTable) -> int:
    """Return the bytes of a table's files that a version does not name.

    They are of other versions, or of writes that are under way or died. Files of branches and of
    regions are left out. Costs a listing of five folders: a request for every 1,000 files.
    """
    # Of folders, every file is named.
    named = {file.key for file in named_files(base.manifest)} | {*table_manifest_keys(base.version)}
    named |= {
        index_file_key(entry.uuid, "").rstrip("/")
        for entry in read_index_section(base.manifest)
        if entry.name.startswith(SYSTEM_INDEX_PREFIX)
    }
    named.add(_LATEST_VERSION)
    # A snapshot that cannot be read counts as old: nothing needs it.
    with suppress(CorruptDataError):
        named |= {external_key(base.details) or ""}
    return sum(
        info.size
        for folder in _FOLDERS
        for info in base.location.store.list(folder)
        if info.key not in named and "/".join(info.key.split("/")[:2]) not in named
    )


def stored_blobs(location: TableLocation, manifest: bytes) -> dict[str, StoredObject]:
    """Return where the blobs are that a version has outside of its data files, by key in the table.

    Costs a listing of the data files, and one of each folder with others outside of the table.
    """
    # The folder with the blobs of a data file, and where it would be in the table, by base path.
    folders = defaultdict[BasePath | None, dict[str, str]](dict)
    for file in named_files(manifest):
        if file.kind is FileKind.BLOBS:
            folders[None][file.key] = file.key
    for file, outside in external_files(manifest):
        if file.kind is FileKind.BLOBS:
            folders[outside][outside.key_of(file)] = file.key
    found = {}
    for place, keys in folders.items():
        stored_at = location if place is None else location.beside(place.uri)
        for info in stored_at.store.list(DATA_DIR if place is None or place.is_table else ""):
            folder, _, name = info.key.rpartition("/")
            if folder in keys:
                found[f"{keys[folder]}/{name}"] = StoredObject(stored_at, info.key, info.size)
    return found


def find_bad_external_files(location: TableLocation, manifest: bytes) -> list[BadFile]:
    """Find bad data and deletion files of a version that are outside of the table."""
    found = []
    for file, outside in external_files(manifest):
        if file.index is None:
            store = location.beside(outside.uri).store
            bad = find_bad_files(store, [replace(file, key=outside.key_of(file))])
            found += [replace(each, key=f"{outside.uri}/{each.key}") for each in bad]
    return found


def find_bad_index_files(base: BaseTable) -> list[BadFile]:
    """Find bad files of the indexes of a version; each has the name of its index."""
    manifest = read_table_manifest(base.location, base.version)
    files = [file for file in named_files(manifest) if file.index is not None]
    return find_bad_files(base.location.store, files)


def find_cut_indexes(base: BaseTable) -> frozenset[str]:
    """Return the names of the indexes of a version that lack a file, or bytes of one.

    Costs a listing, and finds no bytes that are wrong.
    """
    stored = {info.key: info.size for info in base.location.store.list(INDICES_DIR)}
    folders = {key.rpartition("/")[0] for key in stored}

    def is_whole(file: NamedFile) -> bool:
        if file.kind is FileKind.SEGMENT:
            return file.key.rstrip("/") in folders
        return file.key in stored and file.size in (None, stored[file.key])

    files = (file for file in named_files(base.manifest) if file.index is not None)
    return frozenset(str(file.index) for file in files if not is_whole(file))


def refuse(bad: Sequence[BadFile]) -> None:
    """Raise LostWriteError if there are bad files."""
    if bad:
        shown = "; ".join(map(str, bad[:_MAX_SHOWN]))
        raise LostWriteError(
            f"{len(bad)} files were not written whole, and nothing was committed: {shown}. Check "
            "that the store has space and takes writes, then try again"
        )


def _check(store: ObjectStore, prefix: str, file: NamedFile) -> Collection[BadFile]:
    key = prefix + file.key
    try:
        if file.kind is FileKind.SEGMENT:
            return _check_segment(store, key, file.index)
        if file.kind is FileKind.BLOBS:
            # How long each must be is in the rows.
            empty = [info.key for info in store.list(key) if not info.size]
            return [BadFile(each, "it is empty") for each in empty]
        if file.kind in (FileKind.DELETED_ROWS, FileKind.DELETED_BITMAP):
            problem = deletion_problem(store.get(key), file)
        else:
            problem = _check_end(store, key, file)
    except ObjectNotFoundError:
        return [BadFile(key, None, file.index)]
    return [] if problem is None else [BadFile(key, problem, file.index)]


def _check_segment(store: ObjectStore, folder: str, index: str | None) -> Collection[BadFile]:
    """Check an index segment whose files the manifest does not state."""
    stored = [(info.key, info.size) for info in store.list(folder)]
    files = [NamedFile(key, FileKind.LANCE, size=size, index=index) for key, size in stored]
    if not files:
        return [BadFile(folder, None, index)]
    return [bad for file in files for bad in _check(store, "", file)]


def _check_end(store: ObjectStore, key: str, file: NamedFile) -> str | None:
    size = file.size
    if size is None:
        info = store.head(key)
        if info is None:
            raise ObjectNotFoundError(f"{key} does not exist")
        size = info.size
        if not size:
            return "it is empty"
    length = min(size, FILE_FOOTER.size)
    # One byte more than there should be: the answer then tells the size too.
    end = store.get_range(key, start=size - length, length=length + 1)
    if len(end) != length:
        info = store.head(key)
        return f"it has {info.size if info is not None else 'no'} bytes instead of {size}"
    return end_problem(end, size) if file.kind is FileKind.LANCE else None


_READ_AHEAD_BYTES: Final = 32 << 20
_MAX_KNOWN: Final = 1 << 17

# Data files that this process has decoded. Each has a random name, and never changes.
_decoded: set[str] = set()


def decode_dictionaries(
    dataset: lance.LanceDataset, uri: str, *, known: Collection[str] = frozenset()
) -> None:
    """Read the dictionaries of a data set, in files that this process has not decoded before.

    ``uri`` is its address; files with a name in ``known`` are left out. Costs the time to read
    these columns once, and nothing if there are none.

    Raises CorruptDataError if a column cannot be decoded; it names a file.
    """
    columns = [field.name for field in dataset.schema if has_dictionaries([field])]
    if not columns:
        return
    for fragment in dataset.get_fragments():
        names = [file.path for file in data_files(fragment.metadata)]
        addresses = {f"{uri} {name}" for name in names if name not in known}
        if addresses <= _decoded:
            continue
        with lance_errors(f"decoding {', '.join(columns)} in {', '.join(names)} of {uri}"):
            scanner = dataset.scanner(
                columns=columns, fragments=[fragment], io_buffer_size=_READ_AHEAD_BYTES
            )
            for _ in scanner.to_batches():
                pass
        if len(_decoded) > _MAX_KNOWN:
            forget_decoded()
        _decoded.update(addresses)


def forget_decoded() -> None:
    """Read every file again from now on."""
    _decoded.clear()


def find_bad_blobs(
    store: ObjectStore,
    dataset: lance.LanceDataset,
    *,
    folder: str = "",
    known: Collection[str] = frozenset(),
) -> list[BadFile]:
    """Return the files of blobs of a data set that are missing, or shorter than its rows say.

    ``folder`` is that of the data set, below the table. Data files with a name in ``known`` are
    left out. Costs a scan of the addresses of the blobs, and a listing of each folder with some.
    """
    prefix = f"{folder}/" if folder else ""
    bad = []
    sizes: dict[str, dict[str, int]] = {}
    for name, end in needed_blob_files(dataset, known=known).items():
        key = prefix + name
        place = key.rpartition("/")[0]
        if place not in sizes:
            sizes[place] = {info.key: info.size for info in store.list(place)}
        size = sizes[place].get(key)
        if size is None or size < end:
            text = None if size is None else f"it has {size} bytes instead of {end}"
            bad.append(BadFile(key, text))
    return bad


def decode_new_rows(
    location: TableLocation, manifest: bytes, *, before: bytes | None, version: int
) -> None:
    """Read the dictionaries of the rows that a manifest adds to its predecessor ``before``.

    It is not stored as ``version`` yet. Raises as :func:`decode_dictionaries`, and LostWriteError
    if a blob beside a data file was not written whole.
    """
    has_blobs = any(file.kind is FileKind.BLOBS for file in named_files(manifest))
    if before is None or not (has_dictionary_fields(manifest) or has_blobs):
        # The first version of a table has no rows.
        return
    known = frozenset(data_file_names(before))
    if known.issuperset(data_file_names(manifest)):
        return
    # Lance calls this from a thread of its own, which may not call Lance again.
    with ThreadPoolExecutor(1) as pool:
        try:
            decoding = pool.submit(_decode_new, location, manifest, version, known)
        except RuntimeError as error:
            raise limit_error(error, f"reading what was written to {location}") from error
        decoding.result()


def _decode_new(
    location: TableLocation, manifest: bytes, version: int, known: frozenset[str]
) -> None:
    with lance_errors(f"reading what was written to {location}"):
        dataset = lance.LanceDataset(
            location.uri,
            # Lance looks for the file of the version that it opens.
            serialized_manifest=as_version(manifest, version - 1),
            **location.lance_arguments(),
        )
    decode_dictionaries(dataset, location.uri, known=known)
    with lance_errors(f"reading what was written to {location}"):
        refuse(find_bad_blobs(location.store, dataset, known=known))
