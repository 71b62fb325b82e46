"""Rows of one merge commit: the newest row of each key of the selected generations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from uuid import UUID

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable
from memwal.jobs.job import SkippedRegion
from memwal.jobs.merge.picker import RegionSelection, Share
from memwal.jobs.merge.region_rows import open_region
from memwal.jobs.merge.screening import screen_region
from memwal.quality.gate import GateDecision
from memwal.quality.rules import QualityRules

# Lance decodes on several processors itself; these threads overlap what lies between.
_PARALLEL_READS = 4


@dataclass(frozen=True, slots=True)
class MergeSource:
    """Rows of one commit."""

    selections: tuple[RegionSelection, ...]  # what was read; empty if nothing could be
    upserts: pa.Table
    deletes: pa.Table  # keys only
    # Regions that were read only up to a generation, or not at all.
    skipped: Mapping[UUID, SkippedRegion]
    decided: Mapping[UUID, GateDecision]  # of each region that the quality gate screened


def read_source(
    base: BaseTable, selections: Sequence[RegionSelection], rules: QualityRules | None = None
) -> MergeSource:
    """Read the newest row of each key, of the rows that the quality rules let in.

    Each region is read on its own, so that a damaged one does not stop the others. It is read up to
    the first generation that cannot be read, or that the rules keep waiting. Raises LostRaceError
    if a generation is gone: another merger merged it and a collector deleted it.
    """
    skipped: dict[UUID, SkippedRegion] = {}
    decided: dict[UUID, GateDecision] = {}

    def read(region: RegionSelection) -> tuple[RegionSelection, list[pa.RecordBatch], pa.Table]:
        if rules is None:
            reader = open_region(base, region, Share(), skipped, whole=True)
        else:
            reader = screen_region(base, rules, region, skipped, decided, whole=True)
        if reader is None:
            return replace(region, generations=()), [], schema.empty_table()
        deletes = reader.keys().filter(pa.array(reader.deleted[reader.newest]))
        return reader.selection, list(reader.storable(reader.upserted)), deletes

    schema = pa.schema([base.schema.field(name) for name in base.primary_key])
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        regions = list(pool.map(read, selections))
    return MergeSource(
        selections=tuple(selection for selection, *_ in regions if selection.generations),
        upserts=pa.Table.from_batches([r for _, rows, _ in regions for r in rows], base.schema),
        deletes=pa.concat_tables(
            [schema.empty_table(), *(deletes for *_, deletes in regions)]
        ).combine_chunks(),
        skipped={s.region_id: skipped[s.region_id] for s in selections if s.region_id in skipped},
        decided=decided,
    )
