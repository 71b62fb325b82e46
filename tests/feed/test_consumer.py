"""Consumers: what they read, what is held for them, and who may commit."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from support.data.tables import (
    MakeTable,
    flush,
    flush_and_merge,
    folder,
    keys,
    manifest,
    rows,
    state,
)
from support.faults.collecting import DAY, collect
from support.oracles import native
from support.oracles.native import collect_all
from support.stores.faulty_store import FaultyStores, Killed

import memwal
from memwal.base_table.refs import TAGS_DIR, ConsumerTag, place_tag
from memwal.errors import (
    ConsumerExpiredError,
    ConsumerFencedError,
    CorruptDataError,
    InvalidInputError,
    NewerFormatError,
    OutcomeUnknownError,
    TokenExpiredError,
)
from memwal.feed.consumer import Consumer
from memwal.feed.consumer_state import held_bytes, read_state, read_states, swap_state
from memwal.format.paths import consumer_key

STATE = consumer_key("c")
TAGS = f"{TAGS_DIR}/*"


def told(feed: Any) -> dict[int, int | None]:
    """Key to number, or to None for a delete."""
    return {row["id"]: row["n"] for row in feed.to_pylist()}


def tags(table: memwal.Table) -> int:
    return len(table.base().dataset.tags.list())


@pytest.fixture
def table(make_table: MakeTable) -> memwal.Table:
    table = make_table()
    flush_and_merge(table, {1: 0, 2: 0})
    return table


class TestReading:
    def test_goes_on_from_the_committed_token(self, table: memwal.Table) -> None:
        consumer = table.consumer("c")
        feed = consumer.read()
        assert told(feed) == {1: 0, 2: 0}
        assert told(consumer.read()) == {1: 0, 2: 0}
        consumer.commit(feed.token)
        assert told(consumer.read()) == {}
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
            writer.delete(keys(2))
            assert told(consumer.read()) == {1: 1, 2: None}
            consumer.commit(consumer.read().token)
        assert told(table.consumer("c").read()) == {}
        assert told(table.consumer("other").read(columns=["n"])) == {1: 1}

    def test_begins_with_now(self, table: memwal.Table) -> None:
        consumer = table.consumer("c", start="now")
        flush(table, {3: 3})
        assert told(consumer.read()) == {3: 3}
        consumer.reset("now")
        assert told(consumer.read()) == {}
        consumer.reset()
        assert told(consumer.read()) == {1: 0, 2: 0, 3: 3}

    @pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "a.b", "a" * 65])
    def test_refuses_names(self, table: memwal.Table, name: str) -> None:
        with pytest.raises(InvalidInputError):
            table.consumer(name)

    def test_refuses_tokens(self, table: memwal.Table) -> None:
        consumer = table.consumer("c")
        first = consumer.read().token
        flush(table, {3: 3})
        same_version = consumer.read().token
        table.merge()
        consumer.commit(consumer.read().token)
        for token in ("f1-x", first, same_version):
            with pytest.raises(InvalidInputError):
                consumer.commit(token)
        with pytest.raises(InvalidInputError):
            table.consumer("d", start=first)


class TestHolding:
    def test_through_merges_collections_and_clean_ups(self, table: memwal.Table) -> None:
        consumer = table.consumer("c")
        consumer.commit(consumer.read().token)
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 5: 5}))
            consumer.commit(consumer.read().token)
            writer.delete(keys(5))
            writer.flush()
        for number in range(3):
            flush_and_merge(table, {1: number + 2})
            table.compact(min_fragments=2)
            clean(table)
        assert told(consumer.read()) == {1: 4, 5: None}, "compactions change nothing"

    def test_through_a_clean_up_by_lance(self, table: memwal.Table) -> None:
        consumer = table.consumer("c")
        consumer.commit(consumer.read().token)
        flush_and_merge(table, [2])
        dataset = native.dataset(table)
        with pytest.raises(OSError):
            dataset.cleanup_old_versions(timedelta(0))
        dataset.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
        assert told(consumer.read()) == {2: None}

    def test_what_a_read_needs_until_its_commit(self, table: memwal.Table) -> None:
        consumer = table.consumer("c")
        feed = consumer.read()
        flush_and_merge(table, [2])
        clean(table)
        consumer.commit(feed.token)
        clean(table)
        assert told(consumer.read()) == {2: None}

    def test_what_a_read_of_a_process_that_died_needs(self, table: memwal.Table) -> None:
        """The token was stored with what was made of the rows."""
        token = table.consumer("c").read().token
        flush_and_merge(table, [2])
        clean(table)
        consumer = table.consumer("c")
        clean(table)
        consumer.commit(token)
        clean(table)
        assert tags(table) == 1
        assert told(consumer.read()) == {2: None}

    def test_one_tag_at_most_when_nothing_is_read(self, table: memwal.Table) -> None:
        consumer = table.consumer("c")
        for number in range(3):
            flush_and_merge(table, {1: number})
            consumer.read()
            feed = consumer.read()
        assert tags(table) == 1
        consumer.commit(feed.token)
        assert tags(table) == 1
        consumer.drop()
        assert tags(table) == 0

    def test_a_version_that_was_replaced_while_it_was_planned(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        """A collector that has not seen the tag may decide by a newer version."""
        store = faults.of(table.location)

        def replaced() -> None:
            flush_and_merge(table, [2])

        store.act("barrier", replaced, key=TAGS)
        feed = table.consumer("c").read()
        assert feed.version == table.version
        assert tags(table) == 1

    def test_a_tag_is_durable_before_the_state_names_it(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        store = faults.of(table.location)
        table.consumer("c", start="now")
        before = store.calls[: store.calls.index(("create", STATE))]
        assert any(call == "barrier" and key.startswith(TAGS_DIR) for call, key in before)

    def test_nothing_of_a_version_that_is_gone(self, table: memwal.Table) -> None:
        other = table.changes().token
        consumer = table.consumer("c")
        flush_and_merge(table, {3: 3})
        clean(table)
        with pytest.raises(TokenExpiredError):
            consumer.commit(other)


def clean(table: memwal.Table) -> None:
    """Collect all that nothing holds, old versions included."""
    collect_all(table)
    table.collect_garbage(
        dry_run=False, grace_seconds=0, retention_seconds=0, version_retention_seconds=0
    )


def test_the_bytes_that_are_held_for_a_version(table: memwal.Table) -> None:
    version = table.base().version
    flush_and_merge(table, {3: 0})
    base, region = table.base(), manifest(table)
    files = held_bytes(base, version, [])
    merged_since = region.flushed[-1].memory_bytes
    assert held_bytes(base, version, [region]) == files + (merged_since or 0)
    assert held_bytes(base, base.version, [region]) == 0
    clean(table)
    assert held_bytes(table.base(), version, [region]) == 0


class TestClaims:
    def test_fence_the_owner_before(self, table: memwal.Table) -> None:
        first = table.consumer("c")
        feed = first.read()
        second = table.consumer("c")
        assert (first.epoch, second.epoch) == (1, 2)
        for call in (first.read, first.drop, first.reset, lambda: first.commit(feed.token)):
            with pytest.raises(ConsumerFencedError):
                call()
        assert told(feed) == {1: 0, 2: 0}
        second.commit(feed.token)

    def test_fence_an_owner_that_wakes_up(self, faults: FaultyStores, table: memwal.Table) -> None:
        store = faults.of(table.location)
        first = table.consumer("c")
        old = first.read().token
        pause = store.pause("replace", STATE)
        with pause.holding(first.commit, old) as committing:
            flush_and_merge(table, {3: 3})
            second = table.consumer("c")
            newer = second.read().token
            second.commit(newer)
        with pytest.raises(ConsumerFencedError):
            committing.result()
        assert second.token == newer
        flush(table, {4: 4})
        assert told(second.read()) == {4: 4}

    def test_the_first_commit_frees_what_the_owner_before_held(self, table: memwal.Table) -> None:
        """A query that was fenced had several tokens under way."""
        base = table.base()
        place_tag(base, ConsumerTag("c", 9, base.version, "0fenced"))
        consumer = table.consumer("c")
        flush_and_merge(table, {3: 3})
        feed = consumer.read()
        clean(table)
        assert tags(table) == 2
        consumer.commit(feed.token)
        clean(table)
        assert tags(table) == 1

    def test_of_two_processes_at_once(self, faults: FaultyStores, table: memwal.Table) -> None:
        store = faults.of(table.location)
        pause = store.pause("create", STATE)
        with pause.holding(table.consumer, "c", start="now") as claiming:
            other = table.consumer("c")
        consumer = claiming.result()
        assert (other.epoch, consumer.epoch) == (1, 2)
        assert consumer.token is None
        assert tags(table) == 0

    def test_after_a_drop_begin_anew(self, table: memwal.Table) -> None:
        first = table.consumer("c", start="now")
        first.drop()
        assert tags(table) == 0
        assert read_states(table.location.store) == []
        with pytest.raises(ConsumerFencedError):
            first.read()
        assert told(table.consumer("c").read()) == {1: 0, 2: 0}
        with pytest.raises(ConsumerFencedError):
            first.reset()


class TestExpiry:
    @pytest.mark.parametrize("limit", [{}, {"consumer_bytes": 0}], ids=["age", "bytes"])
    def test_beyond_a_limit(self, table: memwal.Table, limit: dict[str, int]) -> None:
        seconds = 0 if limit else 8 * DAY
        consumer = table.consumer("c")
        consumer.commit(consumer.read().token)
        assert collect(table, seconds, **limit).metrics["consumer_tags"] == 0
        flush_and_merge(table, [2])
        reading = consumer.read()
        planned = collect(table, seconds, dry_run=True, explain=True, **limit)
        assert planned.metrics["consumer_tags"] == 2
        assert told(consumer.read()) == {2: None}

        assert collect(table, seconds, **limit).metrics["consumer_tags"] == 2
        assert tags(table) == 0
        clean(table)
        for call in (consumer.read, lambda: consumer.commit(reading.token)):
            with pytest.raises(ConsumerExpiredError):
                call()
        consumer = table.consumer("c")
        with pytest.raises(ConsumerExpiredError):
            consumer.read()
        consumer.reset()
        assert told(consumer.read()) == {1: 0}

    def test_not_while_it_reads_a_table_that_does_not_change(self, table: memwal.Table) -> None:
        consumer = table.consumer("c")
        consumer.commit(consumer.read().token)
        stored = read_state(table.location.store, "c")
        assert stored is not None
        week_ago = replace(stored, at=stored.at - timedelta(days=8))
        swap_state(table.location.store, stored, week_ago)
        assert told(consumer.read()) == {}
        flush_and_merge(table, {3: 3})
        assert collect(table).metrics["consumer_tags"] == 0

    def test_does_not_end_the_hold_of_what_begins_again(self, table: memwal.Table) -> None:
        """The version of the last read is still the newest; its tag is gone."""
        consumer = behind(table)
        consumer.read()
        collect(table, 8 * DAY)
        consumer.reset("now")
        flush_and_merge(table, [3])
        clean(table)
        assert told(consumer.read()) == {3: None}

    def test_a_tag_of_that_moment_goes_by_its_age(self, table: memwal.Table) -> None:
        behind(table)
        expire(table)
        base = table.base()
        place_tag(base, ConsumerTag("c", 99, base.version, "0late"))
        clean(table)
        assert tags(table) == 1
        collect(table, 2 * DAY)
        assert tags(table) == 0

    def test_a_reset_that_pauses_until_its_tag_is_gone_tells(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        consumer = behind(table)
        expire(table)
        store = faults.of(table.location)
        store.act("replace", lambda: collect(table, 2 * DAY), key=STATE)
        with pytest.raises(ConsumerExpiredError):
            consumer.reset("now")

    def test_not_if_it_commits_at_that_moment(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        consumer = behind(table)
        token = consumer.read().token
        store = faults.of(table.location)
        store.act("replace", lambda: consumer.commit(token), key=STATE)
        collect(table, 8 * DAY)
        flush_and_merge(table, [3])
        clean(table)
        assert told(consumer.read()) == {3: None}

    def test_a_commit_that_comes_too_late_tells(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        consumer = behind(table)
        token = consumer.read().token
        store = faults.of(table.location)
        store.act("replace", lambda: collect(table, 8 * DAY), key=STATE)
        with pytest.raises(ConsumerExpiredError):
            consumer.commit(token)


def behind(table: memwal.Table) -> Consumer:
    """Return a consumer that committed before the last merge."""
    consumer = table.consumer("c")
    consumer.commit(consumer.read().token)
    flush_and_merge(table, {3: 3})
    return consumer


def commit(table: memwal.Table) -> None:
    consumer = table.consumer("c")
    consumer.commit(consumer.read().token)


def reset(table: memwal.Table) -> None:
    table.consumer("c").reset("now")


def drop(table: memwal.Table) -> None:
    table.consumer("c").drop()


def expire(table: memwal.Table) -> None:
    collect(table, 8 * DAY)


class TestFaults:
    @pytest.mark.few(4)
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize("call", [commit, reset, drop, expire])
    def test_a_death_at_each_request(
        self,
        faults: FaultyStores,
        table: memwal.Table,
        call: Callable[[memwal.Table], None],
        after: bool,
    ) -> None:
        """The next process reads all that is new, or begins again; no other tag is left."""
        store = faults.of(table.location)
        commit(table)
        copy = state(table)
        for number in range(20):
            flush_and_merge(table, {3: number, number + 10: 0}, [number + 9])
            store.kill("*", "_memwal/consumers/*", skip=number, after=after)
            store.kill("barrier", TAGS, skip=number, after=after)
            store.kill("delete", TAGS, skip=number, after=after)
            with suppress(Killed):
                call(table)
                break
            store.clear()
            clean(table)
            consumer = table.consumer("c")
            try:
                feed = consumer.read()
            except ConsumerExpiredError:
                consumer.reset()
                feed = consumer.read()
            found = told(feed)
            if consumer.token is None:
                copy = {}
            if found or call in (drop, expire):
                copy = {key: n for key, n in (copy | found).items() if n is not None}
                assert copy == state(table)
            copy = state(table)
            consumer.commit(feed.token)
            clean(table)
            assert tags(table) == 1
        assert number > 1

    def test_an_answer_that_is_lost(self, faults: FaultyStores, table: memwal.Table) -> None:
        store = faults.of(table.location)
        store.fail("create", STATE, after=True)
        consumer = table.consumer("c")
        assert consumer.epoch == 1
        token = consumer.read().token
        store.fail("replace", STATE, after=True)
        consumer.commit(token)
        flush(table, {3: 3})
        later = consumer.read().token
        store.fail("replace", STATE, times=100)
        with pytest.raises(OutcomeUnknownError):
            consumer.commit(later)
        store.clear()
        consumer.commit(later)
        assert told(consumer.read()) == {}

    def test_a_commit_without_an_answer_that_is_stored(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        """No later read gives its tag up."""
        consumer = table.consumer("c")
        token = consumer.read().token
        store = faults.of(table.location)
        store.fail("replace", STATE, after=True, times=100)
        with pytest.raises(OutcomeUnknownError):
            consumer.commit(token)
        store.clear()
        flush_and_merge(table, [2])
        consumer.read()
        clean(table)
        assert told(table.consumer("c").read()) == {2: None}

    def test_a_tag_without_a_consumer_goes_by_its_age(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        store = faults.of(table.location)
        store.kill("create", STATE)
        with pytest.raises(Killed):
            table.consumer("c", start="now")
        collect(table)
        assert tags(table) == 1
        collect(table, 2 * DAY)
        assert tags(table) == 0

    def test_a_state_that_is_damaged(self, table: memwal.Table) -> None:
        table.consumer("c", start="now")
        (folder(table) / STATE).write_bytes(b"{}")
        with pytest.raises(CorruptDataError):
            table.consumer("c")
        assert collect(table, 8 * DAY).warnings
        assert tags(table) == 1
        (folder(table) / STATE).write_bytes(b'{"format": 2}')
        with pytest.raises(NewerFormatError):
            table.consumer("c")
