"""A table against a dictionary: any sequence of writes, jobs, crashes, takeovers and new schemas.

After each step a strong read equals the dictionary; after a crash everything that was acknowledged
is there, and what was not is there as a whole or not at all. A failing example prints its history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.data.tables import later
from support.oracles import native
from support.oracles.truth import Change, Truth, Write
from support.stores.faulty_store import WAL, FaultyStores, Killed, skip_waits

import memwal
from memwal.errors import (
    MemWalError,
    OutcomeUnknownError,
    PartialWriteError,
    RegionFencedError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    WriterClosedError,
)
from memwal.jobs.gc import collect_garbage
from memwal.jobs.job import JobResult
from memwal.jobs.options import GcOptions
from memwal.region.router import UNSHARDED_ID, Router, bucket_region_id
from memwal.writer.region_writer.handle import WriteHandle

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a", pa.int64()),
        pa.field("b", pa.string()),
    ]
)
KINDS = {"number": pa.int64(), "text": pa.string()}
KEYS = range(8)
ALL_KEYS = pa.array(KEYS, pa.int64())

some_keys = st.sets(st.sampled_from(KEYS), min_size=1, max_size=4).map(sorted)
steps = st.integers(0, 40)
kinds = st.sampled_from(sorted(KINDS))
jobs = st.sampled_from(("flush", "merge", "collect", "index", "snapshot", "reopen"))


class Machine(RuleBasedStateMachine):
    """One table, whoever has it in hand at the moment, and what it must show."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        skip_waits(self.patches)
        self.folder = TemporaryDirectory()
        self.stores = FaultyStores(self.patches, durable=False)
        self.number = 0
        self.handles: list[WriteHandle] = []
        self.evolved = False

    @initialize(
        buckets=st.sampled_from((None, 2)),
        options=st.sampled_from(
            (
                {},
                {"max_memtable_rows": 6},
                {"max_memtable_bytes": 1, "max_sealed_memtables": 1},
                {"durable": False, "buffer_interval": 10},
                {"durable": False, "buffer_writes": 2, "max_memtable_rows": 6},
                {"indexed": True},
            )
        ),
    )
    def create(self, buckets: int | None, options: dict[str, Any]) -> None:
        spec = (
            memwal.RegionSpec.unsharded()
            if buckets is None
            else memwal.RegionSpec.bucket("id", buckets)
        )
        self.table = memwal.create(
            str(Path(self.folder.name, "table")),
            SCHEMA,
            primary_key=["id"],
            region_spec=spec,
            maintained_indexes=["id_idx"],
        )
        self.store = self.stores.of(self.table.location)
        # Not for long: when all requests of a process fail, so do its flushes.
        self.options = memwal.WriterOptions(backpressure_timeout=5, **options)
        self.regions = (
            [UNSHARDED_ID]
            if buckets is None
            else [bucket_region_id(number) for number in range(buckets)]
        )
        router = Router(spec, SCHEMA)
        parts = router.route(self._stored(dict.fromkeys(KEYS)))
        self.region_of = {
            key: assignment.region_id
            for assignment, batch in parts
            for key in batch.column("id").to_pylist()
        }
        self.columns: dict[str, pa.DataType] = {f.name: f.type for f in SCHEMA if f.name != "id"}
        self.truth: Truth[Row] = Truth(self.region_of.__getitem__, in_order=True)
        self._saw_everything()
        self._open()

    def teardown(self) -> None:
        try:
            if hasattr(self, "writer"):
                self._finish()
        finally:
            if hasattr(self, "writer"):
                self.store.clear()
                self.writer.abort()
            self.patches.undo()
            self.folder.cleanup()

    # Writes

    @rule(keys=some_keys, nulls=st.booleans())
    def upsert(self, keys: list[int], nulls: bool) -> None:
        change = self._new(keys, nulls=nulls)
        self._write(change, lambda: self.writer.upsert(self._rows(change)))

    @rule(keys=some_keys, position=st.integers(0, 4))
    def upsert_some_columns(self, keys: list[int], position: int) -> None:
        name = sorted(self.columns)[position % len(self.columns)]
        known, given = self.truth.expected(), self._new(keys)
        change = {
            key: {**(known.get(key) or dict.fromkeys(self.columns)), name: given[key][name]}
            for key in keys
        }
        part = self._rows(given).select(["id", name])
        self._write(change, lambda: self.writer.upsert(part, partial=True))

    @rule(keys=some_keys, stale=some_keys)
    def upsert_if_unchanged(self, keys: list[int], stale: list[int]) -> None:
        known, given, others = self.truth.expected(), self._new(keys), self._new(stale)
        read = {key: row for key, row in (known | others).items() if key in keys}
        change = {key: row for key, row in given.items() if key not in stale}
        handles: list[WriteHandle] = []

        def write() -> WriteHandle:
            rows = self._rows(given)
            handles.append(self.writer.upsert(rows, only_if_unchanged=self._rows(read)))
            return handles[0]

        self._write(change, write)
        if handles[0].done():
            left_out = {row["id"] for row in handles[0].changed.to_pylist()}
            assert left_out == given.keys() - change.keys()

    @rule(keys=some_keys)
    def upsert_keys_twice_in_one_batch(self, keys: list[int]) -> None:
        older, change = self._new(keys), self._new(keys[:2])
        whole = older | change
        rows = pa.concat_tables([self._rows(older), self._rows(change)])
        self._write(whole, lambda: self.writer.upsert(rows))

    @rule(keys=some_keys)
    def delete(self, keys: list[int]) -> None:
        change = dict.fromkeys(keys)
        self._write(change, lambda: self.writer.delete(pa.array(keys, pa.int64())))

    @rule(keys=some_keys)
    def upsert_from_threads(self, keys: list[int]) -> None:
        changes = [self._new([key]) for key in keys]
        whole: Change[Row] = {key: row for change in changes for key, row in change.items()}

        self._say(f"write from threads {whole}")
        with ThreadPoolExecutor(len(changes)) as pool:
            handles = list(pool.map(self.writer.upsert, map(self._rows, changes)))
        self.writer.flush_wal()
        for handle in handles:
            handle.wait()
        self.truth.begin(whole)
        self.truth.acknowledge()

    @rule()
    def upsert_nothing(self) -> None:
        self._write({}, lambda: self.writer.upsert(self._rows({})))

    @rule()
    def flush_the_log(self) -> None:
        self._say("flush the log")
        self.writer.flush_wal()
        self._all_is_durable()

    # Jobs

    @rule()
    def flush(self) -> None:
        self._say("flush")
        self._flush()

    @rule(one_by_one=st.booleans())
    def merge(self, one_by_one: bool) -> None:
        self._say("merge")
        result = self.table.merge(commit_bytes=1 if one_by_one else 1 << 30)
        assert result.warnings == ()

    # Lance's own calls merge rows by the names of their columns.
    @precondition(lambda self: not self.evolved)
    @rule(generations=st.sampled_from((1, None)))
    def merge_by_lance(self, generations: int | None) -> None:
        self._say("merge by Lance")
        native.merge(self.table, generations=generations)

    @rule()
    def index(self) -> None:
        self._say("index")
        self.table.build_indexes()

    @rule()
    def snapshot(self) -> None:
        self._say("snapshot")
        self.table.build_snapshot()

    @rule()
    def collect(self) -> None:
        self._say("collect")
        self._settle_flushes()
        assert self._collect().warnings == ()

    # Ends and failures

    @rule()
    def close_and_open(self) -> None:
        self._say("close, open")
        self.writer.close()
        self._all_is_durable()
        self._saw_everything()
        self._open()

    @rule()
    def crash(self) -> None:
        self._say("crash")
        self._crash()

    @rule(keys=some_keys, deletes=st.booleans(), step=steps, after=st.booleans())
    def crash_during_a_write(self, keys: list[int], deletes: bool, step: int, after: bool) -> None:
        # Only the first requests of a write are of interest.
        self.store.kill("*", skip=step % 4, after=after, times=1 << 30)
        self._doubtful_write(keys, deletes)
        self._crash()

    @rule(job=jobs, step=steps, after=st.booleans())
    def crash_during_a_job(self, job: str, step: int, after: bool) -> None:
        self._say(f"crash at request {step} of {job}")
        self._settle_flushes()
        self.store.kill("*", skip=step, after=after, times=1 << 30)
        with suppress(Killed, MemWalError):
            self._job(job)
        self._crash()

    @rule(
        keys=some_keys,
        deletes=st.booleans(),
        step=st.integers(0, 5),
        kind=st.sampled_from(("before", "after", "twice", "late", "refused", "full", "away")),
    )
    def stumble_in_a_write(self, keys: list[int], deletes: bool, step: int, kind: str) -> None:
        self._disturb(kind, step)
        self._doubtful_write(keys, deletes)
        self.store.clear()
        self._settle()
        # What the store was still to get comes when nobody waits for it any more.
        self.store.arrive()

    @rule(job=jobs, step=steps, kind=st.sampled_from(("before", "after", "twice", "late")))
    def stumble_in_a_job(self, job: str, step: int, kind: str) -> None:
        self._say(f"request {step} of {job} fails: {kind}")
        self._settle_flushes()
        self._disturb(kind, step)
        try:
            self._job(job)
        except (StoreError, OutcomeUnknownError, PartialWriteError) as error:
            note(f"  {type(error).__name__}: {error}")
        self.store.clear()
        self._settle()
        self.store.arrive()

    @rule(step=st.none() | st.integers(0, 25), after=st.booleans())
    def start_over(self, step: int | None, after: bool) -> None:
        """Give up what is not flushed, and perhaps die on the way: then it is given up or not."""
        self.writer.flush_wal()
        self._all_is_durable()
        self.writer.abort()
        flushed = self._read(self.table.scan().to_table())
        self._say(f"start over with {flushed}" + (f", crash at request {step}" if step else ""))
        if step is not None:
            self.store.kill("*", skip=step, after=after, times=1 << 30)
        with suppress(Killed, MemWalError):
            self.writer = self.table.writer(options=self.options, replay=False)
            self.writer.claim()
            if step is None:
                assert self._read(self.writer.scan().to_table()) == flushed
        before, given_up = self.truth.expected(), {key: flushed.get(key) for key in KEYS}
        begun = self.truth.begin({k: row for k, row in given_up.items() if row != before.get(k)})
        if step is None:
            self.truth.acknowledge(begun)
        self._crash()

    # Takeovers

    @rule(key=st.sampled_from(KEYS))
    def takeover(self, key: int) -> None:
        self._say("takeover by another writer")
        self.writer.flush_wal()
        self._all_is_durable()
        old = self.writer
        self._open()
        with pytest.raises(RegionFencedError):
            old.upsert(self._rows(self._new([key])), wait=True)
        old.abort()

    @rule(keys=some_keys, after=st.booleans())
    def takeover_in_the_middle_of_a_write(self, keys: list[int], after: bool) -> None:
        self._say(f"takeover while {keys} are written, {'after' if after else 'before'} the append")
        keys = [key for key in keys if self.region_of[key] == self.region_of[keys[0]]]
        self.writer.flush_wal()
        self._all_is_durable()
        old, change = self.writer, self._new(keys)
        rows = self._rows(change)
        pause = self.store.pause("create", WAL, after=after)
        begun = self.truth.begin(change)
        with pause.holding(old.upsert, rows, wait=True) as writing:
            self._open()
        error = writing.exception()
        if error is None:
            assert after, "a write was acknowledged behind the fence"
            self.truth.acknowledge(begun)
        else:
            assert isinstance(error, RegionFencedError), repr(error)
        self.store.clear()
        old.abort()
        self.truth.settle(self._read(self.writer.scan().to_table()))

    @rule(keys=some_keys, gone=some_keys, close=st.booleans(), end=st.booleans())
    def takeover_by_lance(self, keys: list[int], gone: list[int], close: bool, end: bool) -> None:
        self._say(f"takeover by Lance: upsert {keys}, delete {gone}, {'close' if close else ''}")
        self.writer.flush_wal()
        self._all_is_durable()
        old, change = self.writer, self._new(keys)
        if end:
            old.abort()
        for region_id in self.regions:
            self._let_lance_write(
                region_id,
                self._rows({k: v for k, v in change.items() if self.region_of[k] == region_id}),
                [key for key in gone if self.region_of[key] == region_id],
                close=close,
            )
        whole: Change[Row] = {**change, **dict.fromkeys(gone)}
        self.truth.acknowledge(self.truth.begin(whole))
        if not end:
            with pytest.raises(RegionFencedError):
                old.delete(pa.array(keys[:1], pa.int64()), wait=True)
            old.abort()
        self._open()

    def _let_lance_write(
        self, region_id: UUID, rows: pa.Table, gone: list[int], *, close: bool
    ) -> None:
        shard = native.writer(self.table, region_id)
        if rows.num_rows:
            native.put(shard, self.table, rows)
        if gone:
            shard.delete(pa.table({"id": pa.array(gone, pa.int64())}))
        if close:
            shard.close()

    # New schemas

    @precondition(lambda self: len(self.columns) < 5)
    @rule(kind=kinds)
    def add_column(self, kind: str) -> None:
        self.number += 1
        name = f"c{self.number}"
        self._say(f"add column {name}: {kind}")
        native.dataset(self.table).add_columns(pa.field(name, KINDS[kind]))
        self.columns[name] = KINDS[kind]
        self._transform(lambda row: {**row, name: None})

    @precondition(lambda self: len(self.columns) > 1)
    @rule(position=st.integers(0, 4))
    def drop_column(self, position: int) -> None:
        # Not the newest one: a table without its rows would give its field id away again.
        name = list(self.columns)[position % (len(self.columns) - 1)]
        self._say(f"drop column {name}")
        native.dataset(self.table).drop_columns([name])
        del self.columns[name]
        self._transform(lambda row: {k: v for k, v in row.items() if k != name})

    @rule(position=st.integers(0, 4))
    def rename_column(self, position: int) -> None:
        self.number += 1
        old, new = sorted(self.columns)[position % len(self.columns)], f"c{self.number}"
        self._say(f"rename column {old} to {new}")
        native.dataset(self.table).alter_columns({"path": old, "name": new})
        # In the order in which they were added, whatever they are called.
        self.columns = {new if n == old else n: kind for n, kind in self.columns.items()}
        self._transform(lambda row: {new if k == old else k: v for k, v in row.items()})

    # What must hold

    @invariant()
    def strong_reads_show_everything(self) -> None:
        if not hasattr(self, "writer"):
            return
        expected = self.truth.expected()
        assert self._read(self.writer.scan().to_table()) == expected
        assert self._read(self.writer.lookup(ALL_KEYS).to_table()) == expected

    @invariant()
    def other_reads_show_what_was_flushed_or_newer(self) -> None:
        if not hasattr(self, "writer"):
            return
        found = self._read(self.table.scan().to_table())
        self.truth.check(found, "another process", lambda write: write.end <= self.flushed)

    def _finish(self) -> None:
        self._say("the end: close, and compare with Lance")
        self.writer.close()
        self._all_is_durable()
        self._saw_everything()
        self._compare_with_lance()
        assert self.table.merge().warnings == ()
        self._compare_with_lance()
        rows = self.table.base().dataset.count_rows()
        assert rows == len(self.truth.expected()), "the base table has rows twice, or too many"

    def _compare_with_lance(self) -> None:
        assert self._read(self.table.scan().to_table()) == self.truth.expected()
        assert self._read(native.scan(self.table)) == self.truth.expected()
        found = native.lookup(self.table, pa.table({"id": ALL_KEYS}))
        assert self._read(pa.Table.from_pylist(found, self._schema())) == self.truth.expected()

    # Steps that rules share

    def _say(self, what: str) -> None:
        note(f"- {what}")

    def _open(self) -> None:
        self.writer = self.table.writer(options=self.options)
        self.writer.claim()

    def _all_is_durable(self) -> None:
        """Every write has returned, and whoever still holds a handle hears that it is done."""
        self.truth.acknowledge()
        for handle in self.handles:
            assert handle.done()
            handle.wait()
        self.handles.clear()

    def _flush(self) -> None:
        self.writer.flush()
        self._all_is_durable()
        self._saw_everything()

    def _settle_flushes(self) -> None:
        """Let flushes end that are under way.

        The collector's clock is ahead, and takes them for the rest of some that died long ago.
        """
        until = time.monotonic() + 5
        while self.writer.stats().sealed_memtables:
            if time.monotonic() > until:
                self._flush()
            time.sleep(0.001)

    def _collect(self) -> JobResult:
        return collect_garbage(
            self.table.location,
            GcOptions(dry_run=False, retention_seconds=0, foreign_claim_seconds=0),
            clock=later(86_400),
        )

    def _job(self, job: str) -> None:
        match job:
            case "flush":
                self._flush()
            case "merge":
                self.table.merge()
            case "collect":
                self._collect()
            case "index":
                self.table.build_indexes()
            case "snapshot":
                self.table.build_snapshot()
            case "reopen":
                self.writer.flush_wal()
                self._all_is_durable()
                self.writer.abort()
                self._open()

    def _crash(self) -> None:
        """End this process's writer in the middle of whatever it does, and open another one."""
        self._note_done()
        with suppress(Killed):
            self.writer.abort()
        self.handles.clear()
        self.store.clear()
        self._open()
        self.truth.settle(self._read(self.writer.scan().to_table()))

    def _note_done(self) -> None:
        """What a handle calls durable must be there, and with it all that was written before."""
        if self.handles and all(one.done() and not one.exception() for one in self.handles):
            self.truth.acknowledge()

    def _settle(self) -> None:
        """Find out what a write did that failed, with the writer if that goes on."""
        try:
            self.writer.claim()
            self.writer.flush()
        except (WriterClosedError, OutcomeUnknownError, RegionFencedError):
            self._crash()
        else:
            self.truth.settle(self._read(self.writer.scan().to_table()))
            self._saw_everything()

    def _disturb(self, kind: str, step: int) -> None:
        match kind:
            case "before" | "after":
                self.store.fail("*", skip=step, after=kind == "after")
            case "twice":
                self.store.deliver_twice("[cprd][ruet]*", skip=step)
            case "late":
                self.store.deliver_late("[cpr][rue][ep]*", skip=step, by=1 + step % 30)
            case "refused":
                self.store.fail("*", error=StoreAccessError("403"), skip=step)
            case "full":
                self.store.fail("[cpr][rue][ep]*", error=StoreFullError("507"), skip=step)
            case "away":
                self.store.fail("*", skip=step, times=1 << 30)

    def _write(self, change: Change[Row], write: Callable[[], WriteHandle]) -> None:
        self._say(f"write {change}")
        begun = self.truth.begin(change)
        self._accepted(write(), begun)

    def _accepted(self, handle: WriteHandle, begun: list[Write[Row]]) -> None:
        """A write returned: it is durable, or will be unless there is a crash."""
        if self.options.durable:
            assert handle.done()
            self.truth.acknowledge(begun)
        else:
            self.handles.append(handle)
            if all(one.done() for one in self.handles):
                self._all_is_durable()

    def _doubtful_write(self, keys: list[int], deletes: bool) -> None:
        change: Change[Row] = dict.fromkeys(keys) if deletes else self._new(keys)
        self._say(f"write {change}, and a failure")
        begun = self.truth.begin(change)
        try:
            if deletes:
                handle = self.writer.delete(pa.array(keys, pa.int64()))
            else:
                handle = self.writer.upsert(self._rows(change))
        except (Killed, MemWalError) as error:
            note(f"  {type(error).__name__}: {error}")
        else:
            note("  acknowledged" if handle.done() else "  buffered")
            self._accepted(handle, begun)

    def _saw_everything(self) -> None:
        """All that is acknowledged is flushed: nobody may see anything older."""
        self.flushed = self.truth.now

    def _transform(self, change: Callable[[Row], Row]) -> None:
        self.evolved = True
        self.truth.transform(change)

    # Rows

    def _new(self, keys: Iterable[int], *, nulls: bool = False) -> dict[int, Row]:
        """Rows whose values no other write has."""
        self.number += 1
        return {key: self._row(key, self.number, nulls=nulls) for key in keys}

    def _row(self, key: int, number: int, *, nulls: bool) -> Row:
        return {
            name: None
            if nulls and (key + position) % 2
            else number * 10 + key
            if kind == pa.int64()
            else f"{name}-{number}"
            for position, (name, kind) in enumerate(self.columns.items())
        }

    def _schema(self) -> pa.Schema:
        names = ["id", *self.columns]
        return pa.schema([("id", pa.int64()), *((n, self.columns[n]) for n in names[1:])])

    def _rows(self, change: Change[Row]) -> pa.Table:
        rows = [{"id": key, **row} for key, row in change.items() if row is not None]
        return pa.Table.from_pylist(rows, schema=self._schema())

    def _stored(self, change: Change[Row]) -> pa.RecordBatch:
        columns = {"id": pa.array(list(change), pa.int64())}
        rest = [pa.nulls(len(change), field.type) for field in SCHEMA if field.name != "id"]
        return pa.record_batch([columns["id"], *rest], schema=SCHEMA)

    def _read(self, found: pa.Table) -> dict[int, Row]:
        assert sorted(found.column_names) == sorted(["id", *self.columns])
        rows = found.to_pylist()
        by_key = {row.pop("id"): row for row in rows}
        assert len(by_key) == len(rows), "a key is shown twice"
        return dict(sorted(by_key.items()))


CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


class TestAnyHistory(Machine.TestCase):
    # Without shrinking, which takes minutes: the history that is printed is short as it is.
    settings = settings(
        max_examples=4,
        stateful_step_count=20,
        suppress_health_check=CHECKS,
        phases=[phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)],
    )


@pytest.mark.slow
@pytest.mark.timeout(1_800)
class TestManyHistories(Machine.TestCase):
    settings = settings(max_examples=5, stateful_step_count=60, suppress_health_check=CHECKS)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
class TestVeryManyHistories(Machine.TestCase):
    settings = settings(max_examples=200, stateful_step_count=60, suppress_health_check=CHECKS)
