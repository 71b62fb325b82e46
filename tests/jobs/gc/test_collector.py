"""The lists of collectors: none is missing, and generations are dropped last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from support.data.tables import flush

import memwal
from memwal.jobs.gc import GarbageKind
from memwal.jobs.gc.base_table import collect_base_versions
from memwal.jobs.gc.collector import GcContext
from memwal.jobs.gc.job import REGION_COLLECTORS, TABLE_COLLECTORS
from memwal.jobs.gc.pins import Pins
from memwal.jobs.options import GcOptions


def test_every_kind_of_garbage_has_a_collector() -> None:
    # A region is never garbage: decisions about one report that it cannot be read.
    assert {*REGION_COLLECTORS, *TABLE_COLLECTORS} == set(GarbageKind) - {GarbageKind.REGION}


def test_what_a_run_drops_from_the_manifest_it_cannot_delete() -> None:
    """Whatever the clocks say: generations are dropped after all folders were decided about."""
    assert list(REGION_COLLECTORS)[-1] is GarbageKind.GENERATION


def test_versions_of_the_base_table_stay_unless_an_age_is_given(table: memwal.Table) -> None:
    flush(table, {1: 1})
    table.merge()
    later = datetime.now(UTC) + timedelta(days=1)
    with_age = GcOptions(grace_seconds=0, retention_seconds=0, version_retention_seconds=0)
    for options, decisions in ((GcOptions(), 0), (with_age, 1)):
        context = GcContext(
            location=table.location,
            options=options,
            now=later,
            pins=Pins((), version_age=options.version_retention),
            marks={},
        )
        assert len(list(collect_base_versions(context))) == decisions
