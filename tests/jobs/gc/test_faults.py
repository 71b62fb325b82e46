"""A collection that meets a fault at any request: whole for every reader, and completed later."""

from __future__ import annotations

import pytest
from support.data.tables import (
    REGION,
    flush,
    state,
)
from support.faults.collecting import DAY, collect, drop
from support.stores.faulty_store import FaultyStores, Killed

import memwal
from memwal.format.paths import region_dir


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
