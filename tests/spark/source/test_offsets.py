"""A query without Spark, which dies at any step and starts again."""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from support.data.tables import SCHEMA, MakeTable, Rows, flush, flush_and_merge, keys, rows, state
from support.faults.collecting import DAY, collect
from support.oracles.native import collect_all, dataset

import memwal
from memwal.base_table.refs import delete_tag, list_read_tags
from memwal.errors import (
    ConsumerExpiredError,
    ConsumerFencedError,
    InvalidInputError,
    TableSetupError,
    TokenExpiredError,
)
from memwal.feed.change_rows import changes_schema
from memwal.feed.consumer_state import read_state, swap_state
from memwal.spark.data_source import MemWalDataSource, spark_schema
from memwal.spark.source import changes_plan
from memwal.spark.source.stream_reader import MemWalStreamReader
from memwal.spark.version_compat import BATCH_LIMITS

STEPS = 6

of_consumers = pytest.mark.skipif(not BATCH_LIMITS.here, reason="this Spark has no limits")


def reader_of(table: memwal.Table, **options: str) -> MemWalStreamReader:
    given = {name.lower(): text for name, text in options.items()}
    source = MemWalDataSource({"path": table.uri, "changes_after": "start"} | given)
    # A schema of the caller's, without a load, whose tag would keep the version as well.
    reader = source.streamReader(spark_schema(changes_schema(table.base(), None)))
    assert isinstance(reader, MemWalStreamReader)
    return reader


class Died(Exception):
    """The driver died."""


class Query:
    """Spark's part: offsets are noted before a batch, and that it is done afterwards.

    The reader is told that a batch is done when the next one is noted.
    """

    def __init__(self, table: memwal.Table, **options: str) -> None:
        self.table, self.options = table, options
        self.offsets: list[dict[str, Any]] = []
        self.done = 0
        self.copy: Rows = {}
        self.batches: dict[int, pa.Table] = {}
        self.reader: MemWalStreamReader | None = None

    def run_batch(self, dies_at: int = STEPS) -> bool:
        """Run a batch; Died before a step. Returns whether there was one."""
        try:
            return self._run_batch(iter(range(STEPS)), dies_at)
        except Died:
            self.reader = None
            raise

    def _run_batch(self, steps: Any, dies_at: int) -> bool:
        def live() -> None:
            if next(steps) == dies_at:
                raise Died

        reader = self.reader = self.reader or reader_of(self.table, **self.options)
        start = self.offsets[self.done - 1] if self.done else reader.initialOffset()
        live()
        if len(self.offsets) == self.done:
            limit = reader.getDefaultReadLimit()
            end = reader.latestOffset(start, limit) if limit else reader.latestOffset()
            live()
            if end == start:
                return False
            self.offsets.append(end)
            live()
            if self.done:
                reader.commit(start)
        live()
        parts = reader.partitions(start, self.offsets[self.done])
        live()
        found = [batch for part in parts for batch in reader.read(part)]
        self.apply(found)
        live()
        self.done += 1
        return True

    def apply(self, batches: list[pa.RecordBatch]) -> None:
        found = [row for batch in batches for row in batch.to_pylist()]
        assert len(found) == len({row["id"] for row in found})
        for row in found:
            if row["_change"] == "delete":
                self.copy.pop(row["id"], None)
            else:
                assert row["text"] == f"{row['id']}={row['n']}"
                self.copy[row["id"]] = row["n"]

    def catch_up(self) -> None:
        while self.run_batch():
            pass


def clean(table: memwal.Table) -> None:
    """Collect all that nothing holds, old versions included."""
    collect_all(table)
    dataset(table).cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)


def leave_in_the_log(table: memwal.Table, values: Rows, gone: Sequence[int]) -> None:
    """Upsert and delete by a writer that dies before it flushes."""
    writer = table.writer()
    writer.upsert(rows(values))
    writer.delete(keys(*gone))
    writer.abort()


def life(table: memwal.Table, seed: int, *, cleaned: bool) -> Callable[[], object]:
    """Return a function that changes a table at random, and cleans it up, if it is to."""
    chance = random.Random(seed)

    def step() -> object:
        some = chance.sample(range(12), 3)
        number = chance.randrange(1000)
        return chance.choice(
            [
                lambda: flush(table, dict.fromkeys(some, number)),
                lambda: flush(table, some),
                lambda: leave_in_the_log(table, dict.fromkeys(some, number), some[:1]),
                table.merge,
                lambda: table.compact(min_fragments=2),
                lambda: dataset(table).delete(f"id = {some[0]}"),
                lambda: collect_all(table),
                *[partial(clean, table)] * cleaned,
            ]
        )()

    return step


@pytest.mark.few(3)
@pytest.mark.parametrize("is_switched", [False, True], ids=["one kind", "switched"])
@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))]
)
def test_a_driver_that_dies_at_any_step(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, seed: int, is_switched: bool
) -> None:
    """Also of a query that is switched between fresh and flushed rows, on one checkpoint.

    What it read of the logs comes again once it is flushed.
    """
    monkeypatch.setattr(changes_plan, "BLOCK_ROWS", 4)
    chance = random.Random(seed)
    table = make_table(buckets=2, stable_row_ids=seed % 2 == 1)
    options = {"fresh": "true"} if is_switched or chance.random() < 0.5 else {}
    if BATCH_LIMITS.here and chance.random() < 0.6:
        options["maxRowsPerTrigger"] = "3"
    if BATCH_LIMITS.here and chance.random() < 0.5:
        options["consumer"] = "c"
    query, step = Query(table, **options), life(table, seed, cleaned="consumer" in options)
    for _ in range(12):
        step()
        with suppress(Died):
            query.run_batch(dies_at=chance.randrange(STEPS + 2))
        if is_switched and chance.random() < 0.3:
            query.options["fresh"] = chance.choice(["true", "false"])
            query.reader = None
    if is_switched:
        query.options["fresh"], query.reader = "false", None
        # Of both regions: the claims flush what is in their logs.
        flush(table, dict.fromkeys(range(100, 108), 0))
    query.catch_up()
    assert query.copy == state(table.fresh() if query.options.get("fresh") == "true" else table)


def test_the_first_batch_after_now_is_repeated(table: memwal.Table) -> None:
    flush(table, {1: 1})
    query = Query(table, changes_after="now")
    with pytest.raises(Died):
        query.run_batch(dies_at=3)
    flush(table, {2: 2})
    query.catch_up()
    assert query.copy == {2: 2}


def test_what_a_batch_needs_is_kept(table: memwal.Table) -> None:
    flush(table, {1: 1, 2: 1})
    query = Query(table)
    query.catch_up()
    flush(table, {1: 2}, [2])
    with pytest.raises(Died):
        query.run_batch(dies_at=2)
    flush_and_merge(table, {1: 3})
    collect_all(table)
    flush_and_merge(table, {3: 3})
    collect_all(table)
    query.run_batch()
    # As of the end of the batch, which was noted before.
    assert query.copy == {1: 2}
    query.catch_up()
    assert query.copy == state(table)


def test_where_a_batch_ended_is_kept(table: memwal.Table) -> None:
    flush(table, {1: 1, 2: 1})
    query = Query(table)
    query.run_batch()
    flush_and_merge(table, [2])
    # The first batch is done by then, and the second is not planned.
    with pytest.raises(Died):
        query.run_batch(dies_at=3)
    collect_all(table)
    query.catch_up()
    assert query.copy == {1: 1}
    query.run_batch()
    assert len({tag.version for tag in list_read_tags(table.location)}) <= 2


def test_what_no_tag_keeps_is_gone(table: memwal.Table) -> None:
    flush(table, {1: 1})
    query = Query(table)
    query.catch_up()
    query.reader = None
    flush_and_merge(table, [1])
    for tag in list_read_tags(table.location):
        delete_tag(table.location, tag)
    collect_all(table)
    with pytest.raises(TokenExpiredError):
        query.catch_up()


@pytest.mark.skipif(not BATCH_LIMITS.here, reason="this Spark has no limits of batches")
def test_a_query_that_ends(table: memwal.Table) -> None:
    flush(table, {1: 1, 2: 1}, {3: 1})
    query = Query(table, maxRowsPerTrigger="2")
    query.reader = reader_of(table, maxRowsPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    flush(table, {4: 1})
    query.catch_up()
    assert query.copy == {1: 1, 2: 1, 3: 1}
    assert query.done == 2


@of_consumers
class TestConsumer:
    """A query whose tokens a consumer keeps; no tag of a read does."""

    @pytest.mark.few(STEPS)
    @pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": "1"}], ids=["whole", "units"])
    @pytest.mark.parametrize("dies_at", range(STEPS))
    def test_holds_what_a_stopped_query_needs(
        self, table: memwal.Table, limit: dict[str, str], dies_at: int
    ) -> None:
        query = Query(table, consumer="c", **limit)
        for number in range(3):
            flush(table, {1: number, 2: number}, {3: number})
            query.run_batch()
        table.merge()
        with suppress(Died):
            query.run_batch(dies_at=dies_at)
        query.reader = None
        assert not list_read_tags(table.location)
        flush(table, [2])
        for number in range(3):
            flush_and_merge(table, {4: number})
            table.compact(min_fragments=2)
            clean(table)
        query.catch_up()
        assert query.copy == state(table)

    @pytest.mark.parametrize("is_merged", [False, True])
    def test_goes_back_to_flushed_rows(self, make_table: MakeTable, is_merged: bool) -> None:
        """The rows that it read of a log are changes once more when they are flushed."""
        table = make_table(buckets=2)
        flush(table, dict.fromkeys(range(8), 0))
        query = Query(table, consumer="c", fresh="true")
        query.catch_up()
        leave_in_the_log(table, dict.fromkeys(range(8), 1), [8])
        query.catch_up()
        query.options["fresh"], query.reader = "false", None
        query.catch_up()
        for number in range(2, 5):
            flush(table, {0: number})
            if is_merged:
                table.merge()
                clean(table)
            query.catch_up()
        flush(table, dict.fromkeys(range(8, 16), 5))
        query.catch_up()
        assert query.copy == state(table)

    @pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": "1"}], ids=["idle", "units"])
    def test_does_not_expire_while_the_query_goes_on(
        self, table: memwal.Table, limit: dict[str, str]
    ) -> None:
        flush(table, {1: 1}, {2: 2}, {3: 3})
        query = Query(table, consumer="c", **limit)
        query.run_batch()
        stored = read_state(table.location.store, "c")
        assert stored is not None
        swap_state(table.location.store, stored, replace(stored, at=stored.at - timedelta(days=8)))
        # Without a batch that is done or an idle poll, it expires.
        query.run_batch()
        table.merge()
        assert collect(table).metrics["consumer_tags"] == 0
        query.catch_up()
        assert query.copy == state(table)

    def test_expires_while_the_query_is_stopped(self, table: memwal.Table) -> None:
        query = Query(table, consumer="c")
        for number in range(3):
            flush_and_merge(table, {1: number})
            query.run_batch()
        flush_and_merge(table, [1])
        assert collect(table, 8 * DAY).metrics["consumer_tags"] == 2
        with pytest.raises(ConsumerExpiredError):
            query.run_batch()

    def test_has_one_query_at_a_time(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        query, other = Query(table, consumer="c"), Query(table, consumer="c")
        query.run_batch()
        other.run_batch()
        flush(table, {2: 2})
        with pytest.raises(ConsumerFencedError):
            query.run_batch()
        other.run_batch()
        assert other.copy == state(table)

    def test_is_claimed_when_batches_are_planned(self, table: memwal.Table) -> None:
        source = MemWalDataSource({"path": table.uri, "changes_after": "start", "consumer": "c"})
        schema = source.schema()
        reader = source.streamReader(schema)
        with pytest.raises(InvalidInputError):
            source.reader(schema)
        assert not table.status().consumers
        reader.initialOffset()
        assert len(table.status().consumers) == 1

    @pytest.mark.parametrize("start", ["start", "now"])
    def test_tells_where_a_new_checkpoint_begins(self, table: memwal.Table, start: str) -> None:
        flush(table, {1: 1})
        query = Query(table, consumer="c", changes_after=start)
        for number in range(2, 5):
            query.run_batch()
            flush(table, {number: number})
        other = Query(table, consumer="c")
        other.catch_up()
        first = [1] if start == "start" else []
        assert query.copy.keys() == {*first, 2, 3}
        assert other.copy == {3: 3, 4: 4}


def test_wrong_streams(table: memwal.Table, make_table: MakeTable) -> None:
    token = table.changes().token
    with_consumer = {"consumer": "c", "changes_after": token}
    for options in ({"changes_until": token}, {"changes_after": "never"}, with_consumer):
        with pytest.raises(InvalidInputError):
            reader_of(table, **options).initialOffset()
    with pytest.raises(InvalidInputError):
        MemWalDataSource({"path": table.uri}).streamReader(None)
    with pytest.raises(InvalidInputError):
        reader_of(table).partitions({"token": ""}, {"other": 1})
    keyless = memwal.create(make_table().uri + "-2", SCHEMA, primary_key=None)
    with pytest.raises(TableSetupError):
        reader_of(keyless)
