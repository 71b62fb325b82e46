"""Giving a vector index another model, with whatever may happen in between."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.indexed import (
    DIMENSION,
    SCHEMA,
    VECTOR,
    create_index,
    indexed_table,
    models,
    rows,
)
from support.data.some_kinds import some
from support.data.tables import REGION
from support.faults.deaths import die_at_commit
from support.oracles import native
from support.stores.faulty_store import TABLE_MANIFEST, FaultyStore, FaultyStores, Killed

import memwal
from memwal.errors import ConflictError, InvalidInputError, MemWalError, TableSetupError
from memwal.jobs.index.migration import (
    abort_migration,
    finish_migration,
    migration_status,
    next_name,
    start_migration,
    switch_migration,
)
from memwal.lsm.indexes.catchup import index_names
from memwal.reader.base_indexes import find_index
from memwal.search.vector.candidates import is_vector_index

NEW = "idx_v2"


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """Return a table of 600 rows with a vector index that is maintained by name."""
    uri = str(tmp_path / "migrated")
    dataset = lance.write_dataset(rows(0, 600), uri, schema=SCHEMA)
    create_index(dataset, "IVF_PQ", num_partitions=2)
    lance.dataset(uri).create_scalar_index("id", "BTREE", name="id_idx")
    return memwal.enable(
        uri,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.unsharded(),
        maintained_indexes=["id_idx", "idx"],
    )


def flush(table: memwal.Table, start: int, count: int, **options: Any) -> None:
    with table.writer() as writer:
        writer.upsert(rows(start, count, **options))
        writer.flush()


def collect(table: memwal.Table) -> None:
    for _ in range(2):
        table.collect_garbage(dry_run=False, grace_seconds=0, retention_seconds=0)


def maintained(table: memwal.Table) -> tuple[str, ...]:
    return table.base().details.maintained_indexes


def check_search(table: memwal.Table) -> None:
    """Every row is found at its own vector, at a distance of nothing, and distances are exact."""
    everything = table.scan().to_table()
    ids = everything.column("id").to_numpy()
    vectors = np.stack(everything.column("vector").to_pylist())
    for at in range(0, len(ids), len(ids) // 7):
        found = table.search(vectors[at], k=5, nprobes=50, refine_factor=50)
        assert found.column("id")[0].as_py() == ids[at]
        truth = np.sort(((vectors - vectors[at]) ** 2).sum(axis=1))[:5]
        np.testing.assert_allclose(found.column("_distance").to_numpy(), truth, atol=1e-4)


def test_the_whole_of_it(table: memwal.Table) -> None:
    flush(table, 600, 50)
    old = models(table)

    status = start_migration(table.location, "idx", num_partitions=1)

    assert (status.step, status.old, status.new) == ("started", "idx", NEW)
    assert status.lacking == ((REGION, 1),)
    assert maintained(table) == ("id_idx", "idx", NEW)
    assert models(table) == old != models(table, NEW)
    check_search(table)

    flush(table, 650, 50)
    assert migration_status(table.location, "idx").lacking == ((REGION, 1),)
    table.merge()
    assert migration_status(table.location, "idx").missing is not None
    with pytest.raises(ConflictError):
        switch_migration(table.location, "idx")
    check_search(table)
    table.build_indexes()

    status = switch_migration(table.location, "idx")

    assert status.step == "switched"
    assert maintained(table) == ("id_idx", NEW, "idx")
    assert status.missing is not None
    with pytest.raises(ConflictError):
        finish_migration(table.location, "idx")
    check_search(table)
    collect(table)
    flush(table, 0, 30, seed=5)
    assert migration_status(table.location, "idx").lacking == ()

    status = finish_migration(table.location, "idx")

    assert (status.step, status.missing) == ("finished", None)
    assert maintained(table) == ("id_idx", NEW)
    assert index_names(table.base()) == {"id_idx", NEW}
    assert "idx" not in table.base().details.catchup
    check_search(table)
    flush(table, 900, 10)
    table.checkpoint()
    check_search(table)
    assert next_name(NEW) == "idx_v3"


@pytest.mark.parametrize("preferred", ["idx", NEW])
def test_readers_take_the_first_of_the_maintained(table: memwal.Table, preferred: str) -> None:
    start_migration(table.location, "idx", num_partitions=1)
    if preferred == NEW:
        switch_migration(table.location, "idx")
    base = table.base()

    found = find_index(
        base.dataset.describe_indices(),
        "vector",
        is_vector_index,
        preferred=base.details.maintained_indexes,
    )

    assert found is not None
    assert found.name == preferred


@pytest.mark.parametrize("behind", ["idx", NEW])
def test_rows_that_only_one_index_covers_are_found(table: memwal.Table, behind: str) -> None:
    """Lance by itself searches through the index that stands first in the manifest."""
    start_migration(table.location, "idx", num_partitions=1)
    switch_migration(table.location, "idx")
    flush(table, 600, 50)
    flush(table, 0, 50, seed=3)
    table.merge()
    other = NEW if behind == "idx" else "idx"
    table.base().dataset.optimize.optimize_indices(index_names=[other], num_indices_to_merge=0)

    check_search(table)
    # Nothing but the base table is left to look at.
    lance.write_dataset(rows(2000, 20), table.uri, mode="append")
    check_search(table)


def test_every_step_can_be_repeated(table: memwal.Table) -> None:
    for _ in range(2):
        assert start_migration(table.location, "idx").step == "started"
    version = table.base().version
    start_migration(table.location, "idx")
    assert table.base().version == version
    for _ in range(2):
        assert switch_migration(table.location, "idx").step == "switched"
    assert start_migration(table.location, "idx").step == "switched"
    for _ in range(2):
        assert finish_migration(table.location, "idx").step == "finished"
    assert switch_migration(table.location, "idx").step == "finished"
    with pytest.raises(TableSetupError):
        start_migration(table.location, "idx")


@pytest.mark.parametrize("switched", [False, True])
def test_abort_takes_everything_back(table: memwal.Table, switched: bool) -> None:
    start_migration(table.location, "idx")
    flush(table, 600, 20)
    if switched:
        switch_migration(table.location, "idx")

    for _ in range(2):
        assert abort_migration(table.location, "idx").step == "not started"

    assert maintained(table) == ("id_idx", "idx")
    assert index_names(table.base()) == {"id_idx", "idx"}
    check_search(table)
    table.checkpoint()
    check_search(table)
    assert start_migration(table.location, "idx").step == "started"


def test_steps_that_come_too_early_are_refused(table: memwal.Table) -> None:
    for step in (switch_migration, finish_migration):
        with pytest.raises(TableSetupError):
            step(table.location, "idx")
    start_migration(table.location, "idx")
    with pytest.raises(ConflictError):
        finish_migration(table.location, "idx")
    switch_migration(table.location, "idx")
    finish_migration(table.location, "idx")
    with pytest.raises(ConflictError):
        abort_migration(table.location, "idx")
    assert index_names(table.base()) == {"id_idx", NEW}


def test_what_cannot_be_migrated_is_refused(table: memwal.Table) -> None:
    for name in ("id_idx", "other"):
        with pytest.raises(TableSetupError, match=name):
            start_migration(table.location, name)
    with pytest.raises(TableSetupError, match="id_idx"):
        start_migration(table.location, "idx", new="id_idx")
    with pytest.raises(InvalidInputError):
        start_migration(table.location, "idx", new="idx")
    with pytest.raises(TableSetupError):
        migration_status(table.location, "a", new="b")
    base = table.base()
    create_index(base.dataset, "IVF_FLAT", name="beside")
    with pytest.raises(TableSetupError, match="beside"):
        start_migration(table.location, "beside")
    for wrong in (7, 16):
        with pytest.raises(InvalidInputError, match=str(wrong)):
            start_migration(table.location, "idx", num_sub_vectors=wrong)
    with table.writer() as writer:
        writer.delete(pa.array(range(600)))
    table.merge()
    with pytest.raises(TableSetupError):
        start_migration(table.location, "idx")
    assert maintained(table) == ("id_idx", "idx")
    assert index_names(table.base()) == {"id_idx", "idx", "beside"}


def _killed_steps(store: FaultyStore, step: Any, table: memwal.Table, *, commits: int) -> None:
    """Run a step again and again, killed before and after each of its commits in turn."""
    for _ in range(commits):
        for after in (False, True):
            store.clear()
            die_at_commit(store, after=after)
            with pytest.raises((Killed, MemWalError)):
                step(table.location, "idx")
            assert store.count("create", TABLE_MANIFEST) == 1
            store.clear()
            check_search(table)
    store.clear()
    step(table.location, "idx")
    assert store.count("create", TABLE_MANIFEST) == 0


@pytest.mark.parametrize("end", ["finished", "not started"])
def test_a_migration_that_dies_anywhere_goes_on(
    faults: FaultyStores, table: memwal.Table, end: str
) -> None:
    flush(table, 600, 20)
    table.merge()
    store = faults.of(table.location)
    _killed_steps(store, start_migration, table, commits=2)
    table.build_indexes()
    collect(table)
    if end == "finished":
        _killed_steps(store, switch_migration, table, commits=1)
        _killed_steps(store, finish_migration, table, commits=2)
    else:
        _killed_steps(store, abort_migration, table, commits=2)

    status = migration_status(table.location, "idx")

    assert status.step == end
    left = NEW if end == "finished" else "idx"
    assert maintained(table) == ("id_idx", left)
    assert index_names(table.base()) == {"id_idx", left}
    check_search(table)


def test_an_open_writer_notices(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows(600, 10))
        start_migration(table.location, "idx")
        writer.flush()
        assert migration_status(table.location, "idx").lacking == ()
        writer.upsert(rows(610, 10))
        switch_migration(table.location, "idx")
        finish_migration(table.location, "idx")
        writer.flush()
    assert migration_status(table.location, "idx").lacking == ()
    check_search(table)


def test_a_merge_while_it_finishes_is_noticed(faults: FaultyStores, table: memwal.Table) -> None:
    start_migration(table.location, "idx")
    switch_migration(table.location, "idx")
    flush(table, 600, 20)
    pause = faults.of(table.location).pause("create", TABLE_MANIFEST)
    with ThreadPoolExecutor(1) as pool:
        finishing = pool.submit(finish_migration, table.location, "idx")
        assert pause.wait_until_reached(finishing)
        table.merge()
        pause.release()
        with pytest.raises(ConflictError):
            finishing.result()

    assert maintained(table) == ("id_idx", NEW, "idx")


def test_the_order_survives_merges_and_builds(table: memwal.Table) -> None:
    start_migration(table.location, "idx")
    switch_migration(table.location, "idx")
    for turn in range(2):
        flush(table, 600 + turn, 20)
        table.merge()
        table.build_indexes()
        table.build_snapshot()
    assert maintained(table) == ("id_idx", NEW, "idx")


@pytest.mark.parametrize("kind", some(VECTOR, "IVF_FLAT", "IVF_SQ", "IVF_HNSW_PQ"))
def test_all_kinds_of_a_table_that_maintains_everything(tmp_path: Path, kind: str) -> None:
    table = indexed_table(tmp_path, kind)
    assert table.base().details.maintain_all_indexes

    assert start_migration(table.location, "idx", num_partitions=3).step == "started"

    details = table.base().details
    assert (details.maintain_all_indexes, details.maintained_indexes) == (False, ("idx", NEW))
    flush(table, 600, 50)
    table.merge()
    table.build_indexes()
    assert switch_migration(table.location, "idx").step == "switched"
    collect(table)
    status = finish_migration(table.location, "idx")
    assert status.step == "finished"
    assert status.new_balance is not None
    found = table.search(np.zeros(DIMENSION), k=3)
    assert found.num_rows == 3


def _native_nearest(table: memwal.Table, vector: Any) -> list[int]:
    found = native.nearest(table, "vector", np.asarray(vector, "float32").tolist(), k=1000)
    return sorted(int(key) for key in found)


def test_native_writers_and_readers_go_on_through_it(table: memwal.Table) -> None:
    """A native writer knows the indexes that there were when it was opened."""
    shard = native.writer(table, durable_write=True)
    try:
        start_migration(table.location, "idx", num_partitions=1)
        native.put(shard, table, rows(600, 20))
    finally:
        shard.close()
    assert migration_status(table.location, "idx").lacking == ((REGION, 1),)
    assert _native_nearest(table, np.zeros(DIMENSION)) == list(range(620))
    check_search(table)

    shard = native.writer(table, durable_write=True)
    try:
        native.put(shard, table, rows(620, 20))
    finally:
        shard.close()

    assert migration_status(table.location, "idx").lacking == ((REGION, 1),)
    assert _native_nearest(table, np.zeros(DIMENSION)) == list(range(640))
    table.checkpoint()
    switch_migration(table.location, "idx")
    flush(table, 640, 20)
    assert _native_nearest(table, np.zeros(DIMENSION)) == list(range(660))
    collect(table)
    finish_migration(table.location, "idx")
    assert _native_nearest(table, np.zeros(DIMENSION)) == list(range(660))
    check_search(table)
