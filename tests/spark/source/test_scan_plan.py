"""What the driver decides."""

import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.tables import MakeTable, keys, rows

import memwal
from memwal.errors import TableSetupError
from memwal.spark.source.partition_reader import read_partition
from memwal.spark.source.scan_plan import LoadPlan, ReadOptions, balance_partitions, plan_load


def plan(table: memwal.Table, **options: object) -> LoadPlan:
    return plan_load(table.location, ReadOptions(uri=table.uri, **options), columns=None)


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
    shares = balance_partitions(numbered, partitions=partitions, target_bytes=target)
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
        counts = [b.num_rows for part in made.partitions for b in read_partition(made, part)]
        assert sum(counts) == 20_000

    def test_merged_generations_are_not_in_it(self, table: memwal.Table) -> None:
        write(table, {1: 1}, {2: 1})
        assert [stored.generation for stored in plan(table).snapshot.generations] == [1, 2]
        table.merge()
        write(table, {3: 1})
        made = plan(table)
        assert [stored.generation for stored in made.snapshot.generations] == [3]
        assert made.snapshot.version == table.base().version

    def test_it_leaves_out_what_a_scan_leaves_out(self, make_table: MakeTable) -> None:
        table = make_table(buckets=4)
        write(table, dict.fromkeys(range(40), 1))
        for filter in ("id = 7", "n = 1", "id = 7 and n = 2"):
            made, scanned = plan(table, filter=filter), table.explain(filter=filter)
            assert made.pruned == scanned.pruned
            assert made.snapshot.generations == scanned.generations
            batches = [b for part in made.partitions for b in read_partition(made, part)]
            assert sum(b.num_rows for b in batches) == table.scan(filter=filter).count_rows()
        assert len(plan(table, filter="id = 7").snapshot.generations) == 1
        assert len(plan(table, filter="n = 1").snapshot.generations) == 4

    def test_storage_options_are_not_shown(self, table: memwal.Table) -> None:
        made = plan_load(
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
        assert made.snapshot.generations == ()
        (warning,) = caplog.records
        assert warning.levelno == logging.WARNING

    def test_regions_need_a_spec(self, table: memwal.Table, monkeypatch) -> None:
        from dataclasses import replace

        from memwal.reader.sources import snapshot

        base = table.base()
        by_hand = replace(base, details=replace(base.details, region_specs=()))
        monkeypatch.setattr(snapshot, "open_base", lambda location, **_: by_hand)
        with pytest.raises(TableSetupError):
            plan(table, regions=frozenset(table.region_ids()))


class TestShares:
    def test_no_keys_are_read_where_the_filter_lets_nothing_through(
        self, make_table: MakeTable, monkeypatch
    ) -> None:
        from memwal.spark.source import partition_reader

        table = make_table(buckets=2)
        write(table, {1: 1, 2: 1})
        table.merge()
        write(table, {1: 2})
        made = plan(table, filter="n = 7", partitions=3)
        (share,) = (share for share in made.partitions if share.fragments)
        calls = []
        monkeypatch.setattr(partition_reader, "find_newest", lambda *args: calls.append(args))
        assert list(read_partition(made, share)) == []
        assert calls == []

    def test_wide_rows_are_compared_sooner(self, table: memwal.Table, monkeypatch) -> None:
        from memwal.reader import merged_scan

        write(table, dict.fromkeys(range(100), 1))
        table.merge()
        table.delete(keys(3, 4))
        monkeypatch.setattr(merged_scan, "_COMPARED_BYTES", 1)
        made = plan(table)
        assert sum(b.num_rows for s in made.partitions for b in read_partition(made, s)) == 98
