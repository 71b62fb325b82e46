"""The writer of a table: routing to regions, claiming on demand, and refusing what does not fit."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from support.data.tables import (
    SCHEMA,
    MakeTable,
    folder,
    keys,
    listing,
    log,
    manifest,
    numbered,
    rows,
    state,
)
from support.stores.faulty_store import WAL, FaultyStores

import memwal
from memwal.errors import (
    InvalidInputError,
    MemWalError,
    PartialWriteError,
    RegionFencedError,
    StoreFullError,
    StoreUnavailableError,
    WriterClosedError,
)
from memwal.format.paths import region_dir
from memwal.region.router import bucket_region_id
from memwal.writer.region_writer.group_commit import GroupEntry
from memwal.writer.region_writer.writer import RegionWriter, WholeRows


def claimed(table: memwal.Table) -> list[str]:
    """Folders of regions that were ever claimed."""
    return table.location.store.list_folders("_mem_wal")


class TestRouting:
    def test_a_region_is_claimed_with_its_first_row(self, make_table: MakeTable) -> None:
        table = make_table(buckets=8)
        with table.writer() as writer:
            assert claimed(table) == []
            writer.upsert(rows({1: 1}))
            assert len(claimed(table)) == 1

    def test_regions_can_be_claimed_ahead(self, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        with table.writer() as writer:
            writer.claim()

        assert sorted(claimed(table)) == sorted(str(bucket_region_id(n)) for n in range(3))
        (spec,) = table.base().details.region_specs
        for n in range(3):
            found = manifest(table, bucket_region_id(n))
            assert found.spec_id == spec.spec_id
            assert found.region_fields == (("bucket", n.to_bytes(4, "little")),)

    def test_two_threads_claim_a_region_once(self, make_table: MakeTable) -> None:
        table = make_table(buckets=1)
        start = threading.Barrier(8)
        with table.writer() as writer:

            def go(n: int) -> None:
                start.wait()
                writer.upsert(rows({n: n}))

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(go, range(8)))

        assert manifest(table, bucket_region_id(0)).writer_epoch == 1
        assert state(table) == {n: n for n in range(8)}


class TestAllowedRegions:
    def test_rows_of_others_are_refused_before_anything_is_written(
        self, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=4)
        mine = bucket_region_id(2)
        before = listing(folder(table))
        with table.writer(region_ids=[mine]) as writer, pytest.raises(InvalidInputError):
            writer.upsert(numbered(0, 50))

        assert listing(folder(table)) == before

    def test_an_unknown_region_takes_no_rows(self, make_table: MakeTable) -> None:
        table = make_table(buckets=4)
        with table.writer(region_ids=[uuid4()]) as writer, pytest.raises(InvalidInputError):
            writer.upsert(rows({1: 1}))
        assert claimed(table) == []

    def test_only_they_are_claimed_ahead(self, make_table: MakeTable) -> None:
        table = make_table(buckets=4)
        mine = bucket_region_id(2)
        with table.writer(region_ids=[mine]) as writer:
            writer.claim()
        assert claimed(table) == [str(mine)]

    def test_two_writers_with_different_regions_do_not_fence_each_other(
        self, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=2)
        by_region: dict[int, list[int]] = {0: [], 1: []}
        for key in range(20):
            for n in (0, 1):
                try:
                    with table.writer(region_ids=[bucket_region_id(n)]) as writer:
                        writer.upsert(rows({key: 0}))
                        by_region[n].append(key)
                except InvalidInputError:
                    continue
        writers = [table.writer(region_ids=[bucket_region_id(n)]) for n in (0, 1)]
        for turn in range(3):
            for n, writer in enumerate(writers):
                writer.upsert(rows(dict.fromkeys(by_region[n], turn)))
        for writer in writers:
            writer.close()

        assert state(table) == dict.fromkeys(range(20), 2)


WRONG: list[tuple[str, Callable[[Any], object]]] = [
    ("a missing key", lambda w: w.upsert(rows({1: 1}).drop_columns(["id"]))),
    (
        "the tombstone as a column",
        lambda w: w.upsert(rows({1: 1}).append_column("_tombstone", pa.array([True]))),
    ),
    (
        "a null key",
        lambda w: w.upsert(
            pa.table({"id": pa.array([1, None], pa.int64()), "n": [1, 2], "text": ["1=1", "x"]})
        ),
    ),
    ("a null key to delete", lambda w: w.delete(pa.array([1, None], pa.int64()))),
    ("a key of another type among others to delete", lambda w: w.delete([1, "2"])),
]


class TestWrongInput:
    @pytest.mark.parametrize(("what", "call"), WRONG, ids=[what for what, _ in WRONG])
    def test_is_refused_and_nothing_is_written(
        self, table: memwal.Table, what: str, call: Callable[[Any], object]
    ) -> None:
        writer = table.writer()
        before = listing(folder(table))

        with pytest.raises(InvalidInputError) as caught:
            call(writer)

        assert str(caught.value)
        assert listing(folder(table)) == before
        writer.upsert(rows({1: 1}))
        in_log = listing(folder(table))
        with pytest.raises(InvalidInputError):
            call(writer)
        assert listing(folder(table)) == in_log
        writer.close()
        assert state(table) == {1: 1}

    def test_a_null_where_the_column_takes_none(self, make_table: MakeTable) -> None:
        schema = SCHEMA.set(1, pa.field("n", pa.int64(), nullable=False))
        table = make_table(schema)
        before = listing(folder(table))
        with table.writer() as writer, pytest.raises(InvalidInputError, match=r"\bn\b"):
            writer.upsert(rows({1: None}))
        assert listing(folder(table)) == before


class TestInput:
    def test_of_several_rows_with_one_key_the_last_counts(self, table: memwal.Table) -> None:
        data = pa.concat_tables([rows({1: 1}), rows({2: 2, 1: 11}), rows({1: 111})])
        with table.writer() as writer:
            writer.upsert(data)
            assert state(writer) == {1: 111, 2: 2}
        assert state(table) == {1: 111, 2: 2}

    def test_a_column_of_nulls_needs_no_type(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(pa.table({"id": [1], "n": pa.nulls(1), "text": ["1=None"]}))
        assert state(table) == {1: None}

    def test_keys_to_delete_may_be_rows(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2, 3: 3}))
            writer.delete(rows({1: 99}))
            writer.delete(keys(2))
        assert state(table) == {3: 3}


class TestFailingRegion:
    def test_does_not_hide_that_it_failed_and_others_took_their_part(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=2)
        writer = table.writer()
        writer.upsert(numbered(0, 20))
        region = str(bucket_region_id(1))
        faults.of(table.location).fail(
            "create", WAL.replace("*", region, 1), StoreFullError("full")
        )

        with pytest.raises(PartialWriteError) as caught:
            writer.upsert(numbered(0, 20, n=1))

        (failure,) = caught.value.failures
        assert failure.region_id == bucket_region_id(1)
        assert isinstance(failure.error, StoreFullError)
        refused = set(failure.rows.to_pylist())
        assert 0 < len(refused) < 20
        assert state(writer) == {key: int(key not in refused) for key in range(20)}
        writer.upsert(numbered(0, 20, n=1))
        writer.close()
        assert state(table) == dict.fromkeys(range(20), 1)

    def test_that_was_fenced_stops_only_its_own_rows(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        first = table.writer()
        first.upsert(numbered(0, 20))
        second = table.writer(region_ids=[bucket_region_id(1)])
        second.claim()

        with pytest.raises(PartialWriteError) as caught:
            first.upsert(numbered(0, 20, n=1))
        with pytest.raises(RegionFencedError):
            first.close()

        second.close()
        (failure,) = caught.value.failures
        assert isinstance(failure.error, RegionFencedError)
        refused = set(failure.rows.to_pylist())
        assert state(table) == {key: int(key not in refused) for key in range(20)}


class TestClosed:
    @pytest.mark.parametrize("end", ["close", "abort"])
    def test_takes_no_rows_of_any_region(self, make_table: MakeTable, end: str) -> None:
        """A write after the end must not claim a region from whoever has it now."""
        table = make_table(buckets=8)
        writer = table.writer()
        writer.upsert(numbered(0, 3))
        getattr(writer, end)()
        before = listing(folder(table))

        for data in (rows({1: 1}), numbered(0, 50)):
            with pytest.raises(WriterClosedError):
                writer.upsert(data)
        with pytest.raises(WriterClosedError):
            writer.claim()
        with pytest.raises(WriterClosedError):
            writer.flush()

        assert listing(folder(table)) == before

    def test_again_is_fine(self, make_table: MakeTable) -> None:
        table = make_table(buckets=4)
        with table.writer() as writer:
            writer.upsert(numbered(0, 20))
            writer.close()
        writer.close()
        writer.abort()
        assert state(table) == dict.fromkeys(range(20), 0)

    def test_before_anything_was_written(self, make_table: MakeTable) -> None:
        table = make_table(buckets=4)
        table.writer().close()
        with pytest.raises(WriterClosedError):
            writer = table.writer()
            writer.close()
            writer.upsert(rows({1: 1}))
        assert claimed(table) == []

    def test_flushes_every_region_though_one_cannot(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=2)
        writer = table.writer(options=memwal.WriterOptions(flush_attempts=1))
        writer.upsert(numbered(0, 20))
        store = faults.of(table.location)
        store.fail(
            "sync",
            f"{region_dir(bucket_region_id(0))}/*_gen_*",
            StoreFullError("full"),
            times=1000,
        )

        with pytest.raises(MemWalError):
            writer.close()

        assert len(manifest(table, bucket_region_id(1)).flushed) == 1
        assert manifest(table, bucket_region_id(0)).flushed == ()
        assert len(log(table, bucket_region_id(0))) == 1
        store.clear()
        with table.writer() as again:
            again.claim()
        assert state(table) == dict.fromkeys(range(20), 0)


class TestSeveralRegionsAtOnce:
    """One thread takes the logs of all regions that are idle; busy ones get their part queued."""

    def test_a_busy_log_is_waited_for_and_the_others_are_not(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=2)
        store = faults.of(table.location)
        with table.writer() as writer, ThreadPoolExecutor(2) as pool:
            writer.upsert(numbered(0, 20))
            region = str(bucket_region_id(1))
            pause = store.pause("create", WAL.replace("*", region, 1))
            (entry,) = log(table, bucket_region_id(1)).values()
            key = entry.batches[0].column("id")[0].as_py()
            slow = pool.submit(writer.upsert, rows({key: 7}))
            pause.wait_until_reached()
            both = pool.submit(writer.upsert, numbered(0, 20, n=8))
            other = list(log(table, bucket_region_id(0)))
            while len(other) < 2:
                other = list(log(table, bucket_region_id(0)))
            assert not both.done()
            pause.release()
            slow.result()
            both.result()
            assert state(writer) == dict.fromkeys(range(20), 8)
        assert state(table) == dict.fromkeys(range(20), 8)

    def test_an_interrupt_gives_the_logs_back(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=2)
        store = faults.of(table.location)
        writer = table.writer()
        writer.upsert(numbered(0, 20))
        store.fail("create", WAL, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            writer.upsert(numbered(0, 20, n=1))
        with pytest.raises(MemWalError):
            writer.upsert(numbered(0, 20, n=2))
        writer.abort()
        with table.writer() as again:
            again.upsert(numbered(0, 20, n=3))
        assert state(table) == dict.fromkeys(range(20), 3)

    def test_an_interrupt_before_the_store_loses_no_later_write(
        self, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = make_table(buckets=2)
        writer = table.writer()
        writer.upsert(numbered(0, 20))
        begin, begun = RegionWriter.begin, list[RegionWriter]()

        def interrupted(region: RegionWriter, rows: WholeRows) -> object:
            if begun:
                raise KeyboardInterrupt
            begun.append(region)
            return begin(region, rows)

        with monkeypatch.context() as patch:
            patch.setattr(RegionWriter, "begin", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.upsert(numbered(0, 20, n=1))
        # The rows of the interrupted write must not count as logged, or the flush would let the
        # next claim pass over the position that the next write takes.
        writer.flush()
        writer.upsert(numbered(0, 20, n=2))
        writer.abort()
        with table.writer() as again:
            again.claim()
        assert state(table) == dict.fromkeys(range(20), 2)


def test_an_interrupt_before_the_store_leaves_no_write_waiting(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(entry: GroupEntry) -> None:
        raise KeyboardInterrupt

    with table.writer() as writer:
        writer.upsert(numbered(0, 20))
        with monkeypatch.context() as patch:
            patch.setattr(GroupEntry, "store", interrupted)
            # A thread of the writer leads it.
            handle = writer.upsert(numbered(0, 20, n=1), wait=False)
            with pytest.raises(StoreUnavailableError):
                handle.wait(60)
        assert state(writer) == dict.fromkeys(range(20), 0)
        writer.upsert(numbered(0, 20, n=2))
    assert state(table) == dict.fromkeys(range(20), 2)


class OneShotStream:
    """A stream of Arrow data without a length, which can be read once."""

    def __init__(self, data: pa.Table) -> None:
        self._reader = data.to_reader()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._reader.__arrow_c_stream__(requested_schema)


def test_a_step_takes_streams_where_regions_depend_on_another_column(
    make_table: MakeTable,
) -> None:
    table = make_table(region_spec=memwal.RegionSpec.identity("n", immutable=True))
    with table.writer() as writer:
        writer.apply(upserts=OneShotStream(rows({1: 1, 2: 2})), source="s", version=1)
        writer.apply(deletes=OneShotStream(rows({1: 1}).select(["id", "n"])), source="s", version=2)
    assert state(table) == {2: 2}


def test_reads_have_what_the_next_writer_of_a_region_acknowledged(table: memwal.Table) -> None:
    first = table.writer()
    first.upsert(rows({1: 1}))
    with table.writer() as second:
        second.upsert(rows({1: 2, 2: 2}))
        assert state(first) == {1: 2, 2: 2}
    first.abort()
