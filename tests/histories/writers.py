"""Processes that write: with memwal's writer from several threads, with Lance's, and others'."""

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

import pyarrow as pa
from histories.events import Key, Level, Value
from histories.process import LOST, NEVER_CLAIMED, OWN, Process, now, seen_of
from lance_context import GenericStore
from support.data.tables import keys, rows
from support.oracles import native

import memwal
from memwal.errors import BackPressureError, InvalidInputError, MemWalError, PartialWriteError

OPTIONS = memwal.WriterOptions(
    max_memtable_rows=40,
    max_memtable_age=0.4,
    flush_attempts=2,
    backpressure_timeout=2.0,
    epoch_check_interval=0.2,
)
"""Small MemTables, and a look at the epoch as often as short graces of collectors need."""

NOT_ACCEPTED = (BackPressureError, InvalidInputError)
"""Errors after which rows are certainly not written."""


def ours(process: Process) -> None:
    """Claim some regions, write, read and flush for a while, and claim again: for ever."""
    process.forever(lambda: _one_writer(process), 0.5)


def _one_writer(process: Process) -> None:
    dice = process.dice
    process.learn_keys()
    chosen = dice.sample(process.regions, dice.randint(1, len(process.regions)))
    allowed = [assignment.region_id for assignment in chosen]
    with process.may_fail("opening a writer"):
        options = replace(OPTIONS, reopen=dice.random() < 0.3)
        writer = process.table.writer(options=options, region_ids=allowed)
        with process.may_fail("claiming"):
            writer.claim()
            Tenure(process, writer).live(dice.choice([0.3, 2.0, 6.0]))
        with process.may_fail("leaving"):
            writer.abort()


class Tenure:
    """One writer from its claim until it is fenced or has enough.

    One that reopens goes on with later claims, of which nothing is written down: its writes may
    take effect under any of them.
    """

    def __init__(self, process: Process, writer: memwal.Writer) -> None:
        self._process = process
        self._writer = writer
        self._epochs = {region.region_id: region.epoch for region in writer.stats().regions}
        self._ended = threading.Event()
        process.recorder.claimed(process.by_key(self._epochs))

    def live(self, seconds: float) -> None:
        """Write with two threads, read with one and flush with one."""
        seeds = [self._process.dice.getrandbits(32) for _ in range(4)]
        parts = zip((self._write, self._write, self._read, self._flush), seeds, strict=True)
        threads = [
            threading.Thread(target=self._repeat, args=(part, random.Random(seed)))
            for part, seed in parts
        ]
        for thread in threads:
            thread.start()
        self._ended.wait(seconds)
        self._ended.set()
        for thread in threads:
            thread.join()
        if self._process.dice.random() < 0.5:
            self._close()

    def _repeat(self, act: Callable[[random.Random], None], dice: random.Random) -> None:
        while not self._ended.is_set():
            act(dice)

    def _rest(self, dice: random.Random, least: float, most: float) -> None:
        self._ended.wait(dice.uniform(least, most) * self._process.told.rest)

    def _write(self, dice: random.Random) -> None:
        process = self._process
        epochs = process.by_key(self._epochs)
        written = process.new_rows(list(epochs), dice)
        if self._writer.settings.reopen:
            epochs = dict.fromkeys(epochs, NEVER_CLAIMED)
        begin = now()
        call = process.recorder.begin_write(written, {key: epochs[key] for key in written})
        try:
            self._put(written, wait=dice.random() < 0.8)
        except PartialWriteError as error:
            self._partly(call, written, error)
        except NOT_ACCEPTED as error:
            process.recorder.end_write(call, done=(), refused=written)
            process.recorder.failed("writing", error)
        except MemWalError as error:
            process.record_failure("writing", error, begin=begin)
            self._ended.set()
        except BaseException as error:
            process.recorder.wrong(f"writing: {type(error).__name__}: {error}")
            self._ended.set()
        else:
            process.recorder.end_write(call, done=written)
        self._rest(dice, 0.0, 0.02)

    def _put(self, written: Mapping[Key, Value], *, wait: bool) -> None:
        upserted = {key: value for key, value in written.items() if value is not None}
        if upserted:
            handle = self._writer.upsert(rows(upserted), wait=wait)
        else:
            handle = self._writer.delete(keys(*written), wait=wait)
        handle.wait()

    def _partly(self, call: int, written: Mapping[Key, Value], error: PartialWriteError) -> None:
        given = list(written)
        failed: set[Key] = set()
        refused: set[Key] = set()
        for failure in error.failures:
            touched = {given[number] for number in failure.rows.to_pylist()}
            failed |= touched
            if isinstance(failure.error, NOT_ACCEPTED):
                refused |= touched
        self._process.recorder.end_write(call, done=set(given) - failed, refused=refused)
        self._process.recorder.failed("writing", error)
        self._ended.set()

    def _read(self, dice: random.Random) -> None:
        process = self._process
        mine = process.keys_of(self._epochs)
        with process.may_fail("reading in the own process"):
            begin = now()
            if dice.random() < 0.5:
                wanted = dice.sample(mine, min(4, len(mine)))
                found = self._writer.lookup(keys(*wanted)).to_table()
            else:
                wanted = process.keys
                found = self._writer.scan().to_table()
            end = now()
            held = self._still_held()
            seen = seen_of(found, wanted)
            # A later claim may have replayed rows of keys that this process does not know.
            levels = dict.fromkeys(seen.keys() - process.region_of.keys(), LOST)
            levels |= {key: OWN if process.region_of[key] in held else LOST for key in mine}
            process.record_read(begin, end, seen, levels=levels)
        self._rest(dice, 0.0, 0.1)

    def _flush(self, dice: random.Random) -> None:
        self._rest(dice, 0.1, 1.0)
        with self._process.may_fail("flushing"):
            begin = now()
            self._writer.flush()
            self._flushed(begin)

    def _close(self) -> None:
        with self._process.may_fail("closing"):
            begin = now()
            self._writer.close()
            self._flushed(begin)

    def _flushed(self, begin: int) -> None:
        """A flush is a bound where nobody else had the region when it began."""
        held = self._still_held()
        if held:
            self._process.recorder.bound(Level.FLUSHED, begin, self._process.keys_of(held))

    def _still_held(self) -> dict[UUID, int]:
        return self._process.still_held(self._epochs)


def lances(process: Process) -> None:
    """Claim a region with Lance's own writer, write for a while, close it or leave it: for ever."""
    process.forever(lambda: _one_shard(process), 1.0)


def _one_shard(process: Process) -> None:
    dice = process.dice
    region = dice.choice(process.regions).region_id
    with process.may_fail("Lance's writer", OSError):
        shard = native.writer(
            process.table, region, max_memtable_rows=40, max_wal_flush_interval_ms=1
        )
        # What somebody has claimed since counts as ours: a later claim than it was, at worst.
        manifest = native.read_manifests(process.table.location.store, [region])[region]
        epochs = {region: manifest.writer_epoch}
        process.recorder.claimed(process.by_key(epochs))
        try:
            for _ in range(dice.choice([3, 30, 100])):
                _put_natively(process, shard, epochs)
        finally:
            if dice.random() < 0.5:
                shard.close()


def _put_natively(process: Process, shard: native.ShardWriter, epochs: Mapping[UUID, int]) -> None:
    by_key = process.by_key(epochs)
    written = process.new_rows(list(by_key), process.dice)
    call = process.recorder.begin_write(written, {key: by_key[key] for key in written})
    upserted = {key: value for key, value in written.items() if value is not None}
    if upserted:
        native.put(shard, process.table, rows(upserted))
    else:
        shard.delete(pa.table({"id": pa.array(list(written), pa.int64())}))
    process.recorder.end_write(call, done=written)


def lance_contexts(process: Process) -> None:
    """Open the table as a store of lance-context, add rows for a while, and leave it: for ever.

    The package is the real one, with a Lance of its own, which claims its region again when another
    writer has claimed it. That Lance does not replay entries of later ones, and so none of ours: a
    region is handed over to it without unflushed rows, and its later claims may fail, which fence
    all the same. Two things are not asked of it. ``cleanup_wal`` merges without recording the
    progress. After ``flush``, if another writer has claimed the region since, it acknowledges an
    addition that goes nowhere; so nothing is added then.
    """
    process.forever(lambda: _one_store(process), 1.0)


def _one_store(process: Process) -> None:
    dice = process.dice
    with process.may_fail("lance-context's store", RuntimeError):
        with process.table.writer() as writer:
            writer.claim()
        store = GenericStore.open_existing(process.told.uri)
        for _ in range(dice.choice([1, 3, 30])):
            chosen = dice.sample(range(process.told.keys), dice.choice([1, 2, 4]))
            written = dict.fromkeys(chosen, process.new_value())
            call = process.recorder.begin_write(written, dict.fromkeys(written, NEVER_CLAIMED))
            store.add(rows(written).to_pylist())
            process.recorder.end_write(call, done=written)
            process.recorder.job("an addition of lance-context")
            time.sleep(dice.uniform(0.0, 0.1) * process.told.rest)
        store.flush()
