"""Table functions of Spark SQL, in a real session."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from support.data.tables import MakeTable, base_state, flush, state

import memwal
import memwal.spark
from memwal.spark.table_functions import JOBS, TableFunction


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    memwal.spark.register(spark)
    return spark


def test_status_and_a_merge(session: Any, make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    expected = {key: key for key in range(9)}
    flush(table, expected)
    (status,) = session.sql(f"SELECT * FROM memwal_status('{table.uri}')").collect()
    assert (status.backlog_rows, status.regions, status.base_rows) == (9, 2, 0)
    (result,) = session.sql(f"SELECT * FROM memwal_merge('{table.uri}')").collect()
    assert (result.job, result.metrics["rows_upserted"]) == ("merge", 9)
    assert base_state(table) == expected


def test_a_table_that_is_not_there_is_named(session: Any) -> None:
    with pytest.raises(PySparkException, match="/nothing/there"):
        session.sql("SELECT * FROM memwal_status('/nothing/there')").collect()


def test_spark_shows_no_storage_option(
    spark: Any, table: memwal.Table, shown_by_spark: Callable[[], str]
) -> None:
    secret = "-".join(("not", "to", "be", "shown"))
    memwal.spark.register(spark, storage_options={"aws_secret_access_key": secret})
    try:
        shown = spark.sql(f"SELECT * FROM memwal_status('{table.uri}')")
        assert len(shown.collect()) == 1
        plan = shown._jdf.queryExecution().toString()
        with pytest.raises(PySparkException) as error:
            spark.sql("SELECT * FROM memwal_status('/nothing/there')").collect()
    finally:
        memwal.spark.register(spark)
    assert secret not in plan + str(error.value) + shown_by_spark()


@pytest.mark.parametrize("job", JOBS)
def test_each_job(table: memwal.Table, job: str) -> None:
    """What the worker runs, without Spark."""
    flush(table, {1: 1})
    handler = type("Handler", (TableFunction,), {"method": job, "storage_options": {}})()
    ((_, version, *_),) = handler.eval(table.uri)
    assert version == table.version
    assert state(table) == {1: 1}
