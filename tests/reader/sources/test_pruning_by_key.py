"""Lookups ask no region that cannot have their keys."""

import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from support.data.copied import copied_table
from support.data.tables import SCHEMA, MakeTable, collect_now, keys, numbered, rows, state
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
def divided(faults: FaultyStores, tmp_path: Path) -> memwal.Table:
    """Eight regions of which each has a few rows that are not merged; it was read before."""

    def make(uri: str) -> None:
        table = memwal.create(uri, SCHEMA, primary_key=["id"], region_spec="bucket:id:8")
        with table.writer() as writer:
            writer.upsert(numbered(0, 100))
            writer.flush()
            writer.upsert(numbered(50, 100, n=1))

    table = copied_table("pruning by key", tmp_path / "divided", make)
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


def test_the_first_read_of_a_table_asks_one_region(make_table: MakeTable) -> None:
    table = make_table(buckets=4)
    table.upsert(numbered(0, 100))
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


FILTERS = {
    "id = 77": 1,
    "id = 7 and n = 0": 1,
    "id in (7, 77, 149)": 3,
    "id = 5 or (id in (60, 61) and n >= 0)": 3,
    "id = 5 and id = 6": 0,
    "id = 5 and id in (5, 6)": 1,
    "n = 1 and 77 = id": 1,
    "id = 5 or n = 1": 8,
    "id between 5 and 6": 8,
    "not id = 5": 8,
    "id = 5 or id is null": 8,
    "id + 0 = 5": 8,
}


def asked(table: memwal.Table, faults: FaultyStores, filter: str) -> set[str]:
    """Return the regions of which a scan asks for a manifest."""
    store = faults.of(table.location)
    store.clear()
    table.scan(filter=filter).to_table()
    assert store.count("list_folders") == 1
    return {key.split("/")[1] for _, key in store.calls if "/manifest/" in key}


@pytest.mark.few(4)
@pytest.mark.parametrize("filter", FILTERS)
def test_a_filter_that_lists_keys_asks_their_regions(
    divided: memwal.Table, faults: FaultyStores, filter: str
) -> None:
    assert len(asked(divided, faults, filter)) <= FILTERS[filter]
    everything = divided.scan().to_table()
    with divided.writer() as writer:
        writer.upsert(rows({5: 2, 78: 2}))
        writer.delete(keys(7))
        writer.flush()
        for reader in (divided, divided.fresh(), writer):
            everything = reader.scan().to_table()
            dataset = lance.write_dataset(everything, "memory://")
            expected = state(dataset.to_table(filter=filter))
            assert state(reader.scan(filter=filter).to_table()) == expected
            assert reader.scan(filter=filter).count_rows() == len(expected)


def test_a_filter_finds_what_is_in_regions_that_others_made(
    make_table: MakeTable, faults: FaultyStores
) -> None:
    table = make_table(buckets=8)
    table.upsert(rows({1: 1}))
    for key in range(2, 12):
        assert state(table.scan(filter=f"id = {key}").to_table()) == {}
        memwal.open(table.uri).upsert(rows({key: key}))
        assert state(table.scan(filter=f"id = {key}").to_table()) == {key: key}
        assert len(asked(table, faults, f"id = {key}")) == 1


def test_a_filter_finds_rows_in_a_region_with_another_id(divided: memwal.Table) -> None:
    shard = native.writer(divided, uuid4())
    native.put(shard, divided, rows({700: 70}))
    shard.close()
    assert state(divided.scan(filter="id = 700").to_table()) == {700: 70}


def test_a_filter_finds_rows_of_a_table_that_was_divided_anew_since(
    divided: memwal.Table,
) -> None:
    assert state(divided.scan(filter="id = 5").to_table()) == {5: 0}
    other = memwal.open(divided.uri)
    memwal.add_region_spec(other.uri, memwal.RegionSpec.bucket("id", 3))
    other.upsert(rows({5: 2, 6: 2}))
    for _ in range(2):
        assert state(divided.scan(filter="id in (5, 6, 7)").to_table()) == {5: 2, 6: 2, 7: 0}


@pytest.mark.few(2)
@pytest.mark.parametrize("step", ["list_folders", "head"])
@pytest.mark.parametrize("after", [False, True])
def test_a_filter_finds_rows_that_are_merged_and_collected_while_it_reads(
    divided: memwal.Table, faults: FaultyStores, step: str, after: bool
) -> None:
    assert state(divided.scan(filter="id = 77").to_table()) == {77: 1}
    other = memwal.open(divided.uri)

    def merge() -> None:
        other.upsert(rows({77: 2}))
        other.merge()
        collect_now(other)
        done.append(step)

    done: list[str] = []
    store = faults.of(divided.location)
    store.act(step, merge, after=after)
    found = state(divided.scan(filter="id = 77").to_table())
    assert done
    assert found in ({77: 1}, {77: 2})
    assert state(divided.scan(filter="id = 77").to_table()) == {77: 2}


def test_a_filter_finds_rows_that_another_client_wrote_beside(divided: memwal.Table) -> None:
    divided.merge()
    assert state(divided.scan(filter="id = 77").to_table()) == {77: 1}
    dataset = lance.dataset(divided.uri)
    dataset.merge_insert("id").when_matched_update_all().execute(rows({77: 3}))
    assert state(divided.scan(filter="id = 77").to_table()) == {77: 3}
    lance.dataset(divided.uri).delete("id = 77")
    assert state(divided.scan(filter="id = 77").to_table()) == {}


def test_a_plan_names_the_regions_that_a_filter_leaves_out(divided: memwal.Table) -> None:
    divided.scan(filter="id = 77").to_table()
    assert len(divided.scan(filter="id = 77").explain().pruned) == 7


def test_of_a_key_of_two_columns_the_one_that_divides_suffices(
    tmp_path: Any, faults: FaultyStores
) -> None:
    schema = pa.schema(
        [pa.field(name, pa.int64(), nullable=False) for name in ("user", "at")]
        + [pa.field("n", pa.int64())]
    )
    table = memwal.create(
        str(tmp_path / "table"), schema, primary_key=["user", "at"], region_spec="bucket:user:8"
    )
    data = {"user": [n % 10 for n in range(100)], "at": range(100), "n": range(100)}
    table.upsert(pa.table(data, schema=schema))
    table.scan().to_table()
    found = table.scan(filter="user = 3 and at > 50").to_table()
    assert sorted(found["at"].to_pylist()) == [53, 63, 73, 83, 93]
    assert len(asked(table, faults, "user = 3 and at > 50")) == 1
    assert len(asked(table, faults, "at = 53")) > 1
    assert table.scan(filter="at = 53").count_rows() == 1
