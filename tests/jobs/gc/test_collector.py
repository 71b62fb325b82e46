"""The lists of collectors: none is missing, and generations are dropped last."""

from memwal.jobs.gc import GarbageKind
from memwal.jobs.gc.job import REGION_COLLECTORS, TABLE_COLLECTORS


def test_every_kind_of_garbage_has_a_collector() -> None:
    # A region is never garbage: decisions about one report that it cannot be read.
    assert {*REGION_COLLECTORS, *TABLE_COLLECTORS} == set(GarbageKind) - {GarbageKind.REGION}


def test_what_a_run_drops_from_the_manifest_it_cannot_delete() -> None:
    """Whatever the clocks say: generations are dropped after all folders were decided about."""
    assert list(REGION_COLLECTORS)[-1] is GarbageKind.GENERATION
