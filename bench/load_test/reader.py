"""A reader of the load: every kind of query, and each row held against what it may be."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import memwal
from load_test.rows import ABSENT, Counts, impossible, regions_of, rows_of, seen, torn
from load_test.state import Control, EventLog, Truth
from memwal.errors import MemWalError

_LOOKED_UP = 200
_RANGE = 2_000
_FOUND = 10
_ALL = ["id", "count", "written", "vector", "text"]
# So many queries of the other kinds go before the next one that scans the table.
_TURNS_PER_SCAN = 100
_PAUSE = 0.2


def read(task: dict[str, Any]) -> None:
    """Read until told to end."""
    table = memwal.open(task["uri"])
    folder = Path(task["folder"])
    _, regions = regions_of(table, task["keys"])
    with EventLog(folder / "events", f"reader-{task['number']}") as event_log:
        reader = Reader(
            table,
            beacons=np.unique(regions, return_index=True)[1],
            truth=Truth(folder / "truth", task["keys"]),
            event_log=event_log,
            random=np.random.default_rng([task["seed"], 1 << 20, task["number"], task["life"]]),
        )
        reader.read_until_the_end(Control(folder))


class Reader:
    """Asks, and tells of what it must not find.

    Parameters
    ----------
    table : Table
    beacons : array
        Keys that are written all the time: one of each region.
    truth, event_log : Truth, EventLog
    random : numpy.random.Generator
    """

    def __init__(
        self,
        table: memwal.Table,
        *,
        beacons: Counts,
        truth: Truth,
        event_log: EventLog,
        random: np.random.Generator,
    ) -> None:
        self._table, self._beacons, self._truth = table, beacons, truth
        self._event_log, self._random = event_log, random
        self._all = np.arange(len(truth.floor))
        # What this reader saw of each key: the next read must not show less.
        self._seen = np.zeros(len(truth.floor), dtype=np.int64)

    def read_until_the_end(self, control: Control) -> None:
        """Ask one query after another; each kind at least once."""
        kinds = (
            ("lookup", self.look_up),
            ("range", self.read_range),
            ("lookup", self.look_up),
            ("vector", self.search_vector),
            ("text", self.search_text),
        )
        turn = 0
        while not control.is_over("reading") or turn <= len(kinds):
            kind, query = kinds[turn % len(kinds)]
            if turn % _TURNS_PER_SCAN == 0:
                kind, query = "scan", self.scan
            turn += 1
            started = time.perf_counter()
            try:
                rows = query()
            except MemWalError as error:
                self._event_log.mistake("a read failed", f"{kind}: {type(error).__name__}: {error}")
            else:
                self._event_log.event(kind, time.perf_counter() - started, rows)
            time.sleep(_PAUSE)

    def look_up(self) -> int:
        """Some keys, and those that are written all the time."""
        keys = np.union1d(self._random.integers(0, len(self._seen), _LOOKED_UP), self._beacons)
        asked = time.time()
        rows = self._held(keys, lambda: self._table.lookup(pa.array(keys)).to_table())
        # Rows that were there before the load began are as old as it is.
        again = np.isin(rows["id"].to_numpy(), self._beacons) & (rows["count"].to_numpy() > 1)
        newest = rows["written"].to_numpy()[again]
        if len(newest):
            self._event_log.event("stale", max(asked - float(newest.min()), 0.0))
        return len(rows)

    def read_range(self) -> int:
        """Neighbouring keys."""
        first = int(self._random.integers(0, max(len(self._seen) - _RANGE, 1)))
        keys = self._all[first : first + _RANGE]
        scan = self._table.scan(columns=_ALL, filter=f"id >= {keys[0]} AND id <= {keys[-1]}")
        return len(self._held(keys, scan.to_table))

    def scan(self) -> int:
        """Keys and counts of all rows."""
        scan = self._table.scan(columns=["id", "count"])
        return len(self._held(self._all, scan.to_table, whole=False))

    def search_vector(self) -> int:
        """Rows near to one that there may be."""
        vector = self._some_row()["vector"].combine_chunks().flatten().to_numpy()
        return len(self._found(self._table.search(vector, k=_FOUND, columns=_ALL).to_table))

    def search_text(self) -> int:
        """Rows with a word that there may be."""
        wanted = str(self._random.choice(self._some_row()["text"][0].as_py().split()))
        rows = self._found(self._table.search_text(wanted, k=_FOUND, columns=_ALL).to_table)
        for text in rows["text"].to_pylist():
            if wanted not in text.split():
                self._event_log.mistake(
                    "not what was searched for", f"{wanted!r} is not in {text!r}"
                )
        return len(rows)

    def _some_row(self) -> pa.Table:
        """A row as it was flushed, if its key was not deleted."""
        key = self._random.integers(0, len(self._seen), 1)
        return rows_of(key, self._truth.floor[key].astype(np.int64) >> 1, written=0.0)

    def _held(self, keys: Counts, query: Callable[[], pa.Table], *, whole: bool = True) -> pa.Table:
        """Read these sorted keys, and hold what was found of each against what it may be.

        ``whole`` says whether the query returns all columns.
        """
        low = np.maximum(self._truth.floor[keys].astype(np.int64), self._seen[keys])
        rows = query()
        ids = rows["id"].to_numpy()
        at = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
        if (keys[at] != ids).any():
            self._event_log.mistake("not what was asked for", f"{ids[keys[at] != ids][:10]}")
        found = np.full(len(keys), ABSENT)
        found[at] = rows["count"].to_numpy()
        self._judge(keys, found, low, rows, whole=whole, absent_counts=True)
        return rows

    def _found(self, query: Callable[[], pa.Table]) -> pa.Table:
        """Search, and hold each row against what it may be."""
        floor = np.array(self._truth.floor)
        rows = query()
        keys, first = np.unique(rows["id"].to_numpy(), return_index=True)
        low = np.maximum(floor[keys].astype(np.int64), self._seen[keys])
        found = rows["count"].to_numpy()[first]
        self._judge(keys, found, low, rows, whole=True, absent_counts=False)
        return rows

    def _judge(
        self,
        keys: Counts,
        found: Counts,
        low: Counts,
        rows: pa.Table,
        *,
        whole: bool,
        absent_counts: bool,
    ) -> None:
        high = self._truth.attempt[keys].astype(np.int64)
        if len(np.unique(rows["id"].to_numpy())) < len(rows):
            self._event_log.mistake("a key twice", f"{len(rows)} rows")
        wrong = impossible(found, low, high, absent_counts=absent_counts)
        for key in np.flatnonzero(wrong)[:10]:
            self._event_log.mistake(
                "not what a read may find",
                f"key {keys[key]} has count {found[key]}; its state was {low[key]} before and "
                f"{high[key]} behind; this reader saw {self._seen[keys[key]]}",
            )
        for key in torn(rows)[:10] if whole else ():
            self._event_log.mistake("a torn row", f"key {key}")
        self._seen[keys] = np.where(wrong, low, seen(found, low, absent_counts=absent_counts))
