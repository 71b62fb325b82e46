"""Rows in quarantine: shown, written again, discarded."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import lance
import pyarrow as pa
import pytest
from lance.dataset import MergeInsertBuilder
from support.data.quarantined import positive, quarantine, rules, waiting
from support.data.tables import SCHEMA, MakeTable, base_state, flush, folder, merged, rows
from support.stores.faulty_store import Killed

import memwal
from memwal.errors import InvalidInputError, MemWalError, StoreAccessError, TableSetupError
from memwal.quality import quarantine as quarantining
from memwal.quality.quarantine import Quarantine, RowOrigin, RowState, describe_rows, origins_of
from memwal.quarantine_review import discard, release, waiting_rows
from memwal.storage.location import TableLocation


@pytest.fixture
def kept(table: memwal.Table) -> memwal.Table:
    """Return a table of which three rows were kept out."""
    flush(table, {1: -1, 2: 2, 3: 300}, {1: -2})
    table.merge(quality=rules("quarantine"))
    assert waiting(table) == {(1, 1, -1), (2, 1, -2), (1, 3, 300)}
    return table


def origins(table: memwal.Table) -> dict[tuple[int, int], RowOrigin]:
    found = quarantine(table).read()
    keys = found.column("id").to_pylist()
    return {(o.generation, key): o for o, key in zip(origins_of(found), keys, strict=True)}


def test_rows_are_described_by_their_keys(kept: memwal.Table) -> None:
    found = describe_rows(quarantine(kept).read(), kept.primary_key)
    assert {one["key"]["id"] for one in found} == {1, 3}
    assert all("row" not in one and "min_value" in one["reason"] for one in found)
    whole = describe_rows(quarantine(kept).read(), kept.primary_key, values=True)
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
    assert done.released == (origins_of(quarantine(kept).read(state=RowState.RELEASED))[0],)
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
    again = quarantine(kept).read(state=RowState.DISCARDED)
    # As a merger that wakes late would.
    quarantine(kept).write(again)
    assert waiting(kept) == {(1, 3, 300)}


def test_what_is_done_with_is_purged(kept: memwal.Table) -> None:
    where = origins(kept)
    discard(quarantine(kept), [where[1, 1], where[2, 1]])
    now = datetime.now(UTC)
    assert quarantine(kept).purge(before=now - timedelta(days=1), stored=()) == 0
    stored = [where[1, 1].folder]
    assert quarantine(kept).purge(before=now + timedelta(days=1), stored=stored) == 1
    assert quarantine(kept).read(state=None).num_rows == 2
    assert quarantine(kept).purge(before=now + timedelta(days=1), stored=()) == 1
    assert quarantine(kept).read(state=None).num_rows == 1


def test_an_empty_quarantine(table: memwal.Table) -> None:
    there = quarantine(table)
    assert there.read().num_rows == 0
    assert discard(there, [RowOrigin(uuid4(), "0123abcd_gen_1", 1)]) == 0
    assert release(table, there, [RowOrigin(uuid4(), "0123abcd_gen_1", 1)]).released == ()
    assert there.purge(before=datetime.now(UTC), stored=()) == 0
    there.settle({})
    assert not there.location.store.list_folders("")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x/0123abcd_gen_1/2",
        f"{UUID(int=1)}/0123abcd_gen_1",
        f"{UUID(int=1)}/0123abcd_gen_1/x",
        f"{UUID(int=1)}/1/2",
        f"{UUID(int=1)}/' OR 1=1 --/2",
    ],
)
def test_what_is_no_origin(text: str) -> None:
    with pytest.raises(InvalidInputError):
        RowOrigin.parse(text)


def test_an_origin_is_read_as_it_is_written() -> None:
    origin = RowOrigin(uuid4(), "0123abcd_gen_7", 8)
    assert RowOrigin.parse(str(origin)) == origin


def test_a_column_that_changed_its_type(kept: memwal.Table) -> None:
    found = quarantine(kept).read()
    other = found.set_column(
        found.schema.get_field_index("n"), "n", pa.array([["x"]] * 3, pa.list_(pa.string()))
    )
    with pytest.raises(TableSetupError, match="quarantine_uri"):
        quarantine(kept).write(other)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 3)),
        (pa.float32(), pa.float64()),
        (pa.struct([("a", pa.list_(pa.float32()))]), pa.struct([("a", pa.list_(pa.float64()))])),
        (
            pa.map_(pa.string(), pa.struct([("a", pa.int8())])),
            pa.map_(pa.string(), pa.struct([("a", pa.int8()), ("b", pa.int8())])),
        ),
        (
            pa.large_list(pa.struct([("a", pa.int8())])),
            pa.large_list(pa.struct([("a", pa.int8()), ("b", pa.int8())])),
        ),
        (
            pa.list_(pa.struct([("a", pa.int8())])),
            pa.large_list(pa.struct([("a", pa.int8()), ("b", pa.int8())])),
        ),
        (
            pa.list_(pa.struct([("a", pa.int8())]), 2),
            pa.list_(pa.struct([("a", pa.int8()), ("b", pa.int8())]), 2),
        ),
    ],
    ids=str,
)
def test_a_column_whose_values_would_be_lost(
    kept: memwal.Table, before: pa.DataType, now: pa.DataType
) -> None:
    found = quarantine(kept).read()
    quarantine(kept).write(found.append_column("v", pa.nulls(3, before)))
    with pytest.raises(TableSetupError, match="quarantine_uri"):
        quarantine(kept).write(found.append_column("v", pa.nulls(3, now)))
    assert quarantine(kept).read().num_rows == 3


def test_a_quarantine_whose_files_take_no_new_field(kept: memwal.Table) -> None:
    found = quarantine(kept).read()

    def with_struct(*names: str) -> pa.Table:
        kind = pa.struct([(name, pa.int8()) for name in names])
        return found.append_column("v", pa.nulls(3, kind))

    address = quarantine(kept).location.uri
    lance.write_dataset(with_struct("a"), address, mode="overwrite", data_storage_version="2.1")
    with pytest.raises(TableSetupError, match="quarantine_uri"):
        quarantine(kept).write(with_struct("a", "b"))


def test_a_table_whose_columns_have_the_names_of_ours(make_table: MakeTable) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("quarantine_at", pa.int64())])
    table = make_table(schema)
    table.upsert(pa.table({"id": [1], "quarantine_at": [None]}, schema=schema))
    null = {
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": "quarantine_at"},
    }
    with pytest.raises(InvalidInputError, match="quarantine_at"):
        table.merge(quality=rules("quarantine", null))
    assert table.merge(quality=rules("warn", null)).metrics["generations"] == 1


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
    table.upsert(some)
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
    kept.upsert(rows({3: 5}))
    assert waiting_rows(kept, quarantine(kept)).num_rows == 3


def test_two_tables_at_one_address_lose_nothing(make_table: MakeTable) -> None:
    """Their regions, generations and rows have the same numbers."""
    one, other = make_table(), make_table()
    shared = rules("quarantine", quarantine_uri=one.uri.replace(".lance", "") + "-shared.lance")
    flush(one, {1: -1})
    flush(other, {2: -2})
    one.merge(quality=shared)
    other.merge(quality=shared)
    found = Quarantine.of(one.location, shared.quarantine_uri).read()
    assert sorted(found["n"].to_pylist()) == [-2, -1]


def test_a_table_that_is_made_anew_loses_nothing(
    table: memwal.Table,
) -> None:
    flush(table, {1: -1})
    table.merge(quality=rules("quarantine"))
    shutil.rmtree(folder(table))
    again = memwal.create(table.uri, SCHEMA, primary_key="id")
    flush(again, {2: -2})
    again.merge(quality=rules("quarantine"))
    assert {key for _, key, _ in waiting(again)} == {1, 2}


@pytest.mark.parametrize("step", ["read", "commit"])
def test_a_quarantine_that_cannot_be_settled_fails_no_merge(
    kept: memwal.Table, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    flush(kept, {7: -7})

    def fail(*arguments: object, **more: object) -> object:
        raise OSError("IO error: the store answered 500")

    real = Quarantine.settle

    def settle(self: Quarantine, *arguments: Any, **more: Any) -> None:
        with monkeypatch.context() as patch:
            what = {"read": "to_table", "commit": "delete"}[step]
            patch.setattr(lance.LanceDataset, what, fail)
            real(self, *arguments, **more)

    monkeypatch.setattr(Quarantine, "settle", settle)
    result = kept.merge(quality=rules("quarantine"))
    assert result.metrics["generations"] == 1
    assert (3, 7, -7) in waiting(kept)


@pytest.mark.parametrize("mode", ["warn", "skip"])
def test_rules_that_changed_before_a_merge_was_repeated(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The merge that kept the row out died; the next one lets it in."""
    flush(table, {1: -1})

    def die(*arguments: object) -> int:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(MergeInsertBuilder, "mark_sstables_as_compacted", die)
        table.merge(quality=rules("quarantine"))
    assert waiting(table) == {(1, 1, -1)}
    negative = positive()
    negative["kwargs"] = {"column": "n", "max_value": 0}
    table.merge(quality=rules(mode, negative))
    assert base_state(table) == {1: -1}
    assert waiting(table) == set()


def test_a_release_loses_no_value_of_a_column_that_has_another_name(kept: memwal.Table) -> None:
    kept.base().dataset.alter_columns({"path": "text", "name": "words"})
    table = memwal.open(kept.uri)
    (origin,) = [origins(table)[1, 3]]
    wide = positive()
    wide["kwargs"] = {**wide["kwargs"], "max_value": 1000}
    done = release(table, quarantine(table), [origin], rules=rules("quarantine", wide))
    assert done.failing == {origin: ("the table has no column text",)}
    assert (1, 3, 300) in waiting(table)
    assert release(table, quarantine(table), [origin]).released == (origin,)


NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int64()),
        ("x", pa.struct([("a", pa.int64())])),
        ("y", pa.list_(pa.struct([("a", pa.int64())]))),
    ]
)


def nested(key: int, **fields: int | None) -> dict[str, object]:
    return {"id": key, "n": -1, "x": fields, "y": [fields]}


def test_values_of_fields_that_are_added_to_structs_are_kept(make_table: MakeTable) -> None:
    table = make_table(NESTED)
    null = {"id": 3, "n": -1, "x": None, "y": None}
    table.upsert([nested(1, a=1), null])
    table.merge(quality=rules("quarantine"))
    added = pa.struct([("b", pa.int64())])
    lance.dataset(table.uri).add_columns(pa.schema([("x", added), ("y", pa.list_(added))]))
    table = memwal.open(table.uri)
    table.upsert([nested(2, a=3, b=4)])
    table.merge(quality=rules("quarantine"))
    there = quarantine(table)
    assert len(release(table, there, origins_of(there.read())).released) == 3
    expected = [nested(1, a=1, b=None), nested(2, a=3, b=4), null]
    assert table.scan().to_table().sort_by("id").to_pylist() == expected


def test_a_release_loses_no_value_of_a_field_that_was_dropped(make_table: MakeTable) -> None:
    both = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    table = make_table(pa.schema([*NESTED][:2]).append(pa.field("x", both)))
    table.upsert([{"id": key, "n": -1, "x": {"a": 1, "b": b}} for key, b in ((1, 2), (2, None))])
    table.upsert([{"id": 3, "n": -1, "x": None}])
    table.merge(quality=rules("quarantine"))
    lance.dataset(table.uri).drop_columns(["x.b"])
    table, there = memwal.open(table.uri), quarantine(table)
    where = origins(table)
    negative = positive(kwargs={"column": "n", "max_value": 0})
    done = release(table, there, list(where.values()), rules=rules("warn", negative))
    assert [*done.failing] == [where[1, 1]]
    assert waiting(table) == {(1, 1, -1)}
    assert table.scan().to_table().num_rows == 2


def test_where_nothing_can_be_written_nothing_is_merged(table: memwal.Table) -> None:
    flush(table, {1: -1, 2: 2})
    with pytest.raises(MemWalError, match="/proc"):
        table.merge(quality=rules("quarantine", quarantine_uri="/proc/nowhere/quarantine.lance"))
    assert merged(table) == 0
    assert table.merge(quality=rules("quarantine")).metrics["rows_upserted"] == 1
    assert waiting(table) == {(1, 1, -1)}


def test_one_that_cannot_be_described_is_not_taken_for_an_empty_one(
    kept: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned_up = TableSetupError("the version has no manifest; it was cleaned up")

    def fail(*_: Any) -> None:
        raise cleaned_up

    monkeypatch.setattr(quarantining, "open_base", fail)
    with pytest.raises(TableSetupError) as raised:
        quarantine(kept).read()
    assert raised.value is cleaned_up


def test_what_waits_in_quarantine_is_no_finding_of_a_verification(table: memwal.Table) -> None:
    flush(table, {1: 1, 2: 2}, {1: -1, 2: 3, 4: 400})
    table.merge(quality=rules("quarantine"))
    assert waiting(table) == {(2, 1, -1), (2, 4, 400)}
    assert table.verify().clean
    # A row that is really lost is told, beside those.
    table.base().dataset.delete("id = 2")
    (finding,) = table.verify().findings
    assert finding.code == "merged-row-changed"


@pytest.mark.parametrize("key", [["id"], []])
def test_a_verification_knows_the_quarantine_of_rules_without_an_address(
    tmp_path: Path, key: list[str]
) -> None:
    """Rows of earlier rules stay there when others get an address."""
    lance.write_dataset(rows({1: 0}), tmp_path / "table.lance")
    spec = memwal.RegionSpec.unsharded()
    table = memwal.enable(tmp_path / "table.lance", primary_key=key, region_spec=spec)
    elsewhere = str(tmp_path / "elsewhere.lance")
    write = table.upsert if key else table.append
    for first, uri in ((1, None), (3, elsewhere)):
        write(rows({first: -1, first + 1: 1}))
        table.merge(quality=rules("quarantine", quarantine_uri=uri))
    # A merge that died before its commit has left a row in both.
    there = Quarantine(TableLocation(elsewhere))
    quarantine(table).write(there.read())

    assert table.verify(quarantine_uri=elsewhere).clean


def test_a_verification_without_rights_for_a_quarantine_that_has_no_rules(
    table: memwal.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(table, {1: -1, 2: 2})
    elsewhere = str(tmp_path / "elsewhere.lance")
    table.merge(quality=rules("quarantine", quarantine_uri=elsewhere))
    read = Quarantine.read

    def without_rights(there: Quarantine, **options: Any) -> pa.Table:
        if there.location == quarantine(table).location:
            raise StoreAccessError("access denied")
        return read(there, **options)

    monkeypatch.setattr(Quarantine, "read", without_rights)
    assert table.verify(quarantine_uri=elsewhere).clean
    with pytest.raises(StoreAccessError):
        table.verify()
