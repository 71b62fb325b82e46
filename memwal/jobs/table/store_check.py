"""Check whether a store is fit for tables: operations, guarantees, latency and identity."""

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
from typing import Any, Final
from uuid import uuid4

from memwal.base_table.commit import is_conflict
from memwal.base_table.snapshot import open_base, open_dataset, translate_lance_error
from memwal.errors import MemWalError, ObjectExistsError, TableSetupError
from memwal.storage import uris
from memwal.storage.credentials import describe_credentials
from memwal.storage.location import COMMITS_IN, TableLocation
from memwal.storage.object_store import create_settled

_SAMPLES: Final = 30
_SAMPLE_BYTES: Final = 2048
_RACERS: Final = 8
_RACES: Final = 8
# The times of a store are in whole seconds.
_CLOCK_WARNING: Final = timedelta(seconds=5)
_SLOW_MS: Final = 1000.0


class State(StrEnum):
    """What a check came to."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
        It never changes its meaning.
    state : State
    text : str
        What was found.
    advice : str
        What to do; empty when there is nothing to do.
    """

    name: str
    state: State
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that was looked at.

    Attributes
    ----------
    uri : str
    checks : tuple of Check
    latencies : mapping
        Milliseconds of ``put``, ``get`` and ``list``: ``p50`` and ``p99`` of thirty requests of
        each, the latter being the slowest one.
    """

    uri: str
    checks: tuple[Check, ...]
    latencies: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        """How many checks say that a table must not be here."""
        return sum(check.state is State.ERROR for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "uri": self.uri,
            "errors": self.errors,
            "checks": [
                {"name": c.name, "state": c.state.value, "text": c.text, "advice": c.advice}
                for c in self.checks
            ],
            "latencies_ms": {name: dict(found) for name, found in self.latencies.items()},
        }


def diagnose(location: TableLocation) -> Diagnosis:
    """Look at the store of a table, or of one that is to be.

    About four hundred small requests, some of them at once. What they write has names that begin
    with ``_probe-``, next to the table's own folders, and is deleted in the end.

    Parameters
    ----------
    location : TableLocation
        Of the table; there need not be one yet.

    Returns
    -------
    Diagnosis
        What was found, each with what to do.

    Raises
    ------
    InvalidInputError
        The address or an option is wrong.
    """
    return _Examination(location).run()


class _Examination:
    def __init__(self, location: TableLocation) -> None:
        self._location = location
        self._store = location.store
        self._probe = f"_probe-{uuid4().hex}"
        self._keys: dict[str, str] = {}
        self._checks: list[Check] = []
        self._latencies: dict[str, dict[str, float]] = {}

    def run(self) -> Diagnosis:
        self._say("credentials", State.OK, self._credentials())
        try:
            if self._look("list", self._list) and self._look("write", self._write):
                self._look("read", self._read)
                self._look("put-if-absent", self._put_if_absent)
                self._look("replace", self._replace)
                self._look("clock", self._clock)
                self._look("versioning", self._versioning)
                self._look("latency", self._measure)
                self._look("lance", self._lance)
                self._look("table", self._table)
        finally:
            if self._keys:
                self._delete()
        return Diagnosis(self._location.uri, tuple(self._checks), self._latencies)

    def _look(self, name: str, check: Callable[[], None]) -> bool:
        """Run a check; whether it could be carried out. A refusal tells what to do by itself."""
        try:
            check()
        except MemWalError as error:
            self._say(name, State.ERROR, str(error))
            return False
        return True

    def _say(self, name: str, state: State, text: str, advice: str = "") -> None:
        self._checks.append(Check(name, state, text, advice))

    def _key(self, name: str) -> str:
        # Flat and in hexadecimal, as a store with a database for its commits has them.
        return self._keys.setdefault(name, f"{self._probe}{name.encode().hex()}")

    def _credentials(self) -> str:
        scheme = uris.parse_uri(self._location.uri).scheme
        return describe_credentials(scheme, self._location.storage_options)

    def _list(self) -> None:
        self._store.list_folders("")
        self._say("list", State.OK, "can be listed")

    def _write(self) -> None:
        self._store.put(self._key("object"), b"0123456789")
        self._say("write", State.OK, "can be written")

    def _read(self) -> None:
        whole = self._store.get(self._key("object"))
        part = self._store.get_range(self._key("object"), start=3, length=4)
        if (whole, part) != (b"0123456789", b"3456"):
            self._say(
                "read",
                State.ERROR,
                "what was written is not what is read",
                "use a store that gives back at once what it took",
            )
            return
        self._say("read", State.OK, "can be read, also in part")

    def _put_if_absent(self) -> None:
        names = [self._key(f"race{number}") for number in range(_RACES)]

        def race(racer: int) -> list[str]:
            mine = f"racer {racer}".encode()
            return [n for n in names if create_settled(self._store, n, mine) is None]

        with ThreadPoolExecutor(_RACERS) as pool:
            won = [name for names_won in pool.map(race, range(_RACERS)) for name in names_won]
        again = self._refuses_again(names[0])
        if sorted(won) == sorted(names) and again:
            text = f"exact: {_RACES} names, {_RACERS} creators at once, one winner each"
            self._say("put-if-absent", State.OK, text)
            return
        self._say(
            "put-if-absent",
            State.ERROR,
            f"{len(won)} creations of {_RACES} names succeeded, and a name that is taken is "
            f"{'refused' if again else 'given away again'}",
            "use a store with conditional puts (If-None-Match), switch them on "
            "(aws_conditional_put), or let a database decide: memwal_commits_in",
        )

    def _refuses_again(self, key: str) -> bool:
        before = self._store.get(key)
        with suppress(ObjectExistsError):
            self._store.create(key, b"again")
            return False
        return self._store.get(key) == before

    def _replace(self) -> None:
        key = self._key("object")
        self._store.replace(key, b"new", expected=b"0123456789")
        self._say("replace", State.OK, "a known object can be replaced, and no other")

    def _clock(self) -> None:
        key = self._key("clock")
        asked = datetime.now(UTC)
        self._store.put(key, b"")
        told = self._store.head(key)
        if told is None:
            self._say("clock", State.UNKNOWN, "an object that was just written is not shown")
            return
        between = asked + (datetime.now(UTC) - asked) / 2
        # Whole seconds are cut off on the way: half of one is the best guess.
        offset = told.modified + timedelta(seconds=0.5) - between
        text = f"the store's clock is at {offset.total_seconds():+.0f} s of this machine's"
        if abs(offset) > _CLOCK_WARNING:
            advice = (
                "set this machine's clock (NTP): ages and grace periods are reckoned with it, and "
                "S3 refuses requests beyond 15 minutes"
            )
            self._say("clock", State.WARNING, text, advice)
            return
        self._say("clock", State.OK, text)

    def _versioning(self) -> None:
        kept = self._store.keeps_versions(self._key("object"))
        if kept is None:
            self._say("versioning", State.UNKNOWN, "objects do not tell whether versions are kept")
        elif kept:
            self._say(
                "versioning",
                State.WARNING,
                "the store keeps what is overwritten and deleted",
                "let a lifecycle rule remove noncurrent versions after some days, or garbage "
                "collection frees no space; an object lock (WORM) must not cover the table",
            )
        else:
            self._say("versioning", State.OK, "off: what is deleted is gone")

    def _measure(self) -> None:
        data = bytes(_SAMPLE_BYTES)
        keys = [self._key(f"sample{number}") for number in range(_SAMPLES)]
        self._latencies = {
            "put": _timed([partial(self._store.create, key, data) for key in keys]),
            "get": _timed([partial(self._store.get, key) for key in keys]),
            "list": _timed(_SAMPLES * [partial(self._store.list_folders, self._probe)]),
        }
        text = "; ".join(
            f"{name} p50 {found['p50']:.1f} ms, p99 {found['p99']:.1f} ms"
            for name, found in self._latencies.items()
        )
        if self._latencies["put"]["p50"] > _SLOW_MS:
            advice = "a durable write takes as long as a put: look at the way to the store"
            self._say("latency", State.WARNING, text, advice)
            return
        self._say("latency", State.OK, text)

    def _lance(self) -> None:
        """Let several append to one data set with Lance's own commits: none may be lost."""
        if COMMITS_IN in self._location.storage_options:
            self._say(
                "lance",
                State.WARNING,
                "a database decides the commits of memwal, and not those that Lance makes alone",
                "set the table up by one process, and write it through memwal only",
            )
            return
        import lance
        import pyarrow as pa

        uri = self._location.child(self._probe)

        def commit(number: int, mode: str = "append") -> bool:
            rows = pa.table({"racer": [number]})
            options = self._location.lance_options()
            try:
                lance.write_dataset(rows, uri, mode=mode, storage_options=options)
            except (OSError, RuntimeError, ValueError) as error:
                if is_conflict(error):
                    return False
                raise translate_lance_error(error, f"Lance, writing {uri}") from error
            return True

        commit(0, "create")
        with ThreadPoolExecutor(_RACERS) as pool:
            taken = 1 + sum(pool.map(commit, range(1, _RACERS + 1)))
        left = open_dataset(self._location, self._probe).count_rows()
        if left == taken:
            text = f"Lance reaches the store; {_RACERS} commits at once, none was lost"
            self._say("lance", State.OK, text)
            return
        self._say(
            "lance",
            State.ERROR,
            f"{taken - left} of {taken} commits of Lance were overwritten by others",
            "use a store with conditional puts (If-None-Match)",
        )

    def _table(self) -> None:
        if "_versions" not in self._store.list_folders(""):
            self._say("table", State.OK, "none is here yet")
            return
        try:
            base = open_base(self._location)
            base.require_mem_wal()
        except TableSetupError as error:
            self._say("table", State.OK, f"a Lance table without MemWAL: {error}")
            return
        regions = len(self._store.list_folders("_mem_wal"))
        text = f"version {base.version} with {regions} regions; memwal verify looks into it"
        self._say("table", State.OK, text)

    def _delete(self) -> None:
        try:
            self._store.delete_folder(self._probe)
            self._store.delete_many(self._keys.values())
        except MemWalError as error:
            left = f"objects that begin with {self._probe} are left behind; delete them"
            self._say("delete", State.ERROR, str(error), left)
            return
        folder = self._location.local_path
        if folder is not None:
            # One that the probe made; any other is not empty.
            with suppress(OSError):
                folder.rmdir()
        self._say("delete", State.OK, "can be deleted; nothing is left behind")


def _timed(calls: Sequence[Callable[[], object]]) -> dict[str, float]:
    """Median and 99th percentile, in milliseconds."""
    taken = []
    for call in calls:
        begun = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - begun))
    taken.sort()
    rank = {name: math.ceil(part * len(taken)) - 1 for name, part in (("p50", 0.5), ("p99", 0.99))}
    return {name: round(taken[position], 3) for name, position in rank.items()}
