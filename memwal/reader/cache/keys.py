"""Tags of cache keys, by which values are invalidated: versions, generations, index segments."""

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
    """A version of a base table, told by its digest from one of another table in its place.

    A table that was created again, or restored from a backup, starts to count its versions again.
    """

    uri: str
    number: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class GenerationTag:
    """A flushed generation."""

    uri: str
    region_id: UUID
    number: int


@dataclass(frozen=True, slots=True)
class SegmentTag:
    """A segment of an index of the base table."""

    uri: str
    uuid: str


CacheTag = VersionTag | GenerationTag | SegmentTag


def version_key(base: BaseTable) -> VersionTag:
    """Return the tag of a version, which is part of the cache keys of its values."""
    return VersionTag(base.location.uri, base.version, base.digest)


def tags_in(key: Hashable) -> frozenset[CacheTag]:
    """Return the tags in a key, at any depth: its versions, or without a version all others.

    A value of a version and of generations beside it is stale as soon as the version is: each
    merge makes a new version.
    """
    parts = list(_flatten(key))
    versions = frozenset(part for part in parts if isinstance(part, VersionTag))
    if versions:
        return versions
    tags = (_tag_of_path(part) for part in parts if isinstance(part, str))
    return frozenset(tag for tag in tags if tag is not None)


def _flatten(key: Hashable) -> Iterator[Hashable]:
    if isinstance(key, tuple):
        for part in key:
            yield from _flatten(part)
    else:
        yield key


def _tag_of_path(path: str) -> CacheTag | None:
    """Return the tag of the generation or the segment that has this folder or file."""
    match = _GENERATION.fullmatch(path)
    if match is not None:
        region_id, number = parse_region_name(match[2]), parse_generation_name(match[3])
        return GenerationTag(match[1], region_id, number) if region_id and number else None
    match = _SEGMENT.fullmatch(path)
    return SegmentTag(match[1], match[2]) if match is not None else None
