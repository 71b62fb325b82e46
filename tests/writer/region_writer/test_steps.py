"""Steps of a source: whole, once, and remembered whatever happens to the log."""

import re
import threading
from uuid import UUID

import pyarrow as pa
import pytest
from support.data.tables import REGION, MakeTable, folder, generations, keys, log, rows, state
from support.faults.collecting import DAY, collect
from support.oracles import native
from support.stores.faulty_store import WAL, FaultyStores, Killed

import memwal
from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    RegionFencedError,
    SourceRestartedError,
    StoreError,
)
from memwal.format.paths import applied_dir, wal_key
from memwal.format.wal_layout import NewestStep, decode_applied
from memwal.lsm.wal.applied_steps import write_empty_book

SOURCE = "orders"


def books(table: memwal.Table, region_id: UUID = REGION) -> list[str]:
    return sorted(info.key for info in table.location.store.list(applied_dir(region_id)))


def collect_all(table: memwal.Table) -> None:
    """Merge, and have the collector take all that it may."""
    table.checkpoint(flush=False)
    for days in (1, 3, 5):
        collect(table, days * DAY)


class TestOnce:
    def test_rows_and_deletes_are_one_entry_that_tells_of_the_step(
        self, table: memwal.Table
    ) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            done = writer.apply(
                upserts=rows({2: 3, 3: 3}), deletes=keys(1), source=SOURCE, version=7
            )
            assert (done.written, done.skipped) == ((REGION,), ())
            assert state(writer) == {2: 3, 3: 3}
            *_, entry = log(table).values()
            assert entry.applied == {SOURCE: NewestStep(7)}
            assert sum(batch.num_rows for batch in entry.batches) == 3
        assert state(table) == {2: 3, 3: 3}
        assert table.applied(SOURCE) == {REGION: 7}
        assert table.applied("another") == {}

    @pytest.mark.parametrize("version", [7, 6, 0])
    def test_a_step_that_comes_again_changes_nothing(
        self, table: memwal.Table, version: int
    ) -> None:
        with table.writer() as writer:
            writer.apply(upserts=rows({1: 1}), source=SOURCE, version=7)
            writer.upsert(rows({1: 2}))
            entries = len(log(table))
            done = writer.apply(upserts=rows({1: 1}), source=SOURCE, version=version)
            assert (done.written, done.skipped) == ((), (REGION,))
            assert state(writer) == {1: 2}
            assert len(log(table)) == entries

    def test_sources_do_not_know_of_each_other(self, table: memwal.Table) -> None:
        for number, source in enumerate(("a", "b", "a", "b")):
            with table.writer() as writer:
                done = writer.apply(upserts=rows({number: 1}), source=source, version=number)
                assert done.written
        assert log(table)[max(log(table))].applied == {"a": NewestStep(2), "b": NewestStep(3)}

    def test_each_region_answers_for_itself(self, make_table: MakeTable) -> None:
        """A step that some regions did not take is completed in those alone."""
        table = make_table(buckets=4)
        with table.writer() as writer:
            first = writer.apply(upserts=rows({1: 1}), source=SOURCE, version=1)
            writer.apply(upserts=rows(dict.fromkeys(range(40), 2)), source=SOURCE, version=2)
            (one,) = first.written
            everything = rows(dict.fromkeys(range(40), 3))
        with table.writer(region_ids=[one]) as writer:
            own = {
                key
                for entry in log(table, one).values()
                for batch in entry.batches
                for key in batch.column("id").to_pylist()
            }
            writer.apply(upserts=rows(dict.fromkeys(own, 3)), source=SOURCE, version=3)
        with table.writer() as writer:
            done = writer.apply(upserts=everything, source=SOURCE, version=3)
            assert done.skipped == (one,)
            assert len(done.written) == 3
        assert state(table) == dict.fromkeys(range(40), 3)
        assert set(table.applied(SOURCE).values()) == {3}

    def test_a_step_without_rows_is_nothing(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            done = writer.apply(upserts=rows({}), deletes=keys(), source=SOURCE, version=1)
            assert (done.written, done.skipped) == ((), ())
        assert books(table) == []

    def test_deletes_find_their_region_by_a_column_beside_the_key(
        self, make_table: MakeTable
    ) -> None:
        table = make_table(region_spec=memwal.RegionSpec.bucket("n", 4, immutable=True))
        with table.writer() as writer:
            writer.apply(upserts=rows({k: k for k in range(10)}), source=SOURCE, version=1)
            gone = pa.table({"id": keys(3, 4), "n": keys(3, 4)})
            writer.apply(upserts=rows({3: 3, 11: 11}), deletes=gone, source=SOURCE, version=2)
        assert set(state(table)) == set(range(10)) - {3, 4} | {11}

    @pytest.mark.parametrize(
        ("source", "version"), [("", 1), ("x" * 513, 1), (SOURCE, -1), (SOURCE, 1 << 64)]
    )
    def test_refuses_what_is_no_step(self, table: memwal.Table, source: str, version: int) -> None:
        with table.writer() as writer, pytest.raises(InvalidInputError):
            writer.apply(upserts=rows({1: 1}), source=source, version=version)

    def test_threads_with_the_same_steps_write_each_once(self, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        with table.writer(options=memwal.WriterOptions(fsync=False)) as writer:

            def run() -> None:
                for version in range(1, 15):
                    data = rows(dict.fromkeys(range(12), version))
                    writer.apply(upserts=data, source=SOURCE, version=version)
                    writer.upsert(rows({version: version}))

            threads = [threading.Thread(target=run) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for region_id in table.region_ids():
            told = [
                entry.applied[SOURCE].version
                for entry in log(table, region_id).values()
                if entry.applied
            ]
            assert told == list(range(1, 15))


class TestIncarnations:
    """A source whose numbers begin again."""

    def test_another_incarnation_is_an_error_until_it_replaces_the_first(
        self, table: memwal.Table
    ) -> None:
        with table.writer() as writer:

            def apply(n: int, version: int, incarnation: str, *replaces: str) -> bool:
                done = writer.apply(
                    upserts=rows({1: n}),
                    source=SOURCE,
                    version=version,
                    incarnation=incarnation,
                    replaces=replaces,
                )
                return bool(done.written)

            assert apply(1, 9, "a")
            for version in (0, 9, 10):
                with pytest.raises(SourceRestartedError):
                    apply(2, version, "b")
            with pytest.raises(SourceRestartedError):
                apply(2, 10, "")
            assert state(writer) == {1: 1}
            assert apply(3, 0, "b", "a")
            assert not apply(4, 0, "b")
            # The writer of the first incarnation was paused, and has the same code.
            for replaces in ((), ("b",)):
                with pytest.raises(SourceRestartedError):
                    apply(5, 10, "a", *replaces)
            assert apply(6, 1, "b")
            assert state(writer) == {1: 6}

    def test_survives_claim_flush_and_collection(self, table: memwal.Table) -> None:
        for version, (incarnation, replaces) in enumerate((("a", ()), ("b", ("a",)))):
            with table.writer() as writer:
                writer.apply(
                    upserts=rows({1: version}),
                    source=SOURCE,
                    version=1 - version,
                    incarnation=incarnation,
                    replaces=replaces,
                )
        with table.writer() as writer:
            writer.upsert(rows({2: 2}))
        collect_all(table)
        assert not any(entry.applied for entry in log(table).values())
        with table.writer() as writer:
            for incarnation in ("a", "c"):
                with pytest.raises(SourceRestartedError):
                    writer.apply(
                        upserts=rows({1: 7}), source=SOURCE, version=7, incarnation=incarnation
                    )
            done = writer.apply(upserts=rows({1: 0}), source=SOURCE, version=0, incarnation="b")
            assert done.skipped
        assert state(table) == {1: 1, 2: 2}

    def test_follows_steps_that_have_none(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.apply(upserts=rows({1: 1}), source=SOURCE, version=5)
            with pytest.raises(SourceRestartedError):
                writer.apply(upserts=rows({1: 2}), source=SOURCE, version=5, incarnation="a")
            writer.apply(upserts=rows({1: 3}), source=SOURCE, version=6, incarnation="a")
            with pytest.raises(SourceRestartedError):
                writer.apply(upserts=rows({1: 4}), source=SOURCE, version=7)
        assert state(table) == {1: 3}

    def test_one_region_refuses_for_all(self, make_table: MakeTable) -> None:
        """No region of a step is written if one of them has the steps of another incarnation."""
        table = make_table(buckets=4)
        with table.writer() as writer:
            writer.apply(upserts=rows({1: 1}), source=SOURCE, version=9, incarnation="a")
            everything = rows(dict.fromkeys(range(20), 2))
            with pytest.raises(SourceRestartedError):
                writer.apply(upserts=everything, source=SOURCE, version=0, incarnation="b")
            assert state(writer) == {1: 1}
            done = writer.apply(
                upserts=everything, source=SOURCE, version=0, incarnation="b", replaces=["a"]
            )
            assert len(done.written) == 4

    @pytest.mark.parametrize(
        ("incarnation", "replaces"), [("x" * 513, []), ("a", ["x" * 513]), ("a", ["a"])]
    )
    def test_refuses_names_that_cannot_be_stored(
        self, table: memwal.Table, incarnation: str, replaces: list[str]
    ) -> None:
        with table.writer() as writer, pytest.raises(InvalidInputError):
            writer.apply(
                upserts=rows({1: 1}),
                source=SOURCE,
                version=1,
                incarnation=incarnation,
                replaces=replaces,
            )


class TestRemembered:
    def test_by_the_next_writer_and_after_flush_merge_and_collection(
        self, table: memwal.Table
    ) -> None:
        for version in range(5):
            with table.writer() as writer:
                writer.apply(upserts=rows({1: version}), source=SOURCE, version=version)
        with table.writer() as writer:
            writer.upsert(rows({2: 2}))
        collect_all(table)
        assert not any(entry.applied for entry in log(table).values())
        assert len(books(table)) == 1
        with table.writer() as writer:
            assert writer.apply(upserts=rows({1: 0}), source=SOURCE, version=4).skipped
            assert writer.apply(upserts=rows({1: 5}), source=SOURCE, version=5).written
        assert state(table) == {1: 5, 2: 2}

    def test_the_book_keeps_sources_that_are_long_gone(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.apply(upserts=rows({1: 1}), source="old", version=9)
        collect_all(table)
        with table.writer() as writer:
            writer.apply(upserts=rows({1: 2}), source="new", version=1)
        collect_all(table)
        with table.writer() as writer:
            writer.upsert(rows({3: 3}))
        collect_all(table)
        (book,) = books(table)
        told = decode_applied(table.location.store.get(book), name=book)
        assert told == {"old": NewestStep(9), "new": NewestStep(1)}

    def test_a_table_without_steps_has_no_book(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
        collect_all(table)
        assert books(table) == []

    def test_a_collector_that_died_before_it_deleted(
        self, quick_faults: FaultyStores, table: memwal.Table
    ) -> None:
        """There is a book beside the entries that it covers."""
        store = quick_faults.of(table.location)
        with table.writer() as writer:
            writer.apply(upserts=rows({1: 1}), source=SOURCE, version=1)
        with table.writer() as writer:
            writer.upsert(rows({2: 2}))

        rule = store.kill("delete", WAL)
        with pytest.raises(Killed):
            collect_all(table)
        assert rule.hits == 1
        assert len(books(table)) == 1
        assert len(log(table)) > 2
        assert table.applied(SOURCE) == {REGION: 1}
        collect_all(table)
        assert table.applied(SOURCE) == {REGION: 1}

    def test_a_look_that_meets_the_collector_starts_again(
        self, quick_faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table()
        store = quick_faults.of(table.location)
        with table.writer() as writer:
            writer.apply(upserts=rows({1: 1}), source=SOURCE, version=3)
        with table.writer() as writer:
            writer.upsert(rows({2: 2}))
        rule = store.act("get_range", lambda: collect_all(table))
        assert table.applied(SOURCE) == {REGION: 3}
        assert rule.hits == 1
        assert not any(entry.applied for entry in log(table).values())

    def test_when_lance_flushes_the_rows(self, table: memwal.Table) -> None:
        """Lance's writer takes over the log, and keeps no account of steps."""
        writer = table.writer()
        writer.apply(upserts=rows({1: 1}), source=SOURCE, version=3)
        writer.abort()
        native.upsert(table, rows({2: 2}))
        assert len(generations(table)) == 1
        collect_all(table)
        with table.writer() as writer:
            assert writer.apply(upserts=rows({1: 0}), source=SOURCE, version=3).skipped
        assert state(table) == {1: 1, 2: 2}

    def test_an_entry_that_is_missing_is_not_taken_for_one_without_a_step(
        self, table: memwal.Table
    ) -> None:
        with table.writer() as writer:
            writer.apply(upserts=rows({1: 1}), source=SOURCE, version=3)
            (position,) = (p for p, entry in log(table).items() if entry.applied)
            # The newest entry must be there in any case.
            writer.upsert(rows({2: 2}))
        table.location.store.delete(wal_key(REGION, position))
        with table.writer() as writer:
            with pytest.raises(CorruptDataError) as told:
                writer.apply(upserts=rows({1: 0}), source=SOURCE, version=3)
            (tip,) = re.findall(r"write_empty_book\(.*tip=(\d+)\)", str(told.value))
            write_empty_book(table.location.store, REGION, tip=int(tip))
            assert writer.apply(upserts=rows({1: 0}), source=SOURCE, version=3).written

    def test_a_torn_entry_at_the_tip_hides_no_step(self, table: memwal.Table) -> None:
        writer = table.writer()
        writer.apply(upserts=rows({1: 1}), source=SOURCE, version=3)
        writer.abort()
        torn = folder(table) / wal_key(REGION, max(log(table)) + 1)
        torn.write_bytes(b"ARROW")
        assert table.applied(SOURCE) == {REGION: 3}

    def test_a_log_that_was_given_up_may_have_gaps(self, table: memwal.Table) -> None:
        writer = table.writer()
        writer.apply(upserts=rows({1: 1}), source=SOURCE, version=3)
        position = max(log(table))
        writer.upsert(rows({2: 2}))
        writer.abort()
        table.location.store.delete(wal_key(REGION, position))
        with table.writer(replay=False) as writer:
            done = writer.apply(upserts=rows({1: 4}), source=SOURCE, version=4)
            assert done.written
        assert state(table) == {1: 4}


class TestFaults:
    def test_a_process_that_was_paused_brings_no_old_step(self, table: memwal.Table) -> None:
        """It claims the region back, and then finds the newer step there."""
        with table.writer() as paused:
            paused.apply(upserts=rows({1: 1}), source=SOURCE, version=1)
            with table.writer() as other:
                other.apply(upserts=rows({1: 1}), source=SOURCE, version=1)
                other.apply(upserts=rows({1: 2}), source=SOURCE, version=2)
            with pytest.raises(RegionFencedError):
                paused.apply(upserts=rows({1: 0}), source=SOURCE, version=2)
            with table.writer() as again:
                assert again.apply(upserts=rows({1: 0}), source=SOURCE, version=2).skipped
            paused.abort()
        assert state(table) == {1: 2}

    @pytest.mark.few(1)
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize("ends", [False, True], ids=["fails", "dies"])
    def test_whatever_request_it_happens_at(
        self, quick_faults: FaultyStores, make_table: MakeTable, ends: bool, after: bool
    ) -> None:
        """The process dies at a request, or the store fails once; the same step again is right."""
        for skip in range(40):
            table = make_table()
            store = quick_faults.of(table.location)
            writer = table.writer()
            writer.upsert(rows({1: 0, 2: 0}))
            error = Killed() if ends else None
            rule = store.fail("*", error=error, after=after, skip=skip)
            failed = False
            try:
                writer.apply(upserts=rows({1: 1}), deletes=keys(2), source=SOURCE, version=1)
            except (MemWalError, Killed):
                failed = True
            if not rule.hits:
                assert skip > 2
                writer.abort()
                return
            # Whoever asks next, and whatever was written meanwhile.
            with table.writer() as other:
                again = other.apply(upserts=rows({1: 1}), deletes=keys(2), source=SOURCE, version=1)
                assert failed or again.skipped
                assert state(other) == {1: 1}
                other.upsert(rows({1: 5, 2: 5}))
                assert other.apply(deletes=keys(1, 2), source=SOURCE, version=1).skipped
                assert state(other) == {1: 5, 2: 5}
            writer.abort()
        raise AssertionError("there is no end of requests")

    def test_a_step_that_failed_may_be_tried_again_by_the_same_writer(
        self, quick_faults: FaultyStores, table: memwal.Table
    ) -> None:
        """The entry got into the log though the store said no; the next one takes it up."""
        store = quick_faults.of(table.location)
        with table.writer() as writer:
            writer.upsert(rows({1: 0}))
            store.fail("create", WAL, StoreError("no"), after=True)
            with pytest.raises(StoreError):
                writer.apply(upserts=rows({1: 1}), source=SOURCE, version=1)
            writer.upsert(rows({1: 2}))
            assert writer.apply(upserts=rows({1: 1}), source=SOURCE, version=1).skipped
            assert state(writer) == {1: 2}

    def test_a_process_that_was_paused_before_the_first_book(
        self, quick_faults: FaultyStores, make_table: MakeTable
    ) -> None:
        """Longer than the grace period: what fenced it is collected, by one who knew of no book.
        Its step may neither be in the log nor be taken for known."""
        table = make_table()
        store = quick_faults.of(table.location)
        with table.writer() as paused:
            paused.upsert(rows({1: 1}))

            def others() -> None:
                with table.writer() as other:
                    other.upsert(rows({2: 2}))
                with table.writer() as other:
                    other.upsert(rows({3: 3}))
                collect_all(table)

            rule = store.fail("create", "*/applied/*", times=0)
            rule.act, rule.times = others, 1
            with pytest.raises(RegionFencedError):
                paused.apply(upserts=rows({1: 7}), source=SOURCE, version=7)
            assert rule.hits == 1
            paused.abort()
        assert state(table) == {1: 1, 2: 2, 3: 3}
        # Its place in the log was free, and still is.
        entries = log(table)
        assert min(entries) > 2
        with table.writer() as writer:
            with pytest.raises(CorruptDataError):
                writer.apply(upserts=rows({1: 7}), source=SOURCE, version=7)
            write_empty_book(table.location.store, REGION, tip=max(log(table)) + 1)
            assert writer.apply(upserts=rows({1: 7}), source=SOURCE, version=7).written

    def test_a_book_that_cannot_be_read_is_told(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.apply(upserts=rows({1: 1}), source=SOURCE, version=1)
        collect_all(table)
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
        collect_all(table)
        (book,) = books(table)
        (folder(table) / book).write_text('{"orders": "seven"}')
        with pytest.raises(CorruptDataError):
            table.applied(SOURCE)
