"""Runs that ended since somebody looked last."""

from typing import Any

import pytest
from sqlalchemy import event, text

from memwal.catalog import Catalog, RunState
from memwal.catalog.runs import RunFeed
from memwal.jobs.job import JobResult

RESULT = JobResult(job="merge", table="/t", version=2, commits=1).to_dict()


@pytest.fixture
def catalog(each_catalog: Catalog) -> Catalog:
    return each_catalog


@pytest.fixture
def feed(catalog: Catalog) -> RunFeed:
    return RunFeed(catalog.database)


def told(feed: RunFeed) -> list[tuple[int, RunState]]:
    return [(run.run_id, run.state) for run in feed.ended()]


def test_tells_of_each_run_once(catalog: Catalog, feed: RunFeed) -> None:
    before = catalog.start_run("a", "merge")
    catalog.finish_run(before, result=RESULT)
    assert told(feed) == []
    first, second = catalog.start_run("a", "merge"), catalog.start_run("b", "gc")
    assert told(feed) == []
    catalog.finish_run(second, error="no")
    assert told(feed) == [(second, RunState.FAILED)]
    catalog.finish_run(first, result=RESULT)
    assert told(feed) == [(first, RunState.SUCCEEDED)]
    assert told(feed) == []


def test_one_that_was_going_on_at_the_first_look(catalog: Catalog, feed: RunFeed) -> None:
    going_on = catalog.start_run("a", "merge")
    assert told(feed) == []
    catalog.finish_run(going_on, result=RESULT)
    (run,) = feed.ended()
    assert (run.run_id, run.table, run.job) == (going_on, "a", "merge")
    assert run.result is not None
    assert run.result["commits"] == 1


def test_one_whose_process_died(catalog: Catalog, feed: RunFeed) -> None:
    assert told(feed) == []
    first = catalog.start_run("a", "merge", external_id="x")
    assert told(feed) == []
    catalog.start_run("a", "merge", external_id="x")
    assert told(feed) == [(first, RunState.ABANDONED)]


def test_one_that_turns_up_late(catalog: Catalog, feed: RunFeed) -> None:
    """Its number is lower than that of one which was told of: it was committed later."""
    assert told(feed) == []
    late, early = catalog.start_run("a", "merge"), catalog.start_run("b", "merge")
    for number in (late, early):
        catalog.finish_run(number, result=RESULT)
    with catalog.database.writing() as session:
        session.execute(text("UPDATE job_runs SET id = 1000 WHERE id = :n"), {"n": late})
        session.execute(text("UPDATE job_runs SET id = 1001 WHERE id = :n"), {"n": early})
        session.execute(text("UPDATE job_runs SET id = -100000 WHERE id = 1000"))
    assert told(feed) == [(1001, RunState.SUCCEEDED)]
    with catalog.database.writing() as session:
        session.execute(text("UPDATE job_runs SET id = 1000 WHERE id = -100000"))
    assert told(feed) == [(1000, RunState.SUCCEEDED)]


def test_what_is_kept_does_not_grow(catalog: Catalog) -> None:
    feed = RunFeed(catalog.database, late=3)
    feed.ended()
    for _ in range(10):
        catalog.finish_run(catalog.start_run("a", "merge"), result=RESULT)
        assert len(feed.ended()) == 1
    assert sum(len(kept) for kept in vars(feed).values() if isinstance(kept, set)) <= 3


def test_runs_that_are_forgotten(catalog: Catalog, feed: RunFeed) -> None:
    catalog.start_run("a", "merge")
    feed.ended()
    with catalog.database.writing() as session:
        session.execute(text("DELETE FROM job_runs"))
    assert told(feed) == []
    again = catalog.start_run("a", "merge")
    catalog.finish_run(again, result=RESULT)
    assert told(feed) == [(again, RunState.SUCCEEDED)]


@pytest.mark.few(1)
def test_the_running_runs_of_a_table_are_found_by_their_index(each_catalog: Catalog) -> None:
    run = each_catalog.start_run("flights", "merge")
    statements: list[str] = []

    def plan(connection: Any, _cursor: Any, text: str, parameters: Any, *_: Any) -> None:
        if "ix_job_runs" not in text and "FROM job_runs" in text:
            statements.append(text)

    engine = each_catalog.database.engine
    event.listen(engine, "before_cursor_execute", plan)
    (found,) = each_catalog.runs(table="flights", state=RunState.RUNNING)
    event.remove(engine, "before_cursor_execute", plan)
    assert found.run_id == run
    # The state stands in the text: of a parameter no database knows that the index has it.
    assert any("state = 'running'" in text for text in statements)
    query = "SELECT id FROM job_runs WHERE table_name = 'flights' AND state = 'running'"
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            told = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}").all()
        else:
            connection.exec_driver_sql("SET enable_seqscan = off")
            told = connection.exec_driver_sql(f"EXPLAIN {query}").all()
    assert "ix_job_runs_running" in str(told)
