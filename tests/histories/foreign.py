"""A process of a play that acts on the table as clients do that know nothing of memwal."""

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import lance
import lancedb
import pyarrow as pa
from histories.events import Key, Level, Value
from histories.process import FIRST_OWN_KEY, NEVER_CLAIMED, Process, Told, now
from histories.toggle import log_suspended, undecided
from lancedb import LsmWriteSpec
from lancedb.table import Table as LanceTable
from support.data.tables import rows

import memwal
from memwal.errors import MemWalError

FIRST_KEY = 1_000_000
"""Keys from here on belong to rows that were appended beside the log."""

INDEX = "id_idx"
"""The maintained one."""

ERRORS = (OSError, ValueError, RuntimeError)
"""Those by which Lance and LanceDB tell of conflicts with others, and more."""


def foreign(process: Process) -> None:
    """Write beside the log, write through it with LanceDB, and take it away for a moment."""
    client = _Client(process)
    acts = [client.append, client.add, client.restore]
    # lance-context keeps a table with one region, and sets MemWAL again as soon as it opens it.
    if not process.told.foreign_names or process.told.regions > 1:
        acts.append(client.unset)
    if not process.told.foreign_names:  # LanceDB would make regions of other names.
        acts += [client.upsert, client.upsert]

    def act() -> None:
        what = process.dice.choice(acts)
        with process.may_fail(f"a foreign client's {what.__name__}", *ERRORS):
            what()
            process.recorder.job(f"a foreign client's {what.__name__}")

    process.forever(act, 0.6)


class _Client:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._keys = itertools.count(FIRST_KEY + process.told.first_value)
        self._own_keys = itertools.count(FIRST_OWN_KEY + process.told.first_value)

    def append(self) -> None:
        """Append rows with Lance."""
        self._append(lambda data: lance.write_dataset(data, self._process.told.uri, mode="append"))

    def add(self) -> None:
        """Append rows with LanceDB."""
        self._append(lambda data: _opened(self._process.told).add(data))

    def _append(self, put: Callable[[pa.Table], object]) -> None:
        process = self._process
        chosen = list(itertools.islice(self._keys, process.dice.choice([1, 3])))
        written = dict.fromkeys(chosen, process.new_value())
        self._beside_the_log(written, lambda: put(rows(written)))
        process.tell_of_keys(written)

    def _beside_the_log(self, written: Mapping[Key, Value], put: Callable[[], object]) -> None:
        """Rows that are in the base table at once, of which the log has nothing that is pending."""
        recorder = self._process.recorder
        call = recorder.begin_write(written, dict.fromkeys(written, NEVER_CLAIMED))
        put()
        recorder.end_write(call, done=written)
        begin = now()
        for level in (Level.FLUSHED, Level.MERGED):
            recorder.bound(level, begin, written)

    def upsert(self) -> None:
        """Upsert rows of one region through the log with LanceDB, which takes the region over."""
        process = self._process
        region = process.dice.choice(process.regions).region_id
        chosen = process.dice.sample(process.keys_of([region]), 1)
        written = dict.fromkeys(chosen, process.new_value())
        table = _opened(process.told)
        call = process.recorder.begin_write(written, dict.fromkeys(written, NEVER_CLAIMED))
        try:
            builder = table.merge_insert("id").when_matched_update_all()
            builder.when_not_matched_insert_all().execute(rows(written))
            process.recorder.end_write(call, done=written)
        finally:
            table.close_lsm_writers()

    def unset(self) -> None:
        """Take MemWAL away, and set the same spec again.

        In between, write to the table directly: rows of which the log has older ones, all merged.
        """
        merged = self._write_and_merge() if self._process.dice.random() < 0.7 else []
        _begin(self._process.told, _UNSET)
        try:
            _opened(self._process.told).unset_lsm_write_spec()
            # If the MemWAL index was replaced at the same time, LanceDB removes none.
            table = _opened(self._process.told)
            for key in merged if table.get_lsm_write_spec() is None else ():
                self._write_directly(table, key)
        finally:
            settle(self._process.told)

    def restore(self) -> None:
        """Restore a version to which only the log has added rows."""
        told = self._process.told
        version = lance.dataset(told.uri).version
        time.sleep(self._process.dice.choice([0.0, 0.5, 2.0]))
        _begin(told, _RESTORE)
        try:
            lance.dataset(told.uri, version=version).restore()
        finally:
            settle(told)

    def _write_and_merge(self) -> list[Key]:
        """Write rows that no other process writes through the log, and merge them."""
        process = self._process
        written = {next(self._own_keys): process.new_value() for _ in range(2)}
        process.tell_of_keys(written)
        process.learn_keys()
        regions = list({process.region_of[key] for key in written})
        with process.table.writer(region_ids=regions) as writer:
            writer.claim()
            epochs = {region.region_id: region.epoch for region in writer.stats().regions}
            by_key = process.by_key(epochs)
            process.recorder.claimed(by_key)
            call = process.recorder.begin_write(written, {key: by_key[key] for key in written})
            writer.upsert(rows(written))
            process.recorder.end_write(call, done=written)
        process.table.checkpoint(flush=False)
        return list(written)

    def _write_directly(self, table: LanceTable, key: Key) -> None:
        if self._process.dice.random() < 0.5:
            self._beside_the_log({key: None}, lambda: table.delete(f"id = {key}"))
        else:
            written = {key: self._process.new_value()}
            builder = table.merge_insert("id").when_matched_update_all()
            builder = builder.when_not_matched_insert_all()
            self._beside_the_log(written, lambda: builder.execute(rows(written)))


_UNSET, _RESTORE = "unset", "restore"


def _begun(told: Told) -> Path:
    return Path(told.folder, "begun")


def may_write_directly(told: Told) -> bool:
    """Whether rows of the base table may be other ones than those that were merged."""
    return _begun(told).exists()


def _begin(told: Told, what: str) -> None:
    _begun(told).write_text(what)
    undecided(Path(told.folder)).turn()
    log_suspended(Path(told.folder)).turn()


def settle(told: Told) -> None:
    """End what was begun, by this life or by one that was killed at it, and decide what counts."""
    suspended, doubtful = (begun(Path(told.folder)) for begun in (log_suspended, undecided))
    if not doubtful.is_on:
        return
    what = _begun(told).read_text()
    if what == _UNSET and suspended.is_on:
        _again_and_again(lambda: _set(told))
        suspended.turn()
    table = memwal.open(told.uri)
    _again_and_again(lambda: table.restore(merge_again=what == _RESTORE))
    if what == _RESTORE and suspended.is_on:
        _again_and_again(table.checkpoint)
        suspended.turn()
    doubtful.turn()


def _again_and_again(act: Callable[[], object]) -> None:
    """Do something until it succeeds, since others commit as well; raise its last error if not."""
    for _ in range(100):
        with suppress(MemWalError, *ERRORS):
            act()
            return
        time.sleep(0.1)
    act()


def _set(told: Told) -> None:
    table = _opened(told)
    if table.get_lsm_write_spec() is not None:
        return
    # LanceDB 0.40 passes over indexes that pylance 14 makes on tables with stable row ids.
    if any(index.name == INDEX for index in table.list_indices()):
        spec = LsmWriteSpec.bucket("id", told.regions)
        table.set_lsm_write_spec(spec.with_maintained_indexes([INDEX]))
    else:
        spec = memwal.RegionSpec.bucket("id", told.regions)
        memwal.enable(told.uri, region_spec=spec, maintained_indexes=[INDEX])


def _opened(told: Told) -> LanceTable:
    path = Path(told.uri)
    return lancedb.connect(path.parent).open_table(path.stem)
