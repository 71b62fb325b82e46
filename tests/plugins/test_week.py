"""A simulated week: no run without work, and no due table without a run."""

import pytest
from memwal_airflow.triggers.due import LAST_REPEAT_SECONDS
from support.airflow.week import DAY, Week


@pytest.mark.parametrize("days", [2, pytest.param(7, marks=pytest.mark.slow)])
def test_every_run_has_work_and_every_due_table_a_run(days: int) -> None:
    week = Week(seed=1).run(days * DAY)
    assert week.runs > 150 * days
    assert week.idle_runs == 0
    assert week.longest_wait <= LAST_REPEAT_SECONDS


def test_runs_would_begin_behind_others_if_nobody_asked() -> None:
    assert Week(seed=1, tells_active=False).run(DAY).idle_runs > 0
