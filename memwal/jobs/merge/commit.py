"""One merge commit: rows of some regions and their merge progress (spec: MemTable Merger).

The commit that carries the rows is marked with the progress. What a process that pauses, dies or
repeats does at each step:

* before the delete pass: nothing happened. Rows that the rules of quality keep out are in the
  quarantine by then: :mod:`memwal.quality.ledger`;
* between the delete pass and the marked commit: keys whose newest row is a tombstone are gone from
  the base table a little early. Every reader that merges sees them as deleted anyway, and the next
  run does both passes again;
* after the marked commit: the progress says so, and every later attempt leaves the generations out.

A process that wakes late cannot do harm. Its delete pass is pinned to the version whose progress it
read, and is refused when any other commit touched the same rows since. Its marked commit is refused
when the progress is not below its marks, when another merger moved the progress of its regions, and
when another writer brought rows that may have the same keys.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

import lance
import pyarrow as pa
from lance.mem_wal import CompactedSsTable

from memwal.base_table.commit import commit_durably, is_conflict
from memwal.base_table.snapshot import BaseTable, open_base, translate_lance_error
from memwal.errors import ConflictError, TableSetupError
from memwal.jobs.job import Guard, HeldRegion
from memwal.jobs.merge.read import Collected, MergeSource, RegionBatch, not_merged, read_source
from memwal.jobs.metrics import job_metrics
from memwal.quality.ledger import Ledger
from memwal.quality.report import QualityReport
from memwal.quality.rules import QualityRules
from memwal.storage.local_files import write_behind
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import ROWS, VERSION, span

logger = logging.getLogger(__name__)

# Below this many rows Lance's own index finds the matches faster than a join does.
_JOIN_FROM_ROWS = 1_000
_CONFLICT_WAIT_SECONDS = 0.05

# Syncing less takes no time worth another thread.
_WRITE_BEHIND_BYTES = 64 << 20

# Of a commit that was stored although its caller was told otherwise.
_NO_FIGURES = {"num_inserted_rows": 0, "num_updated_rows": 0, "num_deleted_rows": 0}


class Contended(ConflictError):
    """Other commits kept getting in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    """What one commit did, or all those of a task together."""

    version: int = 0
    commits: int = 0
    generations: int = 0
    rows_upserted: int = 0
    rows_deleted: int = 0
    bytes: int = 0
    held: tuple[HeldRegion, ...] = ()
    quality: tuple[QualityReport, ...] = ()


def merge_commit(
    location: TableLocation,
    batches: Sequence[RegionBatch],
    *,
    attempts: int,
    look: Guard,
    rules: QualityRules | None = None,
) -> MergeOutcome:
    """Merge what the base table does not have yet of these batches, with one marked commit."""
    held: dict[UUID, HeldRegion] = {}
    source: MergeSource | None = None
    ledger = Ledger(rules, location) if rules is not None else None
    deleted = 0
    for attempt in range(attempts):
        if attempt:
            time.sleep(random.uniform(0, _CONFLICT_WAIT_SECONDS * min(attempt, 20)))  # noqa: S311
        base = open_base(location)
        base.require_mem_wal()
        wanted = not_merged(base, batches, held)
        if not wanted:
            return MergeOutcome(
                version=base.version, held=tuple(held.values()), quality=_found(ledger, ())
            )
        if source is None or not _is_of(source, base, wanted):
            try:
                source = read_source(base, wanted, held, ledger)
            except Collected:
                continue
            if source is None:
                continue
        try:
            look()
            if ledger is not None and not ledger.keep(
                [batch.region_id for batch in source.batches],
                wanted=partial(_all_wait, location, source),
            ):
                continue
            if source.deletes.num_rows:
                deleted += _delete(base, source.deletes)
                base = open_base(location)
                if not _is_of(source, base, not_merged(base, source.batches)):
                    continue
                look()
            figures = _upsert(base, source)
        except _Conflict as conflict:
            logger.info("merge into %s met another commit, trying again: %s", location, conflict)
            continue
        if ledger is not None:
            ledger.settle({b.region_id: [g.path for g in b.generations] for b in source.batches})
        return MergeOutcome(
            version=base.version,
            commits=2 if source.deletes.num_rows else 1,
            generations=sum(len(batch.generations) for batch in source.batches),
            rows_upserted=figures,
            rows_deleted=deleted,
            bytes=sum(batch.bytes for batch in source.batches),
            held=tuple(held.values()),
            quality=_found(ledger, [batch.region_id for batch in source.batches]),
        )
    raise Contended(
        f"{attempts} attempts to merge into {location} met other commits; try again later"
    )


def _found(ledger: Ledger | None, merged: Collection[UUID]) -> tuple[QualityReport, ...]:
    report = ledger.report(merged) if ledger is not None else None
    return () if report is None else (report,)


def _all_wait(location: TableLocation, source: MergeSource) -> bool:
    """Whether nobody has merged a generation of a source meanwhile."""
    return not_merged(open_base(location), source.batches) == list(source.batches)


def _is_of(source: MergeSource, base: BaseTable, wanted: Sequence[RegionBatch]) -> bool:
    """Whether a source has exactly these generations, in the columns of this version."""
    return source.batches == tuple(wanted) and source.upserts.schema.equals(base.schema)


def _go_on() -> None:
    """Stands for the guard of a job that has none."""


class _Conflict(Exception):
    """Another commit got in between; nothing of ours was written."""


def _delete(base: BaseTable, keys: pa.Table) -> int:
    """Delete keys from exactly the version that was read, or raise _Conflict."""

    def execute(dataset: lance.LanceDataset) -> Mapping[str, int]:
        builder = dataset.merge_insert(list(base.primary_key)).when_matched_delete()
        return _execute(builder, keys)

    return int(_traced("delete", base, keys, execute)["num_deleted_rows"])


def _upsert(base: BaseTable, source: MergeSource) -> int:
    """Upsert the rows and record the progress in one commit, or raise _Conflict."""

    def execute(dataset: lance.LanceDataset) -> Mapping[str, int]:
        builder = (
            dataset.merge_insert(list(base.primary_key))
            .when_matched_update_all()
            .when_not_matched_insert_all()
        )
        builder.mark_sstables_as_compacted(
            [CompactedSsTable(str(b.region_id), b.generations[-1].number) for b in source.batches]
        )
        return _execute(builder, source.upserts)

    accept = _ours_to_merge(base, source)
    with write_behind(_data_folder(base.location, source.upserts.nbytes)):
        figures = _traced("upsert", base, source.upserts, execute, accept=accept)
    return int(figures["num_inserted_rows"] + figures["num_updated_rows"])


def _data_folder(location: TableLocation, size: int) -> Path | None:
    """Where a local table's new files come, if so many bytes of them are worth writing ahead."""
    folder = location.local_path
    return None if folder is None or size < _WRITE_BEHIND_BYTES else folder / "data"


def _ours_to_merge(base: BaseTable, source: MergeSource) -> Callable[[int], bool]:
    """Whether the rows of a merge may be committed behind a version that came after ``base``.

    Lance looks for rows that both commits touched, and does not see all of them:

    * another merger may have brought one of several generations, and with it a key that a later
      one deletes, after the delete pass;
    * somebody may have inserted, directly, a key that is new here as well. Lance compares inserted
      keys only of merges that join, and not of those that look keys up in an index. A commit that
      moves the progress of other regions brings other keys.
    """
    known = {base.version: base}

    def accept(version: int) -> bool:
        for number in range(base.version + 1, version + 1):
            if number not in known:
                try:
                    known[number] = open_base(base.location, version=number)
                except TableSetupError:
                    # Cleaned up already: nobody can tell any more what it brought.
                    return False
            before, after = known[number - 1], known[number]
            if not_merged(after, source.batches) != list(source.batches):
                return False
            brought = set(after.dataset.fragment_ids()) - set(before.dataset.fragment_ids())
            if brought and after.details.merged == before.details.merged:
                return False
        return True

    return accept


def _execute(builder: lance.dataset.MergeInsertBuilder, rows: pa.Table) -> Mapping[str, int]:
    # Lance's own retries would run the pass on a version whose progress nobody looked at.
    builder = builder.conflict_retries(0).use_index(rows.num_rows < _JOIN_FROM_ROWS)
    figures: Mapping[str, int] = builder.execute(rows)
    return figures


def _traced(
    what: str,
    base: BaseTable,
    rows: pa.Table,
    execute: Callable[[lance.LanceDataset], Mapping[str, int]],
    *,
    accept: Callable[[int], bool] | None = None,
) -> Mapping[str, int]:
    """One try of a commit, with a span of its own."""
    known = {ROWS: rows.num_rows, VERSION: base.version}
    with span(f"memwal.merge.{what}", base.location, attributes=known):
        try:
            return _commit(base, execute, accept=accept)
        except _Conflict:
            job_metrics().conflict(base.location.uri)
            raise


def _commit(
    base: BaseTable,
    execute: Callable[[lance.LanceDataset], Mapping[str, int]],
    *,
    accept: Callable[[int], bool] | None = None,
) -> Mapping[str, int]:
    try:
        return commit_durably(base, execute, accept=accept) or _NO_FIGURES
    except ConflictError as error:
        raise _Conflict(str(error)) from error
    except (OSError, RuntimeError, ValueError) as error:
        if is_conflict(error):
            raise _Conflict(str(error).splitlines()[0]) from error
        raise translate_lance_error(error, f"merging into {base.location}") from error
