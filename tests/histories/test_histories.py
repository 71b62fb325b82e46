"""Real processes keep their promises, and it is noticed when they do without a safeguard."""

from __future__ import annotations

import os
import time

import pytest
from histories.nemesis import Child
from histories.play import BrokenPromise, Cast, perform, play
from histories.safeguards import SAFEGUARDS

SECONDS = float(os.environ.get("MEMWAL_HISTORIES_SECONDS", "30"))


def _writes_more(child: Child, who: str = "", *, calls: int = 4) -> None:
    """Wait until a child, or somebody else who is with it, has written more."""
    before = child.acknowledged(who)
    while child.acknowledged(who) < before + calls:
        child.check()
        time.sleep(0.01)


def test_a_writer_that_stands_still_and_is_killed_harms_nobody() -> None:
    """Another one, a reader and the jobs go on meanwhile, in this process."""

    def direct(children: list[Child]) -> None:
        (writer,) = children
        writer.start()
        _writes_more(writer)
        writer.stop()
        _writes_more(writer, "writer-here", calls=10)
        writer.go_on()
        _writes_more(writer)
        writer.kill()

    here = ("writer", "reader", "jobs", "collector")
    played = perform(Cast(("writer",), here=here, grace=0.3, rest=3.0), direct, seed=1)

    assert played.acknowledged >= 18
    assert played.reads > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_play_keeps_its_promises(seed: int) -> None:
    print(play(seed, SECONDS))


@pytest.mark.slow
def test_fresh_plays_keep_their_promises() -> None:
    for _ in range(2):
        seed = int.from_bytes(os.urandom(4))
        print(seed, play(seed, SECONDS))


@pytest.mark.slow
@pytest.mark.parametrize("without", SAFEGUARDS)
def test_a_missing_safeguard_is_noticed(without: str) -> None:
    cast = Cast(("writer", "writer", "reader", "jobs", "jobs"), without=without)

    with pytest.raises(BrokenPromise):
        for seed in range(6):
            play(seed, SECONDS, cast)
