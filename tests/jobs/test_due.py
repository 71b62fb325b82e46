from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.jobs.due import JOBS, Due, due
from memwal.jobs.policy import Policy
from memwal.jobs.status import IndexLag, RegionBacklog, TableStatus

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
ALL_DAY_BUT_NOON = Policy(quiet_hours=("13:00-12:00 UTC",))
MIDNIGHT = datetime(2026, 6, 1, 0, tzinfo=UTC)


def region(number: int, generations: int, age: float | None = None, size: int = 0) -> RegionBacklog:
    return RegionBacklog(
        region_id=f"00000000-0000-0000-0000-00000000000{number}",
        writer_epoch=1,
        sealed=False,
        current_generation=generations + 1,
        merged_generation=0,
        backlog_generations=generations,
        backlog_rows=0,
        backlog_bytes=size,
        oldest_backlog_seconds=age if generations else None,
        unflushed_wal_entries=0,
        retained_generations=0,
    )


def status(*regions: RegionBacklog, lag: int = 0, snapshot: float | None = 0.0) -> TableStatus:
    return TableStatus(
        uri="/data/t.lance",
        version=1,
        regions=regions,
        indexes=(IndexLag(name="id_idx", generations=lag, regions=1),),
        snapshot_age_seconds=snapshot,
    )


def decide(found: TableStatus, policy: Policy | None = None, **ago: float) -> dict[str, Due]:
    last_runs = {job: NOON - timedelta(seconds=seconds) for job, seconds in ago.items()}
    return due(found, policy or Policy(), now=NOON, last_runs=last_runs)


def test_a_table_in_order_is_due_for_nothing() -> None:
    found = decide(status(region(1, 0), region(2, 3, 10.0)), index=0, gc=0)
    assert list(found) == list(JOBS)
    assert [job for job, one in found.items() if one.reason or one.postponed] == []
    assert found["merge"].pressure == 0.75


@pytest.mark.parametrize("backlog", [region(1, 4), region(1, 1, size=1 << 30), region(1, 1, 300.0)])
def test_a_merge_is_due_by_whichever_limit_is_reached_first(backlog: RegionBacklog) -> None:
    merge = decide(status(region(2, 1, 1.0), backlog))["merge"]
    assert merge.reason is not None
    assert merge.regions == (backlog.region_id,)
    assert merge.pressure >= 1


def test_few_rows_wait_for_their_age_if_the_base_table_is_large() -> None:
    policy = Policy(merge_at_generations=1, merge_max_keys_per_row=100)
    waiting = replace(region(1, 1, 1.0), backlog_rows=5)
    old = replace(region(1, 1, policy.merge_at_age_seconds), backlog_rows=5)
    for base_rows, backlog, is_due in (
        (500, waiting, True),
        (501, waiting, False),
        (501, old, True),
        (None, waiting, True),
    ):
        found = decide(replace(status(backlog), base_rows=base_rows), policy)["merge"]
        assert (found.reason is not None) is is_due, (base_rows, backlog)
    # Rows of all regions are merged together.
    both = replace(status(waiting, replace(region(2, 1), backlog_rows=1)), base_rows=600)
    assert len(decide(both, policy)["merge"].regions) == 2


def test_a_recovery_is_due_when_rows_of_a_dead_writer_wait_also_in_quiet_hours() -> None:
    dead = replace(region(1, 0), unchanged_seconds=130.0, needs_recovery=True)
    living = replace(region(2, 0), oldest_unflushed_seconds=130.0, unchanged_seconds=50.0)

    assert decide(status(living))["recover"] == Due()
    assert decide(status(living, dead))["recover"].reason is not None
    quiet = due(status(dead), ALL_DAY_BUT_NOON, now=MIDNIGHT, last_runs={})
    assert quiet["recover"].reason is not None
    policy = Policy(recover_min_age_seconds=40)
    assert decide(status(living), policy)["recover"].reason is not None
    # The writer of old rows may have claimed the region a moment ago.
    policy = Policy(recover_min_age_seconds=60)
    assert decide(status(living), policy)["recover"] == Due()
    assert decide(status(living, dead), policy)["recover"].regions == (dead.region_id,)


def test_indexes_are_due_by_lag_or_by_age_but_never_without_lag() -> None:
    policy = Policy(index_at_generations=5, index_at_age_seconds=900)
    assert decide(status(lag=4), policy, index=899)["index"].reason is None
    assert decide(status(lag=5), policy, index=0)["index"].reason is not None
    assert decide(status(lag=1), policy, index=900)["index"].reason is not None
    assert decide(status(lag=0), policy, index=1e9)["index"] == Due()
    lag = IndexLag(name="id_idx", generations=0, regions=0, rows=100_000)
    assert decide(replace(status(), indexes=(lag,)), policy, index=0)["index"].reason is not None
    # Rows that a client appended beside the log are in no generation.
    appended = replace(
        status(), indexes=(IndexLag(name="id_idx", generations=0, regions=0, rows=1),)
    )
    assert decide(appended, policy, index=899)["index"].reason is None
    assert decide(appended, policy, index=900)["index"].reason is not None
    assert decide(appended, policy)["index"].reason is not None
    assert decide(status(lag=1), policy)["index"].reason is not None


def test_an_index_that_misses_rows_or_files_is_due_until_a_build_had_no_way_to_mend_it() -> None:
    for lag in ({"stale": True}, {"damaged": True}):
        bad = replace(
            status(), indexes=(IndexLag(name="id_idx", generations=0, regions=0, rows=0, **lag),)
        )
        assert decide(bad, index=600)["index"].reason is not None
        assert decide(bad, index=599)["index"].reason is None


def test_snapshots_and_collections_are_due_by_age_and_when_there_was_none() -> None:
    assert decide(status(snapshot=None))["snapshot"].reason is not None
    assert decide(status(snapshot=299))["snapshot"].reason is None
    assert decide(status(snapshot=300))["snapshot"].reason is not None
    assert decide(status())["gc"].reason is not None
    assert decide(status(), gc=3599)["gc"].reason is None
    assert decide(status(), gc=3600)["gc"].reason is not None


def test_figures_that_are_known_count() -> None:
    policy = Policy(snapshot_at_regions=3, gc_at_bytes=100, compact_min_fragments=8)
    calm = status()
    assert not any(one.reason for one in decide(calm, policy, index=0, gc=0).values())
    full = replace(
        status(replace(region(1, 0), reclaimable_bytes=100)), changed_regions=3, small_fragments=8
    )
    found = decide(full, policy, index=0, gc=600)
    assert {job for job, one in found.items() if one.reason} == {"snapshot", "gc", "compact"}
    sparse = replace(calm, small_fragments=1, base_rows=90, deleted_rows=10)
    assert decide(sparse, policy)["compact"].reason is not None
    patient = replace(policy, compact_deleted_percent=11)
    assert decide(sparse, patient)["compact"].reason is None
    unchanged = replace(calm, snapshot_age_seconds=1e9, changed_regions=0)
    assert decide(unchanged, policy)["snapshot"] == Due()


def test_bytes_do_not_bring_a_collection_back_before_readers_had_their_time() -> None:
    policy = Policy(gc_at_bytes=100, gc_grace_seconds=600)
    full = status(replace(region(1, 0), reclaimable_bytes=100))
    assert decide(full, policy, gc=599)["gc"].reason is None
    assert decide(full, policy, gc=600)["gc"].reason is not None


def test_quiet_hours_hold_back_what_is_not_critical() -> None:
    calm, critical = region(1, 9, 3899.0), region(2, 1, 3900.0)
    found = status(calm, critical, lag=9, snapshot=10_000)
    held = due(found, ALL_DAY_BUT_NOON, now=MIDNIGHT, last_runs={})
    assert held["merge"].regions == (critical.region_id,)
    assert held["merge"].critical
    assert held["snapshot"].critical
    assert held["index"].reason is None
    assert "13:00-12:00 UTC" in (held["index"].postponed or "")
    assert held["gc"].reason is None
    open_hours = due(found, ALL_DAY_BUT_NOON, now=NOON, last_runs={})
    assert open_hours["merge"].regions == (calm.region_id, critical.region_id)
    assert open_hours["index"].reason is not None
    assert open_hours["gc"].reason is not None


COUNTS = st.integers(0, 200)
SECONDS = st.floats(0, 20_000)
POLICIES = st.builds(
    Policy,
    merge_at_generations=st.integers(1, 20),
    merge_at_bytes=st.one_of(st.none(), st.integers(1, 1 << 32)),
    merge_at_age_seconds=SECONDS,
    index_at_generations=st.integers(1, 20),
    index_at_rows=st.one_of(st.none(), st.integers(1, 200_000)),
    index_at_age_seconds=SECONDS,
    snapshot_at_age_seconds=st.floats(1, 20_000),
    snapshot_at_regions=st.one_of(st.none(), st.integers(1, 100)),
    gc_interval_seconds=st.floats(1, 20_000),
    gc_at_bytes=st.one_of(st.none(), st.integers(1, 1 << 32)),
    compact_min_fragments=st.one_of(st.none(), st.integers(2, 100)),
    quiet_hours=st.sampled_from([(), ("13:00-12:00 UTC",)]),
    quiet_critical_seconds=SECONDS,
)


@st.composite
def growing(draw: st.DrawFn) -> list[tuple[TableStatus, dict[str, float]]]:
    """A status and the seconds since its last runs, and one that is nowhere smaller."""

    def pair(values: st.SearchStrategy[Any]) -> list[Any]:
        return sorted((draw(values), draw(values)))

    waiting, ages, sizes = pair(st.integers(0, 30)), pair(SECONDS), pair(st.integers(0, 1 << 33))
    lags, rows, freed = pair(COUNTS), pair(st.integers(0, 300_000)), pair(st.integers(0, 1 << 32))
    snapshots, changed, small, deleted = pair(SECONDS), pair(COUNTS), pair(COUNTS), pair(COUNTS)
    built, collected = pair(SECONDS), pair(SECONDS)
    return [
        (
            replace(
                status(
                    replace(region(1, waiting[n], ages[n], sizes[n]), reclaimable_bytes=freed[n]),
                    snapshot=snapshots[n],
                ),
                indexes=(IndexLag(name="id_idx", generations=lags[n], regions=1, rows=rows[n]),),
                changed_regions=changed[n],
                small_fragments=small[n],
                base_rows=100,
                deleted_rows=deleted[n],
            ),
            {"index": built[n], "gc": collected[n]},
        )
        for n in (0, 1)
    ]


def decide_at_midnight(backlog: tuple[TableStatus, dict[str, float]], policy: Policy) -> Any:
    found, ago = backlog
    last_runs = {job: MIDNIGHT - timedelta(seconds=seconds) for job, seconds in ago.items()}
    return due(found, policy, now=MIDNIGHT, last_runs=last_runs)


@given(growing(), POLICIES)
def test_more_backlog_is_never_less_due(backlogs: Any, policy: Policy) -> None:
    less, more = (decide_at_midnight(backlog, policy) for backlog in backlogs)
    for job in JOBS:
        assert more[job].pressure >= less[job].pressure
        assert bool(more[job].reason) >= bool(less[job].reason)
        assert more[job].critical >= less[job].critical
        assert set(more[job].regions) >= set(less[job].regions)


@given(growing(), POLICIES)
def test_quiet_hours_only_ever_take_away(backlogs: Any, policy: Policy) -> None:
    quiet = decide_at_midnight(backlogs[1], policy)
    free = decide_at_midnight(backlogs[1], replace(policy, quiet_hours=()))
    for job in JOBS:
        assert bool(free[job].reason) == bool(quiet[job].reason or quiet[job].postponed)
        assert quiet[job].pressure == free[job].pressure
        if policy.quiet_hours:
            assert bool(quiet[job].reason) == (bool(free[job].reason) and free[job].critical)


@given(growing(), POLICIES)
def test_what_reached_its_limit_presses(backlogs: Any, policy: Policy) -> None:
    for one in decide_at_midnight(backlogs[1], policy).values():
        assert (one.pressure >= 1) == bool(one.reason or one.postponed)
