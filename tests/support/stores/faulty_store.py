"""An object store that fails, pauses or dies exactly where a test tells it to.

It wraps the real store of a table, so that everything that no rule speaks of really happens. Rules
are tried in the order in which they were given; the first that matches a call and is not used up
decides about it.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pytest

from memwal.errors import MemWalError, ObjectExistsError, StoreUnavailableError
from memwal.storage.location import TableLocation
from memwal.storage.object_store import Data, LinkInfo, ObjectInfo, ObjectStore
from memwal.storage.open import open_store
from memwal.util import retry

Answer = TypeVar("Answer")

WAL = "_mem_wal/*/wal/*.arrow"
REGION_MANIFEST = "_mem_wal/*/manifest/*.binpb"
VERSION_HINT = "_mem_wal/*/manifest/version_hint.json"
TABLE_MANIFEST = "_versions/*.manifest"
GENERATION = "_mem_wal/*/*_gen_*"

# A pause that nobody ends is a bug of the test, and must not hang the run.
_PAUSE_SECONDS = 60.0


class Killed(BaseException):
    """What stands for the end of a process: no handler of errors catches it."""


class Pause:
    """A call that stands still until it is told to go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait_until_reached(self, running: Future[Any] | None = None) -> bool:
        """Return when some call stands at the pause, or when ``running`` ended without one.

        Returns
        -------
        bool
            Whether a call stands there.
        """
        deadline = time.monotonic() + _PAUSE_SECONDS
        while not self._reached.wait(0.01 if running is not None else _PAUSE_SECONDS):
            if running is not None and running.done():
                return self._reached.is_set()
            if time.monotonic() >= deadline:
                raise AssertionError("no call came to the pause")
        return True

    def release(self) -> None:
        """Let the call go on, and those that come later."""
        self._released.set()

    def stand(self) -> None:
        """Stand still. For the code that is paused."""
        self._reached.set()
        if not self._released.wait(_PAUSE_SECONDS):
            raise AssertionError("the pause was never released")

    @contextmanager
    def holding(
        self, call: Callable[..., Answer], /, *args: Any, **kwargs: Any
    ) -> Iterator[Future[Answer]]:
        """Run a call in a thread of its own, and hold it at the pause while the block runs.

        ``with store.pause("create", WAL).holding(writer.flush) as flushing: ...`` enters the block
        when a call stands at the pause. After the block, also after one that raised, the call goes
        on, and its thread has ended when the statement has.

        Yields
        ------
        Future
            What the call returned or raised. Ask for it: nobody else does.

        Raises
        ------
        AssertionError
            The call ended without coming to the pause.
        """
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(call, *args, **kwargs)
            try:
                if not self.wait_until_reached(running):
                    raise AssertionError("the call never came to the pause") from (
                        running.exception()
                    )
                yield running
            finally:
                self.release()


@dataclass(eq=False)
class Rule:
    """What happens to some calls.

    Attributes
    ----------
    operation : str
        Name of a method of the store, or a shell pattern of names; ``exists`` counts as ``head``,
        and the calls inside ``delete_many`` and ``delete_folder`` as ``delete``.
    key : str
        Shell pattern of the key or prefix.
    act : callable
        Raises, or waits.
    after : bool
        Whether it acts when the call has had its effect, or has raised.
    skip, times : int
        How many matching calls go by first, and how many it then acts on.
    delivery : str
        ``once``; ``twice``, of which the second answer counts; or ``late``: the caller is told of
        a timeout, and the request arrives ``by`` calls later.
    """

    operation: str
    key: str
    act: Callable[[], None]
    after: bool
    skip: int
    times: int
    delivery: str = "once"
    by: int = 0
    hits: int = field(default=0, init=False)

    def takes(self, operation: str, key: str) -> bool:
        """Whether this call is one to act on; counts it."""
        if not fnmatchcase(operation, self.operation) or not fnmatchcase(key, self.key):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.hits >= self.times:
            return False
        self.hits += 1
        return True


class FaultyStore(ObjectStore):
    """A store with rules.

    Attributes
    ----------
    calls : list of (str, str)
        Operation and key of every call so far.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.uri = inner.uri
        self.is_local = inner.is_local
        self.calls: builtins.list[tuple[str, str]] = []
        self._rules: builtins.list[Rule] = []
        self._on_their_way: builtins.list[tuple[int, Callable[[], object]]] = []
        self._count = 0
        self._lock = threading.Lock()

    # Rules

    def fail(
        self,
        operation: str,
        key: str = "*",
        error: BaseException | None = None,
        *,
        after: bool = False,
        skip: int = 0,
        times: int = 1,
    ) -> Rule:
        """Raise an error (StoreUnavailableError by default), before or after the effect."""

        def act() -> None:
            raise error if error is not None else StoreUnavailableError("the store said 500")

        return self._add(Rule(operation, key, act, after, skip, times))

    def act(
        self,
        operation: str,
        act: Callable[[], None],
        *,
        key: str = "*",
        after: bool = False,
        skip: int = 0,
        times: int = 1,
    ) -> Rule:
        """Do something before calls, or after; it may raise."""
        return self._add(Rule(operation, key, act, after, skip, times))

    def kill(
        self, operation: str, key: str = "*", *, after: bool = False, skip: int = 0, times: int = 1
    ) -> Rule:
        """End the process, as far as the calling thread can tell."""
        return self.fail(operation, key, Killed(), after=after, skip=skip, times=times)

    def claim_exists(self, operation: str, key: str = "*", *, times: int = 1) -> Rule:
        """Store the object, and say that the name is taken, as a client that retries does."""
        error = ObjectExistsError("the name is taken")
        return self.fail(operation, key, error, after=True, times=times)

    def deliver_twice(self, operation: str, key: str = "*", *, skip: int = 0) -> Rule:
        """Let one request reach the store twice; the caller hears the second answer."""
        return self._add(Rule(operation, key, _nothing, False, skip, 1, delivery="twice"))

    def deliver_late(self, operation: str, key: str = "*", *, by: int = 1, skip: int = 0) -> Rule:
        """Time out while the request is still on its way: it arrives ``by`` calls later.

        What the store answers it then is heard by nobody.
        """
        return self._add(Rule(operation, key, _nothing, False, skip, 1, delivery="late", by=by))

    def slow(self, operation: str, key: str = "*", *, seconds: float, times: int = 1) -> Rule:
        """Let calls take their time before they have their effect."""
        return self._add(Rule(operation, key, lambda: time.sleep(seconds), False, 0, times))

    def pause(self, operation: str, key: str = "*", *, after: bool = False, skip: int = 0) -> Pause:
        """Let one call stand still until it is released."""
        pause = Pause()
        self._add(Rule(operation, key, pause.stand, after, skip, 1))
        return pause

    def arrive(self) -> None:
        """Let everything arrive that is still on its way."""
        with self._lock:
            late, self._on_their_way = self._on_their_way, []
        for _, run in late:
            _deliver(run)

    def clear(self) -> None:
        """Forget every rule and every call; what is on its way stays there."""
        with self._lock:
            self._rules.clear()
            self.calls.clear()

    def count(self, operation: str, key: str = "*") -> int:
        """How many calls there were."""
        with self._lock:
            return sum(fnmatchcase(o, operation) and fnmatchcase(k, key) for o, k in self.calls)

    def step(self, operation: str, key: str, run: Callable[[], Answer]) -> Answer:
        """Have rules decide about something that is no call of the store."""
        return self._call(operation, key, run)

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def _call(self, operation: str, key: str, run: Callable[[], Answer]) -> Answer:
        with self._lock:
            self.calls.append((operation, key))
            rule = next((rule for rule in self._rules if rule.takes(operation, key)), None)
            self._count += 1
            now = self._count
            arrived = [late for at, late in self._on_their_way if at <= now]
            self._on_their_way = [(at, late) for at, late in self._on_their_way if at > now]
            if rule is not None and rule.delivery == "late":
                self._on_their_way.append((now + rule.by, run))
        for late in arrived:
            _deliver(late)
        if rule is not None and rule.delivery == "late":
            raise StoreUnavailableError("the store did not answer in time")
        if rule is not None and rule.delivery == "twice":
            _deliver(run)
        if rule is not None and not rule.after:
            rule.act()
        try:
            return run()
        finally:
            if rule is not None and rule.after:
                rule.act()

    # The store

    def create(self, key: str, data: Data) -> None:
        self._call("create", key, lambda: self.inner.create(key, data))

    def put(self, key: str, data: Data) -> None:
        self._call("put", key, lambda: self.inner.put(key, data))

    def replace(self, key: str, data: Data, *, expected: bytes) -> None:
        self._call("replace", key, lambda: self.inner.replace(key, data, expected=expected))

    def get(self, key: str) -> bytes:
        return self._call("get", key, lambda: self.inner.get(key))

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        return self._call(
            "get_range", key, lambda: self.inner.get_range(key, start=start, length=length)
        )

    def head(self, key: str) -> ObjectInfo | None:
        return self._call("head", key, lambda: self.inner.head(key))

    def exists_within(self, key: str, *, within: str, proof: str) -> bool:
        return self._call(
            "head", key, lambda: self.inner.exists_within(key, within=within, proof=proof)
        )

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._call("list", prefix, lambda: self.inner.list(prefix))

    def list_folders(self, prefix: str) -> builtins.list[str]:
        return self._call("list_folders", prefix, lambda: self.inner.list_folders(prefix))

    def list_links(self, prefix: str) -> Iterator[LinkInfo]:
        return self.inner.list_links(prefix)

    def list_temporaries(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.inner.list_temporaries(prefix)

    def check_no_link(self, prefix: str) -> None:
        self.inner.check_no_link(prefix)

    def hold(self, folders: Iterable[str]) -> FaultyStore:
        """The same store with the same rules, by which the folders stay in their places."""
        held = copy(self)
        held.inner = self.inner.hold(folders)
        # Counts, and what is on its way, are those of this store.
        held._call = self._call  # type: ignore[method-assign]
        return held

    def expect_new_table(self) -> None:
        self.inner.expect_new_table()

    def check_held(self) -> None:
        self.inner.check_held()

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self.inner.delete(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def delete_folder(self, prefix: str) -> None:
        def run() -> None:
            # One by one, so that a rule can stop in the middle of a folder.
            for info in sorted(self.inner.list(prefix), key=lambda info: info.key):
                self.delete(info.key)
            self.inner.delete_folder(prefix)

        self._call("delete_folder", prefix, run)

    def delete_stale_temporaries(self, prefix: str, *, older_than: timedelta) -> int:
        return self._call(
            "delete_stale_temporaries",
            prefix,
            lambda: self.inner.delete_stale_temporaries(prefix, older_than=older_than),
        )

    def sync(self, prefix: str) -> None:
        self._call("sync", prefix, lambda: self.inner.sync(prefix))

    def barrier(self, *, up_to: str | None = None) -> None:
        self._call("barrier", up_to or "", lambda: self.inner.barrier(up_to=up_to))


def _nothing() -> None:
    """Do as the rule's delivery says, and nothing else."""


def _deliver(run: Callable[[], object]) -> None:
    """Have the effect of a request whose answer nobody hears."""
    with suppress(MemWalError):
        run()


def skip_waits(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Let retries follow one another at once, also those of ``modules``, which sleep by themselves.

    For tests that fail at each of many requests.
    """
    hurried = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    for module in (retry, *modules):
        monkeypatch.setattr(module, "time", hurried)


class FaultyStores:
    """Every store that the library opens from now on, wrapped.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
        Undoes it at the end of the test.
    durable : bool
        Whether local stores fsync, as they do outside tests.
    remote : bool
        Whether a local store passes for one that is not, whose looks at the epoch cost requests.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, durable: bool = True, remote: bool = False
    ) -> None:
        self._open = TableLocation.store.__get__
        self._stores: dict[TableLocation, FaultyStore] = {}
        self._lock = threading.Lock()
        self._durable = durable
        self._remote = remote
        for name in ("store", "store_without_fsync"):
            monkeypatch.setattr(TableLocation, name, property(self.of))

    def of(self, table: TableLocation) -> FaultyStore:
        """The store of a table."""
        with self._lock:
            found = self._stores.get(table)
            if found is None:
                inner = (
                    self._open(table)
                    if self._durable
                    else open_store(table.uri, table.storage_options, durable=False)
                )
                found = self._stores[table] = FaultyStore(inner)
                if self._remote:
                    found.is_local = False
            return found
