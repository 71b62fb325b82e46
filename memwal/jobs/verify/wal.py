"""Checks of a region's write-ahead log: no gaps, readable entries, only epochs of claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from uuid import UUID

from memwal.errors import CorruptDataError
from memwal.format.paths import parse_wal_name, region_dir, wal_dir, wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_entry import TornEntryError, WalEntry, decode_entry
from memwal.jobs.verify.findings import Finding
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.abandon import AbandonedRows, read_abandoned
from memwal.lsm.wal.log import has_entry, needs_replay, survey_log
from memwal.lsm.wal.logged_rows import split_entry
from memwal.lsm.wal.prefetch import read_ahead
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectInfo, ObjectStore

_FLUSHED_ONLY = frozenset({"log-hole", "log-entry-spoiled"})


def check_log(
    store: ObjectStore,
    manifest: RegionManifest,
    *,
    collected: int,
    rows: bool,
    row_schema: RowSchema | None,
) -> Iterator[Finding]:
    """Check the log of a region; with ``rows``, read the entries too.

    With a ``row_schema``, also check whether the rows that are to be replayed can be stored.

    The manifest was read before the log, so that entries that are written or deleted since do no
    harm. ``collected`` is the position up to which the collector deletes entries; a crash of the
    machine may bring any of them back.
    """
    region_id = manifest.region_id
    abandoned: tuple[AbandonedRows, ...] = ()
    try:
        abandoned = tuple(read_abandoned(store, region_id))
    except CorruptDataError as error:
        folder = f"{region_dir(region_id)}/abandoned"
        yield Finding("abandoned-unreadable", folder, str(error), region=region_id)
    objects = {}
    for info in store.list(wal_dir(region_id)):
        position = parse_wal_name(info.key.rpartition("/")[2])
        if position is not None:
            objects[position] = info
    findings = list(_check_positions(store, manifest, objects, collected))
    if rows:
        findings += _check_entries(store, manifest, objects, row_schema)
    for finding in findings:
        at = parse_wal_name(finding.object.rpartition("/")[2])
        is_abandoned = any(
            at is not None and record.first_position <= at <= record.last_position
            for record in abandoned
        )
        if finding.code in _FLUSHED_ONLY and is_abandoned:
            # A writer was opened with replay=False because of it, and recorded that.
            continue
        yield finding


def _check_positions(
    store: ObjectStore,
    manifest: RegionManifest,
    objects: Mapping[int, ObjectInfo],
    collected: int,
) -> Iterator[Finding]:
    region_id, positions = manifest.region_id, sorted(objects)
    seen = manifest.last_logged
    newest = positions[-1] if positions else 0
    if newest < seen and not has_entry(store, region_id, seen):
        text = f"position {seen} was written, but the newest entry is at {newest or 'no position'}"
        yield _finding("log-tip-lost", region_id, seen, text)
        return
    missing = survey_log(
        store, region_id, after=manifest.replay_after, hint=manifest.wal_last_seen
    ).missing
    if missing is not None:
        covered = f"flushed generations cover the log up to {manifest.replay_after}"
        text = f"position {missing} has no entry; {covered}"
        yield _finding("log-gap", region_id, missing, text)
    flushed = [position for position in positions if position <= manifest.replay_after]
    for before, after in pairwise(flushed):
        # Entries are collected oldest first: if the entry before is still stored, the missing ones
        # were not collected.
        if (
            after > before + 1
            and not store.exists(wal_key(region_id, before + 1))
            and store.exists(wal_key(region_id, before))
        ):
            late = before == positions[0] and objects[before].modified > objects[after].modified
            code = "log-stray" if late or after - 1 <= collected else "log-hole"
            text = f"positions {before + 1} to {after - 1} have no entries; their rows are flushed"
            yield _finding(code, region_id, before + 1, text)


def _check_entries(
    store: ObjectStore,
    manifest: RegionManifest,
    objects: Mapping[int, ObjectInfo],
    row_schema: RowSchema | None,
) -> Iterator[Finding]:
    region_id = manifest.region_id
    positions = sorted(objects)
    torn: list[tuple[int, str]] = []
    last_rows = 0
    epoch, ahead = 0, 0
    contents = read_ahead(
        store,
        ((wal_key(region_id, position), objects[position].size) for position in positions),
    )
    with closing(contents):
        for position, data in zip(positions, contents, strict=True):
            if data is None:
                continue
            key = wal_key(region_id, position)
            try:
                entry = decode_entry(data, name=key)
            except TornEntryError as error:
                torn.append((position, str(error)))
                continue
            except CorruptDataError as error:
                yield _unreadable(manifest, position, str(error))
                continue
            if not entry.is_sentinel:
                last_rows = position
            if entry.writer_epoch < epoch:
                code = "log-claim-overtaken" if entry.is_sentinel else "log-epoch-falls"
                text = f"its epoch is {entry.writer_epoch}, but that of an earlier entry is {epoch}"
                yield _finding(code, region_id, position, text)
            if entry.writer_epoch > manifest.writer_epoch and not ahead:
                ahead = position
            epoch = max(epoch, entry.writer_epoch)
            if row_schema is not None and position > manifest.replay_after:
                yield from _check_rows(manifest, position, entry, row_schema)
    for position, text in torn:
        if position < last_rows or position <= manifest.replay_after:
            yield _unreadable(manifest, position, text)
        else:
            text = "it was never acknowledged as durable, or the machine crashed before it was"
            yield _finding("log-tip-torn", region_id, position, text)
    if ahead:
        latest = RegionManifestStore(store, region_id).read_latest()
        if latest is not None and epoch > latest.writer_epoch:
            text = f"epoch {epoch} is in the log; the newest claim has {latest.writer_epoch}"
            yield _finding("log-epoch-ahead", region_id, ahead, text)


def _check_rows(
    manifest: RegionManifest, position: int, entry: WalEntry, row_schema: RowSchema
) -> Iterator[Finding]:
    if not needs_replay(entry, current_generation=manifest.current_generation):
        return
    try:
        _, unusable = split_entry(row_schema, manifest.region_id, position, entry)
    except CorruptDataError as error:
        yield _finding("log-entry-unfit", manifest.region_id, position, str(error))
        return
    if unusable is not None:
        yield _finding("log-rows-unusable", manifest.region_id, position, str(unusable))


def _unreadable(manifest: RegionManifest, position: int, text: str) -> Finding:
    code = "log-entry-spoiled" if position <= manifest.replay_after else "log-entry-damaged"
    return _finding(code, manifest.region_id, position, text)


def _finding(code: str, region_id: UUID, position: int, text: str) -> Finding:
    return Finding(code, wal_key(region_id, position), text, region=region_id)
