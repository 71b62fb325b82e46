"""What a plan says about a read."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from support.tables import MakeTable, generations, keys, rows

import memwal
from memwal.reader.scan import Scan
from memwal.reader.sources import collect_sources, collect_version


def explained(table: memwal.Table, filter: str | None = None, **options: Any) -> Any:
    memtables = options.pop("memtables", None)
    return Scan(
        lambda: collect_sources(table.location, memtables, filter=filter, **options), filter=filter
    ).explain()


def test_a_plan_names_everything_that_is_read(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 2}))
        writer.flush()
        table.merge()
        writer.upsert(rows({2: 22, 3: 33}))
        writer.flush()
        writer.delete(keys(1))
        plan = explained(table, memtables=writer.memtables())
        assert plan.consistency == "strong"
        assert [(s.kind, s.generation, s.rows) for s in plan.sources] == [
            ("memtable", 3, 1),
            ("generation", 2, 2),
            ("base", 0, 2),
        ]
    plan = explained(table)
    assert plan.consistency == "fresh"
    assert [s.kind for s in plan.sources] == ["generation", "generation", "base"]
    assert plan.pruned == ()
    assert plan.version == table.base().version
    assert "LanceRead" in plan.base_plan or "LanceScan" in plan.base_plan


def test_a_plan_says_what_was_ruled_out_and_why(make_table: MakeTable) -> None:
    table = make_table(buckets=4)
    with table.writer() as writer:
        writer.upsert(rows(dict.fromkeys(range(100), 1)))
    plan = explained(table, "id = 7")
    assert len(plan.pruned) == 3
    assert len([s for s in plan.sources if s.kind == "generation"]) == 1
    for region in plan.pruned:
        assert region.generations == (1,)
        assert "bucket(id, 4) is " in region.reason
        assert f"region {region.region_id}, generations 1: bucket(id, 4)" in str(plan)
    assert json.loads(json.dumps(plan.to_dict()))["pruned"][0]["generations"] == [1]


def test_a_plan_says_how_stale_it_is(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
    table.build_snapshot()
    plan = explained(table, max_staleness=timedelta(hours=1))
    assert plan.consistency == "eventual"
    assert plan.snapshot_time is not None
    assert plan.snapshot_time.isoformat() == plan.to_dict()["snapshot_time"]
    assert "eventual, regions as of" in str(plan)


def test_a_plan_of_a_version_says_what_it_leaves_out(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
    version = table.base().version
    (number,) = generations(table)
    plan = Scan(lambda: collect_version(table.location, version)).explain()
    assert plan.consistency == "version"
    assert [region.generations for region in plan.left_out] == [(number,)]
    assert "left out:" in str(plan)


def test_planning_reads_no_rows_of_generations(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
    sources = collect_sources(table.location)
    plan = Scan(lambda: sources, columns=["n"], limit=3, offset=1).explain()
    assert len(plan.sources) == 2
