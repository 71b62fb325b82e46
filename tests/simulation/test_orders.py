"""Every order of a few requests keeps the promises, and shows when a safeguard is taken out."""

from collections.abc import Callable

import pytest
from simulation import safeguards
from simulation.consumers import consume
from simulation.explore import BrokenPromise
from simulation.jobs import Client
from simulation.orders import Act, Owner, Scene, Stage, search
from simulation.world import Process
from support.faults import safeguards as taken_out
from support.faults.safeguards import TakeOut


def acts(*steps: Callable[[Owner], None]) -> Act:
    """A writer that takes steps, each of which may end it."""

    def act(stage: Stage, process: Process) -> None:
        owner = stage.owner(process)
        owner.claims()
        for step in steps:
            step(owner)

    return act


writes, flushes, reads = Owner.writes, Owner.flushes, Owner.reads
writer = acts(writes, flushes, writes, reads)
successor = acts(reads, writes)


def reads_fresh(stage: Stage, process: Process) -> None:
    owner, client = stage.owner(process), stage.client(process)
    owner.claims()
    for step in (writes, None, writes, None, flushes, None):
        if step is None:
            client.read_fresh()
        else:
            step(owner)


def does(*jobs: Callable[[Client], None], divided: float = 0) -> Act:
    def act(stage: Stage, process: Process) -> None:
        client = stage.client(process, divided=divided)
        for job in jobs:
            job(client)

    return act


def waits(client: Client) -> None:
    client.world.sleep(10_000)


def rests(client: Client) -> None:
    """Wait for longer than anything is kept, and not until a consumer expires."""
    client.world.sleep(10 * 60)


def merges(client: Client) -> None:
    client.merge(everything=True)


def merges_while_it_reads(client: Client) -> None:
    def merges_and_indexes() -> None:
        merges(client)
        client.build_index()

    client.read_for_long(merges_and_indexes)


drops = does(merges, Client.build_index, Client.collect)
deletes = does(
    merges, Client.build_index, waits, Client.collect, waits, Client.collect, Client.collect
)
holds = does(merges, Client.build_index, rests, Client.collect, rests, Client.collect)
deletes_unindexed = does(merges, waits, Client.collect, waits, Client.collect)

SCENES = {
    "takeover": Scene({"writer": writer, "successor": successor}),
    "takeovers": Scene({"writer": successor, "second": successor, "third": successor}),
    "collected log": Scene({"writer": writer, "successor": writer, "collector": deletes}, keys=20),
    "orphan": Scene({"writer": acts(writes, flushes), "collector": does(waits, Client.collect)}),
    "merges": Scene(
        {
            "merger": does(Client.merge),
            "other": does(Client.merge),
            "direct": does(Client.write_directly),
        },
        before=acts(writes, writes, flushes, writes, flushes, writes, flushes),
    ),
    "divided merges": Scene(
        {
            "merger": does(Client.merge, divided=1),
            "other": does(Client.merge),
            "divided": does(Client.merge, divided=1),
        },
        before=acts(writes, writes, flushes, writes, flushes, writes, flushes),
    ),
    "fresh reads": Scene(
        {
            "reader": reads_fresh,
            "flusher": acts(writes, flushes, writes),
            "collector": deletes,
        }
    ),
    "readers": Scene(
        {
            "reader": does(Client.read_flushed),
            "long reader": does(Client.read_for_long),
            "collector": drops,
        },
        before=acts(writes, flushes, writes, writes, flushes),
        pauses=(0.0,),
    ),
    "named generations": Scene(
        {
            "long reader": does(merges_while_it_reads),
            "collector": does(Client.collect, Client.collect),
        },
        before=acts(writes, flushes, writes, writes, flushes),
        pauses=(100.0,),
    ),
    "tags": Scene(
        {"tagger": does(Client.tag), "collector": deletes},
        before=acts(writes, flushes, writes, writes, flushes),
    ),
    "consumer": Scene(
        {
            "consumer": does(consume, consume),
            "writer": acts(writes, flushes, writes),
            "collector": holds,
        },
        before=acts(writes, flushes),
    ),
    "consumers": Scene(
        {"consumer": does(consume, consume), "other": does(consume, consume)},
        before=acts(writes, flushes, writes),
        pauses=(0.0,),
    ),
    "indexes": Scene(
        {"collector": deletes_unindexed, "indexer": does(Client.build_index)},
        before=acts(writes, flushes, writes, writes, flushes),
    ),
    "trimmed manifests": Scene(
        {
            "late": acts(),
            "writer": acts(writes, writes),
            "successor": acts(writes, flushes),
            "collector": deletes,
        },
        before=acts(writes, flushes),
        within="create",
        pauses=(1e6,),
    ),
}

LONG = {"collected log", "consumer", "fresh reads", "takeovers"}
"""Scenes of which one event has hundreds of orders, and two at once tens of thousands.

By default the random worlds have what happens in them, and so have their missing safeguards below.
"""

BROKEN: list[tuple[TakeOut, str, int]] = [
    (taken_out.no_sentinel, "takeovers", 1),
    (taken_out.no_epoch_at_a_flush, "takeover", 1),
    (taken_out.no_look_after_a_pause, "collected log", 1),
    (taken_out.no_bound_of_the_log, "collected log", 1),
    (taken_out.no_look_behind_a_first_manifest, "collected log", 1),
    (taken_out.no_hint, "trimmed manifests", 2),
    (taken_out.no_look_for_the_folder, "orphan", 1),
    (taken_out.no_mark_in_orphans, "orphan", 1),
    (taken_out.no_version_behind_a_mark, "orphan", 1),
    (taken_out.no_look_for_the_mark, "orphan", 2),
    (taken_out.no_newest_entry, "fresh reads", 1),
    (taken_out.no_forgetting, "fresh reads", 1),
    (safeguards.no_second_look, "fresh reads", 1),
    (taken_out.no_grace, "named generations", 1),
    (safeguards.only_tags, "readers", 1),
    (safeguards.no_retention, "readers", 1),
    (safeguards.no_tags, "tags", 0),
    (safeguards.no_index, "indexes", 0),
    (safeguards.no_consumer_hold, "consumer", 0),
    (safeguards.no_consumer_epoch, "consumers", 1),
    (safeguards.no_consumer_compare, "consumers", 1),
    (safeguards.no_pinned_deletes, "merges", 1),
    (safeguards.no_progress_at_the_commit, "merges", 1),
]
"""Safeguards, the scene that shows when one is taken out, and the number of events it takes."""


@pytest.mark.parametrize(
    "scene",
    [pytest.param(s, marks=pytest.mark.slow if s in LONG else ()) for s in SCENES],
)
def test_every_order_with_one_event_keeps_the_promises(scene: str) -> None:
    searched = search(SCENES[scene], most=1)

    # A scene whose processes are stuck would keep them as well.
    assert searched.orders > 10
    assert searched.requests > 10


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    "scene",
    [pytest.param(s, marks=pytest.mark.soak if s in LONG else pytest.mark.slow) for s in SCENES],
)
def test_every_order_with_two_events_keeps_the_promises(scene: str) -> None:
    print(search(SCENES[scene], most=2))


@pytest.mark.parametrize(
    ("take_out", "scene", "events"),
    [
        pytest.param(*case, id=case[0].__name__, marks=pytest.mark.slow if case[2] > 1 else ())
        for case in BROKEN
    ],
)
def test_a_missing_safeguard_is_noticed(
    take_out: TakeOut, scene: str, events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(monkeypatch)

    with pytest.raises(BrokenPromise):
        search(SCENES[scene], most=events)
