"""Rows of a log that cannot be stored go into quarantine, and all others into the table."""

from typing import Any

import pyarrow as pa
import pytest
from support.data.quarantined import quarantine
from support.data.sampled import sampled
from support.data.tables import (
    REGION,
    MakeTable,
    append_foreign,
    generations,
    manifest,
    rows,
    state,
    without_key,
)
from support.oracles import native
from support.stores.faulty_store import FaultyStores, Killed

import memwal
from memwal.errors import CorruptDataError, MemWalError, RegionFencedError
from memwal.jobs.verify import repair, verify
from memwal.jobs.verify.repairs.rebuild import rebuild_generation
from memwal.jobs.verify.repairs.set_aside import set_aside_unusable_rows
from memwal.lsm import row_schema
from memwal.quality.quarantine import origins_of
from memwal.quarantine_review import discard, release, waiting_rows

# Keys 1 to 5 with the newest number of each; the row of key 8 lacks its key.
EXPECTED = {1: 3, 2: 2, 3: 2, 4: 2, 5: 3}


@pytest.fixture
def table(quick_faults: FaultyStores, make_table: MakeTable) -> memwal.Table:
    """Return a table with a row that has no key, between rows that have one."""
    table = make_table()
    table.upsert(rows({1: 1, 2: 1}))
    writer = table.writer()
    writer.upsert(rows({1: 2, 2: 2, 3: 1}))
    append_foreign(table, without_key({8: 2, 3: 2, 4: 2}, 0))
    append_foreign(table, rows({1: 3, 5: 3}).to_batches()[0])
    writer.abort()
    return table


def set_aside(table: memwal.Table) -> int:
    return set_aside_unusable_rows(table.base(), REGION, quarantine(table))


def check_healed(table: memwal.Table) -> None:
    """Nothing is lost, the row is in quarantine once, and both clients can take over."""
    assert state(table) == EXPECTED
    assert quarantine(table).read().column("text").to_pylist() == ["8=2"]
    assert verify(table.location).findings == ()
    shard = native.writer(table)
    native.put(shard, table, rows({6: 6}))
    shard.close()
    assert state(native.scan(table)) == EXPECTED | {6: 6}
    table.upsert(rows({7: 7}))
    assert state(table) == EXPECTED | {6: 6, 7: 7}


def test_the_other_rows_are_flushed(table: memwal.Table) -> None:
    (action,) = repair(table.location, verify(table.location), dry_run=False)
    assert action.state == "done"
    assert generations(table) == [1, 2]
    epoch = manifest(table).writer_epoch
    assert set_aside(table) == 0
    assert manifest(table).writer_epoch == epoch
    check_healed(table)


def test_keeps_a_column_that_was_added_meanwhile(table: memwal.Table) -> None:
    base = table.base()
    base.dataset.add_columns(pa.field("more", pa.int64()))
    more = [pa.array([number, 7, 7], pa.int64()) for number in (8, 9)]
    for number, values in zip((8, 9), more, strict=True):
        batch = without_key({8: 2, 3: number, 4: number}, 0)
        append_foreign(table, batch.append_column("more", values))
    set_aside_unusable_rows(base, REGION, quarantine(table))
    kept = quarantine(table).read()
    assert sorted(kept["more"].to_pylist(), key=str) == [8, 9, None]
    found = table.scan(columns=["id", "more"]).to_table().sort_by("id")
    assert found["more"].to_pylist() == [None, None, 7, 7, None]


def test_a_quarantine_elsewhere(table: memwal.Table, tmp_path: Any) -> None:
    uri = str(tmp_path / "elsewhere.lance")
    repair(table.location, verify(table.location), dry_run=False, quarantine_uri=uri)
    assert quarantine(table).read().num_rows == 0
    assert memwal.quality.quarantine.Quarantine.of(table.location, uri).read().num_rows == 1


def test_an_entry_without_any_usable_row(make_table: MakeTable) -> None:
    table = make_table()
    table.upsert(rows({1: 1}))
    position = append_foreign(table, without_key({8: 8, 9: 9}, 0, 1))
    assert set_aside(table) == 2
    assert manifest(table).replay_after == position
    assert generations(table) == [1]
    table.upsert(rows({2: 2}))
    assert state(table) == state(native.scan(table)) == {1: 1, 2: 2}


def test_json_that_an_earlier_version_logged(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object has a name twice: no flush can store it."""
    key = pa.field("id", pa.int64(), nullable=False)
    table = make_table(pa.schema([key, pa.field("j", pa.json_())]), data_storage_version="2.2")
    texts = ["{}", '{"a": 1, "a": 2}', None, "NaN"]
    monkeypatch.setattr(row_schema, "find_invalid_json", lambda _values, **_: None)
    writer = table.writer()
    writer.upsert({"id": [1, 2, 3, 4], "j": texts})
    writer.abort()
    monkeypatch.undo()

    with table.writer() as writer, pytest.raises(CorruptDataError, match="row 1: column j"):
        writer.claim()
    report = verify(table.location)
    assert [finding.code for finding in report.findings] == ["log-rows-unusable"]
    (action,) = repair(table.location, report, dry_run=False)
    assert action.state == "done"
    assert quarantine(table).read().select(["id", "j"]).to_pylist() == [{"id": 2, "j": texts[1]}]
    table.upsert({"id": [5], "j": ["[]"]})
    table.checkpoint()
    found = {row["id"]: row["j"] for row in table.scan().to_pylist()}
    assert found == {1: "{}", 3: None, 4: "null", 5: "[]"}
    waiting = waiting_rows(table, quarantine(table))
    result = release(table, quarantine(table), origins_of(waiting))
    assert not result.released
    assert len(result.failing) == 1


def test_many_generations(table: memwal.Table) -> None:
    """They do not fit into memory together, and one of them has no usable row."""
    following = manifest(table).current_generation + 1
    append_foreign(table, without_key({9: 9}, 0), generation=following)
    append_foreign(table, rows({9: 4}).to_batches()[0], generation=following + 1)
    table.set_writer_defaults(max_memtable_bytes=1)
    assert set_aside(table) == 2
    assert generations(table) == [1, 2, 4]
    assert state(table) == EXPECTED | {9: 4}


CALLS = [("create", "_mem_wal/*"), ("put", "_mem_wal/*"), ("sync", "*")]


@pytest.mark.few(2)
@pytest.mark.parametrize("after", sampled([False, True], bool))
@pytest.mark.parametrize("skip", sampled(range(6), lambda n: n in (1, 3)))
@pytest.mark.parametrize("call", CALLS)
def test_a_repair_that_dies_is_repeated(
    table: memwal.Table,
    quick_faults: FaultyStores,
    call: tuple[str, str],
    skip: int,
    after: bool,
) -> None:
    store = quick_faults.of(table.location)
    store.kill(*call, skip=skip, after=after)
    try:
        set_aside(table)
    except Killed:
        store.clear()
        set_aside(table)
    store.clear()
    check_healed(table)


def test_two_repairs_at_once(table: memwal.Table, quick_faults: FaultyStores) -> None:
    """The first stands before it inserts into the quarantine, and its row was discarded since."""
    store = quick_faults.of(table.location)
    pause = store.pause("create", "_mem_wal/*/manifest/*", skip=2)
    with pause.holding(set_aside, table) as first:
        store.clear()
        set_aside(table)
        discard(quarantine(table), origins_of(quarantine(table).read()))
    with pytest.raises(RegionFencedError):
        first.result()
    assert quarantine(table).read().num_rows == 0
    assert state(table) == EXPECTED


def test_a_writer_that_was_fenced_by_it(table: memwal.Table) -> None:
    assert set_aside(table) == 1
    writer = table.writer()
    writer.upsert(rows({6: 6}))
    append_foreign(table, without_key({9: 9}, 0))
    assert set_aside(table) == 1
    with pytest.raises(MemWalError):
        writer.upsert(rows({6: 7}))
    writer.abort()
    assert state(table) == EXPECTED | {6: 6}


def test_a_generation_of_it_is_rebuilt_from_the_log(table: memwal.Table) -> None:
    set_aside(table)
    lost = manifest(table).flushed[-1]
    assert rebuild_generation(table.base(), REGION, lost)
    assert manifest(table).flushed[-1] != lost
    assert state(table) == EXPECTED


def test_its_rows_are_never_released(table: memwal.Table) -> None:
    set_aside(table)
    kept = quarantine(table)
    (origin,) = origins_of(waiting_rows(table, kept))
    done = release(table, kept, [origin])
    assert done.released == ()
    assert list(done.failing) == [origin]
    assert discard(kept, [origin]) == 1


def test_required_values(make_table: MakeTable) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("n", pa.int64(), nullable=False),
            pa.field("s", pa.struct([pa.field("x", pa.int64())])),
        ]
    )
    table = make_table(schema=schema)
    table.upsert(pa.table({"id": [1, 5], "n": [1, 5], "s": [{"x": 1}] * 2}, schema=schema))
    columns = {
        "id": [2, 4, 5, 6],
        "n": [None, 4, None, 6],
        "s": pa.array([{"x": 2}, None, None, None], pa.struct([pa.field("x", pa.int64())])),
        "_tombstone": [False, False, True, None],
    }
    append_foreign(table, pa.record_batch(columns))
    assert set_aside(table) == 2
    assert quarantine(table).read().column("id").to_pylist() == [2, 6]
    table.merge()
    assert sorted(table.base().dataset.to_table().column("id").to_pylist()) == [1, 4]
