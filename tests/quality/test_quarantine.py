"""Rows in quarantine: shown, written again, discarded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from support.quarantined import flush, positive, quarantine, rules, waiting
from support.tables import MakeTable, base_state, rows

import memwal
from memwal.errors import InvalidInputError, TableSetupError
from memwal.quality.quarantine import Origin, Quarantine, State, describe, origins_of
from memwal.quality.release import discard, release, waiting_rows


@pytest.fixture
def kept(table: memwal.Table) -> memwal.Table:
    """Return a table of which three rows were kept out."""
    flush(table, {1: -1, 2: 2, 3: 300}, {1: -2})
    table.merge(quality=rules("quarantine"))
    assert waiting(table) == {(1, 1, -1), (2, 1, -2), (1, 3, 300)}
    return table


def origins(table: memwal.Table) -> dict[tuple[int, int], Origin]:
    found = quarantine(table).read()
    keys = found.column("id").to_pylist()
    return {(o.generation, key): o for o, key in zip(origins_of(found), keys, strict=True)}


def test_rows_are_described_by_their_keys(kept: memwal.Table) -> None:
    found = describe(quarantine(kept).read(), kept.primary_key)
    assert {one["key"]["id"] for one in found} == {1, 3}
    assert all("row" not in one and "min_value" in one["reason"] for one in found)
    whole = describe(quarantine(kept).read(), kept.primary_key, values=True)
    assert {one["row"]["n"] for one in whole} == {-1, -2, 300}


def test_a_release_writes_rows_again(kept: memwal.Table) -> None:
    where = origins(kept)
    done = release(kept, quarantine(kept), [where[1, 3]])
    assert done.released == (where[1, 3],)
    assert waiting(kept) == {(1, 1, -1), (2, 1, -2)}
    kept.merge()
    assert base_state(kept) == {2: 2, 3: 300}


def test_of_two_rows_of_a_key_the_newest_stays(kept: memwal.Table) -> None:
    where = origins(kept)
    release(kept, quarantine(kept), [where[2, 1], where[1, 1]])
    kept.merge()
    assert base_state(kept) == {1: -2, 2: 2}


def test_what_would_be_kept_out_again_is_not_released(kept: memwal.Table) -> None:
    wider = positive()
    wider["kwargs"] = {**wider["kwargs"], "max_value": 1000}
    done = release(
        kept, quarantine(kept), list(origins(kept).values()), rules=rules("quarantine", wider)
    )
    assert done.released == (origins_of(quarantine(kept).read(state=State.RELEASED))[0],)
    assert {origin.generation for origin in done.failing} == {1, 2}
    assert waiting(kept) == {(1, 1, -1), (2, 1, -2)}


def test_a_release_that_died_before_its_note_is_repeated(
    kept: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = origins(kept)

    def die(*arguments: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Quarantine, "mark", die)
        with pytest.raises(KeyboardInterrupt):
            release(kept, quarantine(kept), [where[1, 3]])
    # It waits by its state, and is shown no more, since the table has the very row.
    assert (1, 3, 300) in waiting(kept)
    assert where[1, 3] not in origins_of(waiting_rows(kept, quarantine(kept)))
    release(kept, quarantine(kept), [where[1, 3]])
    kept.merge()
    assert base_state(kept) == {2: 2, 3: 300}


def test_discarded_rows_do_not_come_back(kept: memwal.Table) -> None:
    where = origins(kept)
    assert discard(quarantine(kept), [where[1, 1], where[2, 1]]) == 2
    assert discard(quarantine(kept), [where[1, 1]]) == 0
    again = quarantine(kept).read(state=State.DISCARDED)
    # As a merger that wakes late would.
    quarantine(kept).write(again)
    assert waiting(kept) == {(1, 3, 300)}


def test_what_is_done_with_is_purged(kept: memwal.Table) -> None:
    discard(quarantine(kept), list(origins(kept).values())[:2])
    now = datetime.now(UTC)
    assert quarantine(kept).purge(before=now - timedelta(days=1)) == 0
    assert quarantine(kept).purge(before=now + timedelta(days=1)) == 2
    assert quarantine(kept).read(state=None).num_rows == 1


def test_an_empty_quarantine(table: memwal.Table) -> None:
    there = quarantine(table)
    assert there.read().num_rows == 0
    assert discard(there, [Origin(uuid4(), 1, 1)]) == 0
    assert release(table, there, [Origin(uuid4(), 1, 1)]).released == ()
    assert there.purge(before=datetime.now(UTC)) == 0
    there.settle({})
    assert not there.location.store.list_folders("")


@pytest.mark.parametrize("text", ["", "x/1/2", f"{UUID(int=1)}/1", f"{UUID(int=1)}/1/x"])
def test_what_is_no_origin(text: str) -> None:
    with pytest.raises(InvalidInputError, match="REGION/GENERATION/ROW"):
        Origin.parse(text)


def test_an_origin_is_read_as_it_is_written() -> None:
    origin = Origin(uuid4(), 7, 8)
    assert Origin.parse(str(origin)) == origin


def test_a_column_that_changed_its_type(kept: memwal.Table) -> None:
    found = quarantine(kept).read()
    other = found.set_column(
        found.schema.get_field_index("n"), "n", pa.array([["x"]] * 3, pa.list_(pa.string()))
    )
    with pytest.raises(TableSetupError, match="another quarantine_uri"):
        quarantine(kept).write(other)


def test_a_table_whose_columns_have_the_names_of_ours(make_table: MakeTable) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("quarantine_at", pa.int64())])
    table = make_table(schema)
    with table.writer() as writer:
        writer.upsert(pa.table({"id": [1], "quarantine_at": [None]}, schema=schema))
    null = {
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": "quarantine_at"},
    }
    with pytest.raises(InvalidInputError, match="quarantine_at"):
        table.merge(quality=rules("quarantine", null))
    assert table.merge(quality=rules("warn", null)).figures["generations"] == 1


def test_vectors_and_several_keys(make_table: MakeTable) -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.string(), nullable=False),
            pa.field("b", pa.binary(), nullable=False),
            ("v", pa.list_(pa.float32(), 2)),
        ]
    )
    table = make_table(schema, primary_key=("a", "b"))
    vectors = [[1.0, 0.0], [float("nan"), 0.0], None]
    some = pa.table({"a": ["x", "x", "y"], "b": [b"1", b"2", b"3"], "v": vectors}, schema=schema)
    with table.writer() as writer:
        writer.upsert(some)
    suite = [
        {"type": f"expect_vector_values_to_{what}", "kwargs": {"column": "v"}}
        for what in ("not_be_null", "be_finite")
    ]
    result = table.merge(quality=rules("quarantine", *suite))
    assert table.base().dataset.count_rows() == 1
    assert result.quality is not None
    assert result.quality["expectations"][0]["examples"] == [{"a": "y", "b": "33"}]
    done = release(table, quarantine(table), origins_of(quarantine(table).read()))
    assert len(done.released) == 2
    assert waiting_rows(table, quarantine(table)).num_rows == 0
    table.merge()
    assert table.base().dataset.count_rows() == 3


def test_later_rows_are_not_hidden_by_equal_keys(kept: memwal.Table) -> None:
    with kept.writer() as writer:
        writer.upsert(rows({3: 5}))
    assert waiting_rows(kept, quarantine(kept)).num_rows == 3
