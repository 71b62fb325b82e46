"""What a merge lets into the base table, and what it keeps out."""

import json
import random
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.damage import damage_column
from support.data.merging import DIVIDED, elsewhere
from support.data.quarantined import positive, quarantine, rules, waiting
from support.data.tables import (
    SCHEMA,
    MakeTable,
    Rows,
    base_state,
    flush,
    flush_and_merge,
    folder,
    keys,
    merged,
    rows,
    state,
)

import memwal
from memwal.jobs.job import JobResult
from memwal.quality.gate import RegionRows, screen


def no_nulls() -> dict[str, object]:
    return {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "n"}}


def unique() -> dict[str, object]:
    return {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "n"}}


Options = dict[str, Any]


@pytest.fixture(params=[{}, {**DIVIDED, "run": elsewhere}], ids=["by one worker", "divided"])
def method(request: pytest.FixtureRequest) -> Options:
    """How a merge is done."""
    return dict(request.param)


class TestWarn:
    def test_merges_all_and_tells(self, table: memwal.Table, method: Options) -> None:
        flush(table, {1: 1, 2: -2, 3: 300})

        result = table.merge(quality=rules("warn"), **method)

        assert base_state(table) == {1: 1, 2: -2, 3: 300}
        assert result.quality is not None
        (found,) = result.quality["expectations"]
        assert (found["success"], found["failed"]) == (False, 2)
        assert found["examples"] == [{"id": 2}, {"id": 3}]
        assert (result.quality["rows"], result.quality["failed_rows"]) == (3, 2)
        (warning,) = result.warnings
        assert "expect_column_values_to_be_between" in warning
        assert JobResult.from_dict(result.to_dict()).quality == result.quality

    def test_of_good_rows_has_no_problem(self, table: memwal.Table, method: Options) -> None:
        flush(table, {1: 1, 2: 2})
        result = table.merge(quality=rules("warn"), **method)
        assert result.warnings == ()
        assert result.quality is not None
        assert result.quality["success"]

    def test_off_looks_at_nothing(self, table: memwal.Table) -> None:
        flush(table, {1: -1})
        assert table.merge(quality=rules("off")).quality is None
        assert base_state(table) == {1: -1}


class TestQuarantine:
    def test_keeps_failing_rows_out_and_older_values_stay(
        self, table: memwal.Table, method: Options
    ) -> None:
        flush_and_merge(table, {1: 1, 2: 2})
        flush(table, {1: -1, 3: 3})

        result = table.merge(quality=rules("quarantine"), **method)

        assert base_state(table) == {1: 1, 2: 2, 3: 3}
        assert state(table) == {1: 1, 2: 2, 3: 3}
        assert merged(table) == 2
        assert waiting(table) == {(2, 1, -1)}
        assert result.quality is not None
        assert result.quality["quarantined_rows"] == 1

    def test_takes_the_next_newest_row_that_is_good(
        self, table: memwal.Table, method: Options
    ) -> None:
        flush(table, {1: 1, 2: 1}, {1: 2, 2: -1}, {1: -3}, {1: -4, 3: -1})

        table.merge(quality=rules("quarantine"), **method)

        assert base_state(table) == {1: 2, 2: 1}
        assert waiting(table) == {(3, 1, -3), (4, 1, -4), (2, 2, -1), (4, 3, -1)}

    def test_applies_a_delete_below_a_failing_row(
        self, table: memwal.Table, method: Options
    ) -> None:
        flush_and_merge(table, {1: 1, 2: 2})
        flush(table, [1], {1: -1, 2: -2})

        table.merge(quality=rules("quarantine"), **method)

        assert base_state(table) == {2: 2}
        assert waiting(table) == {(3, 1, -1), (3, 2, -2)}

    def test_lets_deletes_pass(self, table: memwal.Table, method: Options) -> None:
        flush_and_merge(table, {1: 1})
        flush(table, [1])
        table.merge(quality=rules("quarantine"), **method)
        assert base_state(table) == {}
        assert waiting(table) == set()

    def test_leaves_out_what_was_replaced(self, table: memwal.Table, method: Options) -> None:
        flush(table, {1: -1}, {1: 1})
        table.merge(quality=rules("quarantine"), **method)
        assert base_state(table) == {1: 1}
        assert waiting(table) == set()

    def test_of_all_rows_still_records_the_progress(
        self, table: memwal.Table, method: Options
    ) -> None:
        flush(table, {1: -1, 2: -2})
        table.merge(quality=rules("quarantine"), **method)
        assert base_state(table) == {}
        assert merged(table) == 1
        assert len(waiting(table)) == 2
        assert table.merge(quality=rules("quarantine"), **method).metrics["generations"] == 0

    def test_a_later_row_of_the_key_merges(self, table: memwal.Table, method: Options) -> None:
        flush(table, {1: -1})
        table.merge(quality=rules("quarantine"), **method)
        flush(table, {1: 1})
        table.merge(quality=rules("quarantine"), **method)
        assert base_state(table) == {1: 1}

    def test_tells_why_and_where_from(self, table: memwal.Table) -> None:
        flush(table, {1: None, 2: -1, 3: 3})
        table.merge(quality=rules("quarantine", no_nulls(), positive()))
        found = quarantine(table).read().to_pylist()
        assert [row["quarantine_expectations"] for row in found] == [
            ["expect_column_values_to_not_be_null(n)"],
            ["expect_column_values_to_be_between(n)"],
        ]
        assert [row["quarantine_row"] for row in found] == [0, 1]
        assert {row["quarantine_state"] for row in found} == {"waiting"}
        assert "min_value=0" in found[1]["quarantine_reason"]

    def test_counts_rows_from_the_start_of_their_generation(
        self, table: memwal.Table, method: Options
    ) -> None:
        flush(table, {1: 1, 2: -2}, {3: 3, 4: 4, 5: -5}, {6: -6})
        table.merge(quality=rules("quarantine"), **method)
        origins = {
            row["id"]: (row["quarantine_generation"], row["quarantine_row"])
            for row in quarantine(table).read().to_pylist()
        }
        assert origins == {2: (1, 1), 5: (2, 2), 6: (3, 0)}

    def test_within_mostly_keeps_nothing_out(self, table: memwal.Table, method: Options) -> None:
        some = positive()
        some["kwargs"] = {**some["kwargs"], "mostly": 0.5}
        flush(table, {1: -1, 2: 2})
        table.merge(quality=rules("quarantine", some), **method)
        assert base_state(table) == {1: -1, 2: 2}
        flush(table, {3: -1, 4: -1, 5: 1})
        table.merge(quality=rules("quarantine", some), **method)
        assert base_state(table) == {1: -1, 2: 2, 5: 1}

    def test_of_rows_that_equal_one_another(self, table: memwal.Table, method: Options) -> None:
        flush(table, {1: 5, 2: 1}, {3: 5, 2: 7})
        table.merge(quality=rules("quarantine", unique()), **method)
        assert base_state(table) == {2: 7}
        assert {key for _, key, _ in waiting(table)} == {1, 3}

    def test_of_an_older_row_that_equals_one_that_enters(
        self, table: memwal.Table, method: Options
    ) -> None:
        """The newest row of 1 fails; the one below it has the number of 2, and the next has not."""
        flush(table, {1: 4}, {1: 5}, {1: -1, 2: 5})
        table.merge(quality=rules("quarantine", positive(), unique()), **method)
        assert base_state(table) == {1: 4, 2: 5}
        assert waiting(table) == {(3, 1, -1), (2, 1, 5)}

    def test_only_tells_what_is_not_critical_or_of_no_row(
        self, table: memwal.Table, method: Options
    ) -> None:
        mean = {
            "type": "expect_column_mean_to_be_between",
            "kwargs": {"column": "n", "max_value": 1},
        }
        gone = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "gone"}}
        flush(table, {1: -1, 2: 50})
        result = table.merge(
            quality=rules("quarantine", positive(severity="warning"), mean, gone), **method
        )
        assert base_state(table) == {1: -1, 2: 50}
        assert result.quality is not None
        assert [one["success"] for one in result.quality["expectations"]] == [False] * 3
        assert "gone" in result.quality["expectations"][2]["error"]

    @pytest.mark.parametrize(
        "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))]
    )
    def test_is_the_same_however_generations_are_taken_together(
        self, make_table: MakeTable, seed: int
    ) -> None:
        dice = random.Random(seed)
        tables = [make_table() for _ in range(4)]
        shown: Rows = {}
        for _ in range(6):
            if dice.random() < 0.3:
                part: Rows | list[int] = dice.sample(range(8), 3)
            else:
                part = {key: dice.randint(-30, 60) for key in dice.sample(range(8), 5)}
            for table in tables:
                flush(table, part)
            if isinstance(part, list):
                shown = {key: n for key, n in shown.items() if key not in part}
            else:
                shown |= {key: n for key, n in part.items() if n is not None and n >= 0}
        methods: list[Options] = [*({"commit_bytes": n} for n in (1, 1 << 30, 3_000)), DIVIDED]
        for table, method in zip(tables, methods, strict=True):
            table.merge(quality=rules("quarantine"), **method)
            assert base_state(table) == shown

    @pytest.mark.parametrize("options", [{"max_tasks": 3, "commit_bytes": 1}, DIVIDED])
    def test_in_tasks_of_many_regions(self, make_table: MakeTable, options: Options) -> None:
        table = make_table(region_spec=memwal.RegionSpec.bucket("id", 4))
        table.upsert(rows({key: -1 if key % 3 else key for key in range(60)}))
        result = table.merge(quality=rules("quarantine"), **options)
        assert base_state(table) == {key: key for key in range(0, 60, 3)}
        assert len(waiting(table)) == 40
        assert result.quality is not None
        assert (result.quality["rows"], result.quality["quarantined_rows"]) == (60, 40)


class TestHold:
    def test_lets_the_region_wait_at_the_first_failing_generation(
        self, table: memwal.Table, method: Options
    ) -> None:
        flush(table, {1: 1}, {2: -2}, {3: 3})

        result = table.merge(quality=rules("skip"), **method)

        assert base_state(table) == {1: 1}
        assert state(table) == {1: 1, 2: -2, 3: 3}
        assert merged(table) == 1
        (skipped,) = result.skipped_regions
        assert skipped.generation == 2
        assert "expect_column_values_to_be_between" in skipped.reason
        assert result.quality is not None
        assert result.quality["skipped_regions"] == [skipped.region_id]

    def test_goes_on_when_the_rules_change(self, table: memwal.Table, method: Options) -> None:
        flush(table, {1: 1}, {2: -2}, {3: 3})
        table.merge(quality=rules("skip"), **method)
        result = table.merge(quality=rules("warn"), **method)
        assert result.skipped_regions == ()
        assert base_state(table) == {1: 1, 2: -2, 3: 3}

    def test_goes_on_when_a_later_generation_corrects_it(
        self, table: memwal.Table, method: Options
    ) -> None:
        flush(table, {1: 1}, {2: -2})
        table.merge(quality=rules("skip"), **method)
        flush(table, {2: 2})
        assert table.merge(quality=rules("skip"), **method).skipped_regions == ()
        assert base_state(table) == {1: 1, 2: 2}

    def test_looks_again_at_what_later_rows_had_replaced(
        self, table: memwal.Table, method: Options
    ) -> None:
        """Key 1 fails in generation 1 as well, which the good row of generation 3 hid."""
        flush(table, {1: -1}, {2: -2}, {1: 1})
        result = table.merge(quality=rules("skip"), **method)
        assert base_state(table) == {}
        assert result.skipped_regions[0].generation == 1

    def test_of_more_generations_than_calls_nest(self) -> None:
        """A writer goes on while its region waits, and writes the same key again and again."""
        count = 1_200
        numbers = pa.table({"id": np.ones(count, np.int64), "n": -np.arange(count)})
        newest = np.zeros(count, np.bool_)
        newest[-1] = True
        region = RegionRows(
            region_id=uuid4(),
            generations=tuple(range(1, count + 1)),
            folders=tuple(f"0123abcd_gen_{number}" for number in range(1, count + 1)),
            counts=(1,) * count,
            keys=numbers.column("id").combine_chunks(),
            newest=newest,
            deleted=np.zeros(count, np.bool_),
            take=lambda mask, columns: numbers.filter(pa.array(mask)),
            key_columns=("id",),
        )
        found = screen(region, rules("skip"))
        # The number 0 is as expected.
        assert found.accepted == 1
        assert found.newest.tolist() == [True, *[False] * (count - 1)]
        assert found.hold is not None

    def test_leaves_other_regions_alone(self, make_table: MakeTable, method: Options) -> None:
        table = make_table(region_spec=memwal.RegionSpec.bucket("id", 4))
        table.upsert(rows({key: -1 if key == 7 else key for key in range(40)}))
        result = table.merge(quality=rules("skip"), **method)
        assert len(result.skipped_regions) == 1
        there = base_state(table)
        assert 7 not in there
        assert 10 < len(there) < 39

    def test_on_a_figure_of_all_rows(self, table: memwal.Table, method: Options) -> None:
        most = {
            "type": "expect_column_max_to_be_between",
            "kwargs": {"column": "n", "max_value": 10},
        }
        flush(table, {1: 1}, {2: 20})
        result = table.merge(quality=rules("skip", most), **method)
        assert result.skipped_regions[0].generation == 1
        assert base_state(table) == {}

    def test_stops_a_checkpoint(self, table: memwal.Table) -> None:
        flush(table, {1: 1}, {2: -2})
        with pytest.raises(memwal.errors.ConflictError, match="expect_column_values_to_be_between"):
            table.checkpoint(quality=rules("skip"))
        assert base_state(table) == {1: 1}


class TestDivided:
    @pytest.mark.parametrize("failing", [False, True])
    def test_decides_anew_without_a_generation_that_cannot_be_read(
        self, table: memwal.Table, failing: bool
    ) -> None:
        """The columns of the expectations can be read: it is noticed when all columns are."""
        flush(table, {1: 1, 2: 1}, {1: -1}, {2: 2, 1: -2} if failing else {2: 2, 1: 2})
        (path,) = folder(table).glob("_mem_wal/*/*_gen_3")
        damage_column(path, SCHEMA.get_field_index("text"))

        result = table.merge(quality=rules("quarantine"), **DIVIDED)

        assert base_state(table) == {1: 1, 2: 1}
        assert merged(table) == 2
        assert waiting(table) == {(2, 1, -1)}
        assert [skipped.generation for skipped in result.skipped_regions] == [3]
        assert result.quality is not None
        assert result.quality["quarantined_rows"] == 1

    def test_keeps_stable_row_ids(self, tmp_path: Path) -> None:
        uri = str(tmp_path / "table")
        lance.write_dataset(rows({1: 1, 2: 2, 3: 3}), uri, enable_stable_row_ids=True)
        table = memwal.enable(uri, primary_key="id", region_spec="bucket:id:2")
        flush(table, {1: 10, 2: -2, 4: 4, 5: -5}, {1: -1}, [3])

        table.merge(quality=rules("quarantine"), **DIVIDED)

        assert base_state(table) == {1: 10, 2: 2, 4: 4}
        assert {(key, n) for _, key, n in waiting(table)} == {(2, -2), (5, -5), (1, -1)}
        found = table.base().dataset.scanner(columns=["id"], with_row_id=True).to_table()
        ids = dict(zip(*(found.column(name).to_pylist() for name in ("id", "_rowid")), strict=True))
        assert (ids[1], ids[2]) == (0, 1)
        assert not table.verify(deep=True).errors


def test_the_keys_alone_are_deleted(table: memwal.Table, method: Options) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: -1}))
        writer.delete(keys(1))
    table.merge(quality=rules("skip"), **method)
    assert base_state(table) == {}


def test_a_checkpoint_tells_of_all_its_merges(table: memwal.Table) -> None:
    flush(table, {1: -1, 2: 2}, {3: -3}, [3], {4: 4})
    result = table.checkpoint(quality=rules("quarantine"), commit_bytes=1)
    assert result.quality is not None
    found = {key: result.quality[key] for key in ("rows", "failed_rows", "quarantined_rows")}
    assert found == {"rows": 4, "failed_rows": 2, "quarantined_rows": 2}
    (one,) = result.quality["expectations"]
    assert (one["success"], one["failed"], one["examples"]) == (False, 2, [{"id": 1}, {"id": 3}])
    assert not result.quality["success"]
    flush(table, {5: 5})
    assert table.checkpoint().quality is None


def test_of_large_keys_a_part_is_told(make_table: MakeTable, method: Options) -> None:
    schema = pa.schema([pa.field("id", pa.binary(), nullable=False), ("n", pa.int64())])
    table = make_table(schema)
    table.upsert(pa.table({"id": [b"\xff" * 100_000], "n": [-1]}, schema=schema))
    result = table.merge(quality=rules("quarantine"), **method)
    assert result.quality is not None
    ((key,),) = ([one["id"] for one in e["examples"]] for e in result.quality["expectations"])
    assert key == "ff" * 100 + "..."
    assert len(json.dumps(result.to_dict())) < 10_000
