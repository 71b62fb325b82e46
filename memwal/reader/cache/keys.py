"""Invalidation tags of cache keys: versions of tables, generations, segments of indexes."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from memwal.base_table.snapshot import BaseTable
from memwal.format.paths import MEM_WAL_DIR, parse_generation_name, parse_region_name

_GENERATION: Final = re.compile(rf"(.+)/{MEM_WAL_DIR}/([^/]+)/([^/]+)(?:/.*)?", re.DOTALL)
_SEGMENT: Final = re.compile(r"(.+)/_indices/([^/]+)(?:/.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class VersionTag:
    """Names the rows of a version for ever, also when another table comes into its place.

    A table that was made anew, or taken back from a backup, counts its versions anew as well.
    """

    uri: str
    number: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class GenerationTag:
    """A flushed generation of a table."""

    uri: str
    region_id: UUID
    number: int


@dataclass(frozen=True, slots=True)
class SegmentTag:
    """A segment of an index of a base table."""

    uri: str
    uuid: str


CacheTag = VersionTag | GenerationTag | SegmentTag


def version_key(base: BaseTable) -> VersionTag:
    """The name of a version."""
    return VersionTag(base.location.uri, base.version, base.digest)


def tags_in(key: Hashable) -> frozenset[CacheTag]:
    """What a key names at any depth: its versions, or, when it has none, all the rest.

    What belongs to a version and to generations beside it is outdated with the version: merges
    make new ones.
    """
    parts = list(_flat(key))
    versions = frozenset(part for part in parts if isinstance(part, VersionTag))
    if versions:
        return versions
    found = (_named(part) for part in parts if isinstance(part, str))
    return frozenset(name for name in found if name is not None)


def _flat(key: Hashable) -> Iterator[Hashable]:
    if isinstance(key, tuple):
        for part in key:
            yield from _flat(part)
    else:
        yield key


def _named(address: str) -> CacheTag | None:
    """The generation or the segment that has this folder, or this file."""
    found = _GENERATION.fullmatch(address)
    if found is not None:
        region_id, number = parse_region_name(found[2]), parse_generation_name(found[3])
        return GenerationTag(found[1], region_id, number) if region_id and number else None
    found = _SEGMENT.fullmatch(address)
    return SegmentTag(found[1], found[2]) if found is not None else None
