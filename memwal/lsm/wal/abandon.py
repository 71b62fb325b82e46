"""Abandon the unflushed rows of a region, on record (see docs/design/0004).

The record is written before anything is given up, and is confirmed after it was done.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from itertools import chain, takewhile, tee
from typing import Any
from uuid import UUID

from memwal.errors import CorruptDataError, OutcomeUnknownError, StoreError
from memwal.format.paths import MAX_COUNTER, region_dir, wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_entry import WalEntry, decode_entry
from memwal.lsm.wal.claim import Claim
from memwal.lsm.wal.log import READ_AHEAD_BYTES, LogSurvey, fenced_by, needs_replay, survey_log
from memwal.lsm.wal.prefetch import read_ahead
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore, create_settled
from memwal.util.safe_json import read_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """Unflushed rows of a region that a writer gave up.

    Attributes
    ----------
    region_id : UUID
        The region.
    epoch, writer_id : int, str
        Of the claim that gave them up.
    host, process : str, int
        Where that was.
    time : datetime
        When, in UTC.
    first_position, last_position : int
        The part of the log that nobody will replay. The last one is the fence.
    entries, rows, entry_bytes : int
        Of those that had unflushed rows and could be read: rows as they were written, superseded
        ones included; bytes of the stored entries.
    newest_generation : int
        Highest generation of these; the next one to be flushed is higher.
    missing : tuple of (int, int)
        First and last position of each gap in the log.
    damaged : tuple of int
        Positions of entries that cannot be read.
    carried_out : bool
        Whether the manifest is known to have been changed. Without, the process died on the way;
        the rows were given up if the region's ``replay_after`` was ``last_position`` afterwards.
    """

    region_id: UUID
    epoch: int
    writer_id: str
    host: str
    process: int
    time: datetime
    first_position: int
    last_position: int
    entries: int
    rows: int
    entry_bytes: int
    newest_generation: int
    missing: tuple[tuple[int, int], ...]
    damaged: tuple[int, ...]
    carried_out: bool

    @property
    def key(self) -> str:
        """Where the record is stored. The garbage collector leaves it alone."""
        name = f"{self.first_position:020d}-{self.last_position:020d}.json"
        return f"{abandoned_dir(self.region_id)}/{name}"

    def encode(self) -> bytes:
        """The bytes of the record."""
        plain = asdict(self) | {"region_id": str(self.region_id), "time": self.time.isoformat()}
        return json.dumps(plain, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, *, name: str) -> Abandoned:
        """Read a record.

        Raises
        ------
        CorruptDataError
            It is none.
        """
        try:
            plain: dict[str, Any] = read_json(data)
            _check_kinds(plain)
            return cls(
                **plain
                | {
                    "region_id": UUID(plain["region_id"]),
                    "time": datetime.fromisoformat(plain["time"]),
                    "missing": tuple((first, last) for first, last in plain["missing"]),
                    "damaged": tuple(plain["damaged"]),
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(
                f"{name} is not the record of abandoned rows: {error}; keep it and look"
            ) from error


def _check_kinds(plain: Mapping[str, Any]) -> None:
    """Refuse values of other types than the record has, and numbers that nothing counts up to."""
    kinds = {"int": int, "str": str, "bool": bool}
    numbers = [*plain["damaged"], *chain.from_iterable(plain["missing"])]
    for field in fields(Abandoned):
        value, kind = plain[field.name], kinds.get(str(field.type))
        if kind is not None and type(value) is not kind:
            raise ValueError(f"{field.name} is {value!r}")
        numbers += [value] * (kind is int)
    if any(type(number) is not int or not 0 <= number <= MAX_COUNTER for number in numbers):
        raise ValueError("a number in it is none, or out of range")


def abandon_log(
    store: ObjectStore,
    claim: Claim,
    *,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Claim:
    """Give up every row of the log that stands before the fence of a claim and is not flushed.

    Nobody replays them any more, Lance neither. Their entries stay until the garbage collector
    takes them, and can be read with :func:`abandoned_entries` up to then.

    Parameters
    ----------
    claim : Claim
        Made with ``replay=False``, and fresh: nothing was appended with it.

    Returns
    -------
    Claim
        With the changed manifest; there is nothing to replay in it.

    Raises
    ------
    RegionFencedError
        The region was claimed by another writer; nothing was given up.
    OutcomeUnknownError
        The store does not say whether it was done; open the writer again.
    """
    _confirm_earlier(store, claim)
    found = _look(store, claim, clock())
    if not (found.entries or found.missing or found.damaged):
        return claim
    if create_settled(store, found.key, found.encode()) is not None:
        raise OutcomeUnknownError(f"{found.key} was written by somebody else; open a new writer")

    def change(latest: RegionManifest) -> RegionManifest | None:
        if latest.writer_epoch != found.epoch:
            raise fenced_by(latest.region_id, found.epoch, latest.writer_epoch)
        if latest.replay_after == found.last_position:
            # An earlier try got through though the store did not say so.
            return None
        return replace(
            latest,
            replay_after=found.last_position,
            wal_last_seen=max(latest.wal_last_seen, found.last_position),
            current_generation=max(latest.current_generation, found.newest_generation) + 1,
        )

    manifest = RegionManifestStore(store, found.region_id).update(change)
    logger.warning(
        "%d unflushed entries with %d rows of region %s were abandoned: log entries %d to %d, of "
        "which %d are missing and %d damaged; recorded in %s",
        found.entries,
        found.rows,
        found.region_id,
        found.first_position,
        found.last_position,
        sum(last - first + 1 for first, last in found.missing),
        len(found.damaged),
        found.key,
    )
    _confirm(store, found)
    return replace(claim, manifest=manifest)


def read_abandoned(store: ObjectStore, region_id: UUID) -> list[Abandoned]:
    """Every record of a region, oldest first.

    Raises
    ------
    CorruptDataError
        An object in the folder is no record.
    """
    keys = sorted(info.key for info in store.list(abandoned_dir(region_id)))
    return [Abandoned.decode(store.get(key), name=key) for key in keys]


def abandoned_entries(
    store: ObjectStore, record: Abandoned, *, max_bytes: int = READ_AHEAD_BYTES
) -> Iterator[tuple[int, WalEntry]]:
    """What is left of the entries that a record tells of, in the order of the log.

    Entries that were collected, were missing or are damaged are left out, and so are sentinels.

    Parameters
    ----------
    max_bytes : int, default 8 MiB
        How much is read before its turn.
    """
    survey = survey_log(store, record.region_id, after=record.first_position - 1)
    listed = map(int, survey.entries["position"])
    positions = takewhile(lambda position: position <= record.last_position, listed)
    for position, found in _read(store, record.region_id, positions, survey, max_bytes):
        if isinstance(found, WalEntry) and not found.is_sentinel:
            yield position, found


def _look(store: ObjectStore, claim: Claim, now: datetime) -> Abandoned:
    """What there is to give up."""
    manifest, survey = claim.manifest, claim.survey
    first, end = manifest.replay_after + 1, claim.next_position
    # What was appended between the survey and the fence stands without gaps.
    positions = chain(map(int, survey.entries["position"]), range(survey.tip, end))
    entries = rows = size = newest = 0
    missing: list[tuple[int, int]] = []
    damaged: list[int] = []
    expected = first
    for position, found in _read(store, manifest.region_id, positions, survey, READ_AHEAD_BYTES):
        if position > expected:
            missing.append((expected, position - 1))
        expected = position + 1
        if isinstance(found, CorruptDataError):
            damaged.append(position)
        elif found.writer_epoch > manifest.writer_epoch:
            raise fenced_by(manifest.region_id, manifest.writer_epoch, found.writer_epoch)
        elif needs_replay(found, current_generation=manifest.current_generation):
            entries += 1
            rows += sum(batch.num_rows for batch in found.batches)
            size += survey.size(position)
            newest = max(newest, found.generation or 0)
    return Abandoned(
        region_id=manifest.region_id,
        epoch=manifest.writer_epoch,
        writer_id=claim.writer_id,
        host=socket.gethostname(),
        process=os.getpid(),
        time=now,
        first_position=first,
        last_position=end - 1,
        entries=entries,
        rows=rows,
        entry_bytes=size,
        newest_generation=newest,
        missing=tuple(missing),
        damaged=tuple(damaged),
        carried_out=False,
    )


def _read(
    store: ObjectStore,
    region_id: UUID,
    positions: Iterable[int],
    survey: LogSurvey,
    max_bytes: int,
) -> Iterator[tuple[int, WalEntry | CorruptDataError]]:
    """The entries that are there, and of those that cannot be read, why."""
    positions, ahead = tee(positions)
    objects = ((wal_key(region_id, position), survey.size(position)) for position in ahead)
    contents = read_ahead(store, objects, max_bytes=max_bytes)
    with closing(contents):
        for position, data in zip(positions, contents, strict=True):
            if data is None:
                continue
            try:
                yield position, decode_entry(data, name=wal_key(region_id, position))
            except CorruptDataError as error:
                yield position, error


def _confirm(store: ObjectStore, record: Abandoned) -> None:
    try:
        store.put(record.key, replace(record, carried_out=True).encode())
    except StoreError as error:
        # The rows are given up all the same; the next one who gives some up confirms it.
        logger.warning("%s does not say yet that it was carried out: %s", record.key, error)


def _confirm_earlier(store: ObjectStore, claim: Claim) -> None:
    """Confirm what a process that died did not: replay starts behind its fence.

    A flush never leaves it there, since the fence has no rows.
    """
    fence = f"-{claim.manifest.replay_after:020d}.json"
    for info in list(store.list(abandoned_dir(claim.manifest.region_id))):
        if info.key.endswith(fence):
            record = Abandoned.decode(store.get(info.key), name=info.key)
            if not record.carried_out:
                _confirm(store, record)


def abandoned_dir(region_id: UUID) -> str:
    """Key of the folder that holds a region's records of what was given up."""
    return f"{region_dir(region_id)}/abandoned"
