"""Due jobs and the report of Airflow, on either kind of database."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from memwal.catalog import Catalog
from memwal.catalog.records import AirflowProblem

SINCE = datetime(2026, 11, 1, 12, tzinfo=UTC)


def test_a_due_job_keeps_the_time_of_its_first_report(each_catalog: Catalog) -> None:
    reports = each_catalog.reports
    assert reports.due_jobs() == []
    reports.record_due("a", {"merge": "5 generations", "gc": "an hour"})
    reports.record_due("b", {"index": "behind"})
    first = {(due.table, due.job): due.since for due in reports.due_jobs()}
    assert list(first) == [("a", "gc"), ("a", "merge"), ("b", "index")]
    reports.record_due("a", {"merge": "6 generations", "compact": "small fragments"})
    again = {(due.table, due.job): due.since for due in reports.due_jobs("a")}
    assert list(again) == [("a", "compact"), ("a", "merge")]
    assert again["a", "merge"] == first["a", "merge"]
    reports.record_due("a", {})
    assert [due.table for due in reports.due_jobs()] == ["b"]


def test_two_watchers_of_one_table_report_the_same(each_catalog: Catalog) -> None:
    def report(_: int) -> None:
        for _ in range(20):
            each_catalog.reports.record_due("a", {"merge": "5 generations"})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(report, range(2)))
    assert [due.job for due in each_catalog.reports.due_jobs()] == ["merge"]


def test_due_jobs_of_tables_that_are_gone_are_deleted(each_catalog: Catalog) -> None:
    each_catalog.register("a", uri="/a")
    for name in ("a", "b"):
        each_catalog.reports.record_due(name, {"merge": "5 generations"})
    each_catalog.backoffs.prune()
    assert [due.table for due in each_catalog.reports.due_jobs()] == ["a"]


def test_a_report_of_airflow_replaces_the_one_before(each_catalog: Catalog) -> None:
    assert each_catalog.reports.airflow() is None
    problems = tuple(
        AirflowProblem(state=state, table=table, since=SINCE, reason="it is down")
        for state, table in (("no_heartbeat", None), ("run_failed", "a"))
    )
    for told in (problems, ()):
        before = datetime.now(UTC)
        each_catalog.reports.record_airflow(told)
        found = each_catalog.reports.airflow()
        assert found is not None
        assert found.problems == told
        assert abs((found.at - before).total_seconds()) < 60
