import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from memwal_airflow.skips import TaskSkipReason
from memwal_airflow.triggers.conditions import (
    BacklogDue,
    GenerationsMerged,
    IndexesCaughtUp,
    new_condition,
)
from memwal_airflow.triggers.readings import TableReading
from support.data import statuses
from support.data.statuses import region_id

from memwal.errors import InvalidInputError
from memwal.jobs.policy import Policy
from memwal.jobs.status import IndexLag, RegionBacklog

A, B, C = map(region_id, (1, 2, 3))
NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def region(name: str, waiting: int, *, merged: int = 0, **options: Any) -> RegionBacklog:
    arguments = {
        "region_id": name,
        "merged_generation": merged,
        "current_generation": merged + waiting + 1,
        "backlog_generations": waiting,
        "backlog_rows": waiting * 10,
        "backlog_bytes": waiting * 100,
        "oldest_backlog_seconds": 5.0 if waiting else None,
        **options,
    }
    return statuses.region(**arguments)


def reading(
    *regions: RegionBacklog, lags: tuple[IndexLag, ...] = (), **options: Any
) -> TableReading:
    status = replace(statuses.status(version=7, indexes=lags), regions=regions)
    arguments = {
        "policy": Policy(merge_at_generations=3, merge_at_bytes=None, merge_at_age_seconds=60),
        "regions_in_backoff": frozenset(),
        "last_runs": {},
        "at": NOON,
        **options,
    }
    return TableReading(status=status, **arguments)


def test_a_region_is_due_by_the_limits_of_its_table() -> None:
    found = BacklogDue([A, B], {}).check(reading(region(A, 3), region(B, 1), region(C, 9)))
    assert found.met
    assert found.value["regions"] == [A]
    assert (found.value["generations"], found.value["rows"], found.value["bytes"]) == (4, 40, 400)
    assert (found.reason, found.value["due"]) == (None, found.message)
    json.dumps(found.value)


@pytest.mark.parametrize(
    "policy",
    [
        {"merge_at_generations": 2},
        {"merge_at_bytes": 150},
        {"merge_at_age_seconds": 5},
    ],
)
def test_every_limit_counts_and_can_be_another(policy: dict[str, Any]) -> None:
    read = reading(region(A, 2))
    assert not BacklogDue([A], {}).check(read).met
    assert BacklogDue([A], policy).check(read).met


def test_of_no_regions_in_particular_all_count() -> None:
    assert BacklogDue(None, {}).regions is None
    assert BacklogDue(None, {}).check(reading(region(A, 1), region(B, 3))).value["regions"] == [B]


def test_quiet_hours_hold_back_what_is_not_critical() -> None:
    quiet = Policy(merge_at_generations=3, quiet_hours=("11:00-13:00 UTC",))
    found = BacklogDue([A], {}).check(reading(region(A, 3), policy=quiet))
    assert not found.met
    assert found.reason is TaskSkipReason.QUIET
    late = region(A, 3, oldest_backlog_seconds=1e6)
    assert BacklogDue([A], {}).check(reading(late, policy=quiet)).met


def test_a_region_that_is_skipped_is_not_due() -> None:
    found = BacklogDue([A], {}).check(reading(region(A, 9), regions_in_backoff=frozenset([A])))
    assert not found.met
    assert found.reason is TaskSkipReason.BACKOFF


def test_a_region_that_does_not_exist_yet_has_no_backlog() -> None:
    found = BacklogDue([A], {}).check(reading())
    assert not found.met
    assert found.reason is TaskSkipReason.NOT_DUE
    assert found.value["generations"] == 0


def test_a_named_generation_may_still_have_to_be_written() -> None:
    wait = GenerationsMerged({A: 3})
    assert wait.regions == {A}
    assert wait.started_at(reading()) == wait
    assert not wait.check(reading()).met
    assert A in wait.check(reading()).message
    assert not wait.check(reading(region(A, 0, merged=2))).met
    behind = wait.check(reading(region(A, 1, merged=2)))
    assert (behind.met, behind.value) == (False, {"version": 7, "generations": {A: 2}})
    found = wait.check(reading(region(A, 0, merged=3)))
    assert (found.met, found.value) == (True, {"version": 7, "generations": {A: 3}})


def test_what_is_flushed_at_the_start_is_what_counts() -> None:
    before = reading(region(A, 2, merged=1), region(B, 0, merged=5))
    wait = GenerationsMerged(None).started_at(before)
    assert wait == GenerationsMerged({A: 3}, existing=True)
    assert wait.regions == {A}
    assert not wait.check(before).met
    assert not wait.check(reading(region(A, 1, merged=2))).met
    # Whatever comes later does not count.
    assert wait.check(reading(region(A, 8, merged=3))).met


def test_without_a_backlog_there_is_nothing_to_wait_for() -> None:
    quiet = reading(region(A, 0, merged=5))
    assert GenerationsMerged(None, region_ids=[A]).regions == {A}
    assert GenerationsMerged(None).started_at(quiet).check(quiet).met


def test_numbers_that_no_generation_got_and_regions_that_went_do_not_matter() -> None:
    wait = GenerationsMerged({A: 9, B: 1}, existing=True)
    assert wait.check(reading(region(A, 0, merged=7, current_generation=10))).met


def test_indexes_catch_up() -> None:
    lags = (
        IndexLag(name="a", generations=0, regions=0),
        IndexLag(name="b", generations=2, regions=1),
    )
    read = reading(lags=lags)
    assert IndexesCaughtUp(["a"]).check(read).met
    assert IndexesCaughtUp(None, 2).check(read).met
    found = IndexesCaughtUp(None).check(read)
    assert not found.met
    assert found.value == {"version": 7, "indexes": {"a": 0, "b": 2}}
    assert IndexesCaughtUp(None).check(reading()).met
    with pytest.raises(InvalidInputError, match=r"\bc\b.*\ba, b\b"):
        IndexesCaughtUp(["a", "c"]).check(read)


@pytest.mark.parametrize(
    "condition",
    [
        BacklogDue([A], {"merge_at_generations": 1}),
        GenerationsMerged({A: 1}, existing=True),
        IndexesCaughtUp(["a"], 1),
    ],
)
def test_a_condition_can_be_made_again(condition: Any) -> None:
    assert new_condition(**json.loads(json.dumps(condition.arguments()))) == condition
    assert replace(condition) == condition
