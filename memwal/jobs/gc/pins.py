"""Pins: generations that must stay for the base table, indexes, tags, branches, versions or reads.

From one version of a branch to the next, merge progress only grows. What the version that was the
latest one retention ago does not need, no later version needs: of all those, one is read. Only
restoring an old version takes progress back. Therefore each version that has a tag or a branch is
read too, since what such a version needs stays for ever. A branch needs what the version needs that
it started from; what was merged into the branch since only adds to the progress.

A read tag pins like any other tag, and expires by itself. It holds for as long as its name says
after it was last written, by the clock of the store, and for a grace period more: the clocks of the
store and of this process may differ by so much, and a renewal may be delayed for so long.

The state of tags and branches is read first, so that a change during the read is noticed later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from memwal.base_table.decoding import decode_dictionaries
from memwal.base_table.read_tags import (
    REFS_DIR,
    ReadTag,
    list_torn_tags,
    parse_read_tag,
    parse_read_tag_key,
)
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError, TableSetupError
from memwal.jobs.gc.decision import Reason, moment
from memwal.jobs.gc.history import StoredVersions, progress_of
from memwal.jobs.options import GcOptions
from memwal.lsm.indexes.catchup import caught_up, maintained_index_names
from memwal.storage.location import TableLocation

Refs = tuple[tuple[str, int, datetime], ...]
"""Key, size and time of each object that is a tag or a branch."""


def read_refs(location: TableLocation) -> Refs:
    """Read the state of tags and branches, which differs after any change: one listing."""
    objects = location.store.list(REFS_DIR)
    return tuple(sorted((info.key, info.size, info.modified) for info in objects))


def list_read_tags(refs: Refs, grace: timedelta) -> Iterator[tuple[ReadTag, int, datetime]]:
    """Yield each read tag, its size, and when its protection ends."""
    for key, size, written in refs:
        tag = parse_read_tag_key(key)
        if tag is not None:
            yield tag, size, protection_end(tag, written, grace)


def protection_end(tag: ReadTag, written: datetime, grace: timedelta) -> datetime:
    """Return when the protection of a tag that was last written at a time ends."""
    return tag.expires_at(written) + grace


def protected_until(refs: Refs, grace: timedelta, *, now: datetime) -> dict[int, datetime]:
    """Map each version that a read still protects to the end of its last read tag."""
    ends: dict[int, datetime] = {}
    for tag, _, end in list_read_tags(refs, grace):
        if end > now:
            ends[tag.version] = max(end, ends.get(tag.version, end))
    return ends


_PARALLEL_READS = 16
# Read tags come and go while Lance lists tags, which it reads one after another.
_ATTEMPTS = 5
_READ_MESSAGE = "a read of version {} needs it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Newest generation of each region that one user of the table lets the collector remove."""

    reason: Reason
    message: str  # the user of the table that pins newer generations
    # Newest generation that is not pinned, by region; 0 for regions that are missing.
    generations: Mapping[UUID, int]
    until: str | None = None  # when the pin ends by itself

    def removable(self, region_id: UUID) -> int:
        """Return the newest generation of a region that is not pinned; 0 for none."""
        return self.generations.get(region_id, 0)


@dataclass(frozen=True, slots=True)
class Pins:
    """Everything that pins generations of a table."""

    pins: tuple[Pin, ...]  # if several pin a generation, decisions name the first of them
    refs: Refs = ()  # state of tags and branches when this was read, to notice that they changed

    def removable(self, region_id: UUID) -> int:
        """Return the newest generation of a region that nothing pins; 0 for none."""
        return min(pin.removable(region_id) for pin in self.pins)

    def pinned_by(self, region_id: UUID, generation: int) -> Pin | None:
        """Return the first pin of a generation, or None if nothing pins it."""
        return next((pin for pin in self.pins if generation > pin.removable(region_id)), None)

    def of_regions(self, regions: Collection[UUID]) -> Pins:
        """Return the pins of some regions only, which is less to send to a worker."""
        return Pins(
            tuple(
                replace(pin, generations={region: pin.removable(region) for region in regions})
                for pin in self.pins
            ),
            self.refs,
        )


def read_pins(
    location: TableLocation, options: GcOptions, *, now: datetime, base: BaseTable | None = None
) -> Pins:
    """Read everything that pins generations of a table. If this raises, nothing may be deleted.

    A generation is pinned until it is merged in the latest version, whose rows can be decoded,
    every maintained index covers it, and every version that may still be read has it merged too:
    tagged versions, those that branches start from, and all that were the latest one retention ago
    or later.
    """
    # First the state of tags and branches: one that changes during this read is noticed later.
    refs = read_refs(location)
    latest = open_base(location) if base is None else base
    latest.require_mem_wal()
    pins = [
        Pin(
            reason=Reason.NOT_MERGED,
            message="not merged into the base table",
            generations=dict(latest.details.merged),
        )
    ]
    pins += [
        Pin(
            reason=Reason.INDEX_BEHIND,
            message=f"index {name} has not caught up with it",
            generations=dict(caught_up(latest, name)),
        )
        for name in maintained_index_names(latest)
    ]
    pins += _pins_of_unreadable_rows(latest)
    pins += _pins_of_versions(latest, options, now, refs)
    return Pins(tuple(pins), refs)


def _pins_of_unreadable_rows(base: BaseTable) -> Iterator[Pin]:
    """Pin every generation if rows of the latest version cannot be decoded.

    The commits of memwal decode what they add; another client may have merged or compacted. Rows
    that were decoded in this process are not read again.
    """
    try:
        decode_dictionaries(base.dataset, base.location.uri)
    except CorruptDataError as error:
        yield Pin(reason=Reason.UNREADABLE, message=str(error), generations={})


def _pins_of_versions(
    base: BaseTable, options: GcOptions, now: datetime, refs: Refs
) -> Iterator[Pin]:
    """Yield the pins of the versions that are kept and older than the latest one, oldest first."""
    versions = StoredVersions.list(base.location)
    if base.version not in versions.manifests:
        raise TableSetupError(
            f"version {base.version} of {base.location} is not in its listing; try again"
        )
    recent = versions.latest_at(now - options.retention)
    reads = protected_until(refs, options.grace, now=now)
    evaluated = {tag.name for tag, _, _ in list_read_tags(refs, options.grace)}
    pinned = _referenced_versions(base, evaluated=evaluated)
    for version in reads:
        # A version that is gone needs nothing any more. This holds for read tags only: what a tag
        # without an end pins may still be read, which only its owner can say.
        if version in versions.manifests:
            pinned.setdefault(version, (Reason.READ, _READ_MESSAGE.format(version)))
    pinned.setdefault(recent, (Reason.RETENTION, f"version {recent} is kept for its age"))
    older = sorted(version for version in pinned if version < base.version)
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        progress_by_version = list(pool.map(partial(_progress_at, base, versions), older))
    for version, progress in zip(older, progress_by_version, strict=True):
        reason, message = pinned[version]
        # A version from before MemWAL was enabled needs no generation itself. But as the oldest
        # recent version it stands for the ones after it, which had nothing merged.
        if progress is None and version != recent:
            continue
        until = None
        if reason is Reason.READ:
            until = moment(reads[version]) if version in reads else None
        elif reason is Reason.RETENTION:
            replaced = versions.replaced_at(version)
            until = None if replaced is None else moment(replaced + options.retention)
        yield Pin(reason=reason, message=message, generations=dict(progress or {}), until=until)


def _progress_at(
    base: BaseTable, versions: StoredVersions, version: int
) -> Mapping[UUID, int] | None:
    info = versions.manifests.get(version)
    if info is None:
        raise TableSetupError(
            f"version {version} of {base.location} is tagged or has a branch, and its manifest is "
            "gone, so what it needs is unknown; delete the tag or the branch if it is not needed"
        )
    try:
        return progress_of(base.location, info)
    except ObjectNotFoundError as error:
        raise TableSetupError(
            f"version {version} of {base.location} was cleaned up while it was read; try again"
        ) from error


def _referenced_versions(
    base: BaseTable, *, evaluated: Collection[str]
) -> dict[int, tuple[Reason, str]]:
    """Map main-branch versions pinned by a tag or a branch point to the reason and message.

    ``evaluated`` holds the read tags whose end :func:`protected_until` has already checked; they
    are skipped. Any other read tag was placed after ``refs`` was listed and counts as live.
    """
    tags, branches = _list_tags_and_branches(base)
    pinned: dict[int, tuple[Reason, str]] = {}
    for name, branch in branches.items():
        # The chain of ancestors starts on the main branch, even if one of them is gone.
        version = int(branch["branch_identifier"][0][0])
        pinned[version] = (Reason.BRANCH, f"branch {name} from version {version} needs it")
    for name, tag in tags.items():
        version = int(tag["version"])
        if tag["branch"] or name in evaluated:
            continue
        if parse_read_tag(name) is None:
            pinned[version] = (Reason.TAG, f"tag {name} at version {version} needs it")
        else:
            pinned.setdefault(version, (Reason.READ, _READ_MESSAGE.format(version)))
    return pinned


def _list_tags_and_branches(base: BaseTable) -> tuple[dict[str, Any], dict[str, Any]]:
    """List tags and branches through Lance."""
    for attempt in range(_ATTEMPTS):
        try:
            with lance_errors(f"listing what {base.location} keeps"):
                return base.dataset.tags.list(), base.dataset.branches.list()
        except MemWalError as error:
            if torn := list_torn_tags(base.location):
                raise CorruptDataError(
                    f"the machine crashed while a tag of {base.location} was placed, so what it "
                    f"pins is unknown: {', '.join(torn)}. Nothing was deleted: delete that "
                    "object, and place the tag again if it is still needed"
                ) from error
            if not isinstance(error, ObjectNotFoundError) or attempt == _ATTEMPTS - 1:
                raise
    raise TableSetupError(f"the tags of {base.location} cannot be listed; try again")
