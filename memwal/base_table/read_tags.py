"""Tags that protect the version of a long read, and expire by themselves.

A tag of Lance keeps its version from clean-ups, and the generations that were not merged in that
version from the collector. A tag of a read states in its name for how long it holds, counted from
the time its object was last written, by the clock of the store, which the collector goes by as
well. A process whose clock is wrong can therefore place neither a tag that has already expired nor
one that never does. A renewal writes the same object once more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from memwal.base_table.snapshot import BaseTable, translate_lance_error
from memwal.errors import ConflictError, ObjectNotFoundError
from memwal.storage.location import TableLocation

PREFIX: Final = "memwal-read-"
REFS_DIR: Final = "_refs"

_TAGS_DIR: Final = f"{REFS_DIR}/tags"
_SUFFIX: Final = ".json"
_NAME: Final = re.compile(r"memwal-read-([1-9][0-9]{0,9})-([1-9][0-9]{0,19})-([0-9a-z]{1,64})")


@dataclass(frozen=True, slots=True)
class ReadTag:
    """A tag of a read.

    Attributes
    ----------
    seconds : int
        How long it holds after it was written.
    version : int
        Of the base table, on its main branch.
    reader : str
        Who placed it: digits and small letters, up to 64.
    """

    seconds: int
    version: int
    reader: str

    @property
    def name(self) -> str:
        """Name of the tag."""
        return f"{PREFIX}{self.seconds}-{self.version}-{self.reader}"

    @property
    def key(self) -> str:
        """Key of the object that is the tag."""
        return f"{_TAGS_DIR}/{self.name}{_SUFFIX}"

    def ends(self, written: datetime) -> datetime:
        """When it ends that was last written at a time of the store's clock."""
        return written + timedelta(seconds=self.seconds)


def parse_read_tag(name: str) -> ReadTag | None:
    """Return the tag of a read that has this name; None for a tag of anybody else's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return ReadTag(int(match.group(1)), int(match.group(2)), match.group(3))


def user_tag_names(tags: Mapping[str, Mapping[str, Any]]) -> str:
    """Names of the tags that people placed on the main branch, for a message.

    Parameters
    ----------
    tags : mapping
        As ``dataset.tags.list()`` returns them.
    """
    return ", ".join(
        sorted(n for n, tag in tags.items() if not tag["branch"] and parse_read_tag(n) is None)
    )


def parse_read_tag_key(key: str) -> ReadTag | None:
    """The same by the key of an object."""
    folder, _, name = key.rpartition("/")
    if folder != _TAGS_DIR or not name.endswith(_SUFFIX):
        return None
    return parse_read_tag(name.removesuffix(_SUFFIX))


def place_tag(base: BaseTable, tag: ReadTag) -> bool:
    """Place a tag on a version.

    Returns
    -------
    bool
        False if there is one of that name already.

    Raises
    ------
    ObjectNotFoundError
        The version is no longer stored.
    StoreAccessError, StoreUnavailableError, StoreFullError
        As for any write. A tag that was placed all the same ends by itself.
    """
    try:
        base.dataset.tags.create(tag.name, tag.version)
    except (OSError, ValueError, RuntimeError) as error:
        if "already exists" in str(error):
            return False
        raise translate_lance_error(error, f"placing a tag on {base.location}") from error
    return True


def renew_tag(location: TableLocation, tag: ReadTag, *, now: datetime | None = None) -> bool:
    """Write a tag once more, if a quarter of its time has passed.

    Parameters
    ----------
    now : datetime, optional
        Must agree with the store's clock to well within a quarter of the time.

    Returns
    -------
    bool
        Whether it holds. One that is gone or has ended is left alone: a collector may have gone
        by its end, and nothing tells any more that what it protected is there.
    """
    found = location.store.head(tag.key)
    if found is None:
        return False
    age = (now or datetime.now(UTC)) - found.modified
    if age >= timedelta(seconds=tag.seconds):
        return False
    if age >= timedelta(seconds=tag.seconds / 4):
        try:
            content = location.store.get(tag.key)
            location.store.replace(tag.key, content, expected=content)
        except (ConflictError, ObjectNotFoundError):
            # Taken away, or renewed by somebody else in the same moment.
            return location.store.exists(tag.key)
    return True


def delete_tag(location: TableLocation, tag: ReadTag) -> None:
    """Take a tag away; one that is gone is fine."""
    location.store.delete(tag.key)


def list_read_tags(location: TableLocation) -> dict[ReadTag, datetime]:
    """The tags of reads that a table has, and when each was last written: one listing."""
    found = {}
    for info in location.store.list(_TAGS_DIR):
        tag = parse_read_tag_key(info.key)
        if tag is not None:
            found[tag] = info.modified
    return found


def list_torn_tags(location: TableLocation) -> list[str]:
    """Keys of the tags, of reads or others, that the machine's crash left torn.

    Lance syncs no tag on a local disk, and lists none while one of them cannot be read. Each gets
    its name when it is written, so that nobody is at work on one that is torn.
    """
    if not location.store.is_local:
        return []
    return [info.key for info in location.store.list(_TAGS_DIR) if _is_torn(location, info.key)]


def delete_torn_tags(location: TableLocation) -> bool:
    """Take away the tags of reads that are torn: whoever placed them went with the machine.

    Returns
    -------
    bool
        Whether there was one.
    """
    torn = [key for key in list_torn_tags(location) if parse_read_tag_key(key) is not None]
    location.store.delete_many(torn)
    return bool(torn)


def _is_torn(location: TableLocation, key: str) -> bool:
    try:
        json.loads(location.store.get(key))
    except ObjectNotFoundError:
        return False
    except ValueError:
        return True
    return False
