"""Tags and branches of the base table, as stored.

Lance lists no tag at all while it cannot read one of them. Here each is read by itself, and one
that is damaged is an entry like the others, without the version that it keeps.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from memwal.base_table.read_tags import REFS_DIR, TAGS_DIR, parse_read_tag, parse_read_tag_key
from memwal.errors import ObjectNotFoundError
from memwal.region.manifest_store import parallel_reads
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore
from memwal.util.concurrency import ThreadPool

BRANCHES_DIR = f"{REFS_DIR}/branches"
_SUFFIX = ".json"


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

    with ThreadPool(max(1, min(parallel_reads(store), len(keys)))) as pool:
        return [ref for found in pool.map(read, keys) for ref in found]


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
        problems[ref] = f"{problem}: restore it, or delete it: {ref.deletion}"
    return problems


def delete_torn_tags(location: TableLocation) -> None:
    """Delete read tags that a crash of the machine left torn; nothing for object stores.

    Lance does not fsync tags on a local disk, and the processes that placed them ended with the
    machine. A tag gets its name after it is written, so no process is still writing a torn one.
    """
    store = location.store
    if store.is_local:
        tags = [info.key for info in store.list(TAGS_DIR) if parse_read_tag_key(info.key)]
        torn = [ref.key for ref in _read_all(store, tags) if ref.version is None]
        store.delete_many(torn)


def _parse(key: str, data: bytes) -> Ref:
    try:
        values: Any = json.loads(data)
        if key.startswith(f"{BRANCHES_DIR}/"):
            # The chain of ancestors starts on the main branch, even if one of them is gone.
            return Ref(key, int(values["identifier"]["version_mapping"][0][0]))
        return Ref(key, int(values["version"]), values["branch"] is not None)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return Ref(key, None)
