from memwal_airflow.skips import TaskSkipReason

from memwal import fleet


def test_whatever_a_fleet_skips_for_is_a_reason_of_a_task() -> None:
    assert {one.value for one in fleet.SkipReason} < {one.value for one in TaskSkipReason}
