"""Stored states of consumers: one small object each, replaced by compare-and-swap.

A consumer's state is ``_memwal/consumers/{name}.json``, with the token to go on from. It is a single
object that is replaced if it is the one that was read, and no numbered sequence: to read it is one
request, and there is no history to trim. Each state has a number, so that no two are equal.

A Lance tag holds the version of the token, also from clean-ups of Lance and LanceDB; the collector
keeps the generations that a tagged version lacks. The name of a tag has a step, which grows with
each token, and the id of the process that placed it. A tag is needed if the state names it, or if
its step is later than that of the state: then a read is under way, and its token may be committed,
by this process or by the next one. Any other tag is garbage for good, since a tag is placed with a
step later than that of the state that its process read.

A query of Spark has several tokens under way: it plans the next batch before it commits that of the
last one. The step of the state stays before those of their tags. Tags of processes before go with
the first commit of the next one. The step of an expiry is behind all tags that the collector knows;
for later ones it stores a later step.

| step | dies after it | pauses before it, however long | repeats it |
|---|---|---|---|
| claim: replace the state with the next epoch | the next claim raises the epoch again | the state is another one by then: reads it again | the stored state has the id of this claim: it counts |
| read: plan a feed | nothing happened | | another feed |
| read: place a tag with the next step | it holds until the next commit, reset, or expiry | the version is gone: planned anew | a tag for each version that was read |
| read: check that the version is the newest | the same | it is not: planned anew, as for :mod:`memwal.spark.source.read_tags` | |
| commit: make tag and version durable, replace the state | the token is committed; the collector deletes the tag before it | another process claimed, the collector expired, or a reset came first: an error that names it | the stored token is this one: nothing to do. Without an answer the tag stays, also after later reads: the state may name it |
| commit: delete the tags before | the collector deletes the others | a tag with the id of this process, which no later state names | nothing to delete |
| reset: tag, then replace | as for a commit | as for a commit | as for a commit |
| drop: replace the state by one that says so | the collector deletes the tags | as for a commit | dropped already |
| collector: expire by a replacement, delete the tags | the next run deletes the tags | the consumer committed first: it is not expired | nothing to do |
| collector: raise the step of an expired state past old tags, delete them | the same | the consumer began again first: its tag stays | nothing to do |
| create: place a tag, create the state | a tag of no consumer: the collector deletes it by its age | another process created it: that one is claimed | as a claim |

The object of a dropped consumer stays, so that a process that paused cannot bring it back.
"""  # noqa: E501

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from memwal.base_table.refs import ConsumerTag, parse_consumer_tag
from memwal.base_table.snapshot import BaseTable, read_table_manifest
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    NewerFormatError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal.format.lance_manifest import find_mem_wal_index, named_files
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import CONSUMERS_DIR, consumer_key, parse_consumer_key
from memwal.format.region_manifest import RegionManifest
from memwal.region.change_trace import leave_trace
from memwal.region.manifest_store import read_each
from memwal.storage.object_store import ObjectStore, create_settled
from memwal.util.retry import retry_unavailable
from memwal.util.safe_json import read_json

NEVER: Final = datetime.min.replace(tzinfo=UTC)

_FORMAT: Final = 1


class Phase(StrEnum):
    """Phase of a consumer's life."""

    ACTIVE = "active"
    EXPIRED = "expired"
    """The collector holds nothing for it any more."""
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    """State of a consumer, as stored."""

    name: str
    number: int = 0  # of states so far
    epoch: int = 0  # of claims so far
    step: int = 0  # of tokens so far
    claim: str = ""  # id of the newest claim
    owner: str = ""  # machine and process of it
    at: datetime = NEVER  # when the token was committed, or was last that of the newest state
    token: str | None = None  # None for the whole table
    tag: str | None = None  # name of the tag that holds the token's version
    phase: Phase = Phase.ACTIVE
    reason: str = ""  # of an expiry
    stored: bytes | None = field(default=None, repr=False, compare=False)  # as it was read

    def encode(self) -> bytes:
        """Return the content of the object."""
        values = {
            "format": _FORMAT,
            "number": self.number,
            "epoch": self.epoch,
            "step": self.step,
            "claim": self.claim,
            "owner": self.owner,
            "at": self.at.isoformat(),
            "token": self.token,
            "tag": self.tag,
            "phase": self.phase.value,
            "reason": self.reason,
        }
        return json.dumps(values).encode()

    @classmethod
    def decode(cls, name: str, data: bytes) -> ConsumerState:
        """Return the state of a consumer from its object.

        Raises CorruptDataError for other content, NewerFormatError for a later format.
        """
        key = consumer_key(name)
        try:
            values: dict[str, Any] = read_json(data)
            if values["format"] > _FORMAT:
                raise NewerFormatError(
                    f"{key} has format {values['format']}; upgrade memwal to read consumer {name!r}"
                )
            return cls(
                name=name,
                number=int(values["number"]),
                epoch=int(values["epoch"]),
                step=int(values["step"]),
                claim=str(values["claim"]),
                owner=str(values["owner"]),
                at=datetime.fromisoformat(values["at"]),
                token=values["token"],
                tag=values["tag"],
                phase=Phase(values["phase"]),
                reason=str(values["reason"]),
                stored=data,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(
                f"{key} is not the state of a consumer: restore it, or delete it, and begin again"
            ) from error

    def needs(self, tag: ConsumerTag) -> bool:
        """Return whether a tag of this consumer holds a version that the consumer still reads."""
        own = parse_consumer_tag(self.tag or "")
        if own is not None and own.claim == self.claim != tag.claim:
            # The newest process has committed, so no token of a process before it is committed.
            return False
        return tag.name == self.tag or tag.step > self.step


def read_state(store: ObjectStore, name: str) -> ConsumerState | None:
    """Read the state of a consumer; None if there never was one of this name."""
    try:
        return ConsumerState.decode(name, store.get(consumer_key(name)))
    except ObjectNotFoundError:
        return None


def read_states(store: ObjectStore) -> list[ConsumerState]:
    """Read the states of all consumers but dropped ones, by name; a listing, a request for each."""
    names = {parse_consumer_key(info.key) for info in store.list(CONSUMERS_DIR)} - {None}
    found = read_each(store, lambda name: read_state(store, name), sorted(filter(None, names)))
    return [state for state in found if state is not None and state.phase is not Phase.DROPPED]


def swap_state(store: ObjectStore, before: ConsumerState, after: ConsumerState) -> ConsumerState:
    """Store a state in place of the one that was read, and return it.

    Its number is set here. Raises ConflictError if another process replaced the state first, and
    OutcomeUnknownError if the store did not answer whether this call did.
    """
    key = consumer_key(after.name)
    after = replace(after, number=before.number + 1)
    data = after.encode()

    def attempt() -> bool:
        """Return whether the state is stored; an earlier attempt without an answer counts."""
        if before.stored is None:
            return create_settled(store, key, data) is None
        try:
            store.replace(key, data, expected=before.stored)
        except ConflictError:
            return store.get(key) == data
        return True

    try:
        is_stored = retry_unavailable(attempt)
    except StoreUnavailableError as error:
        raise OutcomeUnknownError(
            f"the store did not say whether {key} was written; call again"
        ) from error
    if not is_stored:
        raise ConflictError(f"another process wrote {key} first; call again")
    leave_trace(store)
    return replace(after, stored=data)


def held_bytes(newest: BaseTable, version: int, manifests: Iterable[RegionManifest]) -> int:
    """Return the bytes that a collection and a clean-up could free without a tag on a version.

    Files of the version that the newest one does not have, as far as manifests state their sizes,
    and merged generations that the version lacks, in memory. Costs a request.
    """
    if version == newest.version:
        return 0
    try:
        manifest = read_table_manifest(newest.location, version)
    except TableSetupError:
        return 0
    present = {file.key for file in named_files(newest.manifest)}
    files = {file.key: file.size or 0 for file in named_files(manifest)}
    entry = find_mem_wal_index(manifest)
    merged = {} if entry is None else IndexDetails.decode(entry.details).merged
    generations = sum(
        flushed.memory_bytes or 0
        for region in manifests
        for flushed in region.flushed
        if merged.get(region.region_id, 0)
        < flushed.generation
        <= newest.details.merged.get(region.region_id, 0)
    )
    return generations + sum(size for key, size in files.items() if key not in present)
