"""Checks of the base table, and suites that are proposed from it."""

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.merging import elsewhere
from support.data.quarantined import positive, rules
from support.data.tables import MakeTable, flush

import memwal
from memwal.catalog import Catalog, Policy, RunState
from memwal.errors import InvalidInputError
from memwal.fleet import Fleet, JobRequest, Skipped, SkipReason, run_job
from memwal.jobs.options import QualityOptions
from memwal.jobs.table import quality_check
from memwal.jobs.table.quality_check import check_quality
from memwal.quality.expectations import read_suite
from memwal.quality.profile import propose_suite
from memwal.quality.rules import QualityRules


def one(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": kwargs}


SUITE = (
    positive(),
    one("expect_column_values_to_be_unique", column="n"),
    one("expect_table_row_count_to_be_between", min_value=10, max_value=100),
    one("expect_column_values_to_be_of_type", column="n", type_="int64"),
    one("expect_column_values_to_not_be_null", column="gone"),
    one("expect_column_values_to_be_between", column="n", min_value=0, mostly=0.5),
)


@pytest.fixture
def merged(table: memwal.Table) -> memwal.Table:
    """Return a table of 40 rows, of which three are negative and two have the same number."""
    flush(table, {key: -key if key < 3 else key for key in range(40)} | {39: 38})
    flush(table, {7: -7})
    table.merge()
    return table


def successes(result: Any) -> list[bool]:
    return [found["success"] for found in result.quality["expectations"]]


def test_a_whole_check(merged: memwal.Table) -> None:
    result = check_quality(merged.location, QualityOptions(rules("off", *SUITE)))
    assert successes(result) == [False, False, True, True, False, True]
    assert [found["failed"] for found in result.quality["expectations"]] == [3, 2, 0, 0, 0, 3]
    assert result.quality["expectations"][1]["examples"] == [{"id": 38}, {"id": 39}]
    assert result.metrics == {"rows": 40, "failed_rows": 5}
    assert result.quality["mode"] == "check"
    assert len(result.warnings) == 1


def test_in_many_batches(merged: memwal.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality_check, "_BATCH_ROWS", 3)
    result = check_quality(merged.location, QualityOptions(rules("off", *SUITE)))
    assert [found["failed"] for found in result.quality["expectations"]] == [3, 2, 0, 0, 0, 3]
    assert {key["id"] for key in result.quality["expectations"][0]["examples"]} == {1, 2, 7}


def test_in_several_tasks(merged: memwal.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality_check, "_TASK_ROWS", 1)
    flush(merged, {50: -50})
    merged.merge(divide_bytes=0)
    one_task = check_quality(merged.location, QualityOptions(rules("off", *SUITE)))
    options = QualityOptions(rules("off", *SUITE), max_tasks=2, run=elsewhere)
    result = check_quality(merged.location, options)

    # One for "unique", and one more for the rows.
    assert (one_task.tasks, result.tasks) == (2, 3)
    assert result.metrics == one_task.metrics == {"rows": 41, "failed_rows": 6}
    assert result.warnings == one_task.warnings
    found = result.quality["expectations"][0]["examples"]
    assert {key["id"] for key in found} == {1, 2, 7, 50}


def test_a_row_that_fails_several_tasks_counts_once(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality_check, "_BATCH_ROWS", 3)
    flush(table, {key: -(key // 2) for key in range(10)})
    table.merge()
    flush(table, {20: -1, 21: 7})
    table.merge()
    unique = one("expect_column_values_to_be_unique", column="n")
    result = check_quality(table.location, QualityOptions(rules("off", positive(), unique)))
    assert [found["failed"] for found in result.quality["expectations"]] == [9, 11]
    assert result.metrics == {"rows": 12, "failed_rows": 11}


def test_of_a_table_without_a_key(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"name": ["a", "b"], "n": [1, -1]}), tmp_path / "t.lance")
    table = memwal.open(tmp_path / "t.lance")
    report = table.check_quality(QualityRules(mode="warn", suite=(positive(),))).quality
    assert report is not None
    assert report["failed_rows"] == 1
    assert report["expectations"][0]["examples"] == [{"name": "b"}]


@pytest.mark.parametrize(
    ("limits", "met"),
    [
        ({"min_value": 40, "max_value": 40}, True),
        ({"max_value": 40, "strict_max": True}, False),
        ({"max_value": 41, "strict_max": True}, True),
        ({"min_value": 40, "strict_min": True}, False),
        ({"min_value": 39, "strict_min": True}, True),
    ],
)
def test_strict_limits_of_counts(merged: memwal.Table, limits: dict[str, Any], met: bool) -> None:
    suite = (one("expect_table_row_count_to_be_between", **limits),)
    result = check_quality(merged.location, QualityOptions(QualityRules(suite=read_suite(suite))))
    assert successes(result) == [met]


def test_a_sample(merged: memwal.Table) -> None:
    result = check_quality(merged.location, QualityOptions(rules("off", *SUITE), sample_rows=20))
    assert result.metrics["rows"] == 20
    # Of how many rows there are it knows all the same.
    assert successes(result)[2]


def test_what_waits_is_not_looked_at(merged: memwal.Table) -> None:
    flush(merged, {50: -50})
    assert check_quality(merged.location, QualityOptions(rules("off"))).metrics == {
        "rows": 40,
        "failed_rows": 3,
    }


def test_without_a_suite(merged: memwal.Table) -> None:
    rules_without = QualityRules()
    with pytest.raises(InvalidInputError):
        check_quality(merged.location, QualityOptions(rules_without))


class TestManaged:
    def test_a_check_is_recorded(self, merged: memwal.Table, catalog: Catalog) -> None:
        policy = Policy(quality=rules("off", *SUITE, check_schedule_seconds=3600))
        catalog.register("t", uri=merged.uri, policy=policy)
        result = run_job(catalog, JobRequest("t", "quality"))
        assert not isinstance(result, Skipped)
        (run,) = catalog.runs(table="t")
        assert (run.job, run.state) == ("quality", RunState.SUCCEEDED)
        assert run.result is not None
        assert run.result["quality"]["failed_rows"] == 5
        assert "39=38" not in json.dumps(run.result)

        again = run_job(catalog, JobRequest("t", "quality"))
        assert isinstance(again, Skipped)
        assert again.reason_code == SkipReason.NOT_DUE
        assert not isinstance(run_job(catalog, JobRequest("t", "quality", force=True)), Skipped)

    def test_by_hand_only(self, merged: memwal.Table, catalog: Catalog) -> None:
        catalog.register("t", uri=merged.uri, policy=Policy(quality=rules("warn")))
        assert isinstance(run_job(catalog, JobRequest("t", "quality")), Skipped)
        catalog.register("none", uri=merged.uri)
        assert isinstance(run_job(catalog, JobRequest("none", "quality")), Skipped)
        with pytest.raises(InvalidInputError):
            run_job(catalog, JobRequest("none", "quality", force=True))

    def test_a_fleet_checks_what_is_due(self, merged: memwal.Table, catalog: Catalog) -> None:
        policy = Policy(quality=rules("warn", check_schedule_seconds=3600))
        catalog.register("t", uri=merged.uri, policy=policy)
        done = [one.job for one in Fleet(catalog).run_once()]
        assert done.count("quality") == 1

    def test_merges_go_by_the_policy(self, table: memwal.Table, catalog: Catalog) -> None:
        catalog.register("t", uri=table.uri, policy=Policy(quality=rules("skip")))
        flush(table, {1: 1}, {2: -2})
        result = run_job(catalog, JobRequest("t", "merge", force=True))
        assert not isinstance(result, Skipped)
        (skipped,) = catalog.backoffs.skipped_regions("t")
        assert skipped.generation == 2
        assert "expect_column_values_to_be_between" in skipped.reason
        (run,) = catalog.runs(table="t")
        assert run.result is not None
        assert run.result["quality"]["skipped_regions"] == [skipped.region_id]

        catalog.update("t", policy=Policy(quality=rules("quarantine")))
        run_job(catalog, JobRequest("t", "merge", force=True))
        assert catalog.backoffs.skipped_regions("t") == []


def test_a_proposed_suite_is_met(make_table: MakeTable) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("n", pa.int64()),
            ("x", pa.float64()),
            ("half", pa.float16()),
            ("state", pa.string()),
            ("text", pa.string()),
            ("at", pa.timestamp("us")),
            ("v", pa.list_(pa.float32(), 3)),
        ]
    )
    table = make_table(schema)
    dice = random.Random(1)
    count = 300
    data = pa.table(
        {
            "id": range(count),
            "n": [dice.randint(0, 50) for _ in range(count)],
            "x": [None if dice.random() < 0.2 else dice.uniform(-5, 5) for _ in range(count)],
            "half": np.ones(count, np.float16),
            "state": [dice.choice(["new", "paid", "sent"]) for _ in range(count)],
            "text": [f"text {n}" for n in range(count)],
            "at": [datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None)] * count,
            "v": [[dice.uniform(0.5, 1) for _ in range(3)] for _ in range(count)],
        },
        schema=schema,
    )
    table.upsert(data)
    with pytest.raises(InvalidInputError):
        propose_suite(table.location)
    table.merge()

    suite = propose_suite(table.location, sample_rows=200)

    assert read_suite(json.loads(json.dumps([o.to_dict() for o in suite]))) == tuple(suite)
    kinds = {(o.type, o.columns[0]) for o in suite}
    assert {
        ("expect_column_values_to_be_in_set", "state"),
        ("expect_column_value_lengths_to_be_between", "text"),
        ("expect_column_values_to_be_between", "x"),
        ("expect_vector_dimension_to_equal", "v"),
        ("expect_vector_norm_to_be_between", "v"),
    } <= kinds
    assert ("expect_column_values_to_be_between", "id") not in kinds
    ranged = next(o for o in suite if o.columns == ("n",) and "between" in o.type)
    assert ranged.kwargs["min_value"] == 0
    assert all(
        successes(check_quality(table.location, QualityOptions(QualityRules(suite=tuple(suite)))))
    )
