"""The feed of a table without a primary key: each row once."""

import random
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support.oracles import native
from support.oracles.native import collect_all

import memwal
from memwal.errors import InvalidInputError, TokenExpiredError

SCHEMA = pa.schema([("at", pa.int64())])
FEW_ROWS = memwal.WriterOptions(max_memtable_rows=2)
DECISIONS: list[dict[str, bool]] = [{}, {}, {"merge_again": True}, {"discard_pending": True}]


def rows(*moments: int) -> pa.Table:
    return pa.table({"at": moments}, SCHEMA)


class Consumer:
    """Reads a table from token to token."""

    def __init__(self, table: memwal.Table) -> None:
        self.table = table
        self.token: str | None = None

    def read(self) -> list[int]:
        """The rows since the last call, sorted."""
        feed = memwal.open(self.table.uri).changes(self.token)
        found = feed.to_table()
        assert set(found["_change"].to_pylist()) <= {"upsert"}
        assert feed.to_table().equals(found)
        self.token = feed.token
        return sorted(found["at"].to_pylist())


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> memwal.Table:
    uri = str(tmp_path / "t.lance")
    return memwal.create(uri, SCHEMA, primary_key=None, stable_row_ids=request.param)


@pytest.fixture
def consumer(table: memwal.Table) -> Consumer:
    """One that has read rows of the base table, of a generation, and of the log."""
    with table.writer() as writer:
        writer.append(rows(0, 0))
        writer.flush()
        table.merge()
        writer.append(rows(1))
        writer.flush()
        writer.append(rows(2))
        writer.abort()
    consumer = Consumer(table)
    assert consumer.read() == [0, 0, 1, 2]
    assert consumer.read() == []
    return consumer


def test_each_row_once_however_it_moves_on(table: memwal.Table, consumer: Consumer) -> None:
    with table.writer(options=FEW_ROWS) as writer:
        writer.append(rows(3))
        assert consumer.read() == [3]
        writer.append(rows(3, 4, 5))
        writer.append(rows(6))
    table.merge()
    table.append(rows(7))
    assert consumer.read() == [3, 4, 5, 6, 7]
    for step in (table.merge, lambda: collect_all(table), lambda: table.compact(min_fragments=2)):
        step()
        assert consumer.read() == []


def test_order_and_the_columns_of_a_feed(table: memwal.Table, consumer: Consumer) -> None:
    table.append(rows(5, 4))
    table.append(rows(3))
    found = table.changes(consumer.token, filter="at > 3").to_table()
    assert found["at"].to_pylist() == [5, 4]
    assert found["_position"].null_count == 0
    assert found.equals(table.changes(consumer.token, filter="at > 3", grain="log").to_table())


def test_direct_writes(table: memwal.Table, consumer: Consumer) -> None:
    lance.write_dataset(rows(8, 9), table.uri, mode="append")
    table.merge()
    # Nothing tells of a deleted row.
    native.dataset(table).delete("at = 0")
    table.compact(min_fragments=2)
    assert consumer.read() == [8, 9]


def test_a_feed_is_that_of_its_token(table: memwal.Table, consumer: Consumer) -> None:
    for token in (None, consumer.token):
        table.append(rows(3))
        feed = table.changes(token)
        wanted = sorted(feed.to_table()["at"].to_pylist())
        table.append(rows(4))
        if token is None:
            # They would be flushed together with rows of the feed.
            assert sorted(feed.to_table()["at"].to_pylist()) == wanted
        table.merge()
        table.append(rows(5))
        later = table.changes(feed.token)
        assert sorted(later.to_table()["at"].to_pylist()) == [4, 5]
        if token is not None:
            assert sorted(feed.to_table()["at"].to_pylist()) == wanted
            found = table.changes(feed.token, until=later.token).to_table()
            assert sorted(found["at"].to_pylist()) == [4, 5]


@pytest.mark.parametrize("by_lance", [False, True])
@pytest.mark.parametrize("merge", [False, True])
def test_a_restore_past_a_compaction(
    table: memwal.Table, consumer: Consumer, merge: bool, by_lance: bool
) -> None:
    table.merge()
    lance.write_dataset(rows(8), table.uri, mode="append")
    assert consumer.read() == [8]
    lance.write_dataset(rows(9), table.uri, mode="append")
    table.append(rows(3))
    if merge:
        table.merge()
    before = table.base().version
    if by_lance:
        native.dataset(table).optimize.compact_files()
    else:
        table.compact(min_fragments=2)
    lance.write_dataset(rows(10), table.uri, mode="append")
    native.dataset(table).delete("at = 0")
    table.restore(before)
    assert consumer.read() == [3, 9]
    assert consumer.read() == []


class TestWhatCannotBeTold:
    """What would return a row twice, or not at all, is an error."""

    def test_entries_that_were_collected(self, table: memwal.Table, consumer: Consumer) -> None:
        table.append(rows(3))
        table.merge()
        collect_all(table)
        with pytest.raises(TokenExpiredError):
            consumer.read()

    def test_a_generation_of_both_sides(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.append(rows(1))
            middle = table.changes().token
            writer.append(rows(2))
        assert sorted(table.changes(middle).to_table()["at"].to_pylist()) == [2]
        with pytest.raises(TokenExpiredError):
            table.changes(until=middle)

    def test_a_table_that_went_back(self, table: memwal.Table, consumer: Consumer) -> None:
        before = table.base().version
        table.merge()
        table.restore(before, merge_again=True)
        table.merge()
        with pytest.raises(TokenExpiredError):
            consumer.read()

    def test_a_restore_to_fragments_from_before_the_token(
        self, table: memwal.Table, consumer: Consumer
    ) -> None:
        table.merge()
        before = table.base().version
        table.compact(min_fragments=2)
        assert consumer.read() == []
        table.restore(before)
        with pytest.raises(TokenExpiredError):
            consumer.read()

    def test_a_deleted_row_that_a_restore_brought_back(
        self, table: memwal.Table, consumer: Consumer
    ) -> None:
        before = table.base().version
        native.dataset(table).delete("at = 0")
        assert consumer.read() == []
        table.restore(before)
        with pytest.raises(TokenExpiredError):
            consumer.read()

    def test_versions_in_between(self, table: memwal.Table, consumer: Consumer) -> None:
        dataset = native.dataset(table)
        dataset.tags.create("kept", dataset.version)
        table.merge()
        lance.write_dataset(rows(8), table.uri, mode="append")
        native.dataset(table).cleanup_old_versions(
            timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
        )
        with pytest.raises(TokenExpiredError):
            consumer.read()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(100))
def test_each_row_once_in_random_lives(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    spec = chance.choice([memwal.RegionSpec.unsharded(), memwal.RegionSpec.bucket("at", 2)])
    table = memwal.create(
        str(tmp_path / "t.lance"),
        SCHEMA,
        primary_key=None,
        region_spec=spec,
        stable_row_ids=chance.random() < 0.5,
    )
    writer: memwal.Writer | None = None
    written: set[int] = set()
    # Step, token and rows of what consumers had, and the last steps that collected entries, and
    # that restored a version.
    seen: list[tuple[int, str | None, list[int]]] = [(0, None, [])]
    collected = restored = 0
    for step in range(1, 30):
        # Each row is told from all others.
        moments = [10 * step + n for n in range(chance.randint(1, 3))]
        match chance.randrange(11):
            case 0 | 1 | 2:
                writer = writer or table.writer(options=FEW_ROWS)
                writer.append(rows(*moments))
                written.update(moments)
            case 3:
                if writer is not None:
                    chance.choice([writer.close, writer.abort])()
                writer = None
            case 4 | 5:
                table.merge()
            case 6:
                lance.write_dataset(rows(*moments), table.uri, mode="append")
                written.update(moments)
            case 7:
                table.compact(min_fragments=2)
            case 8:
                collect_all(table)
                collected = step
            case 9:
                native.dataset(table).delete(f"at % 10 = 2 and at > {10 * step - 50}")
            case 10:
                if writer is not None:
                    writer.close()
                writer = None
                versions = [v["version"] for v in native.dataset(table).versions()]
                # One from before MemWAL, or one whose generations are gone.
                with suppress(InvalidInputError):
                    table.restore(chance.choice(versions[-3:]), **chance.choice(DECISIONS))
                    restored = step
        since, token, had = chance.choice([*seen, *seen[-1:] * 3])
        until = chance.choice([None, *(later for at, later, _ in seen if at >= since)])
        try:
            feeds = [memwal.open(table.uri).changes(token, until=until)]
            found = feeds[0].to_table()["at"].to_pylist()
            if until is not None:
                feeds.append(table.changes(until))
                found += feeds[1].to_table()["at"].to_pylist()
        except TokenExpiredError:
            # A token of the beginning may name a part of a generation.
            assert since < max(collected, restored) or (token is None and until is not None)
            continue
        shown = memwal.open(table.uri).fresh().scan().to_table()["at"].to_pylist()
        assert max(Counter(had + found).values(), default=1) == 1
        assert set(shown) <= set(had + found) <= written
        seen.append((step, feeds[-1].token, had + found))
    if writer is not None:
        writer.close()
