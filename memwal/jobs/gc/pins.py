"""Pins: generations that must stay for the base table, indexes, tags, branches, versions or reads.

From one version of a branch to the next, merge progress only grows. Generations that the version
that was the latest one retention ago does not need, no later version needs: of all these versions,
one is read. Only restoring an old version takes progress back. Therefore each version that has a
tag or a branch is read too, since the generations that such a version needs stay for ever. A branch
needs the generations of the version that it started from; merges into the branch since then only
add to the progress.

A read tag pins like any other tag, and expires by itself. It holds for the time in its name after
it was last written, by the clock of the store, and for a grace period more: the clocks of the store
and of this process may differ by a grace period, and a renewal may be delayed for as long.

A consumer's tag pins as well, until :mod:`memwal.jobs.gc.consumers` deletes it. The versions after
it are kept too: of a version that is gone, a feed cannot tell which rows a compaction moved.

The state of tags and branches is read first, so that a change during the read is noticed later.

Tags and branches that cannot be followed do not stop a collection. A damaged tag or branch may be
of any stored version, and pins the generations of each of them. A tag or branch whose version
cannot be read pins the generations of the newest readable version before it. If there is no such
version, a tag pins the generations of the next version, which its own version pinned too, and no
reader can read its own; a branch, which can still be read, pins everything.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from memwal.base_table.named_files import decode_dictionaries
from memwal.base_table.refs import (
    REFS_DIR,
    ReadTag,
    Ref,
    find_lost_refs,
    list_refs,
    parse_consumer_tag,
    parse_read_tag,
    parse_read_tag_key,
)
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import CorruptDataError, ObjectNotFoundError, TableSetupError
from memwal.jobs.gc.decision import DecisionReason, Reason
from memwal.jobs.gc.history import StoredVersions, branch_manifests, check_known, progress_of
from memwal.jobs.options import GcOptions
from memwal.lsm.indexes.catchup import caught_up, maintained_index_names
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectInfo
from memwal.util.concurrency import map_parallel

logger = logging.getLogger(__name__)

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
            yield tag, size, tag.expires_at(written) + grace


def protected_until(refs: Refs, grace: timedelta, *, now: datetime) -> dict[int, datetime]:
    """Map each version that a read still protects to the end of its last read tag."""
    ends: dict[int, datetime] = {}
    for tag, _, end in list_read_tags(refs, grace):
        if end > now:
            ends[tag.version] = max(end, ends.get(tag.version, end))
    return ends


_MAX_VERSIONS = 2000
_READ_MESSAGE = "a read of version {} needs it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Newest generation of each region that one user of the table lets the collector remove."""

    reason: Reason
    message: str  # the user of the table that pins newer generations
    # Newest generation that is not pinned, by region; 0 for regions that are missing.
    generations: Mapping[UUID, int]
    until: datetime | None = None  # when the pin ends by itself

    @property
    def keep_reason(self) -> DecisionReason:
        """The reason for keeping the pinned generations."""
        return self.reason, self.message, self.until

    def removable(self, region_id: UUID) -> int:
        """Return the newest generation of a region that is not pinned; 0 for none."""
        return self.generations.get(region_id, 0)


@dataclass(frozen=True, slots=True)
class Pins:
    """Everything that pins generations of a table."""

    pins: tuple[Pin, ...]  # if several pin a generation, decisions name the first of them
    refs: Refs = ()  # state of tags and branches when this was read, to notice that they changed
    damaged: tuple[Ref, ...] = ()  # tags and branches that cannot be read
    problems: tuple[str, ...] = ()  # of tags and branches that cannot be followed, and what to do
    version_age: timedelta | None = None  # age from which versions go; None keeps all of them

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
    tagged versions, versions that branches start from, and all that were the latest one retention
    ago or later. Raises NewerFormatError for fields that :func:`_check_kept` does not know.
    """
    # First the state of tags and branches: one that changes during this read is noticed later.
    refs = read_refs(location)
    latest = open_base(location) if base is None else base
    latest.check_supported()
    latest.check_changeable()
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
    try:
        # The commits of memwal decode what they add; another client may have merged or compacted.
        # Rows that were decoded in this process are not read again.
        decode_dictionaries(latest.dataset, location.uri)
    except CorruptDataError as error:
        # This pins every generation.
        pins.append(Pin(reason=Reason.UNREADABLE, message=str(error), generations={}))
    versions = StoredVersions.list(location)
    found = list_refs(location)
    version_age = _version_age(versions, found, options, now)
    _check_kept(latest, versions, found, version_age, options, now)
    lost = find_lost_refs(latest.version, versions.manifests, found)
    pins += _pins_of_versions(latest, versions, found, options, now, refs)
    damaged = tuple(ref for ref in lost if ref.version is None)
    for ref in damaged:
        pins.append(_pin_of_damaged(latest, versions, ref))
    return Pins(tuple(pins), refs, damaged, tuple(lost.values()), version_age)


def _version_age(
    versions: StoredVersions, found: Sequence[Ref], options: GcOptions, now: datetime
) -> timedelta | None:
    """Return the age from which Lance may clean up versions: none after that of a consumer."""
    if options.version_retention is None:
        return None
    held = {ref.version or 0 for ref in found if parse_consumer_tag(ref.name) is not None}
    # Lance goes by the clock of the client that committed, the listing by that of the store.
    ages = [
        now - info.modified + options.grace
        for version, info in versions.manifests.items()
        if version in held
    ]
    return max([options.version_retention, *ages])


def _check_kept(
    latest: BaseTable,
    versions: StoredVersions,
    found: Sequence[Ref],
    age: timedelta | None,
    options: GcOptions,
    now: datetime,
) -> None:
    """Raise NewerFormatError if a version that stays has a feature or field that is not known.

    Lance's clean-up deletes files that no version names, as far as Lance knows: files that a newer
    field names would be among them. The check reads the versions of tags and branches, and the
    versions that are too young for the clean-up; the others need no file any more. The files of a
    commit after this check are protected by their age, as any write that is under way.
    """
    kept = {ref.version for ref in found}
    # Lance goes by the clock of the client that committed, the listing by that of the store.
    expired = now - age - options.grace if age is not None else None

    def check(info: ObjectInfo) -> None:
        try:
            check_known(latest.location, info)
        except (ObjectNotFoundError, CorruptDataError):
            # Cleaned up since the listing, or damaged: Lance reads it again before it deletes
            # anything.
            return

    stays = [
        info
        for version, info in versions.manifests.items()
        if version in kept or (expired is not None and info.modified >= expired)
        if version != latest.version
    ]
    if any(ref.is_branch for ref in found):
        stays += branch_manifests(latest.location)
    map_parallel(check, [*stays, *versions.others])


def _pins_of_versions(
    base: BaseTable,
    versions: StoredVersions,
    found: Sequence[Ref],
    options: GcOptions,
    now: datetime,
    refs: Refs,
) -> Iterator[Pin]:
    """Yield the pins of the versions that are kept and older than the latest one, oldest first."""
    if base.version not in versions.manifests:
        raise TableSetupError(
            f"version {base.version} of {base.location} is not in its listing; try again"
        )
    recent = versions.latest_at(now - options.retention)
    reads = protected_until(refs, options.grace, now=now)
    evaluated = {tag.name for tag, _, _ in list_read_tags(refs, options.grace)}
    pinned = _referenced_versions(found, evaluated=evaluated)
    for version in reads:
        # A version that is gone needs nothing any more. This holds for read tags only: generations
        # that a tag without an end pins may still be read, which only its owner can say.
        if version in versions.manifests:
            pinned.setdefault(version, (Reason.READ, _READ_MESSAGE.format(version)))
    pinned.setdefault(recent, (Reason.RETENTION, f"version {recent} is kept for its age"))
    older = sorted(version for version in pinned if version < base.version)
    progress_by_version = map_parallel(
        lambda v: _progress_at(base, versions, v, pinned[v][0]), older
    )
    for version, progress in zip(older, progress_by_version, strict=True):
        reason, message = pinned[version]
        # A version from before MemWAL was enabled needs no generation itself. But as the oldest
        # recent version it stands for the ones after it, which had nothing merged.
        if progress is None and version != recent:
            continue
        until = reads.get(version) if reason is Reason.READ else None
        newer = versions.replaced_at(version) if reason is Reason.RETENTION else None
        if newer is not None:
            until = newer + options.retention
        yield Pin(reason=reason, message=message, generations=dict(progress or {}), until=until)


def _progress_at(
    base: BaseTable, versions: StoredVersions, version: int, reason: Reason
) -> Mapping[UUID, int] | None:
    """Return the merge progress of a version; None if it has no MemWAL.

    If its manifest is gone or damaged, that of another version stands for it, see the module.
    """
    before = sorted((v for v in versions.manifests if v <= version), reverse=True)
    is_tag = reason in (Reason.TAG, Reason.CONSUMER)
    after = sorted(v for v in versions.manifests if v > version) if is_tag else []
    for stored in (*before, *after):
        try:
            progress = progress_of(base.location, versions.manifests[stored])
            # MemWAL may have been enabled in between.
            return {} if progress is None and stored < version else progress
        except ObjectNotFoundError as error:
            if stored == version:
                raise TableSetupError(
                    f"version {version} of {base.location} was cleaned up while it was read; try "
                    "again"
                ) from error
        except CorruptDataError as error:
            logger.warning("%s; another version stands for it", error)
    return {}


def _pin_of_damaged(base: BaseTable, versions: StoredVersions, ref: Ref) -> Pin:
    """Return the pin of a tag or branch that may be of any stored version."""
    least = dict(base.details.merged) if len(versions.manifests) <= _MAX_VERSIONS else {}
    for info in versions.manifests.values() if least else ():
        try:
            progress = progress_of(base.location, info)
        except (ObjectNotFoundError, CorruptDataError):
            # No reader can read such a version.
            continue
        if progress is not None:
            least = {
                region: min(number, progress.get(region, 0)) for region, number in least.items()
            }
    return Pin(
        reason=Reason.BRANCH if ref.is_branch else Reason.TAG,
        message=f"{ref} cannot be read, and may be of a version that needs it",
        generations=least,
    )


def _referenced_versions(
    refs: Sequence[Ref], *, evaluated: Collection[str]
) -> dict[int, tuple[Reason, str]]:
    """Map main-branch versions pinned by a tag or a branch point to the reason and message.

    ``evaluated`` holds the read tags whose end :func:`protected_until` has already checked; they
    are skipped. Any other read tag was placed after the state of the tags was listed and counts as
    live.
    """
    pinned: dict[int, tuple[Reason, str]] = {}
    followed = [ref for ref in refs if ref.version is not None and not ref.is_on_branch]
    for ref in sorted(followed, key=lambda ref: not ref.is_branch):
        version = ref.version or 0
        if ref.is_branch:
            message = f"branch {ref.name} from version {version} needs it"
            pinned[version] = (Reason.BRANCH, message)
        elif ref.name in evaluated:
            continue
        elif (tag := parse_consumer_tag(ref.name)) is not None:
            message = f"consumer {tag.consumer} has not read what follows version {version}"
            pinned.setdefault(version, (Reason.CONSUMER, message))
        elif parse_read_tag(ref.name) is None:
            # A branch pins more than a tag if the version cannot be read.
            pinned.setdefault(
                version, (Reason.TAG, f"tag {ref.name} at version {version} needs it")
            )
        else:
            pinned.setdefault(version, (Reason.READ, _READ_MESSAGE.format(version)))
    return pinned
