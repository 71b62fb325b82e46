"""Abandon the unflushed rows of a region, and keep a record (see docs/design/0004).

The record is written before the manifest changes, and marked as carried out afterwards.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any
from uuid import UUID

from memwal.errors import CorruptDataError, OutcomeUnknownError, StoreError
from memwal.format.paths import MAX_COUNTER, region_dir, wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_entry import WalEntry, decode_entry
from memwal.lsm.wal.claim import Claim
from memwal.lsm.wal.log import fenced_error, needs_replay, survey_log
from memwal.lsm.wal.prefetch import read_ahead
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore, create_settled
from memwal.util.safe_json import read_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedRows:
    """Record of unflushed rows that a writer abandoned."""

    region_id: UUID
    # Claim that abandoned the rows, host of that writer, and its process id.
    epoch: int
    writer_id: str
    host: str
    process: int
    time: datetime  # when they were abandoned, in UTC
    # Part of the log that is not replayed any more, up to the fence at ``last_position``.
    first_position: int
    last_position: int
    # Readable entries with unflushed rows, their rows, superseded ones too, and stored bytes.
    entries: int
    rows: int
    entry_bytes: int
    newest_generation: int  # highest generation of these entries; the next flush has a higher one
    missing: tuple[tuple[int, int], ...]  # first and last position of each gap in the log
    damaged: tuple[int, ...]  # positions of entries that cannot be read
    # Whether the manifest was changed for certain. If False, the process died before it could tell;
    # the rows were abandoned if the region's ``replay_after`` was ``last_position`` afterwards.
    carried_out: bool

    @property
    def key(self) -> str:
        """Key of the stored record, which the garbage collector never deletes."""
        name = f"{self.first_position:020d}-{self.last_position:020d}.json"
        return f"{abandoned_dir(self.region_id)}/{name}"

    def encode(self) -> bytes:
        """Encode the record as JSON."""
        values = asdict(self) | {"region_id": str(self.region_id), "time": self.time.isoformat()}
        return json.dumps(values, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, *, name: str) -> AbandonedRows:
        """Decode a record. Raises CorruptDataError if the data is not one."""
        try:
            stored: dict[str, Any] = read_json(data)
            _check_field_types(stored)
            return cls(
                **stored
                | {
                    "region_id": UUID(stored["region_id"]),
                    "time": datetime.fromisoformat(stored["time"]),
                    "missing": tuple((first, last) for first, last in stored["missing"]),
                    "damaged": tuple(stored["damaged"]),
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(
                f"{name} is not a record of abandoned rows: {error}; keep it and inspect it"
            ) from error


def _check_field_types(stored: Mapping[str, Any]) -> None:
    """Refuse values of a wrong type, and numbers beyond the largest position."""
    types = {"int": int, "str": str, "bool": bool}
    numbers = [*stored["damaged"], *chain.from_iterable(stored["missing"])]
    for field in fields(AbandonedRows):
        value, expected = stored[field.name], types.get(str(field.type))
        if expected is not None and type(value) is not expected:
            raise ValueError(f"{field.name} is {value!r}")
        numbers += [value] * (expected is int)
    if any(type(number) is not int or not 0 <= number <= MAX_COUNTER for number in numbers):
        raise ValueError("a number in it is not an integer, or out of range")


def abandon_log(
    store: ObjectStore,
    claim: Claim,
    *,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Claim:
    """Abandon all unflushed rows of the log before the fence of a claim.

    They are not replayed any more, by Lance neither. Their entries stay until the garbage collector
    deletes them, and can be read with :func:`abandoned_entries` until then.

    The claim was made with ``replay=False``, and nothing may have been appended under it. Returns
    it with the changed manifest, which leaves nothing to replay. Raises RegionFencedError if
    another writer claimed the region: nothing was abandoned. Raises OutcomeUnknownError if that is
    unknown: open the writer again.
    """
    _finish_earlier_record(store, claim)
    record = _describe_unflushed(store, claim, clock())
    if not (record.entries or record.missing or record.damaged):
        return claim
    if create_settled(store, record.key, record.encode()) is not None:
        raise OutcomeUnknownError(f"another process wrote {record.key}; open a new writer")

    def change(latest: RegionManifest) -> RegionManifest | None:
        if latest.writer_epoch != record.epoch:
            raise fenced_error(latest.region_id, record.epoch, latest.writer_epoch)
        if latest.replay_after == record.last_position:
            # An earlier commit succeeded although the store reported no success.
            return None
        return replace(
            latest,
            replay_after=record.last_position,
            wal_last_seen=max(latest.wal_last_seen, record.last_position),
            current_generation=max(latest.current_generation, record.newest_generation) + 1,
        )

    manifest = RegionManifestStore(store, record.region_id).update(change)
    logger.warning(
        "%d unflushed entries with %d rows of region %s were abandoned: log entries %d to %d, of "
        "which %d are missing and %d damaged; recorded in %s",
        record.entries,
        record.rows,
        record.region_id,
        record.first_position,
        record.last_position,
        sum(last - first + 1 for first, last in record.missing),
        len(record.damaged),
        record.key,
    )
    _mark_carried_out(store, record)
    return replace(claim, manifest=manifest)


def read_abandoned(store: ObjectStore, region_id: UUID) -> list[AbandonedRows]:
    """Return all records of a region, oldest first. Raises CorruptDataError if one is damaged."""
    keys = sorted(info.key for info in store.list(abandoned_dir(region_id)))
    return [AbandonedRows.decode(store.get(key), name=key) for key in keys]


def abandoned_entries(store: ObjectStore, record: AbandonedRows) -> Iterator[tuple[int, WalEntry]]:
    """Yield the entries of a record that still exist, with their positions, in log order.

    Collected, missing and damaged entries are skipped, and so are sentinels.
    """
    survey = survey_log(store, record.region_id, after=record.first_position - 1)
    entries = survey.entries[survey.entries["position"] <= record.last_position]
    sizes = dict(zip(entries["position"].tolist(), entries["size"].tolist(), strict=True))
    for position, entry in _decode_entries(store, record.region_id, sizes):
        if isinstance(entry, WalEntry) and not entry.is_sentinel:
            yield position, entry


def abandoned_dir(region_id: UUID) -> str:
    """Return the folder of a region's records of abandoned rows."""
    return f"{region_dir(region_id)}/abandoned"


def _describe_unflushed(store: ObjectStore, claim: Claim, now: datetime) -> AbandonedRows:
    """Return the record of the rows that the claim would abandon."""
    manifest, survey = claim.manifest, claim.survey
    first, end = manifest.replay_after + 1, claim.next_position
    positions = [*survey.entries["position"].tolist(), *range(survey.last_listed + 1, end)]
    sizes = dict(zip(positions, survey.sizes(positions), strict=True))
    entries = rows = size = newest = 0
    missing: list[tuple[int, int]] = []
    damaged: list[int] = []
    expected = first
    for position, entry in _decode_entries(store, manifest.region_id, sizes):
        if position > expected:
            missing.append((expected, position - 1))
        expected = position + 1
        if isinstance(entry, CorruptDataError):
            damaged.append(position)
        elif entry.writer_epoch > manifest.writer_epoch:
            raise fenced_error(manifest.region_id, manifest.writer_epoch, entry.writer_epoch)
        elif needs_replay(entry, current_generation=manifest.current_generation):
            entries += 1
            rows += sum(batch.num_rows for batch in entry.batches)
            size += sizes[position]
            newest = max(newest, entry.generation or 0)
    return AbandonedRows(
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


def _decode_entries(
    store: ObjectStore, region_id: UUID, sizes: Mapping[int, int]
) -> Iterator[tuple[int, WalEntry | CorruptDataError]]:
    """Yield the existing entries with their positions; for a damaged entry, its error.

    ``sizes`` has the size of each position, in order.
    """
    contents = read_ahead(
        store, ((wal_key(region_id, position), size) for position, size in sizes.items())
    )
    with closing(contents):
        for position, data in zip(sizes, contents, strict=True):
            if data is None:
                continue
            try:
                yield position, decode_entry(data, name=wal_key(region_id, position))
            except CorruptDataError as error:
                yield position, error


def _mark_carried_out(store: ObjectStore, record: AbandonedRows) -> None:
    try:
        store.put(record.key, replace(record, carried_out=True).encode())
    except StoreError as error:
        # The rows are abandoned even so; the next writer that abandons rows marks the record.
        logger.warning("%s is not marked as carried out yet: %s", record.key, error)


def _finish_earlier_record(store: ObjectStore, claim: Claim) -> None:
    """Mark the record of a writer that died before it could: the replay starts behind its fence.

    A flush never sets ``replay_after`` to a fence, since the fence has no rows.
    """
    fence = f"-{claim.manifest.replay_after:020d}.json"
    for info in list(store.list(abandoned_dir(claim.manifest.region_id))):
        if info.key.endswith(fence):
            record = AbandonedRows.decode(store.get(info.key), name=info.key)
            if not record.carried_out:
                _mark_carried_out(store, record)
