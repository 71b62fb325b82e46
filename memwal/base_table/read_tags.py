"""Read tags: Lance tags that protect the version of a long read, and expire by themselves.

A Lance tag protects its version from clean-ups, and the generations that were not merged in that
version from the garbage collector. The name of a read tag contains its lifetime, counted from the
last write of its object by the clock of the store, which the collector uses too. A process with a
wrong clock can therefore create neither an expired tag nor one that never expires. Renewing a tag
writes the same object again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from memwal.base_table.snapshot import BaseTable
from memwal.boundary.lance_errors import translate_lance_error
from memwal.errors import ConflictError, LinkRefusedError, ObjectNotFoundError
from memwal.storage.location import TableLocation

logger = logging.getLogger(__name__)

PREFIX: Final = "memwal-read-"
REFS_DIR: Final = "_refs"
TAGS_DIR: Final = f"{REFS_DIR}/tags"

_SUFFIX: Final = ".json"
_NAME: Final = re.compile(r"memwal-read-([1-9][0-9]{0,9})-([1-9][0-9]{0,19})-([0-9a-z]{1,64})")


@dataclass(frozen=True, slots=True)
class ReadTag:
    """Tag that protects a version of the base table for one reader."""

    seconds: int  # lifetime after the last write
    version: int  # version on the main branch of the base table
    reader: str  # id of the reader: up to 64 digits and lower-case letters

    @property
    def name(self) -> str:
        """Name of the tag."""
        return f"{PREFIX}{self.seconds}-{self.version}-{self.reader}"

    @property
    def key(self) -> str:
        """Key of the tag's object."""
        return f"{TAGS_DIR}/{self.name}{_SUFFIX}"

    def expires_at(self, written: datetime) -> datetime:
        """Return the expiry of the tag, last written at ``written`` by the clock of the store."""
        return written + timedelta(seconds=self.seconds)


def parse_read_tag(name: str) -> ReadTag | None:
    """Return the read tag with this name; None for any other tag."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return ReadTag(int(match.group(1)), int(match.group(2)), match.group(3))


def user_tag_names(tags: Mapping[str, Mapping[str, object]]) -> str:
    """Return the names of the users' tags on the main branch, for a message.

    ``tags`` is the result of ``dataset.tags.list()``.
    """
    return ", ".join(
        sorted(n for n, tag in tags.items() if not tag["branch"] and parse_read_tag(n) is None)
    )


def parse_read_tag_key(key: str) -> ReadTag | None:
    """Return the read tag whose object has this key; None for any other key."""
    folder, _, name = key.rpartition("/")
    if folder != TAGS_DIR or not name.endswith(_SUFFIX):
        return None
    return parse_read_tag(name.removesuffix(_SUFFIX))


def place_tag(base: BaseTable, tag: ReadTag) -> bool:
    """Create a read tag; False if a tag with this name exists.

    Raises ObjectNotFoundError if the version is no longer stored, and errors of the store as for
    any write: if the tag was created despite the error, it expires by itself.
    """
    try:
        base.dataset.tags.create(tag.name, tag.version)
    except (OSError, ValueError, RuntimeError) as error:
        if "already exists" in str(error):
            return False
        raise translate_lance_error(error, f"placing a tag on {base.location}") from error
    return True


def renew_tag(location: TableLocation, tag: ReadTag, *, now: datetime | None = None) -> bool:
    """Renew a tag if a quarter of its lifetime has passed. Returns whether the tag is valid.

    A deleted or expired tag is not renewed: the collector may have seen its expiry already, so the
    protected data may be gone. ``now`` must agree with the store's clock to well within a quarter
    of the lifetime.
    """
    info = location.store.head(tag.key)
    if info is None:
        return False
    age = (now or datetime.now(UTC)) - info.modified
    if age >= timedelta(seconds=tag.seconds):
        return False
    if age >= timedelta(seconds=tag.seconds / 4):
        try:
            content = location.store.get(tag.key)
            location.store.replace(tag.key, content, expected=content)
        except (ConflictError, ObjectNotFoundError):
            # Another process deleted or renewed the tag at the same time.
            return location.store.exists(tag.key)
    return True


def delete_tag(location: TableLocation, tag: ReadTag) -> None:
    """Delete a tag. Does nothing if it does not exist, or stays behind a link: it expires there."""
    try:
        location.store.delete(tag.key)
    except LinkRefusedError as error:
        logger.warning("tag %s is not deleted, and expires: %s", tag.name, error)


def list_read_tags(location: TableLocation) -> dict[ReadTag, datetime]:
    """Return the read tags of a table, with the time of their last write. Costs one listing."""
    tags = {}
    for info in location.store.list(TAGS_DIR):
        tag = parse_read_tag_key(info.key)
        if tag is not None:
            tags[tag] = info.modified
    return tags
