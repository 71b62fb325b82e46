"""The log grain of a feed: each version of a row, in the order of its region."""

from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.data.tables import REGION, SCHEMA, MakeTable, flush, flush_and_merge, keys, rows
from support.oracles import native
from support.oracles.native import collect_all

import memwal
from memwal.errors import InvalidInputError, TokenExpiredError
from memwal.feed.state import read_state
from memwal.format.region_manifest import RegionManifest
from memwal.reader.sources import snapshot
from memwal.region.manifest_store import read_manifests

Versions = list[tuple[int, int | None]]


def versions(table: memwal.Table, token: str, *, until: str | None = None) -> Versions:
    """Key and number of each version after a token, None for a delete, in the order told."""
    feed = table.changes(token, until=until, grain="log")
    found = feed.to_table()
    assert found.schema == feed.schema
    for row in found.to_pylist():
        is_delete = row["_change"] == "delete"
        assert row["text"] == (None if is_delete else f"{row['id']}={row['n']}")
        assert row["n"] is None or not is_delete
    return list(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def table(request: pytest.FixtureRequest, make_table: MakeTable) -> memwal.Table:
    table = make_table(stable_row_ids=request.param)
    flush_and_merge(table, dict.fromkeys(range(6), 0))
    return table


def test_each_version_in_the_order_of_the_log(table: memwal.Table) -> None:
    token = table.changes().token
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 1}))
        writer.upsert(rows({2: 2, 3: 2}))
        middle = table.changes(token).token
        writer.delete(keys(1))
        writer.flush()
        writer.upsert(rows({1: 3}))
        told = versions(table, token)
        assert told == [(1, 1), (2, 1), (2, 2), (3, 2), (1, None), (1, 3)]
        assert versions(table, token, until=middle) == told[:4]
        assert versions(table, middle) == told[4:]
        found = table.changes(token, grain="log").to_table()
        assert found["_gen"].to_pylist() == [1 + 1] * 5 + [3]
        positions = found["_position"].to_pylist()
        assert positions == sorted(positions)
        assert len(set(positions)) == 4
        assert set(found["_region"].to_pylist()) == {str(REGION)}
    for step in (table.merge, table.build_snapshot, table.compact):
        step()
        assert versions(table, token) == told
        assert versions(table, table.changes("now").token) == []


def test_direct_writes_follow_the_logs(table: memwal.Table) -> None:
    token = table.changes().token
    flush_and_merge(table, {1: 1, 2: 1, 3: 1})
    dataset = native.dataset(table)
    dataset.merge_insert("id").when_matched_update_all().execute(rows({1: 9, 4: 9, 5: 9}))
    native.dataset(table).delete("id = 2")
    flush(table, {4: 2})
    found = table.changes(token, grain="log").to_table()
    base = found.filter(pc.equal(found["_gen"], 0))
    told = [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert versions(table, token)[:4] == told
    # The generation has a newer row of 4.
    assert sorted(zip(base["id"].to_pylist(), base["n"].to_pylist(), strict=True)) == [
        (1, 9),
        (2, None),
        (5, 9),
    ]
    assert found.num_rows == len(told) + 3


def test_flushed_rows_that_are_merged_while_a_read_is_planned(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation is flushed and merged after the manifests are read, before the base table is."""

    def read(*arguments: object, **options: object) -> dict[UUID, RegionManifest]:
        manifests = read_manifests(*arguments, **options)  # type: ignore[arg-type]
        monkeypatch.undo()
        flush_and_merge(table, {1: 1})
        return manifests

    monkeypatch.setattr(snapshot, "read_manifests", read)
    token = read_state(table.location, flushed=True).token
    assert token.version == table.base().version

    table.base().dataset.tags.create("held", token.version)
    assert versions(table, str(token)) == []
    flush_and_merge(table, {2: 2})
    collect_all(table)
    assert versions(table, str(token)) == [(2, 2)]


def test_entries_that_are_gone(table: memwal.Table) -> None:
    dataset = native.dataset(table)
    dataset.tags.create("kept", dataset.version)
    token = table.changes().token
    flush_and_merge(table, {1: 1}, {1: 2}, [1])
    collect_all(table)
    later = table.changes().token
    told = versions(table, token)
    assert told[:3] == [(1, 1), (1, 2), (1, None)]
    # A merge may delete in a commit of its own.
    assert set(told[3:]) <= {(1, None)}
    dataset.tags.delete("kept")
    collect_all(table)
    with pytest.raises(TokenExpiredError):
        versions(table, token)
    assert versions(table, later) == []


def test_entries_that_were_abandoned(table: memwal.Table) -> None:
    token = table.changes().token
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        writer.abort()
    with table.writer(replay=False) as writer:
        writer.upsert(rows({2: 2}))
        with pytest.raises(TokenExpiredError):
            versions(table, token)
        assert versions(table, table.changes().token) == []


def test_generations_that_were_given_up(table: memwal.Table) -> None:
    token = table.changes().token
    flush(table, {1: 1})
    table.restore(discard_pending=True)
    with pytest.raises(TokenExpiredError):
        versions(table, token)


def test_columns_and_filter(table: memwal.Table) -> None:
    token = table.changes().token
    flush(table, {1: 1, 2: 2}, [1, 2], {1: 3})
    feed = table.changes(token, columns=["n"], filter="n != 2", grain="log")
    assert feed.schema.names[:2] == ["id", "n"]
    told = feed.to_table().select(["id", "n"]).to_pydict()
    assert told == {"id": [1, 1, 2, 1], "n": [1, None, None, 3]}
    with pytest.raises(InvalidInputError):
        table.changes(token, grain="other")  # type: ignore[arg-type]


def test_regions_and_another_spec(make_table: MakeTable) -> None:
    table = make_table(buckets=3)
    token = table.changes().token
    flush(table, dict.fromkeys(range(9), 1))
    table = memwal.add_region_spec(table.uri, memwal.RegionSpec.bucket("id", 2))
    flush(table, dict.fromkeys(range(9), 2))
    told = versions(table, token)
    assert sorted(told[:9]) == [(key, 1) for key in range(9)]
    assert sorted(told[9:]) == [(key, 2) for key in range(9)]
    assert len(set(table.changes(token, grain="log").to_table()["_region"].to_pylist())) == 5


def test_rows_of_several_parts_and_clients(make_table: MakeTable) -> None:
    table = make_table(pa.schema([SCHEMA.field(0), ("text", pa.string())]))
    token = table.changes().token
    wide = "x" * (5 << 20)
    native.upsert(table, pa.table({"id": [0], "text": [wide]}))
    with table.writer() as writer:
        for number in range(1, 4):
            writer.upsert({"id": number, "text": wide})
            writer.delete([number])
    feed = table.changes(token, columns=[], grain="log")
    assert feed.to_table()["id"].to_pylist() == [0, 1, 1, 2, 2, 3, 3]
    assert len(list(feed)) > 1
