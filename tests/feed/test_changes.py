"""What a feed returns for each source of changes."""

import shutil
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest
from support.data.merging import DIVIDED
from support.data.quarantined import rules
from support.data.tables import (
    REGION,
    SCHEMA,
    MakeTable,
    Rows,
    base_state,
    flush,
    flush_and_merge,
    folder,
    keys,
    rows,
    state,
)
from support.oracles import native
from support.oracles.native import collect_all
from support.oracles.read_sources import forget_caches

import memwal
from memwal.errors import ConflictError, InvalidInputError, ProgressLostError, TokenExpiredError
from memwal.feed.base_changes import removed_keys
from memwal.feed.change_rows import Since
from memwal.feed.state import read_state
from memwal.feed.token import FeedToken
from memwal.format.paths import region_dir

KEY = {"lance-schema:unenforced-primary-key": "true"}
Told = dict[int, int | str | None]


def told(feed: pa.Table) -> Told:
    """Key to number, or to "gone", of what a feed returned; each key once."""
    found: Told = {}
    for row in feed.to_pylist():
        assert row["id"] not in found
        is_delete = row["_change"] == "delete"
        assert is_delete or row["text"] == f"{row['id']}={row['n']}"
        assert not (is_delete and row["text"])
        found[row["id"]] = "gone" if is_delete else row["n"]
    return found


class Consumer:
    """Reads a table from token to token, and keeps a copy."""

    def __init__(self, table: memwal.Table) -> None:
        self.table = memwal.open(table.uri)
        self.token: str | None = None
        self.copy: Rows = {}

    def read(self) -> Told:
        """Apply what the feed returns, and return it without deletes of keys that are gone."""
        feed = self.table.changes(self.token)
        found = told(feed.to_table())
        news = {key: n for key, n in found.items() if n != "gone" or key in self.copy}
        self.token = feed.token
        self.copy |= {key: n for key, n in found.items() if not isinstance(n, str)}
        for key in [key for key, n in found.items() if n == "gone"]:
            self.copy.pop(key, None)
        assert self.copy == state(self.table.fresh())
        return news


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def table(request: pytest.FixtureRequest, make_table: MakeTable) -> memwal.Table:
    return make_table(stable_row_ids=request.param)


@pytest.fixture
def consumer(table: memwal.Table) -> Consumer:
    flush_and_merge(table, dict.fromkeys(range(6), 0))
    consumer = Consumer(table)
    assert consumer.read() == dict.fromkeys(range(6), 0)
    assert consumer.read() == {}
    return consumer


def test_each_change_is_told_once_however_it_moves_on(
    table: memwal.Table, consumer: Consumer
) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 7: 1}))
        writer.delete(keys(2))
        assert consumer.read() == {1: 1, 7: 1, 2: "gone"}
        writer.upsert(rows({1: 2}))
        assert consumer.read() == {1: 2}
    for step in (table.merge, table.build_snapshot, lambda: collect_all(table), table.compact):
        step()
        assert consumer.read() == {}


@pytest.mark.parametrize("options", [{}, DIVIDED], ids=["small", "divided"])
def test_changes_that_were_merged_and_collected(
    table: memwal.Table, consumer: Consumer, options: dict[str, int]
) -> None:
    flush(table, {1: 1, 8: 1}, {1: 2, 9: 2}, [3, 8])
    table.merge(**options)
    collect_all(table)
    assert consumer.read() == {1: 2, 9: 2, 3: "gone"}


@pytest.mark.parametrize("options", [{}, DIVIDED], ids=["small", "divided"])
def test_a_feed_does_not_read_the_keys_of_rows_that_a_merge_replaced(
    table: memwal.Table, consumer: Consumer, options: dict[str, int]
) -> None:
    flush(table, {1: 1, 8: 1, 9: 1}, [3, 8], [9], {9: 2})
    table.merge(**options)
    assert consumer.token is not None
    now = read_state(table.location)
    since = Since.of(FeedToken.parse(consumer.token), now, logged=False)
    # The merge may delete in a commit of its own.
    assert 1 not in removed_keys(now.plan.base, since.base)["id"].to_pylist()
    assert consumer.read() == {1: 1, 3: "gone", 9: 2}


def test_a_compaction_moves_marks(table: memwal.Table, consumer: Consumer) -> None:
    flush_and_merge(table, {1: 1}, [2])
    table.compact(min_fragments=2)
    flush_and_merge(table, {4: 4})
    table.compact(min_fragments=2)
    assert len(table.base().dataset.get_fragments()) == 1
    assert consumer.read() == {1: 1, 2: "gone", 4: 4}


def test_direct_writes(table: memwal.Table, consumer: Consumer) -> None:
    flush(table, {5: 5})
    assert consumer.read() == {5: 5}
    dataset = native.dataset(table)
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        rows({0: 1, 5: 9, 10: 1})
    )
    native.dataset(table).delete("id = 3")
    native.dataset(table).update({"n": "2", "text": "'4=2'"}, where="id = 4")
    lance.write_dataset(rows({11: 1}), table.uri, mode="append")
    # The generation still has the newer row of 5.
    assert consumer.read() == {0: 1, 10: 1, 3: "gone", 4: 2, 11: 1}
    table.merge()
    assert consumer.read() == {}


def test_a_change_of_regions_that_was_interrupted(make_table: MakeTable) -> None:
    table = make_table(buckets=3)
    consumer = Consumer(table)
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 1, 3: 1}))
        writer.flush()
        assert consumer.read() == {1: 1, 2: 1, 3: 1}
        writer.upsert(rows({1: 2}))
        middle = table.changes().token
        writer.delete(keys(2))
        writer.abort()
    table.merge()

    def stop(*_: object) -> list[object]:
        raise ConflictError("stopped")

    spec = memwal.RegionSpec.bucket("id", 2)
    with pytest.raises(ConflictError):
        memwal.add_region_spec(table.uri, spec, run=stop)
    # The regions are sealed, and their last generations are not merged.
    assert base_state(table) == {1: 1, 2: 1, 3: 1}
    assert told(table.changes(consumer.token, until=middle).to_table()) == {1: 2}
    assert consumer.read() == {1: 2, 2: "gone"}
    flush(memwal.add_region_spec(table.uri, spec), {1: 3}, [3])
    assert consumer.read() == {1: 3, 3: "gone"}


def test_a_restore(table: memwal.Table, consumer: Consumer) -> None:
    before = table.base().version
    flush_and_merge(table, {1: 1, 9: 1}, [2])
    assert consumer.read() == {1: 1, 9: 1, 2: "gone"}
    table.restore(before)
    assert consumer.read() == {1: 0, 9: "gone", 2: 0}


def test_what_is_merged_again_after_a_restore(table: memwal.Table, consumer: Consumer) -> None:
    before = table.base().version
    flush_and_merge(table, {1: 1})
    native.dataset(table).update({"n": "9", "text": "'1=9'"}, where="id = 1")
    assert consumer.read() == {1: 9}
    table.restore(before, merge_again=True)
    table.merge()
    assert consumer.read() == {1: 1}


@pytest.mark.parametrize("merge_again", [False, True])
def test_a_restore_that_nobody_has_decided_about(
    table: memwal.Table, consumer: Consumer, merge_again: bool
) -> None:
    before = table.base().version
    flush_and_merge(table, {1: 1, 9: 1}, [2])
    assert consumer.read() == {1: 1, 9: 1, 2: "gone"}
    native.dataset(table).checkout_version(before).restore()
    for until in (None, consumer.token):
        with pytest.raises(ProgressLostError):
            table.changes(until=until)
    table.restore(merge_again=merge_again)
    # What is merged again may be what a restore gave up: it is told once more.
    again: Told = {1: 1, 9: 1}
    assert consumer.read() == (again if merge_again else {1: 0, 9: "gone", 2: 0})


def test_what_was_given_up_is_merged_again(table: memwal.Table, consumer: Consumer) -> None:
    """The reader has seen the restored table, without the generation that is pending again."""
    before = table.base().version
    flush_and_merge(table, {1: 1, 9: 1})
    table.restore(before)
    assert consumer.read() == {1: 0}
    table.restore(before, merge_again=True)
    with pytest.raises(TokenExpiredError):
        table.changes(consumer.token, grain="log").to_table()
    assert consumer.read() == {1: 1, 9: 1}


def test_the_first_generation_was_given_up_and_is_merged_again(table: memwal.Table) -> None:
    before = table.base().version
    flush_and_merge(table, {1: 1})
    table.restore(before)
    consumer = Consumer(table)
    assert consumer.read() == {}
    table.restore(before, merge_again=True)
    assert consumer.read() == {1: 1}


def test_newer_rows_in_the_log_of_what_is_merged_again(
    table: memwal.Table, consumer: Consumer
) -> None:
    before = table.base().version
    flush_and_merge(table, {1: 1, 9: 1})
    writer = table.writer()
    writer.upsert(rows({1: 2}))
    writer.abort()
    assert consumer.read() == {1: 2, 9: 1}
    table.restore(before, merge_again=True)
    assert consumer.read() == {1: 2, 9: 1}


def test_until(table: memwal.Table, consumer: Consumer) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 7: 1}))
        writer.flush()
        writer.upsert(rows({2: 1}))
        middle = table.changes().token
        wanted: Told = {1: 1, 7: 1, 2: 1}
        writer.upsert(rows({1: 2, 8: 2}))
        writer.delete(keys(7))
        assert told(table.changes(consumer.token, until=middle).to_table()) == wanted
        with pytest.raises(InvalidInputError):
            table.changes(table.changes().token, until=middle)
    dataset = native.dataset(table)
    dataset.tags.create("kept", dataset.version)
    table.merge()
    collect_all(table)
    # Rows that were in the log are in a generation with newer ones by now.
    newer: Told = {1: 2, 2: 1, 8: 2}
    for start, others in ((consumer.token, {7: "gone"}), (None, dict.fromkeys((0, 3, 4, 5), 0))):
        feed = table.changes(start, until=middle)
        assert feed.token == middle
        assert told(feed.to_table()) == newer | others
    assert told(table.changes(middle).to_table()).keys() >= {1, 7, 8}
    with pytest.raises(InvalidInputError):
        table.changes(table.changes().token, until=middle)
    dataset.tags.delete("kept")
    collect_all(table)
    with pytest.raises(TokenExpiredError):
        table.changes(until=middle)


class TestGoneSources:
    """What no source tells any more is an error, and never left out."""

    def test_a_row_that_only_the_log_had_and_a_merge_deleted(self, make_table: MakeTable) -> None:
        table = make_table()
        consumer = Consumer(table)
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            assert consumer.read() == {1: 1, 2: 2}
            writer.delete(keys(1))
        early = consumer.token
        table.merge()
        # The generation has rows from before the token, and from after it.
        assert consumer.read() == {1: "gone", 2: 2}
        collect_all(table)
        assert consumer.read() == {}
        with pytest.raises(TokenExpiredError):
            table.changes(early).to_table()

    def test_versions_in_between(self, table: memwal.Table, consumer: Consumer) -> None:
        dataset = native.dataset(table)
        dataset.tags.create("kept", dataset.version)
        flush_and_merge(table, {1: 1}, [2])
        native.dataset(table).delete("id = 3")
        flush_and_merge(table, {2: 2})
        native.dataset(table).cleanup_old_versions(
            timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
        )
        assert consumer.read() == {1: 1, 2: 2, 3: "gone"}

    @pytest.mark.parametrize("grain", ["net", "log"])
    def test_rows_that_were_merged_and_deleted_in_between(
        self, table: memwal.Table, consumer: Consumer, grain: Literal["net", "log"]
    ) -> None:
        flush(table, {9: 1})
        assert consumer.read() == {9: 1}
        dataset = native.dataset(table)
        dataset.tags.create("kept", dataset.version)
        table.merge()
        native.dataset(table).delete("id = 9")
        native.dataset(table).cleanup_old_versions(
            timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
        )
        found = table.changes(consumer.token, grain=grain).to_table()
        assert told(found) == {9: "gone"}

    def test_the_version_of_the_token(self, table: memwal.Table, consumer: Consumer) -> None:
        flush_and_merge(table, {1: 1})
        native.dataset(table).cleanup_old_versions(timedelta(0), delete_unverified=True)
        with pytest.raises(TokenExpiredError):
            consumer.read()

    def test_another_table(self, make_table: MakeTable) -> None:
        table, other = make_table(), make_table()
        for each in (table, other):
            flush_and_merge(each, {1: 1})
        token = other.changes().token
        flush_and_merge(table, {2: 2})
        with pytest.raises(TokenExpiredError):
            table.changes(token).to_table()

    def test_generations_that_were_given_up(self, table: memwal.Table, consumer: Consumer) -> None:
        before = table.base().version
        flush_and_merge(table, {1: 1})
        flush(table, {2: 2})
        assert consumer.read() == {1: 1, 2: 2}
        table.restore(before, discard_pending=True)
        with pytest.raises(TokenExpiredError):
            consumer.read()

    def test_pending_generations_that_were_given_up(self, table: memwal.Table) -> None:
        consumer = Consumer(table)
        flush(table, {1: 1})
        assert consumer.read() == {1: 1}
        table.restore(discard_pending=True)
        with pytest.raises(TokenExpiredError):
            consumer.read()

    def test_a_region_that_was_started_over(self, table: memwal.Table, consumer: Consumer) -> None:
        flush(table, {1: 1})
        consumer.read()
        shutil.rmtree(folder(table) / region_dir(REGION))
        table.start_region_over(REGION, dry_run=False)
        with pytest.raises(TokenExpiredError):
            table.changes(consumer.token)
        assert told(table.changes(table.changes().token).to_table()) == {}


class TestArguments:
    """What a caller chooses, and what each change tells beside the row."""

    def test_order_in_a_region(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 1}))
            writer.flush()
            writer.upsert(rows({2: 2, 3: 2}))
            writer.delete(keys(1))
            writer.upsert(rows({4: 4}))
            feed = table.changes("now")
            assert feed.to_table().num_rows == 0
            found = table.changes(Consumer(table).token).to_table()
            assert told(found) == {2: 2, 3: 2, 4: 4}
            order = found.sort_by("_position").select(["id", "_gen", "_region"]).to_pydict()
            assert order == {"id": [2, 3, 4], "_gen": [2] * 3, "_region": [str(REGION)] * 3}
            assert len(set(found.column("_position").to_pylist())) == 2
        table.merge()
        found = table.changes().to_table()
        assert set(found.column("_gen").to_pylist()) == {0}
        assert found.column("_region").null_count == found.num_rows == 3

    def test_columns_and_filter(self, table: memwal.Table, consumer: Consumer) -> None:
        flush(table, {1: 1, 2: 2, 3: 3}, [5])
        for _ in range(2):
            feed = table.changes(consumer.token, columns=["n"], filter="text != '1=1'")
            assert feed.schema.names[:2] == ["id", "n"]
            found = feed.to_table().sort_by("id")
            assert found.schema == feed.schema
            assert found.select(["id", "n"]).to_pydict() == {"id": [2, 3, 5], "n": [2, 3, None]}
            table.merge()
        for name in ("other", "_change"):
            with pytest.raises(InvalidInputError):
                table.changes(columns=["n", name])
        with pytest.raises(InvalidInputError):
            table.changes(filter="other > 1")

    def test_a_filter_on_a_column_that_was_dropped(
        self, table: memwal.Table, consumer: Consumer
    ) -> None:
        flush(table, {1: 1, 2: -1})
        token = table.changes().token
        native.dataset(table).drop_columns(["n"])
        with pytest.raises(InvalidInputError):
            table.changes(consumer.token, filter="n > 0")
        feed = table.changes(consumer.token, until=token, filter="n > 0")
        assert told(feed.to_table()) == {1: 1}

    def test_a_column_with_a_name_of_the_feed(self, make_table: MakeTable) -> None:
        table = make_table(SCHEMA.append(pa.field("_region", pa.string())))
        with pytest.raises(InvalidInputError):
            table.changes()
        assert table.changes(columns=["n"]).to_table().num_rows == 0

    def test_composite_keys_in_several_regions(self, make_table: MakeTable) -> None:
        table = make_table(primary_key=("id", "text"), buckets=3)
        flush(table, dict.fromkeys(range(9), 0))
        feed = table.changes()
        assert feed.to_table().num_rows == 9
        table.delete(pa.table({"id": [1, 2], "text": ["1=0", "2=0"]}))
        flush_and_merge(table, {3: 0, 4: 1})
        found = table.changes(feed.token).to_table().sort_by("id")
        assert found.select(["id", "n", "_change"]).to_pylist() == [
            {"id": 1, "n": None, "_change": "delete"},
            {"id": 2, "n": None, "_change": "delete"},
            {"id": 3, "n": 0, "_change": "upsert"},
            {"id": 4, "n": 1, "_change": "upsert"},
        ]

    @pytest.mark.parametrize("text", ["", "f1-", "never", "f1-eJwDAAAAAAE", "f1-\u00fc", "\0"])
    def test_texts_that_are_no_token(self, table: memwal.Table, text: str) -> None:
        with pytest.raises(InvalidInputError):
            table.changes(text)
        with pytest.raises(InvalidInputError):
            table.changes(until=text)

    def test_a_damaged_token(self, consumer: Consumer) -> None:
        token = consumer.token
        assert token is not None
        assert token.isprintable()
        whole = FeedToken.parse(token)
        assert FeedToken.parse(str(whole)) == whole
        for at in range(len(token)):
            damaged = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
            # Some bits at the end count for nothing.
            with suppress(InvalidInputError):
                assert FeedToken.parse(damaged) == whole

    def test_a_table_without_mem_wal(self, tmp_path: Path) -> None:
        schema = SCHEMA.set(0, SCHEMA.field(0).with_metadata(KEY))
        dataset = lance.write_dataset(rows({1: 1, 2: 2}).cast(schema), tmp_path / "plain")
        table = memwal.open(tmp_path / "plain")
        feed = table.changes()
        assert told(feed.to_table()) == {1: 1, 2: 2}
        dataset.delete("id = 1")
        assert told(table.changes(feed.token).to_table()) == {1: "gone"}


def test_a_feed_is_that_of_its_token(table: memwal.Table, consumer: Consumer) -> None:
    """A first use after more writes and a collection may return newer rows, and misses none."""
    flush(table, {1: 1}, {2: 1})
    feed = table.changes(consumer.token)
    flush_and_merge(table, {2: 2, 7: 2})
    collect_all(table)
    first = told(feed.to_table())
    assert first.keys() >= {1, 2}
    assert told(feed.to_table()) == first
    with pytest.raises(TokenExpiredError):
        table.changes(feed.token).to_table()


@pytest.mark.few(3)
@pytest.mark.parametrize("grain", ["net", "log"])
@pytest.mark.parametrize("is_consumer", [False, True])
def test_the_changes_of_a_feed_are_fixed_when_it_is_made(
    table: memwal.Table, consumer: Consumer, is_consumer: bool, grain: Literal["net", "log"]
) -> None:
    kept = table.consumer("kept", start="now")
    wanted: Told = {1: 1, 2: "gone", 3: 1}
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        writer.delete(keys(2))
        writer.flush()
        writer.upsert(rows({3: 1}))
        used, unused = (
            kept.read(grain=grain) if is_consumer else table.changes(consumer.token, grain=grain)
            for _ in range(2)
        )
        assert told(used.to_table()) == wanted
        # They become rows of one generation.
        writer.upsert(rows({3: 2, 7: 2}))
        writer.delete(keys(1))
        assert told(used.to_table()) == wanted
    table.merge()
    lance.write_dataset(rows({8: 2}), table.uri, mode="append")
    for feed in (used, unused, unused):
        assert told(feed.to_table()) == wanted
    # The merge was one of seen generations and others, so a delete that was seen may come again.
    later = {2: "gone", **told(table.changes(used.token).to_table())}
    assert later == {1: "gone", 2: "gone", 3: 2, 7: 2, 8: 2}


@pytest.mark.parametrize("grain", ["net", "log"])
def test_an_empty_feed_stays_empty(table: memwal.Table, grain: Literal["net", "log"]) -> None:
    feed = table.changes("now", grain=grain)
    for n in range(2):
        assert feed.to_table().num_rows == 0
        flush(table, {1: n})


@pytest.mark.parametrize("grain", ["net", "log"])
def test_a_feed_that_was_used_is_refused_without_its_sources(
    table: memwal.Table, consumer: Consumer, grain: Literal["net", "log"]
) -> None:
    flush(table, {1: 1}, {2: 1})
    feed = table.changes(consumer.token, grain=grain)
    assert told(feed.to_table()) == {1: 1, 2: 1}
    flush_and_merge(table, {2: 2, 7: 2})
    collect_all(table)
    forget_caches()
    with pytest.raises(TokenExpiredError):
        feed.to_table()
    assert told(table.changes(consumer.token).to_table()) == {1: 1, 2: 2, 7: 2}


def test_a_consumer_that_died_before_it_stored_its_token(
    table: memwal.Table, consumer: Consumer
) -> None:
    dataset = native.dataset(table)
    dataset.tags.create("kept", dataset.version)
    first = consumer.token
    flush(table, {1: 1, 9: 1})
    assert consumer.read() == {1: 1, 9: 1}
    consumer.token = first
    flush_and_merge(table, [9])
    collect_all(table)
    # The base table never had the key.
    assert consumer.read() == {1: 1, 9: "gone"}


def test_a_merge_of_seen_and_unseen_generations(table: memwal.Table, consumer: Consumer) -> None:
    flush(table, {1: 1, 2: 1, 9: 1})
    consumer.read()
    flush_and_merge(table, {2: 2}, [9])
    assert consumer.read() == {2: 2, 9: "gone"}


@pytest.mark.parametrize("options", [{}, DIVIDED], ids=["small", "divided"])
def test_quarantined_rows_in_a_merge_of_seen_and_unseen_generations(
    table: memwal.Table, consumer: Consumer, options: dict[str, int]
) -> None:
    flush(table, {1: 1, 9: 1})
    consumer.read()
    flush(table, {2: -1, 9: -1, 8: -1}, [4], {3: 3, 4: -1})
    table.merge(quality=rules("quarantine"), **options)
    # The table has the row of 2 of before, and the row of 9 that was seen.
    assert consumer.read() == {2: 0, 9: 1, 3: 3, 4: "gone"}
