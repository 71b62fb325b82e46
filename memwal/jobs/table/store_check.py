"""Check whether a store is fit for tables: operations, guarantees, latency and credentials."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Final
from uuid import uuid4

from memwal.base_table.commit import is_conflict
from memwal.base_table.snapshot import open_base, open_dataset
from memwal.boundary.lance_errors import translate_lance_error
from memwal.errors import MemWalError, ObjectExistsError, TableSetupError
from memwal.format.paths import VERSIONS_DIR
from memwal.storage import uris
from memwal.storage.credentials import describe_credentials
from memwal.storage.location import COMMITS_IN, TableLocation
from memwal.storage.object_store import create_settled
from memwal.util.records import JsonObject, plain_value

_SAMPLES: Final = 30
_SAMPLE_BYTES: Final = 2048
_RACERS: Final = 8
_RACES: Final = 8
# Stores report times in whole seconds.
_CLOCK_WARNING: Final = timedelta(seconds=5)
_SLOW_MS: Final = 1000.0


class CheckState(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """Result of one check."""

    name: str
    """Stable: programs can rely on it."""
    state: CheckState
    """Whether the store passed."""
    text: str
    """Description of the result."""
    advice: str = ""
    """What to do; empty when there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Results of all checks of a store."""

    uri: str
    """Address of the table."""
    checks: tuple[StoreCheck, ...]
    """In the order in which they ran; later ones are left out if the store cannot be written."""
    latencies: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Milliseconds of ``put``, ``get`` and ``list``: ``p50`` and ``p99`` of thirty requests each;
    ``p99`` is the slowest one."""

    @property
    def errors(self) -> int:
        """Number of checks that failed: a table must not be here."""
        return sum(check.state is CheckState.ERROR for check in self.checks)

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        return {
            "uri": self.uri,
            "errors": self.errors,
            "checks": plain_value(self.checks),
            "latencies_ms": plain_value(self.latencies),
        }


def diagnose(location: TableLocation) -> Diagnosis:
    """Check the store of a table, which need not exist yet.

    Sends about four hundred small requests, some of them concurrently. Objects that it writes have
    names that begin with ``_probe-``, next to the table's own folders, and are deleted at the end.
    """
    return _StoreChecks(location).run()


_Result = tuple[CheckState, str] | tuple[CheckState, str, str]
"""State, text and advice of a check."""


def _ok(text: str) -> _Result:
    return CheckState.OK, text


class _StoreChecks:
    def __init__(self, location: TableLocation) -> None:
        self._location = location
        self._store = location.store
        self._probe = f"_probe-{uuid4().hex}"
        self._keys: dict[str, str] = {}
        self._checks: list[StoreCheck] = []
        self._latencies: dict[str, dict[str, float]] = {}

    def run(self) -> Diagnosis:
        self._checks.append(StoreCheck("credentials", *self._credentials()))
        try:
            if self._run_check("list", self._list) and self._run_check("write", self._write):
                self._run_check("read", self._read_object)
                self._run_check("put-if-absent", self._put_if_absent)
                self._run_check("replace", self._replace)
                self._run_check("clock", self._clock)
                self._run_check("versioning", self._versioning)
                self._run_check("latency", self._measure)
                self._run_check("lance", self._lance)
                self._run_check("table", self._table)
        finally:
            if self._keys:
                self._run_check("delete", self._delete)
        return Diagnosis(self._location.uri, tuple(self._checks), self._latencies)

    def _run_check(self, name: str, check: Callable[[], _Result]) -> bool:
        """Run a check; False if it raised. The error's message has the advice."""
        try:
            self._checks.append(StoreCheck(name, *check()))
        except MemWalError as error:
            self._checks.append(StoreCheck(name, CheckState.ERROR, str(error)))
            return False
        return True

    def _key(self, name: str) -> str:
        # Flat and in hexadecimal, as a store whose commits are in a database requires.
        return self._keys.setdefault(name, f"{self._probe}{name.encode().hex()}")

    def _credentials(self) -> _Result:
        scheme = uris.parse_uri(self._location.uri).scheme
        return _ok(describe_credentials(scheme, self._location.storage_options))

    def _list(self) -> _Result:
        self._store.list_folders("")
        return _ok("can be listed")

    def _write(self) -> _Result:
        self._store.put(self._key("object"), b"0123456789")
        return _ok("can be written")

    def _read_object(self) -> _Result:
        whole = self._store.get(self._key("object"))
        part = self._store.get_range(self._key("object"), start=3, length=4)
        if (whole, part) != (b"0123456789", b"3456"):
            text = "an object that was just written reads differently"
            advice = "use a store with strong read-after-write consistency"
            return CheckState.ERROR, text, advice
        return _ok("can be read, also in ranges")

    def _put_if_absent(self) -> _Result:
        names = [self._key(f"race{number}") for number in range(_RACES)]

        def race(racer: int) -> list[str]:
            mine = f"racer {racer}".encode()
            return [n for n in names if create_settled(self._store, n, mine) is None]

        with ThreadPoolExecutor(_RACERS) as pool:
            won = [name for names_won in pool.map(race, range(_RACERS)) for name in names_won]
        refused = self._refuses_existing(names[0])
        if sorted(won) == sorted(names) and refused:
            return _ok(f"exact: {_RACES} names, {_RACERS} concurrent creators, one winner each")
        return (
            CheckState.ERROR,
            f"{len(won)} creations of {_RACES} names succeeded, and creating an object that exists "
            f"{'is refused' if refused else 'overwrites it'}",
            "use a store with conditional puts (If-None-Match), switch them on "
            "(aws_conditional_put), or let a database decide: memwal_commits_in",
        )

    def _refuses_existing(self, key: str) -> bool:
        before = self._store.get(key)
        with suppress(ObjectExistsError):
            self._store.create(key, b"again")
            return False
        return self._store.get(key) == before

    def _replace(self) -> _Result:
        self._store.replace(self._key("object"), b"new", expected=b"0123456789")
        return _ok("an object can be replaced if it is unchanged, and only then")

    def _clock(self) -> _Result:
        key = self._key("clock")
        before = datetime.now(UTC)
        self._store.put(key, b"")
        info = self._store.head(key)
        if info is None:
            text = "an object that was just written is not found"
            return CheckState.UNKNOWN, text
        middle = before + (datetime.now(UTC) - before) / 2
        # The store truncates to whole seconds: half a second is the best estimate of the rest.
        offset = info.modified + timedelta(seconds=0.5) - middle
        text = f"the store's clock is at {offset.total_seconds():+.0f} s of this machine's"
        if abs(offset) > _CLOCK_WARNING:
            advice = (
                "set this machine's clock (NTP): ages and grace periods depend on it, and S3 "
                "refuses requests that are off by more than 15 minutes"
            )
            return CheckState.WARNING, text, advice
        return _ok(text)

    def _versioning(self) -> _Result:
        versioned = self._store.keeps_versions(self._key("object"))
        if versioned is None:
            text = "the store does not say whether it keeps versions"
            return CheckState.UNKNOWN, text
        if versioned:
            text = "the store keeps versions of overwritten and deleted objects"
            advice = (
                "let a lifecycle rule remove noncurrent versions after some days, or garbage "
                "collection frees no space; an object lock (WORM) must not cover the table"
            )
            return CheckState.WARNING, text, advice
        return _ok("off: deleted objects are gone")

    def _measure(self) -> _Result:
        data = bytes(_SAMPLE_BYTES)
        keys = [self._key(f"sample{number}") for number in range(_SAMPLES)]
        self._latencies = {
            "put": _timed([partial(self._store.create, key, data) for key in keys]),
            "get": _timed([partial(self._store.get, key) for key in keys]),
            "list": _timed(_SAMPLES * [partial(self._store.list_folders, self._probe)]),
        }
        text = "; ".join(
            f"{name} p50 {times['p50']:.1f} ms, p99 {times['p99']:.1f} ms"
            for name, times in self._latencies.items()
        )
        if self._latencies["put"]["p50"] > _SLOW_MS:
            advice = "a durable write takes as long as a put: check the network path to the store"
            return CheckState.WARNING, text, advice
        return _ok(text)

    def _lance(self) -> _Result:
        """Append to one dataset with several concurrent commits of Lance: none may be lost."""
        if COMMITS_IN in self._location.storage_options:
            text = (
                "a database arbitrates the commits of memwal, but not those that Lance makes alone"
            )
            advice = "create the table with one process, and write it through memwal only"
            return CheckState.WARNING, text, advice
        import lance
        import pyarrow as pa

        uri = self._location.child(self._probe)

        def commit(number: int, mode: str = "append") -> bool:
            rows = pa.table({"racer": [number]})
            options = self._location.lance_options()
            try:
                lance.write_dataset(rows, uri, mode=mode, storage_options=options)
            except (OSError, RuntimeError, ValueError) as error:
                if is_conflict(error, self._location):
                    return False
                raise translate_lance_error(error, f"Lance, writing {uri}") from error
            return True

        commit(0, "create")
        with ThreadPoolExecutor(_RACERS) as pool:
            committed = 1 + sum(pool.map(commit, range(1, _RACERS + 1)))
        stored = open_dataset(self._location, self._probe).count_rows()
        if stored == committed:
            return _ok(f"Lance reaches the store; {_RACERS} concurrent commits, none was lost")
        text = f"{committed - stored} of {committed} commits of Lance were overwritten by others"
        advice = "use a store with conditional puts (If-None-Match)"
        return CheckState.ERROR, text, advice

    def _table(self) -> _Result:
        if VERSIONS_DIR not in self._store.list_folders(""):
            return _ok("there is none yet")
        try:
            base = open_base(self._location)
            base.require_mem_wal()
        except TableSetupError as error:
            return _ok(f"a Lance table without MemWAL: {error}")
        regions = len(self._store.list_folders("_mem_wal"))
        return _ok(f"version {base.version} with {regions} regions; memwal verify checks it")

    def _delete(self) -> _Result:
        try:
            self._store.delete_folder(self._probe)
            self._store.delete_many(self._keys.values())
        except MemWalError as error:
            advice = f"delete the objects whose names begin with {self._probe}"
            return CheckState.ERROR, str(error), advice
        folder = self._location.local_path
        if folder is not None:
            # A folder that the probe created; any other is not empty.
            with suppress(OSError):
                folder.rmdir()
        return _ok("can be deleted; all probe objects are gone")


def _timed(calls: Sequence[Callable[[], object]]) -> dict[str, float]:
    """Return the median and the 99th percentile, in milliseconds."""
    durations = []
    for call in calls:
        started = time.perf_counter()
        call()
        durations.append(1000 * (time.perf_counter() - started))
    durations.sort()
    ranks = {"p50": 0.5, "p99": 0.99}
    return {
        name: round(durations[math.ceil(part * len(durations)) - 1], 3)
        for name, part in ranks.items()
    }
