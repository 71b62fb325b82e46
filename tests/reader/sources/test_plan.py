"""What a plan says about a read."""

import datetime
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.data.tables import MakeTable, keys, rows, state
from support.oracles.read_sources import collect_sources

import memwal
from memwal.reader.scan import Scan


def explained(table: memwal.Table, filter: str | None = None, **options: Any) -> Any:
    claims = options.pop("claims", None)
    return Scan(
        lambda: collect_sources(table.location, claims, filter=filter, **options), filter=filter
    ).explain()


def test_a_plan_names_everything_that_is_read(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 2}))
        writer.flush()
        table.merge()
        writer.upsert(rows({2: 22, 3: 33}))
        writer.flush()
        writer.delete(keys(1))
        plan = explained(table, claims=writer.claims())
        assert plan.consistency == "strong"
        assert [(s.kind, s.generation, s.rows) for s in plan.sources] == [
            ("memtable", 3, 1),
            ("generation", 2, 2),
            ("base", 0, 2),
        ]
    plan = explained(table)
    assert plan.consistency == "flushed"
    assert [s.kind for s in plan.sources] == ["generation", "generation", "base"]
    assert plan.pruned == ()
    assert plan.version == table.base().version
    assert "LanceRead" in plan.base_plan or "LanceScan" in plan.base_plan


def test_a_plan_says_what_was_ruled_out_and_why(make_table: MakeTable) -> None:
    table = make_table(buckets=4)
    table.upsert(rows(dict.fromkeys(range(100), 1)))
    plan = explained(table, "id = 7")
    assert len(plan.pruned) == 3
    assert len([s for s in plan.sources if s.kind == "generation"]) == 1
    for region in plan.pruned:
        assert region.generations == (1,)
        assert "bucket(id, 4)" in region.reason
        assert str(region.region_id) in str(plan)
        assert region.reason in str(plan)
    assert json.loads(json.dumps(plan.to_dict()))["pruned"][0]["generations"] == [1]


def test_a_plan_says_how_stale_it_is(table: memwal.Table) -> None:
    table.upsert(rows({1: 1}))
    table.build_snapshot()
    plan = table.at_most(timedelta(hours=1)).explain()
    assert plan.consistency == "eventual"
    assert plan.snapshot_time is not None
    assert plan.snapshot_time.isoformat() == plan.to_dict()["snapshot_time"]
    assert str(plan.snapshot_time) in str(plan)


def test_a_version_or_a_tag_leaves_out_what_was_not_merged(
    table: memwal.Table, caplog: pytest.LogCaptureFixture
) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 2}))
        writer.flush()
        table.merge()
        table.base().dataset.tags.create("then", table.base().version)
        version = table.base().version
        writer.upsert(rows({2: 22, 3: 33}))
        writer.flush()
        writer.delete(keys(1))
        for past in (table.at(version), table.at("then")):
            caplog.clear()
            assert state(past.scan().to_table()) == {1: 1, 2: 2}
            assert state(past.lookup(keys(1, 2, 3)).to_table()) == {1: 1, 2: 2}
            assert past.scan(filter="n > 1").count_rows() == 1
            assert {record.levelname for record in caplog.records} == {"WARNING"}
            (said,) = {record.getMessage() for record in caplog.records}
            assert str(version) in said
            plan = past.explain(filter="n > 1")
            assert (plan.version, plan.consistency) == (version, "version")
            assert [source.kind for source in plan.sources] == ["base"]
            (left,) = plan.newer
            assert left.generations == (2,)
            assert str(version) in left.reason
            assert left.reason in str(plan)
    # What was merged since is left out as well.
    table.checkpoint()
    assert state(table.at("then").scan().to_table()) == {1: 1, 2: 2}
    (left,) = table.at("then").explain().newer
    assert left.generations == (2, 3)


@pytest.mark.parametrize(
    ("filter", "named"),
    [
        ("id = 7", ["bucket(id, 4)", "id = 7"]),
        ("id in (7, 7, 7, 7) and n > 0", ["bucket(id, 4)", "id in (7, 7, 7,"]),
        ("id = 7 or id = 7 and n = 1", ["bucket(id, 4)", "id = 7"]),
        ("id > 3 and false", []),
    ],
)
def test_a_reason_names_the_field_and_the_comparison(
    make_table: MakeTable, filter: str, named: list[str]
) -> None:
    table = make_table(buckets=4)
    table.upsert(rows(dict.fromkeys(range(100), 1)))
    plan = explained(table, filter)
    assert len(plan.pruned) >= 3
    for region in plan.pruned:
        assert region.reason
        assert all(name in region.reason for name in named), region.reason
        # The same comparison in several alternatives is named once.
        assert region.reason.count("id = 7") <= 1


def test_a_reason_names_dates_and_texts_as_they_are_written(make_table: MakeTable) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("day", pa.date32()), ("name", pa.string())]
    )
    table = make_table(
        schema,
        region_spec=memwal.RegionSpec.combine(
            memwal.RegionSpec.year("day", immutable=True),
            memwal.RegionSpec.truncate("name", 2, immutable=True),
        ),
    )
    with table.writer() as writer:
        row = {"id": 1, "day": datetime.date(2026, 3, 15), "name": "abc"}
        writer.upsert(pa.Table.from_pylist([row], schema=schema))
    for filter, named in {
        "date_part('year', day) = 2025": ("year(day)", "2026", "2025"),
        "day < date '2026-01-01'": ("year(day)", "2026", "day < '2026-01-01'"),
        "name like 'b%'": ("truncate(name, 2)", "'ab'", "'b'"),
    }.items():
        (region,) = explained(table, filter).pruned
        assert all(name in region.reason for name in named), region.reason


@pytest.mark.parametrize("fresh", [False, True])
def test_rows_of_a_memtable_that_another_writer_flushed_are_left_out(
    table: memwal.Table, fresh: bool
) -> None:
    """The other writer replayed them, and wrote newer ones beside, in a generation of the number.

    The one that was fenced still has them, and does not know that it was.
    """
    fenced = table.writer()
    fenced.upsert(rows({1: 1, 2: 2}))
    with table.writer() as writer:
        writer.upsert(rows({1: 10}))
        writer.delete(keys(2))

    reader = fenced.fresh() if fresh else fenced
    assert state(reader) == {1: 10}
    assert state(reader.lookup(keys(1, 2)).to_table()) == {1: 10}
    fenced.abort()


def test_rows_that_a_writer_flushed_since_they_were_taken_count_once(tmp_path: Path) -> None:
    """Without a key, no reader could see that a row of a MemTable and of a generation is one."""
    schema = pa.schema([("n", pa.int64())])
    table = memwal.create(tmp_path / "t.lance", schema, primary_key=None)
    with table.writer() as writer:
        writer.append({"n": [1, 2]})
        taken = writer.claims()
        writer.flush()
        scan = Scan(lambda: collect_sources(table.location, taken))
        assert sorted(scan.to_table().column("n").to_pylist()) == [1, 2]


def test_planning_reads_no_rows_of_generations(table: memwal.Table) -> None:
    table.upsert(rows({1: 1}))
    sources = collect_sources(table.location)
    plan = Scan(lambda: sources, columns=["n"], limit=3, offset=1).explain()
    assert len(plan.sources) == 2
