"""Lookups ask no region that cannot have their keys."""

from __future__ import annotations

import shutil
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from support.data.tables import MakeTable, keys, numbered, rows, state
from support.oracles import native
from support.oracles.read_sources import collect_sources
from support.stores.faulty_store import FaultyStores

import memwal
from memwal.base_table.snapshot import BaseTable
from memwal.reader.lookup import lookup_rows


def wanted(*values: int) -> Any:
    def of(base: BaseTable) -> pa.Table:
        return pa.table({"id": keys(*values)})

    return of


def looked_up(table: memwal.Table, *values: int, claims: Any = None) -> dict[int, Any]:
    sources = collect_sources(table.location, claims, keys=wanted(*values))
    return state(lookup_rows(sources, pa.table({"id": keys(*values)})))


def regions_read(table: memwal.Table, *values: int) -> int:
    return len(collect_sources(table.location, keys=wanted(*values)).plan.snapshot.manifests)


@pytest.fixture
def divided(faults: FaultyStores, make_table: MakeTable) -> memwal.Table:
    """Eight regions of which each has a few rows that are not merged; it was read before."""
    table = make_table(buckets=8)
    with table.writer() as writer:
        writer.upsert(numbered(0, 100))
        writer.flush()
        writer.upsert(numbered(50, 100, n=1))
    collect_sources(table.location)
    return table


EXPECTED = dict.fromkeys(range(50), 0) | dict.fromkeys(range(50, 150), 1)


def test_of_one_key_only_its_region_is_asked(divided: memwal.Table, faults: FaultyStores) -> None:
    store = faults.of(divided.location)
    store.clear()
    assert looked_up(divided, 77) == {77: 1}
    assert store.count("list_folders") == 1
    assert len({key.split("/")[1] for _, key in store.calls if "/manifest/" in key}) == 1


def test_every_key_is_found(divided: memwal.Table) -> None:
    some = sorted(EXPECTED)[::5]
    assert {key: looked_up(divided, key) for key in some} == {
        key: {key: EXPECTED[key]} for key in some
    }
    assert looked_up(divided, *range(-5, 160)) == EXPECTED
    assert looked_up(divided, 999) == {}
    assert regions_read(divided, *EXPECTED) == 8


def test_the_first_read_of_a_table_asks_all(make_table: MakeTable) -> None:
    table = make_table(buckets=4)
    table.upsert(numbered(0, 100))
    assert regions_read(table, 1) == 4
    assert regions_read(table, 1) == 1


def test_a_region_with_another_id_is_always_asked(divided: memwal.Table) -> None:
    """Another client may have chosen it."""
    other = uuid4()
    shard = native.writer(divided, other)
    native.put(shard, divided, rows({700: 70}))
    shard.close()
    assert looked_up(divided, 7, 700) == {7: 0, 700: 70}
    assert other in collect_sources(divided.location, keys=wanted(8)).plan.snapshot.manifests
    assert regions_read(divided, 8) == 2


def test_a_table_that_was_divided_anew_since_is_read_by_all_regions(divided: memwal.Table) -> None:
    memwal.add_region_spec(divided.uri, memwal.RegionSpec.bucket("id", 3))
    divided.upsert(rows(dict.fromkeys(range(20), 2)))
    assert regions_read(divided, 5) == 8 + 3
    assert looked_up(divided, *range(150)) == EXPECTED | dict.fromkeys(range(20), 2)


def test_a_table_that_was_made_anew_since_is_read_as_it_is(divided: memwal.Table) -> None:
    shutil.rmtree(divided.uri)
    table = memwal.create(
        divided.uri,
        pa.schema([pa.field("n", pa.int64()), pa.field("id", pa.int32(), nullable=False)]),
        primary_key=["id"],
        region_spec="bucket:id:8",
    )
    table.upsert(pa.table({"id": pa.array(range(50), pa.int32()), "n": range(50)}))

    def typed(base: BaseTable) -> pa.Table:
        return pa.table({"id": pa.array([31], base.schema.field("id").type)})

    for _ in range(2):
        sources = collect_sources(table.location, keys=typed)
        assert lookup_rows(sources, typed(sources.base)).to_pylist() == [{"n": 31, "id": 31}]


@pytest.mark.parametrize(
    "spec",
    [memwal.RegionSpec.identity("id"), memwal.RegionSpec.unsharded()],
    ids=["identity", "unsharded"],
)
def test_regions_that_are_not_known_in_advance_are_all_asked(
    make_table: MakeTable, spec: memwal.RegionSpec
) -> None:
    table = make_table(region_spec=spec)
    table.upsert(numbered(0, 5))
    everything = regions_read(table, 3)
    assert regions_read(table, 3) == everything == len(table.region_ids())
    assert looked_up(table, 3, 4, 5) == {3: 0, 4: 0}


def test_unflushed_rows_are_found(divided: memwal.Table) -> None:
    with divided.writer() as writer:
        writer.upsert(rows({77: 7, 500: 5}))
        writer.delete(keys(78))
        assert looked_up(divided, 77, 78, 500, claims=writer.claims()) == {77: 7, 500: 5}
    assert looked_up(divided, 77, 78, 500) == {77: 7, 500: 5}


def test_keys_that_do_not_fit_narrow_nothing(divided: memwal.Table) -> None:
    def of(base: BaseTable) -> pa.Table:
        return pa.table({"other": keys(1)})

    assert len(collect_sources(divided.location, keys=of).plan.snapshot.manifests) == 8
