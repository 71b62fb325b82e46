"""Tags and branches of the base table, as stored.

Lance lists no tag at all while it cannot read one of them. Here each is read by itself, and one
that is damaged is an entry like the others, without the version that it keeps.

A *read tag* protects the version of a long read, and expires by itself. A Lance tag protects its
version from clean-ups, and the generations that were not merged in that version from the garbage
collector. The name of a read tag contains its lifetime, counted from the
last write of its object by the clock of the store, which the collector uses too. A process with a
wrong clock can therefore create neither an expired tag nor one that never expires. Renewing a tag
writes the same object again.

A *consumer tag* holds the version of a token until the state of its consumer does not need it: see
:mod:`memwal.feed.consumer_state`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

from memwal.base_table.snapshot import BaseTable
from memwal.boundary.lance_errors import translate_lance_error
from memwal.errors import ConflictError, LinkRefusedError, ObjectNotFoundError
from memwal.region.manifest_store import read_each
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore

logger = logging.getLogger(__name__)

REFS_DIR: Final = "_refs"
TAGS_DIR: Final = f"{REFS_DIR}/tags"
BRANCHES_DIR: Final = f"{REFS_DIR}/branches"
PREFIX: Final = "memwal-read-"

_SUFFIX: Final = ".json"
_NAME: Final = re.compile(r"memwal-read-([1-9][0-9]{0,9})-([1-9][0-9]{0,19})-([0-9a-z]{1,64})")
_CONSUMER: Final = re.compile(
    r"memwal-consumer-([A-Za-z0-9_-]{1,64})-([1-9][0-9]{0,18})-([1-9][0-9]{0,19})-([0-9a-z]{1,64})"
)


@dataclass(frozen=True, slots=True)
class Ref:
    """A tag or a branch."""

    key: str  # of its object
    # Version of the main branch: the tagged one, or the one that a branch starts from, however many
    # branches lie in between. None if the object is damaged, or of a form that is not known.
    version: int | None
    is_on_branch: bool = False  # whether a tag is of a version of a branch, and of none of the main

    @property
    def name(self) -> str:
        """Name of the tag or branch."""
        return unquote(self.key.rpartition("/")[2].removesuffix(_SUFFIX))

    @property
    def is_branch(self) -> bool:
        """True for a branch, False for a tag."""
        return self.key.startswith(f"{BRANCHES_DIR}/")

    def __str__(self) -> str:
        return f"{'branch' if self.is_branch else 'tag'} {self.name}"

    @property
    def deletion(self) -> str:
        """Call of pylance that deletes it."""
        kind = "branches" if self.is_branch else "tags"
        return f"lance.dataset(uri).{kind}.delete({self.name!r})"


def list_refs(location: TableLocation) -> list[Ref]:
    """Read all tags and branches.

    Costs a listing, and a request for each tag or branch that is not a read tag: the name of a read
    tag tells its version.
    """
    refs, unread = [], []
    for key in (info.key for info in location.store.list(REFS_DIR)):
        tag = parse_read_tag_key(key)
        if tag is not None:
            refs.append(Ref(key, tag.version))
        elif key.endswith(_SUFFIX) and key.rpartition("/")[0] in (TAGS_DIR, BRANCHES_DIR):
            unread.append(key)
    return [*refs, *_read_all(location.store, unread)]


def _read_all(store: ObjectStore, keys: Sequence[str]) -> list[Ref]:
    def read(key: str) -> Iterable[Ref]:
        try:
            return [_parse(key, store.get(key))]
        except ObjectNotFoundError:
            # Deleted since.
            return []

    return [ref for refs in read_each(store, read, keys) for ref in refs]


def find_lost_refs(version: int, stored: Collection[int], refs: Iterable[Ref]) -> dict[Ref, str]:
    """Return the tags and branches that cannot be followed, each with the problem and the remedy.

    ``version`` is the latest one, and ``stored`` are all that were stored before ``refs`` were
    read. Read tags are left out: they expire by themselves.
    """
    problems = {}
    for ref in refs:
        if ref.is_on_branch or parse_read_tag(ref.name) is not None:
            continue
        if ref.version is None:
            problem = f"{ref} cannot be read, and may be of any version"
        elif ref.version < version and ref.version not in stored:
            problem = f"the manifest of version {ref.version}, which {ref} keeps, is gone"
        else:
            continue
        if ref.is_branch and ref.version is not None:
            problem += "; the rows of the branch can still be read"
        problems[ref] = f"{problem}: restore it, or delete it: {ref.deletion}"
    return problems


def delete_torn_tags(location: TableLocation) -> None:
    """Delete tags of reads and consumers that a crash left torn; nothing for object stores.

    Lance does not fsync tags on a local disk, and the processes that placed them ended with the
    machine. A tag gets its name after it is written, so no process is still writing a torn one. A
    consumer makes its tag durable before its state relies on it.
    """
    store = location.store
    if store.is_local:
        keys = [info.key for info in store.list(TAGS_DIR)]
        tags = [key for key in keys if parse_read_tag_key(key) or parse_consumer_tag_key(key)]
        torn = [ref.key for ref in _read_all(store, tags) if ref.version is None]
        store.delete_many(torn)


def _tag_name(key: str) -> str:
    """Return the name of the tag whose object has this key; empty for any other key."""
    folder, _, name = key.rpartition("/")
    return name.removesuffix(_SUFFIX) if folder == TAGS_DIR and name.endswith(_SUFFIX) else ""


def _parse(key: str, data: bytes) -> Ref:
    try:
        values: Any = json.loads(data)
        if key.startswith(f"{BRANCHES_DIR}/"):
            # The chain of ancestors starts on the main branch, even if one of them is gone.
            return Ref(key, int(values["identifier"]["version_mapping"][0][0]))
        return Ref(key, int(values["version"]), values["branch"] is not None)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return Ref(key, None)


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


@dataclass(frozen=True, slots=True)
class ConsumerTag:
    """Tag that holds the version of a token of a consumer."""

    consumer: str
    step: int  # of the consumer's tokens: see :mod:`memwal.feed.consumer_state`
    version: int  # version on the main branch of the base table
    claim: str  # id of the claim that placed it

    @property
    def name(self) -> str:
        """Name of the tag."""
        return f"memwal-consumer-{self.consumer}-{self.step}-{self.version}-{self.claim}"

    @property
    def key(self) -> str:
        """Key of the tag's object."""
        return f"{TAGS_DIR}/{self.name}{_SUFFIX}"


def parse_consumer_tag(name: str) -> ConsumerTag | None:
    """Return the consumer tag with this name; None for any other tag."""
    match = _CONSUMER.fullmatch(name)
    if match is None:
        return None
    return ConsumerTag(match[1], int(match[2]), int(match[3]), match[4])


def parse_consumer_tag_key(key: str) -> ConsumerTag | None:
    """Return the consumer tag whose object has this key; None for any other key."""
    return parse_consumer_tag(_tag_name(key))


def list_consumer_tags(location: TableLocation, consumer: str) -> list[ConsumerTag]:
    """Return the tags of a consumer. Costs one listing."""
    tags = (parse_consumer_tag_key(info.key) for info in location.store.list(TAGS_DIR))
    return [tag for tag in tags if tag is not None and tag.consumer == consumer]


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
    return parse_read_tag(_tag_name(key))


def place_tag(base: BaseTable, tag: ReadTag | ConsumerTag) -> bool:
    """Create a tag; False if a tag with this name exists.

    Raises ObjectNotFoundError if the version is no longer stored, and errors of the store as for
    any write: if the tag was created despite the error, the collector deletes it in time.
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


def delete_tag(location: TableLocation, tag: ReadTag | ConsumerTag) -> None:
    """Delete a tag. Does nothing if it does not exist, or stays behind a link."""
    try:
        location.store.delete(tag.key)
    except LinkRefusedError as error:
        logger.warning("tag %s is not deleted: %s", tag.name, error)


def list_read_tags(location: TableLocation) -> dict[ReadTag, datetime]:
    """Return the read tags of a table, with the time of their last write. Costs one listing."""
    tags = {}
    for info in location.store.list(TAGS_DIR):
        tag = parse_read_tag_key(info.key)
        if tag is not None:
            tags[tag] = info.modified
    return tags
