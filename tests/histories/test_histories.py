"""Real processes keep their promises, and it is noticed when they do without a safeguard."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import pytest
from histories.nemesis import Child
from histories.run_history import BrokenPromise, Cast, perform, run_history

import memwal
from memwal.format.paths import parse_wal_name, wal_dir
from memwal.region.manifest_store import discover_regions

SECONDS = float(os.environ.get("MEMWAL_HISTORIES_SECONDS", "20"))


def _wait(until: Callable[[], bool], child: Child, *, within: float = math.inf) -> bool:
    """Wait for something, or for so many seconds; return whether it happened."""
    end = time.monotonic() + within
    while not until():
        if time.monotonic() > end:
            return False
        child.check()
        time.sleep(0.01)
    return True


def _writes_more(child: Child) -> None:
    """Wait until a child has written more."""
    before = child.acknowledged()
    _wait(lambda: child.acknowledged() >= before + 4, child)


def _positions(uri: str) -> list[int]:
    """Of all that is in the log of a table's one region."""
    store = memwal.open(uri).location.store
    (region,) = discover_regions(store)
    found = (parse_wal_name(info.key.rpartition("/")[2]) for info in store.list(wal_dir(region)))
    return [position for position in found if position is not None]


def _sleeps_through_everything(child: Child) -> None:
    """Have a writer stand still until others have its region, and nothing is left of its log."""
    while True:
        _writes_more(child)
        child.stop()
        newest = max(_positions(child.uri))
        is_over = _wait(lambda n=newest: min(_positions(child.uri)) > n + 1, child, within=20)
        child.go_on()
        if is_over:
            break
        # It stood still with the lock of the manifest, without which nobody collects anything.
    _writes_more(child)


def _with_everybody(*, without: str = "") -> Cast:
    """One process to which things are done; the others go on meanwhile, in this process."""
    here = ("writer", "reader", "jobs", "collector")
    return Cast(("writer",), here=here, regions=1, grace=0.3, rest=2.0, without=without)


@pytest.mark.slow
def test_a_writer_that_sleeps_through_everything_and_is_killed_harms_nobody() -> None:
    def direct(children: list[Child]) -> None:
        (writer,) = children
        writer.start()
        _sleeps_through_everything(writer)
        writer.kill()

    played = perform(_with_everybody(), direct, seed=1)

    assert played.acknowledged >= 8
    assert played.reads > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_writer_that_does_not_look_after_a_pause_is_noticed() -> None:
    def direct(children: list[Child]) -> None:
        (writer,) = children
        writer.start()
        for _ in range(10):
            _sleeps_through_everything(writer)

    with pytest.raises(BrokenPromise):
        perform(_with_everybody(without="no_look_after_a_pause"), direct, seed=1)


@pytest.mark.slow
def test_a_writer_that_is_killed_again_and_again_loses_nothing() -> None:
    def direct(children: list[Child]) -> None:
        (writer,) = children
        for _ in range(4):
            writer.start()
            _writes_more(writer)
            writer.kill()

    played = perform(Cast(("writer",), here=("jobs",), grace=0.3), direct, seed=1)

    assert played.acknowledged >= 16


@pytest.mark.slow
def test_a_play_keeps_its_promises() -> None:
    print(run_history(1, SECONDS))


@pytest.mark.slow
def test_fresh_plays_keep_their_promises() -> None:
    seed = int.from_bytes(os.urandom(4))
    print(seed, run_history(seed, SECONDS))


# Without one of the last three it takes up to minutes until two processes meet as they must;
# :mod:`simulation.test_orders` notices these too, or tests of replay.
MISSING = (
    pytest.param("no_sentinel", marks=pytest.mark.slow),
    pytest.param("no_bound_of_the_log", marks=pytest.mark.slow),
    *(
        pytest.param(without, marks=pytest.mark.soak)
        for without in ("no_epoch_at_a_flush", "no_pinned_deletes", "no_replay")
    ),
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("without", MISSING)
def test_a_missing_safeguard_is_noticed(without: str) -> None:
    roles = {
        "no_pinned_deletes": ("writer", "jobs", "jobs"),
        "no_bound_of_the_log": ("writer", "writer", "jobs", "collector"),
    }.get(without, ("writer", "writer"))
    cast = Cast(roles, regions=1, grace=1.0, pause=2.0, without=without)

    with pytest.raises(BrokenPromise):
        for seed in range(20):
            run_history(seed, SECONDS, cast=cast)
