"""Pins: generations that tables, indexes, tags, branches, recent versions or reads still need.

Progress only grows from one version of a branch to the next. What the version does not need that
was the latest one retention ago, no later version needs: of all those, one is read. Only restoring
an old version takes progress back; therefore each version that has a tag or a branch is read too,
since what such a version needs stays for ever. A branch needs what the version needs that it
started from; what was merged into the branch since only adds to the progress.

A tag of a read pins like any other tag, and expires by itself. It holds for as long as its name
says after it was last written, by the clock of the store, and for a grace period more: the clocks
of the store and of this process may differ by so much, and a renewal may sleep for so long on its
way.

The state of tags and branches is read first, so that a change during the read is noticed later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from memwal.base_table.read_tags import (
    REFS_DIR,
    ReadTag,
    delete_tag,
    list_torn_tags,
    parse_read_tag,
    parse_read_tag_key,
)
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError, TableSetupError
from memwal.jobs.gc.decision import Decision, Kind, Reason
from memwal.jobs.gc.history import StoredVersions, progress_of
from memwal.jobs.gc.options import Ages, moment
from memwal.lsm.indexes.catchup import caught_up, maintained_index_names
from memwal.storage.location import TableLocation

Refs = tuple[tuple[str, int, datetime], ...]
"""Key, size and time of each object that is a tag or a branch."""


def read_refs(location: TableLocation) -> Refs:
    """A state of tags and branches that differs after any change of them: one listing."""
    return tuple(sorted((i.key, i.size, i.modified) for i in location.store.list(REFS_DIR)))


def names_told(refs: Refs) -> frozenset[str]:
    """Names of the tags of reads of which it is known when they were written."""
    return frozenset(tag.name for key, _, _ in refs if (tag := parse_read_tag_key(key)) is not None)


def protected_until(refs: Refs, ages: Ages) -> dict[int, datetime]:
    """Versions that a read still protects, and when the last of its tags ends."""
    found: dict[int, datetime] = {}
    for tag, _, end in _read_tags(refs, ages):
        if end > ages.now:
            found[tag.version] = max(end, found.get(tag.version, end))
    return found


def judge_read_tags(refs: Refs, ages: Ages) -> Iterator[tuple[ReadTag, Decision]]:
    """Decide about each tag of a read; those of anybody else are nobody's business here."""
    for tag, size, end in _read_tags(refs, ages):
        yield tag, _decision(tag, size, end, ages)


def end(location: TableLocation, tag: ReadTag, ages: Ages) -> Decision | None:
    """Take away a tag that has ended, unless it was renewed meanwhile; None if it is gone."""
    found = location.store.head(tag.key)
    if found is None:
        return None
    decision = _decision(tag, found.size, tag.expires_at(found.modified) + ages.grace, ages)
    if decision.goes:
        delete_tag(location, tag)
    return decision


def _read_tags(refs: Refs, ages: Ages) -> Iterator[tuple[ReadTag, int, datetime]]:
    for key, size, written in refs:
        tag = parse_read_tag_key(key)
        if tag is not None:
            yield tag, size, tag.expires_at(written) + ages.grace


def _decision(tag: ReadTag, size: int, end: datetime, ages: Ages) -> Decision:
    ended = end <= ages.now
    return Decision(
        kind=Kind.READ,
        what=tag.name,
        objects=1,
        bytes=size,
        goes=ended,
        reason=Reason.UNNEEDED if ended else Reason.READ,
        words=(
            f"the read of version {tag.version} ended, or its process did"
            if ended
            else f"a read protects version {tag.version} while it renews this"
        ),
        until=None if ended else moment(end),
    )


_PARALLEL_READS = 16
# Tags of reads come and go while tags are listed, of which Lance reads one after another.
_ATTEMPTS = 5
_READ_WORDS = "a read of version {} needs it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Up to which generation of each region one user of the table lets garbage go.

    Attributes
    ----------
    reason : Reason
    words : str
        Who that is.
    generations : mapping of UUID to int
        Regions that are missing have 0.
    until : str or None
        When the limit ends by itself.
    """

    reason: Reason
    words: str
    generations: Mapping[UUID, int]
    until: str | None = None

    def of(self, region_id: UUID) -> int:
        """Newest generation that may go."""
        return self.generations.get(region_id, 0)


@dataclass(frozen=True, slots=True)
class Needs:
    """What of a table is in use.

    Attributes
    ----------
    limits : tuple of Limit
        What is named first is the reason that people are told.
    refs : tuple
        State of tags and branches when this was read, to notice that they changed.
    """

    limits: tuple[Limit, ...]
    refs: Refs = ()

    def removable(self, region_id: UUID) -> int:
        """Newest generation of a region that nobody needs; 0 for none."""
        return min(limit.of(region_id) for limit in self.limits)

    def holder(self, region_id: UUID, generation: int) -> Limit | None:
        """Who needs a generation; None when nobody does."""
        return next((lim for lim in self.limits if generation > lim.of(region_id)), None)

    def only(self, regions: Collection[UUID]) -> Needs:
        """The same for some regions, which is less to send to a worker."""
        return Needs(
            tuple(
                Limit(
                    reason=limit.reason,
                    words=limit.words,
                    generations={region: limit.of(region) for region in regions},
                    until=limit.until,
                )
                for limit in self.limits
            ),
            self.refs,
        )


def read_needs(location: TableLocation, ages: Ages, *, base: BaseTable | None = None) -> Needs:
    """Read what is in use.

    A generation is needed until it is merged in the latest version, every maintained index covers
    it, and every version that may still be read has it merged too: tagged ones, the ones that
    branches start from, and all that were the latest one retention ago or later.

    Raises
    ------
    MemWalError
        What is in use cannot be read. Nothing may be deleted then.
    """
    # First the state of tags and branches: one that changes while this reads is noticed later.
    refs = read_refs(location)
    latest = open_base(location) if base is None else base
    latest.require_mem_wal()
    limits = [
        Limit(
            reason=Reason.NOT_MERGED,
            words="not merged into the base table",
            generations=dict(latest.details.merged),
        )
    ]
    limits += [
        Limit(
            reason=Reason.INDEX_BEHIND,
            words=f"index {name} has not caught up with it",
            generations=dict(caught_up(latest, name)),
        )
        for name in maintained_index_names(latest)
    ]
    limits += _held_by_versions(latest, ages, refs)
    return Needs(tuple(limits), refs)


def _held_by_versions(base: BaseTable, ages: Ages, refs: Refs) -> Iterator[Limit]:
    """The limits of the versions that are kept and older than the latest one, oldest first."""
    versions = StoredVersions.list(base.location)
    if base.version not in versions.manifests:
        raise TableSetupError(
            f"version {base.version} of {base.location} is not in its listing; try again"
        )
    recent = versions.latest_at(ages.now - ages.keep)
    reads = protected_until(refs, ages)
    kept = _named_versions(base, ended_or_not=names_told(refs))
    for version in reads:
        # One that is gone needs nothing any more. Of a tag that was to stay for ever, the
        # generations may still be read: nobody but its owner can say.
        if version in versions.manifests:
            kept.setdefault(version, (Reason.READ, _READ_WORDS.format(version)))
    kept.setdefault(recent, (Reason.RETENTION, f"version {recent} is kept for its age"))
    older = sorted(version for version in kept if version < base.version)
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        found = list(pool.map(partial(_progress_at, base, versions), older))
    for version, progress in zip(older, found, strict=True):
        reason, words = kept[version]
        # One from before MemWAL was enabled needs no generation itself; but as the oldest recent
        # version it stands for the ones after it, which had nothing merged.
        if progress is None and version != recent:
            continue
        until = None
        if reason is Reason.READ:
            until = moment(reads[version]) if version in reads else None
        elif reason is Reason.RETENTION:
            replaced = versions.replaced_at(version)
            until = None if replaced is None else moment(replaced + ages.keep)
        yield Limit(reason=reason, words=words, generations=dict(progress or {}), until=until)


def _progress_at(
    base: BaseTable, versions: StoredVersions, version: int
) -> Mapping[UUID, int] | None:
    info = versions.manifests.get(version)
    if info is None:
        raise TableSetupError(
            f"version {version} of {base.location} is tagged or has a branch, and its manifest is "
            "gone: nobody can tell what it needs; delete the tag or the branch if nobody does"
        )
    try:
        return progress_of(base.location, info)
    except ObjectNotFoundError as error:
        raise TableSetupError(
            f"version {version} of {base.location} was cleaned up while this read it; try again"
        ) from error


def _named_versions(
    base: BaseTable, *, ended_or_not: Collection[str]
) -> dict[int, tuple[Reason, str]]:
    """Versions of this line that are tagged, or that branches start from, and for whom.

    Without the tags of reads of which somebody else tells whether they have ended; another one
    was placed just now.
    """
    tags, branches = _listed(base)
    found: dict[int, tuple[Reason, str]] = {}
    for name, branch in branches.items():
        # The chain of ancestors starts on the main line, also where one of them is gone.
        version = int(branch["branch_identifier"][0][0])
        found[version] = (Reason.BRANCH, f"branch {name} from version {version} needs it")
    for name, tag in tags.items():
        version = int(tag["version"])
        if tag["branch"] or name in ended_or_not:
            continue
        if parse_read_tag(name) is None:
            found[version] = (Reason.TAG, f"tag {name} at version {version} needs it")
        else:
            found.setdefault(version, (Reason.READ, _READ_WORDS.format(version)))
    return found


def _listed(base: BaseTable) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tags and branches as Lance tells them."""
    for attempt in range(_ATTEMPTS):
        try:
            with lance_errors(f"listing what {base.location} keeps"):
                return base.dataset.tags.list(), base.dataset.branches.list()
        except MemWalError as error:
            if torn := list_torn_tags(base.location):
                raise CorruptDataError(
                    f"the machine crashed while a tag of {base.location} was placed, and nobody "
                    f"can tell what it keeps: {', '.join(torn)}. Nothing was deleted: delete that "
                    "object, and place the tag again if it is still wanted"
                ) from error
            if not isinstance(error, ObjectNotFoundError) or attempt == _ATTEMPTS - 1:
                raise
    raise TableSetupError(f"the tags of {base.location} cannot be listed; try again")
