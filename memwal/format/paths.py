"""Paths of objects below a table's root. Every path that memwal reads or writes is made here.

Keys are relative to the table root, joined by ``/`` and without a leading slash. Names contain
counters as 64 binary digits in reverse order, so that consecutive objects spread over the key space
of a store that partitions by prefix (spec: WAL Storage Layout, Region Manifest Versioning).
"""

from __future__ import annotations

import re
from functools import lru_cache
from uuid import UUID

from memwal.errors import CorruptDataError, InvalidInputError

DATA_DIR = "data"
VERSIONS_DIR = "_versions"
INDICES_DIR = "_indices"
MEM_WAL_DIR = "_mem_wal"
REGION_MARKS_DIR = "_memwal_regions"
"""Folder of the region marks. In the root of the table, since ``_mem_wal`` may be another disk."""
CHANGE_TRACE_KEY = "_memwal/changed"
"""Object that changes after each commit of a region's manifest: see
:mod:`memwal.region.change_trace`."""
STAGED_ROWS_DIR = "_memwal/writes"
"""Folder of rows that tasks of Spark staged, for the process that writes them into the regions."""
CONSUMERS_DIR = "_memwal/consumers"
"""Folder of the states of consumers: see :mod:`memwal.feed.consumer_state`."""
PK_INDEX_DIR = "_pk_index"
APPLIED_DIR = "applied"
BLOOM_FILTER_NAME = "bloom_filter.bin"
SIZED_FILTER_NAME = "memwal_bloom.bin"
"""A file of ours in the folder of a large generation; other clients do not know it."""
ORPHAN_MARK_NAME = "orphan"
TOMBSTONE = "_tombstone"
MEM_WAL_INDEX_NAME = "__lance_mem_wal"
FRAG_REUSE_INDEX_NAME = "__lance_frag_reuse"
"""Name of the index by which Lance finds rows that a compaction moved. The files of other
indexes still have these rows where they were."""
SYSTEM_INDEX_PREFIX = "__lance_"
"""Beginning of the names of indexes that Lance keeps for itself: the MemWAL index, and others."""

_MANIFEST_DIR = "manifest"
_MANIFEST_SUFFIX = ".binpb"
ANY_MANIFEST = f"{_MANIFEST_DIR}/*{_MANIFEST_SUFFIX}"
"""Pattern in the folder of a region, by which any version of its manifest is found."""
_WAL_SUFFIX = ".arrow"
_APPLIED_SUFFIX = ".json"
_CONSUMER_SUFFIX = ".json"
_VERSION_HINT = "version_hint.json"
_MAX_U64 = (1 << 64) - 1
_TABLE_MANIFEST = re.compile(r"([0-9]{1,20})\.manifest")
# Digits of the inverted naming scheme, in which the newest version sorts first.
_INVERTED_DIGITS = 20
MAX_COUNTER = (1 << 63) - 1
"""Largest valid version, position, epoch or generation. Its successor still has a name.

No client writes a larger number.
"""

_DIGITS = re.compile(r"[01]{64}")
_TOKEN = re.compile(r"[0-9a-f]{8}")
_GENERATION = re.compile(r"[0-9a-f]{8}_gen_(0|[1-9][0-9]{0,19})")
_REGION_MARK = re.compile(r"([1-9][0-9]{0,18})-([1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})")


BLOB_SUFFIX = ".blob"
"""End of the name of a file of blobs, in the folder of a generation or of the base table."""


def bit_reversed(n: int) -> str:
    """Return the 64 binary digits of ``n``, least significant first.

    Raises InvalidInputError if ``n`` does not fit an unsigned 64-bit integer.
    """
    if not 0 <= n <= _MAX_U64:
        raise InvalidInputError(f"{n} is not an unsigned 64-bit integer; it cannot be in a name")
    return format(n, "064b")[::-1]


def from_bit_reversed(s: str) -> int:
    """Return the integer that :func:`bit_reversed` wrote as ``s``, or raise InvalidInputError."""
    if _DIGITS.fullmatch(s) is None:
        raise InvalidInputError(f"{s!r} is not a name of 64 binary digits")
    return int(s[::-1], 2)


def region_dir(region_id: UUID) -> str:
    """Return the key of a region's folder."""
    return f"{MEM_WAL_DIR}/{region_id}"


# A table has the same regions each time that they are listed.
@lru_cache(maxsize=1 << 14)
# Each read lists the folders of the regions.
@lru_cache(maxsize=1 << 14)
def parse_region_name(name: str) -> UUID | None:
    """Return the region whose folder has this name; None if it is not the folder of a region."""
    try:
        region_id = UUID(name)
    except ValueError:
        return None
    return region_id if str(region_id) == name else None


def manifest_dir(region_id: UUID) -> str:
    """Return the key of the folder that holds a region's manifests."""
    return f"{region_dir(region_id)}/{_MANIFEST_DIR}"


# Each entry of a log is read by its key.
@lru_cache(maxsize=1 << 14)
def wal_dir(region_id: UUID) -> str:
    """Return the key of the folder that holds a region's WAL entries."""
    return f"{region_dir(region_id)}/wal"


def manifest_key(region_id: UUID, version: int) -> str:
    """Return the key of one version of a region's manifest."""
    return f"{manifest_dir(region_id)}/{bit_reversed(version)}{_MANIFEST_SUFFIX}"


def version_hint_key(region_id: UUID) -> str:
    """Return the key of the hint object, which names a recent manifest version of a region."""
    return f"{manifest_dir(region_id)}/{_VERSION_HINT}"


def wal_key(region_id: UUID, position: int) -> str:
    """Return the key of the WAL entry at a position."""
    return f"{wal_dir(region_id)}/{bit_reversed(position)}{_WAL_SUFFIX}"


def applied_dir(region_id: UUID) -> str:
    """Return the key of the folder with a region's records of applied steps."""
    return f"{region_dir(region_id)}/{APPLIED_DIR}"


def applied_key(region_id: UUID, position: int) -> str:
    """Return the key of the record of applied steps that covers a region's WAL up to a position."""
    return f"{applied_dir(region_id)}/{bit_reversed(position)}{_APPLIED_SUFFIX}"


def parse_applied_name(name: str) -> int | None:
    """Return the position of the applied-steps record with this file name; None for other names."""
    return _parse_counter(name, _APPLIED_SUFFIX)


def parse_manifest_name(name: str) -> int | None:
    """Return the version of the manifest with this file name; None for other names."""
    return _parse_counter(name, _MANIFEST_SUFFIX)


def parse_wal_name(name: str) -> int | None:
    """Return the position of the WAL entry with this file name; None for other names."""
    return _parse_counter(name, _WAL_SUFFIX)


def region_marks_dir(region_id: UUID) -> str:
    """Return the key of the folder that holds a region's marks."""
    return f"{REGION_MARKS_DIR}/{region_id}"


def region_mark_key(region_id: UUID, era: int, first: int, merged: int) -> str:
    """Return the key of a mark of a region: see :mod:`memwal.base_table.region_marks`.

    Raises InvalidInputError if a number is out of range.
    """
    name = f"{era}-{first}-{merged}"
    if _parse_mark_name(name) is None:
        raise InvalidInputError(f"{name!r} is not a region mark; its numbers are out of range")
    return f"{region_marks_dir(region_id)}/{name}"


def parse_region_mark_key(key: str) -> tuple[UUID, tuple[int, int, int]] | None:
    """Return the region, era, first and merged of a mark's key; None for other keys."""
    folder, _, name = key.rpartition("/")
    region_id = parse_region_name(folder.removeprefix(f"{REGION_MARKS_DIR}/"))
    numbers = _parse_mark_name(name)
    return None if region_id is None or numbers is None else (region_id, numbers)


def consumer_key(name: str) -> str:
    """Return the key of the state of a consumer."""
    return f"{CONSUMERS_DIR}/{name}{_CONSUMER_SUFFIX}"


def parse_consumer_key(key: str) -> str | None:
    """Return the name of the consumer whose state has this key; None for other keys."""
    name = key.removeprefix(f"{CONSUMERS_DIR}/").removesuffix(_CONSUMER_SUFFIX)
    return name if key == consumer_key(name) else None


def generation_name(generation: int, token: str) -> str:
    """Return the folder name of a flushed generation.

    The token has eight lower-case hexadecimal digits, new for every attempt to flush, so that a
    retry never writes into the folder of a failed attempt.
    """
    if _TOKEN.fullmatch(token) is None:
        raise InvalidInputError(f"{token!r} must be 8 lower-case hexadecimal digits")
    if not 0 <= generation <= _MAX_U64:
        raise InvalidInputError(f"generation {generation} is not an unsigned 64-bit integer")
    return f"{token}_gen_{generation}"


@lru_cache(maxsize=1 << 14)
def parse_generation_name(name: str) -> int | None:
    """Return the generation whose folder has this name; None for other names."""
    match = _GENERATION.fullmatch(name)
    if match is None:
        return None
    generation = int(match.group(1))
    return generation if generation <= MAX_COUNTER else None


# Each read of a table names the folders of the same generations.
@lru_cache(maxsize=1 << 14)
def generation_dir(region_id: UUID, name: str) -> str:
    """Return the key of a flushed generation's folder, which a region manifest names.

    Raises CorruptDataError if the name is not that of a generation. No path can thus lead out of
    the region.
    """
    if parse_generation_name(name) is None:
        raise CorruptDataError(
            f"{name!r} is not the name of a flushed generation of region {region_id}; "
            "look at the region's newest manifest"
        )
    return f"{region_dir(region_id)}/{name}"


def blob_key(region_id: UUID, name: str, file: str, number: int) -> str:
    """Return the key of a file of blobs beside the data file ``file`` of a generation."""
    return f"{generation_dir(region_id, name)}/data/{file}/{f'{number:032b}'[::-1]}{BLOB_SUFFIX}"


def table_manifest_keys(version: int) -> tuple[str, str]:
    """Return the two possible keys of a table's manifest of this version.

    The first follows the current naming scheme (the version subtracted from 2**64 - 1, in 20
    digits, so that the newest sorts first), the second the older one.
    """
    if not 0 <= version <= _MAX_U64:
        raise InvalidInputError(f"table version {version} is not an unsigned 64-bit integer")
    return (
        f"{VERSIONS_DIR}/{_MAX_U64 - version:020d}.manifest",
        f"{VERSIONS_DIR}/{version}.manifest",
    )


def parse_table_version(name: str) -> int | None:
    """Return the version whose table manifest has this name, in either naming scheme, or None."""
    match = _TABLE_MANIFEST.fullmatch(name)
    if match is None or int(match[1]) > _MAX_U64:
        return None
    number = int(match[1])
    return _MAX_U64 - number if len(match[1]) == _INVERTED_DIGITS else number


def index_file_key(index_id: UUID, name: str) -> str:
    """Return the key of a file of an index of the base table."""
    return f"_indices/{index_id}/{name}"


def _parse_mark_name(name: str) -> tuple[int, int, int] | None:
    match = _REGION_MARK.fullmatch(name)
    if match is None:
        return None
    era, first, merged = (int(number) for number in match.groups())
    return (era, first, merged) if max(era, first, merged) <= MAX_COUNTER else None


def _parse_counter(name: str, suffix: str) -> int | None:
    digits = name.removesuffix(suffix)
    if digits == name or _DIGITS.fullmatch(digits) is None:
        return None
    number = from_bit_reversed(digits)
    return number if number <= MAX_COUNTER else None
