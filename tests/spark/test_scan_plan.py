"""What the driver decides."""

from __future__ import annotations

import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.tables import MakeTable, keys, rows

import memwal
from memwal.errors import TableSetupError
from memwal.spark.partition_reader import read_share
from memwal.spark.scan_plan import ReadOptions, ReadPlan, divide, plan_read


def plan(table: memwal.Table, **options: object) -> ReadPlan:
    return plan_read(table.location, ReadOptions(uri=table.uri, **options), columns=None)


def write(table: memwal.Table, *generations: dict[int, int]) -> None:
    with table.writer() as writer:
        for values in generations:
            writer.upsert(rows(values))
            writer.flush()


@given(
    items=st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=40),
    partitions=st.none() | st.integers(1, 12),
    target=st.integers(1, 2000),
)
def test_every_item_is_in_one_share(items, partitions, target) -> None:
    numbered = [(size, kind, number) for number, (size, kind) in enumerate(items)]
    shares = divide(numbered, partitions=partitions, target_bytes=target)
    fragments = [number for share in shares for number in share.fragments]
    generations = [number for share in shares for number in share.generations]
    assert sorted(fragments) == [number for _, kind, number in numbered if kind]
    assert sorted(generations) == [number for _, kind, number in numbered if not kind]
    assert len(shares) <= max(1, partitions or len(items))
    if items:
        loads = [
            sum(items[number][0] for number in (*share.fragments, *share.generations))
            for share in shares
        ]
        largest = max(size for size, _ in items)
        assert max(loads) - min(loads) <= largest, "no share is heavier by more than one item"


class TestPlan:
    def test_it_stays_small(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        write(table, dict.fromkeys(range(20_000), 1))
        table.merge()
        write(table, dict.fromkeys(range(20_000), 2))
        made = plan(table)
        assert len(pickle.dumps(made)) < 10_000
        assert sum(batch.num_rows for s in made.shares for batch in read_share(made, s)) == 20_000

    def test_merged_generations_are_not_in_it(self, table: memwal.Table) -> None:
        write(table, {1: 1}, {2: 1})
        assert [found.number for found in plan(table).moment.generations] == [1, 2]
        table.merge()
        write(table, {3: 1})
        made = plan(table)
        assert [found.number for found in made.moment.generations] == [3]
        assert made.moment.version == table.base().version

    def test_storage_options_are_not_shown(self, table: memwal.Table) -> None:
        made = plan_read(
            type(table.location)(table.uri, {"aws_secret_access_key": "marker-1234"}),
            ReadOptions(uri=table.uri),
            columns=None,
        )
        assert "marker" not in repr(made)
        assert table.uri in repr(made)

    def test_a_past_version_tells_what_it_leaves_out(
        self, table: memwal.Table, caplog: pytest.LogCaptureFixture
    ) -> None:
        write(table, {1: 1}, {2: 1})
        with caplog.at_level(logging.WARNING, "memwal"):
            made = plan(table, version=table.base().version)
        assert made.moment.generations == ()
        (warning,) = caplog.records
        assert warning.levelno == logging.WARNING

    def test_regions_need_a_spec(self, table: memwal.Table, monkeypatch) -> None:
        from dataclasses import replace

        from memwal.spark import scan_plan

        base = table.base()
        by_hand = replace(base, details=replace(base.details, region_specs=()))
        monkeypatch.setattr(scan_plan, "open_base", lambda location, version: by_hand)
        with pytest.raises(TableSetupError):
            plan(table, regions=frozenset(table.region_ids()))


class TestShares:
    def test_no_keys_are_read_where_the_filter_lets_nothing_through(
        self, make_table: MakeTable, monkeypatch
    ) -> None:
        from memwal.spark import partition_reader

        table = make_table(buckets=2)
        write(table, {1: 1, 2: 1})
        table.merge()
        write(table, {1: 2})
        made = plan(table, filter="n = 7", partitions=3)
        (share,) = (share for share in made.shares if share.fragments)
        calls = []
        monkeypatch.setattr(partition_reader, "find_newest", lambda *args: calls.append(args))
        assert list(read_share(made, share)) == []
        assert calls == []

    def test_wide_rows_are_compared_sooner(self, table: memwal.Table, monkeypatch) -> None:
        from memwal.spark import partition_reader

        write(table, dict.fromkeys(range(100), 1))
        table.merge()
        with table.writer() as writer:
            writer.delete(keys(3, 4))
        monkeypatch.setattr(partition_reader, "_COMPARED_BYTES", 1)
        made = plan(table)
        assert sum(b.num_rows for s in made.shares for b in read_share(made, s)) == 98
