"""The lists of collectors: none is missing, and generations are dropped last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from support.data.tables import flush, manifests

import memwal
from memwal.jobs.gc import GarbageKind
from memwal.jobs.gc.base_table import BaseVersionCollector
from memwal.jobs.gc.collector import GcContext, RegionState
from memwal.jobs.gc.history import read_history
from memwal.jobs.gc.job import table_collectors
from memwal.jobs.gc.pins import Pins
from memwal.jobs.gc.region import region_collectors
from memwal.jobs.options import GcOptions


def kinds_of_region(table: memwal.Table) -> list[GarbageKind]:
    """Kinds of garbage that the collectors of a region collect, in their order."""
    store = manifests(table)
    history = read_history(store, expired=datetime.now(UTC))
    assert history is not None
    region = RegionState(store=table.location.store, manifests=store, history=history, folders=())
    return [collector.kind for collector in region_collectors(region)]


def test_every_kind_of_garbage_has_a_collector(table: memwal.Table) -> None:
    flush(table, {1: 1})
    of_table = table_collectors(table.location)
    kinds = {*kinds_of_region(table), *(collector.kind for collector in of_table)}
    # A region is never garbage: decisions about one report that it cannot be read.
    assert kinds == set(GarbageKind) - {GarbageKind.REGION}


def test_what_a_run_drops_from_the_manifest_it_cannot_delete(table: memwal.Table) -> None:
    """Whatever the clocks say: generations are dropped after all folders were decided about."""
    flush(table, {1: 1})
    assert kinds_of_region(table)[-1] is GarbageKind.GENERATION


def test_versions_of_the_base_table_stay_unless_an_age_is_given(table: memwal.Table) -> None:
    flush(table, {1: 1})
    table.merge()
    later = datetime.now(UTC) + timedelta(days=1)
    collector = BaseVersionCollector(table.location)
    with_age = GcOptions(grace_seconds=0, retention_seconds=0, version_retention_seconds=0)
    for options, decisions in ((GcOptions(), 0), (with_age, 1)):
        context = GcContext(options=options, now=later, pins=Pins(()), marks={})
        assert len(list(collector.collect(context))) == decisions
