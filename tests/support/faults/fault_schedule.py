"""The steps of a job, one fault at one of them, and what others do while it stands still.

A step is one call of the store, which is also what each commit of Lance to a local table consists
of: a look at the staged manifest, a barrier, the version by put-if-absent. The actor that is to
suffer has a store of its own, so that everybody else is left in peace.
"""

import copy
import itertools
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pytest
from lance.dataset import DatasetOptimizer
from support.data.tables import folder
from support.stores.faulty_store import FaultyStore, FaultyStores, Killed

import memwal
from memwal.errors import MemWalError, ObjectExistsError, StoreUnavailableError
from memwal.jobs.index import job as index_build
from memwal.jobs.merge import merge_insert
from memwal.jobs.table import compact
from memwal.storage.location import TableLocation

Job = Callable[[TableLocation], Any]

KnownSteps = dict[tuple[Job, bool], "list[Step]"]
"""Of each job, without and with commits as steps."""

CHANGES = frozenset({"create", "put", "replace", "delete", "delete_folder", "commit"})
"""Steps after which something is different; the others only look."""

_MANY = 1 << 30
_STEP = "MEMWAL_FAULT_STEP"


@dataclass(frozen=True)
class Step:
    """One call of the store by a job: its number, counted from 0, and what it was."""

    number: int
    operation: str
    key: str

    @property
    def shape(self) -> str:
        """What it was, without the names that differ from run to run."""
        key = re.sub(r"(_gen_[0-9]+)/.*", r"\1/*", self.key)
        return f"{self.operation} {re.sub(r'[0-9a-f-]{8,}|[0-9]+', '*', key)}"

    @property
    def changes(self) -> bool:
        """Whether something is different after it."""
        return self.operation in CHANGES


@dataclass(frozen=True)
class Fault:
    """What happens at a step.

    Attributes
    ----------
    name : str
    arrange : callable
        Tells the store, given the number of the step.
    applies : callable
        Whether there is a point in it at this step.
    fatal : bool
        Whether nothing of the process is left afterwards.
    common : bool
        Whether it is worth more than one try.
    """

    name: str
    arrange: Callable[[FaultyStore, int], object]
    applies: Callable[[Step], bool] = lambda step: True
    fatal: bool = False
    common: bool = False


def _kill_before(store: FaultyStore, number: int) -> None:
    store.kill("*", skip=number, times=_MANY)


def _kill_after(store: FaultyStore, number: int) -> None:
    store.kill("*", skip=number, after=True)
    # Whatever is still running of the process gets nothing done any more.
    store.kill("*", skip=number, times=_MANY)


def _changes(step: Step) -> bool:
    return step.changes


def _is_create(step: Step) -> bool:
    return step.operation == "create"


def _is_request(step: Step) -> bool:
    # A commit is many requests; a folder is deleted with many.
    return step.changes and step.operation not in ("commit", "delete_folder")


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("killed before", _kill_before, fatal=True),
        Fault("killed after", _kill_after, _changes, fatal=True, common=True),
        Fault("error before", lambda store, number: store.fail("*", skip=number)),
        Fault(
            "error after",
            lambda store, number: store.fail("*", skip=number, after=True),
            _changes,
            common=True,
        ),
        Fault(
            "down from here",
            lambda store, number: store.fail("*", skip=number, times=_MANY),
            _changes,
        ),
        Fault(
            "said to exist",
            lambda store, number: store.fail(
                "*", error=ObjectExistsError("the name is taken"), after=True, skip=number
            ),
            _is_create,
        ),
        Fault(
            "delivered twice",
            lambda store, number: store.deliver_twice("*", skip=number),
            _is_request,
        ),
        Fault(
            "delivered late",
            lambda store, number: store.deliver_late("*", by=3, skip=number),
            _is_request,
        ),
    )
}


class Truth(Protocol):
    """What knows what a table must show."""

    def look(self, table: memwal.Table, *, verified: bool = False) -> None:
        """Ask the readers, and if ``verified`` the library's own check as well."""


TruthT = TypeVar("TruthT", bound=Truth)


class Actors(Generic[TruthT]):
    """Copies of one prepared table, and jobs on them whose stores fail.

    Parameters
    ----------
    prepared : memwal.Table
        Is copied for each fault; ends with ``.lance``, by which LanceDB knows tables.
    truth : Truth
        Knows the prepared table.
    known : KnownSteps
        Steps that were counted before, to which others are added.
    """

    def __init__(
        self,
        prepared: memwal.Table,
        truth: TruthT,
        stores: FaultyStores,
        root: Path,
        known: KnownSteps,
    ) -> None:
        self._prepared = prepared
        self._truth = truth
        self._stores = stores
        self._root = root
        self._known = known
        self._numbers = itertools.count()

    def copy(self, *, linked: bool = False) -> tuple[memwal.Table, TruthT]:
        """A table of its own, and who knows it; with a region behind a link if it is ``linked``."""
        path = self._root / f"copy-{next(self._numbers)}" / "table.lance"
        # Nobody writes into a file that exists: what changes gets a new one.
        shutil.copytree(folder(self._prepared), path, copy_function=os.link)
        if linked:
            region = min((path / "_mem_wal").iterdir())
            disk = path.with_name("disk")
            region.rename(disk)
            region.symlink_to(disk)
        return memwal.open(str(path)), copy.deepcopy(self._truth)

    @contextmanager
    def trying(self, job: str, what: str, step: Step) -> Iterator[tuple[memwal.Table, TruthT]]:
        """Yield a table of its own and who knows it; a failure says how to see it again."""
        table, truth = self.copy()
        try:
            yield table, truth
        except Exception as error:
            raise AssertionError(
                f"{job}, {what}, at step {step.number} ({step.shape}): {error}\n"
                f"again: {_STEP}={step.number} with this test alone"
            ) from error
        self.drop(table)

    def location(self, table: memwal.Table) -> tuple[TableLocation, FaultyStore]:
        """The way to a table of somebody who is to suffer, and its store."""
        location = TableLocation(table.uri, {"actor": str(next(self._numbers))})
        return location, self._stores.of(location)

    def steps(self, job: Job, *, commits: bool = False) -> list[Step]:
        """What a job does when nothing is in its way."""
        if (job, commits) in self._known:
            return self._known[job, commits]
        table, truth = self.copy()
        location, store = self.location(table)
        store.is_local = not commits
        with commits_as_steps(), same_choices():
            job(location)
        truth.look(table)
        calls = list(store.calls)
        self.drop(table)
        steps = [Step(number, *call) for number, call in enumerate(calls)]
        return self._known.setdefault((job, commits), steps)

    def suffer(
        self, table: memwal.Table, job: Job, fault: Fault, step: Step, *, remote: bool = False
    ) -> None:
        """Run a job with a fault at a step; whatever of it arrives late has arrived at the end."""
        location, store = self.location(table)
        store.is_local = not remote
        fault.arrange(store, step.number)
        try:
            with commits_as_steps(), same_choices():
                job(location)
        except (Killed, MemWalError):
            pass
        except (OSError, RuntimeError, ValueError) as error:
            # What Lance makes of the end of the process, when it is the one that makes the call.
            if not fault.fatal:
                raise AssertionError(f"an error that users cannot tell: {error!r}") from error
        store.clear()
        store.arrive()

    def pause(
        self, table: memwal.Table, job: Job, step: Step, meanwhile: Callable[[], None]
    ) -> None:
        """Let a job stand still before a step while something else happens."""
        self.pause_at(table, job, "*", "*", meanwhile, skip=step.number)

    def pause_at(
        self,
        table: memwal.Table,
        job: Job,
        operation: str,
        key: str,
        meanwhile: Callable[[], None],
        *,
        skip: int = 0,
    ) -> Any:
        """Let a job stand still before a call; what it returns, or None when it was refused."""
        location, store = self.location(table)
        pause = store.pause(operation, key, skip=skip)
        with same_choices(), ThreadPoolExecutor(1) as pool:
            slow = pool.submit(job, location)
            try:
                assert pause.wait_until_reached(slow), "the job never came to that call"
                meanwhile()
            finally:
                pause.release()
            try:
                return slow.result()
            except MemWalError as error:
                # Refused, and told so: what is to be seen is that nothing was harmed.
                if not may_be_refused(error):
                    raise
                return None

    def drop(self, table: memwal.Table) -> None:
        """Remove a copy."""
        shutil.rmtree(folder(table).parent)


def may_be_refused(error: MemWalError) -> bool:
    """Whether a job that stood still may say that others got on without it."""
    return "again" in str(error)


@contextmanager
def same_choices() -> Iterator[None]:
    """Have a job choose the same as in its other runs where it chooses by chance.

    A merge draws which of several regions comes first: steps would have other numbers each time.
    """
    before = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(before)


@contextmanager
def commits_as_steps() -> Iterator[None]:
    """Have commits that Lance makes by itself, on stores that are durable, count as steps."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (merge_insert, compact):
            patch.setattr(module, "commit_durably", _counted(module.commit_durably))
        extend = DatasetOptimizer.optimize_indices
        running: list[FaultyStore] = []
        real_open = index_build.open_base

        def opened(location: TableLocation, **options: Any) -> Any:
            if isinstance(location.store, FaultyStore):
                running[:] = [location.store]
            return real_open(location, **options)

        def extended(self: DatasetOptimizer, **options: Any) -> Any:
            if not running or running[0].is_local:
                return extend(self, **options)
            return running[0].step("commit", "index", lambda: _like_lance(extend, self, **options))

        patch.setattr(index_build, "open_base", opened)
        patch.setattr(DatasetOptimizer, "optimize_indices", extended)
        yield


def _counted(commit: Callable[..., Any]) -> Callable[..., Any]:
    def counted(base: Any, execute: Callable[[Any], Any], **options: Any) -> Any:
        store = base.location.store
        # To a local table a commit is many steps, each of which counts.
        if not isinstance(store, FaultyStore) or store.is_local:
            return commit(base, execute, **options)
        return store.step("commit", "rows", lambda: commit(base, execute, **options))

    return counted


def _like_lance(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return function(*args, **options)
    except StoreUnavailableError as error:
        raise OSError(f"LanceError(IO): {error}") from error


def chosen(steps: Sequence[Step], fault: Fault, *, every: bool) -> list[Step]:
    """Steps to try: all, or one or two of each kind.

    ``MEMWAL_FAULT_STEP`` in the environment names the only one, to try it again.
    """
    possible = [step for step in steps if fault.applies(step)]
    if only := os.environ.get(_STEP):
        return [step for step in possible if step.number == int(only)]
    if every:
        return possible
    kinds: dict[str, list[Step]] = {}
    for step in possible:
        if fault.fatal and not step.changes:
            # The same as to be killed after the change before.
            continue
        kinds.setdefault(step.shape, []).append(step)
    found = {
        step
        for same in kinds.values()
        for step in ((same[0], same[-1]) if same[0].changes and fault.common else (same[-1],))
    }
    return sorted(found, key=lambda step: step.number)
