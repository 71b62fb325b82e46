"""Dividing a table anew: no acknowledged write is lost, and no older row wins."""

import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.data.tables import MakeTable, base_state, keys, rows, state
from support.oracles.native import collect_all, everything
from support.oracles.truth import Truth
from support.stores.faulty_store import REGION_MANIFEST, FaultyStores, Killed, skip_waits

import memwal
from memwal.errors import (
    ConflictError,
    InvalidInputError,
    MemWalError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal.format.region_manifest import RegionStatus
from memwal.region.manifest_store import read_manifests
from memwal.region.spec import RegionSpec
from memwal.resharding import add_region_spec

MANY = RegionSpec.combine(RegionSpec.truncate("id", 2), RegionSpec.multi_bucket(["id"], 3))
SPECS = [
    RegionSpec.unsharded(),
    RegionSpec.bucket("id", 3),
    RegionSpec.identity("id"),
    MANY,
    RegionSpec.expression("abs(murmur3(col0)) % 2", ["id"], pa.int32()),
]
TWO = RegionSpec.bucket("id", 2)
# Every spec is left for another one; half of the changes are slow.
PAIRS = [
    pytest.param(first, second, marks=() if (row + column) % 2 == 0 else pytest.mark.slow)
    for row, first in enumerate((*SPECS, None))
    for column, second in enumerate((MANY, TWO))
]


def statuses(table: memwal.Table) -> dict[int, set[RegionStatus | int]]:
    """Statuses of the regions of each spec."""
    found: dict[int, set[RegionStatus | int]] = {}
    for manifest in read_manifests(table.location.store).values():
        found.setdefault(manifest.spec_id, set()).add(manifest.status)
    return found


@pytest.mark.few(3)
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=str)
def test_rows_of_both_specs(
    make_table: MakeTable, first: RegionSpec | None, second: RegionSpec
) -> None:
    table = make_table(region_spec=first)
    if first is not None:
        with table.writer() as writer:
            writer.upsert(rows(dict.fromkeys(range(8), 1)))
            writer.flush()
            writer.upsert(rows({1: 2, 2: 2}))
            writer.delete(keys(3))
            writer.abort()
    wanted: dict[int, int | None] = {}
    if first is not None:
        wanted = {0: 1, 1: 2, 2: 2, 4: 1, 5: 1, 6: 1, 7: 1}

    again = add_region_spec(table.uri, second)

    if first == second:
        assert again.region_spec() == (1, first)
        return
    assert base_state(table) == state(table) == wanted
    spec_id, found = again.region_spec()
    assert (spec_id, found) == (1 if first is None else 2, second)
    if first is not None:
        assert statuses(table) == {1: {RegionStatus.SEALED}}
    with table.writer() as writer:
        writer.upsert(rows({1: 3, 3: 3, 9: 3}))
        writer.delete(keys(2))
    wanted = {**wanted, 1: 3, 3: 3, 9: 3}
    wanted.pop(2, None)
    for job in (table.merge, table.build_snapshot, lambda: collect_all(table)):
        assert state(table) == wanted
        assert {row["id"]: row["n"] for row in everything(table)} == wanted
        job()
    assert state(table) == base_state(table) == wanted


def test_the_same_spec_again_changes_nothing(make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        version = table.base().version
        add_region_spec(table.uri, RegionSpec.bucket("id", 2))
        assert table.base().version == version
        writer.upsert(rows({1: 2}))
    assert state(table) == {1: 2}


def test_specs_one_after_the_other(make_table: MakeTable) -> None:
    table = make_table(region_spec=SPECS[0])
    for number, spec in enumerate([*SPECS[1:], SPECS[0], SPECS[1]], start=2):
        with table.writer() as writer:
            writer.upsert(rows(dict.fromkeys(range(6), number)))
            writer.delete(keys(number % 6))
        add_region_spec(table.uri, spec)
        wanted = dict.fromkeys(set(range(6)) - {number % 6}, number)
        assert table.region_spec() == (number, spec)
        assert state(table) == wanted
    assert [stored.spec_id for stored in table.base().details.region_specs] == list(range(1, 8))


def test_a_writer_that_is_open_is_fenced(make_table: MakeTable) -> None:
    """Also where it comes to a region that it never wrote to."""
    table = make_table(buckets=4)
    old = table.writer()
    old.upsert(rows({1: 1}))
    add_region_spec(table.uri, MANY)
    table.upsert(rows({1: 2}))
    for key in range(10):
        with pytest.raises(MemWalError):
            old.upsert(rows({key: 9}))
    old.abort()
    assert state(table) == {1: 2}


def test_writes_go_on_until_the_change(make_table: MakeTable) -> None:
    """Everything that was acknowledged is there, whichever writer took it."""
    table = make_table(buckets=3)
    truth: Truth[int] = Truth()
    stop = threading.Event()
    refused: list[MemWalError] = []

    def produce() -> None:
        number = 0
        while not stop.is_set():
            try:
                with table.writer() as writer:
                    while not stop.is_set():
                        number += 1
                        begun = truth.begin({number % 50: number}, epoch=len(refused))
                        writer.upsert(rows({number % 50: number}))
                        truth.acknowledge(begun)
            except MemWalError as error:
                refused.append(error)
                truth.fence(None, epoch=len(refused))

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for spec in (RegionSpec.bucket("id", 2), MANY, RegionSpec.bucket("id", 2)):
            add_region_spec(table.uri, spec)
    finally:
        stop.set()
        producer.join()
    assert refused
    truth.check(state(table), "a reader")


def pending(faults: FaultyStores, table: memwal.Table, spec: RegionSpec) -> None:
    """Leave a table as a process does that died after it had announced the spec."""
    store = faults.of(table.location)
    # The first region of the earlier spec is about to be claimed, to be sealed.
    store.kill("create", REGION_MANIFEST, times=1 << 30)
    with pytest.raises(Killed):
        add_region_spec(table.uri, spec)
    store.clear()
    assert statuses(table).keys() == {1}


class TestPending:
    def test_takes_no_writers_and_is_read_and_finished(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=2)
        writer = table.writer()
        writer.upsert(rows({1: 1, 2: 1}))
        pending(faults, table, MANY)
        with pytest.raises(TableSetupError):
            table.writer()
        # Regions that were claimed before go on until they are emptied.
        writer.upsert(rows({1: 2}))
        writer.flush()
        assert state(table) == {1: 2, 2: 1}
        writer.upsert(rows({2: 2}))
        table.merge()
        with pytest.raises(TableSetupError):
            add_region_spec(table.uri, RegionSpec.unsharded())
        add_region_spec(table.uri, MANY)
        assert table.region_spec() == (2, MANY)
        assert state(table) == {1: 2, 2: 2}
        writer.abort()

    def test_is_not_put_in_force_before_all_is_merged(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        table.upsert(rows({1: 1}))
        with pytest.raises(ConflictError):
            add_region_spec(table.uri, MANY, run=_run_nothing)
        with pytest.raises(TableSetupError):
            table.writer()
        add_region_spec(table.uri, MANY)
        assert base_state(table) == {1: 1}


def _run_nothing(tasks: Any, function: Any) -> list[Any]:
    return []


@pytest.mark.few(6)
@pytest.mark.parametrize("operation", ["create", "get", "list"])
@pytest.mark.parametrize("before", [0, 9, 30, 55])
def test_a_change_that_fails_anywhere_is_finished_later(
    quick_faults: FaultyStores,
    make_table: MakeTable,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    before: int,
) -> None:
    skip_waits(monkeypatch)
    table = make_table(buckets=2)
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 1, 3: 1}))
        writer.flush()
        writer.upsert(rows({1: 2}))
        writer.abort()
    store = quick_faults.of(table.location)
    store.fail(operation, "*_mem_wal*", StoreUnavailableError("no"), skip=before, times=25)
    try:
        add_region_spec(table.uri, MANY)
    except MemWalError:
        store.clear()
        add_region_spec(table.uri, MANY)
    store.clear()
    assert table.region_spec() == (2, MANY)
    assert base_state(table) == {1: 2, 2: 1, 3: 1}


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changes(make_table: MakeTable, data: st.DataObject) -> None:
    table = make_table(buckets=2)
    model: dict[int, int | None] = {}
    for number in range(data.draw(st.integers(1, 4))):
        with table.writer() as writer:
            for step in range(data.draw(st.integers(0, 3))):
                values = data.draw(
                    st.dictionaries(st.integers(0, 9), st.just(number * 10 + step), max_size=6)
                )
                writer.upsert(rows(values))
                model.update(values)
                gone = data.draw(st.sets(st.integers(0, 9), max_size=2))
                writer.delete(keys(*gone))
                for key in gone:
                    model.pop(key, None)
                if data.draw(st.booleans()):
                    writer.flush()
            if data.draw(st.booleans()):
                writer.abort()
        if data.draw(st.booleans()):
            table.merge()
        spec = data.draw(st.sampled_from(SPECS))
        changed = table.region_spec()[1] != spec
        add_region_spec(table.uri, spec)
        # Without a change, rows of a writer that died are in the log only.
        assert not changed or state(table) == model
    add_region_spec(table.uri, RegionSpec.bucket("id", 7))
    assert state(table) == base_state(table) == model


def test_what_does_not_fit_changes_nothing(make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    version = table.base().version
    for spec in (
        RegionSpec.bucket("n", 2),
        RegionSpec.bucket("nope", 2),
        RegionSpec.truncate("nope", 2, immutable=True),
        RegionSpec.year("id"),
        RegionSpec.expression("col0", ["id"], pa.string()),
    ):
        with pytest.raises(InvalidInputError):
            add_region_spec(table.uri, spec)
    assert table.base().version == version


def test_without_a_table(tmp_path: Any) -> None:
    with pytest.raises(TableSetupError):
        add_region_spec(str(tmp_path / "nope"), RegionSpec.unsharded())
