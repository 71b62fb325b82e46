"""The versions of the base table: the newest is whole, and has all of its files."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from memwal.errors import CorruptDataError, ObjectNotFoundError, TableSetupError
from memwal.format.table_manifest import read_index_section
from memwal.maintenance.verify.findings import Finding
from memwal.maintenance.verify.stored_files import wrong_files
from memwal.maintenance.verify.unreadable import Unreadable, reading
from memwal.storage.base import ObjectInfo, ObjectStore
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import BaseTable, open_base, read_table_manifest

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
