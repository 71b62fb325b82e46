"""A producer of the load: durable upserts and deletes, and an account of what was acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import memwal
from load_test.rows import ABSENT, Counts, regions_of, rows_of, torn
from load_test.state import Control, EventLog, Truth, batch_turns

_SHARE_OF_HOT_KEYS = 0.01
_SHARE_OF_HOT_WRITES = 0.2
_TURNS_PER_DELETE = 10
# Writes wait for flushes, however long; what they waited is measured.
_PATIENCE = 600.0


def produce(task: dict[str, Any]) -> None:
    """Write until told to end. What an earlier process left open is settled first."""
    table = memwal.open(task["uri"])
    folder = Path(task["folder"])
    ids, regions = regions_of(table, task["keys"])
    own = list(range(task["number"], len(ids), task["producers"]))
    options = memwal.WriterOptions(backpressure_timeout=_PATIENCE)
    with EventLog(folder / "events", f"producer-{task['number']}") as event_log:
        producer = Producer(
            keys=np.flatnonzero(np.isin(regions, own)),
            beacons=np.array([np.flatnonzero(regions == region)[0] for region in own]),
            truth=Truth(folder / "truth", task["keys"]),
            event_log=event_log,
            random=np.random.default_rng([task["seed"], task["number"], task["life"]]),
            batch=task["batch"],
        )
        with table.writer(options=options, region_ids=[ids[region] for region in own]) as writer:
            writer.claim()
            producer.settle(writer)
            with _Flusher(lambda: producer.flush(writer), task["flush_seconds"]) as flusher:
                for _ in batch_turns(Control(folder), task["batch"]):
                    flusher.check()
                    producer.write(writer)
        producer.flushed(producer.acknowledged())


class Producer:
    """Writes the keys that are its own, and keeps their states.

    Parameters
    ----------
    keys, beacons : array
        Its keys; those among them that every upsert writes: one of each region.
    truth, event_log : Truth, EventLog
    random : numpy.random.Generator
    batch : int
        Rows of a call.
    """

    def __init__(
        self,
        *,
        keys: Counts,
        beacons: Counts,
        truth: Truth,
        event_log: EventLog,
        random: np.random.Generator,
        batch: int,
    ) -> None:
        self._keys, self._beacons, self._truth = keys, beacons, truth
        self._event_log, self._random = event_log, random
        self._hot = keys[: max(int(len(keys) * _SHARE_OF_HOT_KEYS), 1)]
        self._sizes = int(batch * _SHARE_OF_HOT_WRITES), int(batch * (1 - _SHARE_OF_HOT_WRITES))
        self._turn = 0
        self._waited = 0.0

    def write(self, writer: memwal.Writer) -> None:
        """One call: upserts most of the time, deletes now and then."""
        self._turn += 1
        hot, all_keys = self._sizes
        chosen = [self._random.choice(self._hot, hot), self._random.choice(self._keys, all_keys)]
        deletes = self._turn % _TURNS_PER_DELETE == 0
        keys = np.unique(np.concatenate(chosen if deletes else [*chosen, self._beacons]))
        if deletes:
            keys = np.setdiff1d(keys, self._beacons)
        counts = (self._truth.acked[keys] >> 1).astype(np.int64) + 1
        states = 2 * counts + deletes
        self._truth.attempt[keys] = states
        started = time.perf_counter()
        if deletes:
            writer.delete(pa.array(keys))
        else:
            writer.upsert(rows_of(keys, counts, written=time.time()))
        self._event_log.event(
            "delete" if deletes else "upsert", time.perf_counter() - started, len(keys)
        )
        self._truth.acked[keys] = states
        waited = writer.stats().totals.backpressure_seconds
        if waited > self._waited:
            self._event_log.event("waited", waited - self._waited)
            self._waited = waited

    def flush(self, writer: memwal.Writer) -> None:
        """Have everything that is acknowledged by now in generations."""
        states = self.acknowledged()
        started = time.perf_counter()
        writer.flush()
        self._event_log.event("flush", time.perf_counter() - started)
        self.flushed(states)

    def acknowledged(self) -> np.ndarray:
        return np.array(self._truth.acked[self._keys])

    def flushed(self, states: np.ndarray) -> None:
        self._truth.floor[self._keys] = np.maximum(self._truth.floor[self._keys], states)

    def settle(self, writer: memwal.Writer) -> None:
        """Look up what only the log can tell, and find out what became of open writes."""
        truth, started = self._truth, time.perf_counter()
        acked, attempt = truth.acked[self._keys], truth.attempt[self._keys]
        doubtful = self._keys[(acked != truth.floor[self._keys]) | (acked != attempt)]
        if not len(doubtful):
            return
        rows = writer.lookup(pa.array(doubtful)).to_table()
        found = np.full(len(doubtful), ABSENT)
        found[np.searchsorted(doubtful, rows["id"].to_numpy())] = rows["count"].to_numpy()
        low, high = (states[doubtful].astype(np.int64) for states in (truth.acked, truth.attempt))
        # Nothing else was tried, so that it is one of the two.
        is_low, is_high = (
            np.where(state % 2 == 1, found == ABSENT, found == state // 2) for state in (low, high)
        )
        for key in doubtful[~(is_low | is_high)][:10]:
            self._event_log.mistake("after a claim", self._shown(int(key), doubtful, found))
        for key in torn(rows)[:10]:
            self._event_log.mistake("torn row after a claim", f"key {key}")
        states = np.where(is_high, high, low)
        truth.acked[doubtful] = states
        truth.attempt[doubtful] = states
        self._event_log.event("settled", time.perf_counter() - started, len(doubtful))

    def _shown(self, key: int, keys: Counts, found: Counts) -> str:
        at = int(np.searchsorted(keys, key))
        return (
            f"key {key} has count {found[at]}; acknowledged was state {self._truth.acked[key]}, "
            f"tried for {self._truth.attempt[key]}, flushed {self._truth.floor[key]}"
        )


class _Flusher:
    """Flushes at intervals, in a thread of its own: writes go on."""

    def __init__(self, flush: Callable[[], None], seconds: float) -> None:
        self._flush, self._seconds = flush, seconds
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)

    def check(self) -> None:
        """Raise what a flush failed with."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._end.wait(self._seconds):
            try:
                self._flush()
            except BaseException as error:
                self._error = error
                return

    def __enter__(self) -> _Flusher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.check()
