"""Tasks on a real Spark session."""

import logging
import re
from types import SimpleNamespace

import pytest
from support.data.tables import base_state, rows, state

from memwal.errors import ConflictError, CorruptDataError, InvalidInputError, OutcomeUnknownError
from memwal.jobs.merge.job import run_merge_task
from memwal.spark.runner import spark_reason, spark_runner, with_trace_context
from memwal.storage.location import TableLocation

SECRET = "tell-nobody-0123456789"


class TestTasks:
    def test_results_keep_the_order(self, run):
        assert run(range(7), lambda task: task * 10) == [0, 10, 20, 30, 40, 50, 60]

    def test_no_tasks(self, run):
        assert run([], lambda task: task) == []

    @pytest.mark.parametrize(
        ("parallelism", "spark_tasks"),
        [(None, [0, 1, 2, 3]), (9, [0, 1, 2, 3]), (2, [0, 0, 1, 1]), (1, [0, 0, 0, 0])],
    )
    def test_parallelism(self, spark, parallelism, spark_tasks):
        def number(_):
            from pyspark import TaskContext

            return TaskContext.get().partitionId()

        assert spark_runner(spark, max_parallelism=parallelism)(range(4), number) == spark_tasks

    @pytest.mark.parametrize("parallelism", [0, -1])
    def test_wrong_parallelism(self, spark, parallelism):
        with pytest.raises(InvalidInputError, match="max_parallelism"):
            spark_runner(spark, max_parallelism=parallelism)


class TestFailures:
    def test_an_error_keeps_its_type(self, run):
        def fail(task):
            from memwal.errors import ConflictError

            raise ConflictError(f"task {task} was late; try again")

        with pytest.raises(ConflictError) as caught:
            run([1], fail)
        assert str(caught.value) == "task 1 was late; try again"
        (note,) = caught.value.__notes__
        assert "fail" in note

    def test_the_first_error_is_raised_and_the_others_are_logged(self, run, caplog):
        def fail(task):
            from memwal.errors import CorruptDataError

            if task % 2:
                raise CorruptDataError(f"task {task}")
            return task

        with (
            caplog.at_level(logging.ERROR, "memwal"),
            pytest.raises(CorruptDataError) as caught,
        ):
            run(range(6), fail)
        assert str(caught.value) == "task 1"
        assert [message[-6:] for message in caplog.messages] == ["task 3", "task 5"]

    def test_a_fault_is_told_by_spark(self, run):
        from pyspark.errors import PythonException

        def fail(task):
            raise KeyError("oops")

        with pytest.raises(PythonException) as caught:
            run([1], fail)
        assert spark_reason(caught.value) == "KeyError: 'oops'"

    def test_a_worker_that_keeps_dying(self, run):
        def die(task):
            import os

            os._exit(1)

        with pytest.raises(OutcomeUnknownError) as caught:
            run([1], die)
        assert "\n" not in str(caught.value)
        assert run([1], str) == ["1"]

    def test_a_stopped_session(self):
        run = spark_runner(SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)))
        with pytest.raises(InvalidInputError):
            run([1], str)


class TestWhatIsShown:
    def test_no_storage_option_is_shown(self, run, shown_by_spark):
        location = TableLocation("s3://lake/secretive", {"aws_secret_access_key": SECRET})
        tasks = [SimpleNamespace(location=location)] * 3

        def run_look_task(task):
            from memwal.errors import ConflictError

            if task.location.storage_options["aws_secret_access_key"][:4] == "tell":
                raise ConflictError(f"cannot reach {task.location!r}")

        with pytest.raises(ConflictError) as caught:
            run(tasks, run_look_task)
        text = shown_by_spark()
        assert "memwal s3://lake/secretive: look" in text
        assert SECRET not in text
        assert SECRET not in f"{caught.value} {caught.value.__notes__}"

    def test_each_step_of_a_job_has_its_name(self, spark, make_backlog, shown_by_spark):
        table, _ = make_backlog(2)
        table.merge()
        table.upsert(rows({5: 5}))
        run = with_trace_context(spark_runner(spark, description="nightly"))
        table.merge(divide_bytes=0, run=run)
        table.build_indexes(run=run)
        table.collect_garbage(run=run)
        steps = set(re.findall(r'"spark.job.description":"nightly: (\w+)"', shown_by_spark()))
        assert steps >= {"rewrite", "match", "build", "gc"}

    def test_the_session_keeps_its_own_job_group(self, spark):
        context = spark.sparkContext
        context.setJobGroup("mine", "my work")
        spark_runner(spark)([1], str)
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
        assert context.getLocalProperty("spark.job.description") == "my work"
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)
        spark_runner(spark)([1], str)
        assert context.getLocalProperty("spark.jobGroup.id") is None


class TestJobs:
    def test_all_of_them(self, make_backlog, run):
        table, expected = make_backlog(3)
        merged = table.merge(commit_bytes=100, run=run)
        assert (merged.tasks, merged.metrics["generations"], merged.warnings) == (1, 12, ())
        assert base_state(table) == expected
        assert table.build_indexes(run=run).commits == 1
        assert table.build_snapshot(run=run).metrics["regions"] == 4
        dropped = [
            table.collect_garbage(
                dry_run=False,
                grace_seconds=0,
                retention_seconds=0,
                max_tasks=3,
                run=run,
            )
            for _ in range(2)
        ]
        assert [result.metrics["generations_dropped"] for result in dropped] == [12, 0]
        assert sum(result.metrics["folders"] for result in dropped) == 12
        assert table.status().backlog_generations == 0
        assert state(table) == expected

    def test_a_divided_merge(self, make_backlog, run):
        table, expected = make_backlog(3)
        merged = table.merge(divide_bytes=0, commit_bytes=500, max_tasks=4, run=run)
        assert merged.tasks > 4
        assert (merged.commits, merged.metrics["generations"], merged.warnings) == (1, 12, ())
        assert base_state(table) == state(table) == expected

    def test_a_worker_that_dies_after_its_commit(self, make_backlog, run, tmp_path):
        table, expected = make_backlog(2)
        died = tmp_path / "died"

        def merge_and_die(task):
            import os

            outcome = run_merge_task(task)
            if not died.exists():
                died.touch()
                os._exit(1)
            return outcome

        result = table.merge(run=lambda tasks, function: run(tasks, merge_and_die))
        # The second try finds all of it done, and counts none of it twice.
        assert (result.tasks, result.metrics["generations"]) == (1, 0)
        assert died.exists()
        assert base_state(table) == expected
