"""A collection that meets a fault at any request: whole for every reader, and completed later."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from support.data.sampled import every
from support.data.tables import (
    REGION,
    MakeTable,
    flush,
    folder,
    generations,
    keys,
    listing,
    manifests,
    rows,
    state,
)
from support.faults.collecting import DAY, collect, drop
from support.oracles import native
from support.stores.faulty_store import FaultyStore, FaultyStores, Killed

import memwal
from memwal.errors import MemWalError
from memwal.format.paths import region_dir

SEEDS = range(int(os.environ.get("MEMWAL_GC_SEEDS", "10")))
FAULTS = ("kill", "kill-after", "error", "error-after")
# Of what is in the table beside the regions, the oldest goes at this age.
LATER = 8 * DAY

Shown = dict[int, int | None]


@pytest.fixture
def full(make_table: MakeTable) -> tuple[memwal.Table, Shown, Shown]:
    """Something of every kind that may go, and of every kind that must stay.

    Returns the table, and what is to be seen of it without and with the log.
    """
    table = make_table(maintained_indexes=["id_idx"])
    flush(table, {1: 1}, {2: 2}, {1: 11})
    table.merge()
    table.build_indexes()
    assert drop(table) == 3
    store = table.location.store
    store.put(f"{region_dir(REGION)}/0badf00d_gen_9/data/x.lance", b"rest of a flush")
    store.put("_indices/0b5d6f4e-9c1d-4a3d-8a53-0b5d6f4e9c1d/x.lance", b"rest of a build")
    store.put("_versions/18446744073709551000.manifest-0b5d6f4e", b"rest of a commit")
    flush(table, {6: 6})
    table.merge()
    table.build_indexes()
    table.base().dataset.tags.create("kept", table.base().version)
    table.base().dataset.tags.create("memwal-read-60-1-a", 1)
    writer = table.writer()
    writer.upsert(rows({3: 3}))
    writer.flush()
    writer.upsert(rows({4: 4}))
    writer.delete(keys(2))
    writer.abort()
    flushed: Shown = {1: 11, 2: 2, 3: 3, 6: 6}
    return table, flushed, {1: 11, 3: 3, 4: 4, 6: 6}


def arm(store: FaultyStore, fault: str, number: int) -> None:
    """Let the request with this number fail."""
    store.clear()
    act = store.kill if fault.startswith("kill") else store.fail
    act("*", skip=number, after=fault.endswith("after"))


def check(table: memwal.Table, flushed: Shown, where: str) -> None:
    """Our reader and Lance's show the same, at the newest version and at the tag."""
    assert state(table) == flushed, where
    assert state(native.scan(table)) == flushed, where
    assert state(table.at("kept")) == {1: 11, 2: 2, 6: 6}, where


def stored(table: memwal.Table) -> set[str]:
    """Everything but the versions of the region's manifest."""
    return {path for path in listing(folder(table)) if not path.endswith(".binpb")}


def test_the_fixture_has_something_of_every_kind(full: tuple[memwal.Table, Shown, Shown]) -> None:
    table, flushed, _ = full
    metrics = collect(table, LATER).metrics
    zero = {name for name, number in metrics.items() if not number}
    assert zero == {"base_versions", "bytes_base_versions"}
    check(table, flushed, "at once")
    assert generations(table) == [5]


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", every(4, SEEDS))
def test_any_request(
    seed: int,
    quick_faults: FaultyStores,
    full: tuple[memwal.Table, Shown, Shown],
    tmp_path: Path,
) -> None:
    """Four faults a seed, each in a table of its own; the second run may meet one too."""
    original, flushed, strong = full
    dice = random.Random(seed)

    def copy(name: str) -> tuple[memwal.Table, FaultyStore]:
        path = tmp_path / name
        shutil.copytree(folder(original), path, copy_function=shutil.copy2)
        table = memwal.open(str(path))
        return table, quick_faults.of(table.location)

    def run(table: memwal.Table, store: FaultyStore, fault: str, number: int) -> None:
        arm(store, fault, number)
        with suppress(Killed, MemWalError):
            collect(table, LATER)
        store.clear()

    counted, store = copy("counted")
    store.clear()
    collect(counted, LATER)
    requests = len(store.calls)
    collect(counted, 2 * LATER)
    remaining = stored(counted)
    assert requests > 40
    for fault in FAULTS:
        table, store = copy(fault)
        number = dice.randrange(requests)
        where = f"{fault} at request {number}"
        run(table, store, fault, number)
        check(table, flushed, where)
        if dice.random() < 0.5:
            run(table, store, dice.choice(FAULTS), dice.randrange(requests))
            check(table, flushed, where)
        for later in (LATER, 2 * LATER):
            assert collect(table, later).warnings == (), where
        check(table, flushed, where)
        assert stored(table) == remaining, where
        # One that was put for an orphan, by each run that came so far.
        assert (
            len(manifests(table).list_versions()) <= len(manifests(counted).list_versions()) + 2
        ), where
        with table.writer() as writer:
            writer.claim()
            assert state(writer) == strong, where
        check(table, strong, where)
        shutil.rmtree(folder(table))


def test_a_folder_that_is_half_deleted_is_no_generation(
    faults: FaultyStores, table: memwal.Table
) -> None:
    """The bloom filter goes first: it is what a flush looks for before it names a folder."""
    flush(table, {1: 1})
    table.merge()
    drop(table)
    store = faults.of(table.location)
    store.clear()
    store.kill("delete", "*_gen_1/*", skip=1)
    with pytest.raises(Killed):
        collect(table, DAY)
    remaining = [info.key for info in store.inner.list(region_dir(REGION)) if "_gen_1/" in info.key]
    assert remaining
    assert not any(key.endswith("bloom_filter.bin") for key in remaining)
    assert state(table) == {1: 1}
    collect(table, DAY)
    assert not any("_gen_1/" in info.key for info in store.inner.list(region_dir(REGION)))
