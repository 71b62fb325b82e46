"""A table that lance-context writes too, with a Lance of its own that is older than pylance's."""

from pathlib import Path

import pytest
from lance_context import GenericStore
from support.data.generic_store import REGION, STORE_SCHEMA
from support.data.merging import Merge
from support.data.tables import base_state, keys, rows, state
from support.oracles import native

import memwal
from memwal.jobs.options import VerifyOptions
from memwal.jobs.verify import verify
from memwal.region.manifest_store import read_manifests

SPECS = [memwal.RegionSpec.unsharded(), memwal.RegionSpec.bucket("id", 1)]


@pytest.fixture(params=SPECS, ids=["unsharded", "one bucket"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> memwal.Table:
    return memwal.create(
        str(tmp_path / "t.lance"), STORE_SCHEMA, primary_key=["id"], region_spec=request.param
    )


def add(table: memwal.Table, values: dict[int, int | None], *, flush: bool = False) -> None:
    """Add rows with lance-context, which claims its region for that."""
    store = GenericStore.open_existing(table.uri)
    store.add(rows(values).to_pylist())
    if flush:
        store.flush()


def check(table: memwal.Table, wanted: dict[int, int | None]) -> None:
    """Every read shows the rows, and nothing is wrong with the table."""
    assert state(table.fresh()) == wanted
    assert state(table.fresh().lookup(list(wanted)).to_table()) == wanted
    assert verify(table.location, VerifyOptions(deep=True)).findings == ()


def test_its_region_is_adopted(table: memwal.Table, merge: Merge) -> None:
    add(table, {1: 1, 2: 1})
    check(table, {1: 1, 2: 1})
    with table.writer() as writer:
        writer.upsert(rows({1: 2, 3: 2}))
        writer.delete(keys(2))
        assert state(writer) == {1: 2, 3: 2}
    manifests = read_manifests(table.location.store)
    assert {region: manifest.spec_id for region, manifest in manifests.items()} == {REGION: 0}
    add(table, {3: 3}, flush=True)
    merge(table)
    check(table, {1: 2, 3: 3})
    assert base_state(table) == {1: 2, 3: 3}
    add(table, {1: 4})
    check(table, {1: 4, 3: 3})


def test_rows_that_it_replays_are_twice_in_the_index_of_a_generation(table: memwal.Table) -> None:
    """So it makes the index; no reader is led astray."""
    add(table, {1: 1, 2: 1})
    add(table, {2: 2, 3: 2}, flush=True)
    wanted = {1: 1, 2: 2, 3: 2}
    check(table, wanted)
    assert state(native.scan(table)) == wanted
    looked_up = native.lookup(table, rows(wanted).select(["id"]))
    assert {row["id"]: row["n"] for row in looked_up} == wanted
    for key, value in wanted.items():
        assert state(table.scan(filter=f"id = {key}").to_table()) == {key: value}


def test_it_does_not_replay_our_rows(table: memwal.Table) -> None:
    """Nor those of pylance: its claim fences the writer and then fails; our next claim replays."""
    add(table, {1: 1}, flush=True)
    writer = table.writer()
    writer.upsert(rows({1: 2}))
    with pytest.raises(RuntimeError):
        add(table, {1: 3})
    writer.abort()
    check(table, {1: 2})
    table.upsert(rows({2: 2}))
    add(table, {1: 3})
    check(table, {1: 3, 2: 2})
