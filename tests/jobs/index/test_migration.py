"""Giving a vector index another model, with whatever may happen in between."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.copied import copy_of
from support.data.indexed import DIMENSION, SCHEMA, VECTOR, create_index, indexed_copy, models, rows
from support.data.some_kinds import some
from support.data.tables import REGION
from support.faults.deaths import die_at_commit
from support.oracles import native
from support.oracles.native import collect_all
from support.stores.faulty_store import TABLE_MANIFEST, FaultyStore, FaultyStores, Killed

import memwal
from memwal.errors import ConflictError, InvalidInputError, MemWalError, TableSetupError
from memwal.jobs.index.migration import (
    IndexMigration,
    MigrationStatus,
    choose_indexes,
    next_name,
)
from memwal.lsm.indexes.catchup import index_names
from memwal.reader.base_indexes import find_index

NEW = "idx_v2"


def migration(table: memwal.Table) -> IndexMigration:
    """Return the migration of the table's vector index."""
    return IndexMigration(table.location, "idx")


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """Return a table of 600 rows with a vector index that is maintained by name."""
    copy_of("migrated", tmp_path, make_table)
    return memwal.open(str(tmp_path / "migrated"))


def make_table(folder: Path) -> None:
    uri = str(folder / "migrated")
    dataset = lance.write_dataset(rows(0, 600), uri, schema=SCHEMA)
    create_index(dataset, "IVF_PQ", num_partitions=2)
    lance.dataset(uri).create_scalar_index("id", "BTREE", name="id_idx")
    memwal.enable(
        uri, primary_key=["id"], region_spec="unsharded", maintained_indexes=["id_idx", "idx"]
    )


def flush(table: memwal.Table, start: int, count: int, **options: Any) -> None:
    table.upsert(rows(start, count, **options))


def maintained(table: memwal.Table) -> tuple[str, ...]:
    return table.base().details.maintained_indexes


def check_search(table: memwal.Table) -> None:
    """Every row is found at its own vector, at a distance of nothing, and distances are exact."""
    everything = table.scan().to_table()
    ids = everything.column("id").to_numpy()
    vectors = np.stack(everything.column("vector").to_pylist())
    for at in range(0, len(ids), len(ids) // 7):
        found = table.search(vectors[at], k=5, nprobes=50, refine_factor=50).to_table()
        assert found.column("id")[0].as_py() == ids[at]
        truth = np.sort(((vectors - vectors[at]) ** 2).sum(axis=1))[:5]
        np.testing.assert_allclose(found.column("_distance").to_numpy(), truth, atol=1e-4)


def test_the_whole_of_it(table: memwal.Table) -> None:
    flush(table, 600, 50)
    old = models(table)

    status = migration(table).start(num_partitions=1, num_sub_vectors=DIMENSION)

    assert (status.step, status.old, status.new) == ("started", "idx", NEW)
    assert status.lacking == ((REGION, 1),)
    assert maintained(table) == ("id_idx", "idx", NEW)
    assert models(table) == old != models(table, NEW)
    check_search(table)

    flush(table, 650, 50)
    assert migration(table).status().lacking == ((REGION, 1),)
    table.merge()
    assert migration(table).status().missing is not None
    with pytest.raises(ConflictError):
        migration(table).switch()
    check_search(table)
    table.build_indexes()

    status = migration(table).switch()

    assert status.step == "switched"
    assert maintained(table) == ("id_idx", NEW, "idx")
    assert status.missing is not None
    with pytest.raises(ConflictError):
        migration(table).finish()
    check_search(table)
    collect_all(table)
    flush(table, 0, 30, seed=5)
    assert migration(table).status().lacking == ()

    status = migration(table).finish()

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
    migration(table).start(num_partitions=1)
    if preferred == NEW:
        migration(table).switch()
    base = table.base()

    found = find_index(
        base.dataset.describe_indices(),
        "vector",
        lambda kind: kind.is_vector,
        preferred=base.details.maintained_indexes,
    )

    assert found is not None
    assert found.name == preferred


@pytest.mark.few(1)
@pytest.mark.parametrize("behind", ["idx", NEW])
def test_rows_that_only_one_index_covers_are_found(table: memwal.Table, behind: str) -> None:
    """Lance by itself searches through the index that stands first in the manifest."""
    migration(table).start(num_partitions=1)
    migration(table).switch()
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
        assert migration(table).start().step == "started"
    version = table.base().version
    migration(table).start()
    assert table.base().version == version
    for _ in range(2):
        assert migration(table).switch().step == "switched"
    assert migration(table).start().step == "switched"
    for _ in range(2):
        assert migration(table).finish().step == "finished"
    assert migration(table).switch().step == "finished"
    with pytest.raises(TableSetupError):
        migration(table).start()


@pytest.mark.few(1)
@pytest.mark.parametrize("switched", [False, True])
def test_abort_takes_everything_back(table: memwal.Table, switched: bool) -> None:
    migration(table).start()
    flush(table, 600, 20)
    if switched:
        migration(table).switch()

    for _ in range(2):
        assert migration(table).abort().step == "not started"

    assert maintained(table) == ("id_idx", "idx")
    assert index_names(table.base()) == {"id_idx", "idx"}
    check_search(table)
    table.checkpoint()
    check_search(table)
    assert migration(table).start().step == "started"


def test_steps_that_come_too_early_are_refused(table: memwal.Table) -> None:
    for step in (migration(table).switch, migration(table).finish):
        with pytest.raises(TableSetupError):
            step()
    migration(table).start()
    with pytest.raises(ConflictError):
        migration(table).finish()
    migration(table).switch()
    migration(table).finish()
    with pytest.raises(ConflictError):
        migration(table).abort()
    assert index_names(table.base()) == {"id_idx", NEW}


def test_what_cannot_be_migrated_is_refused(table: memwal.Table) -> None:
    for name in ("id_idx", "other"):
        with pytest.raises(TableSetupError, match=name):
            IndexMigration(table.location, name).start()
    with pytest.raises(TableSetupError, match="id_idx"):
        IndexMigration(table.location, "idx", new="id_idx").start()
    with pytest.raises(InvalidInputError):
        IndexMigration(table.location, "idx", new="idx").start()
    with pytest.raises(TableSetupError):
        IndexMigration(table.location, "a", new="b").status()
    base = table.base()
    create_index(base.dataset, "IVF_FLAT", name="beside")
    with pytest.raises(TableSetupError, match="beside"):
        IndexMigration(table.location, "beside").start()
    for wrong in (7, 16):
        with pytest.raises(InvalidInputError, match=str(wrong)):
            migration(table).start(num_sub_vectors=wrong)
    table.delete(pa.array(range(600)))
    table.merge()
    with pytest.raises(TableSetupError):
        migration(table).start()
    assert maintained(table) == ("id_idx", "idx")
    assert index_names(table.base()) == {"id_idx", "idx", "beside"}


@pytest.mark.parametrize("step", ["start", "status", "switch", "finish", "abort"])
def test_no_step_touches_an_index_of_another_kind(table: memwal.Table, step: str) -> None:
    """It bears the name of the new index, and stands before the old one as after a switch."""
    with pytest.raises(TableSetupError):
        getattr(IndexMigration(table.location, "idx", new="id_idx"), step)()
    assert maintained(table) == ("id_idx", "idx")
    assert index_names(table.base()) == {"id_idx", "idx"}


def _killed_steps(
    store: FaultyStore, step: Callable[[], MigrationStatus], table: memwal.Table, *, commits: int
) -> None:
    """Run a step again and again, killed before and after each of its commits in turn."""
    for _ in range(commits):
        for after in (False, True):
            store.clear()
            die_at_commit(store, after=after)
            with pytest.raises((Killed, MemWalError)):
                step()
            assert store.count("create", TABLE_MANIFEST) == 1
            store.clear()
            check_search(table)
    store.clear()
    step()
    assert store.count("create", TABLE_MANIFEST) == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("end", ["finished", "not started"])
def test_a_migration_that_dies_anywhere_goes_on(
    faults: FaultyStores, table: memwal.Table, end: str
) -> None:
    flush(table, 600, 20)
    table.merge()
    store = faults.of(table.location)
    _killed_steps(store, migration(table).start, table, commits=2)
    table.build_indexes()
    collect_all(table)
    if end == "finished":
        _killed_steps(store, migration(table).switch, table, commits=1)
        _killed_steps(store, migration(table).finish, table, commits=2)
    else:
        _killed_steps(store, migration(table).abort, table, commits=2)

    status = migration(table).status()

    assert status.step == end
    left = NEW if end == "finished" else "idx"
    assert maintained(table) == ("id_idx", left)
    assert index_names(table.base()) == {"id_idx", left}
    check_search(table)


def test_an_open_writer_notices(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows(600, 10))
        migration(table).start()
        writer.flush()
        assert migration(table).status().lacking == ()
        writer.upsert(rows(610, 10))
        migration(table).switch()
        migration(table).finish()
        writer.flush()
    assert migration(table).status().lacking == ()
    check_search(table)


def test_a_merge_while_it_finishes_is_noticed(faults: FaultyStores, table: memwal.Table) -> None:
    migration(table).start()
    migration(table).switch()
    flush(table, 600, 20)
    pause = faults.of(table.location).pause("create", TABLE_MANIFEST)
    with ThreadPoolExecutor(1) as pool:
        finishing = pool.submit(migration(table).finish)
        assert pause.wait_until_reached(finishing)
        table.merge()
        pause.release()
        with pytest.raises(ConflictError):
            finishing.result()

    assert maintained(table) == ("id_idx", NEW, "idx")


@pytest.mark.parametrize("skip", [0, 1], ids=["before the drop", "in the commit of the drop"])
def test_an_abort_that_pauses_drops_no_index_that_is_maintained_again(
    faults: FaultyStores, table: memwal.Table, skip: int
) -> None:
    migration(table).start()
    store = faults.of(table.location)
    pause = store.pause("create", TABLE_MANIFEST, after=not skip, skip=skip)
    with pause.holding(migration(table).abort) as aborting:
        assert migration(memwal.open(table.uri)).start().step == "started"

    assert isinstance(aborting.exception(), ConflictError)
    assert index_names(table.base()) == {"id_idx", "idx", NEW}
    assert migration(table).status().step == "started"


@pytest.mark.parametrize("lost", ["idx", NEW])
def test_a_start_that_pauses_maintains_no_index_that_is_gone(
    faults: FaultyStores, table: memwal.Table, lost: str
) -> None:
    migration(table).start()
    choose_indexes(table.location, remove=[NEW])
    pause = faults.of(table.location).pause("create", TABLE_MANIFEST)
    with pause.holding(migration(table).start) as starting:
        others = memwal.open(table.uri)
        if lost == NEW:
            migration(others).abort()
        else:
            choose_indexes(others.location, remove=["idx"])

    assert isinstance(starting.exception(), ConflictError | TableSetupError)
    assert set(maintained(table)) == {"id_idx", "idx"} - {lost}


def test_the_order_survives_merges_and_builds(table: memwal.Table) -> None:
    migration(table).start()
    migration(table).switch()
    for turn in range(2):
        flush(table, 600 + turn, 20)
        table.merge()
        table.build_indexes()
        table.build_snapshot()
    assert maintained(table) == ("id_idx", NEW, "idx")


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", some(VECTOR, "IVF_FLAT", "IVF_SQ", "IVF_HNSW_PQ"))
def test_all_kinds_of_a_table_that_maintains_everything(tmp_path: Path, kind: str) -> None:
    table = indexed_copy(tmp_path, kind)
    assert table.base().details.maintain_all_indexes

    assert migration(table).start(num_partitions=3).step == "started"

    details = table.base().details
    assert (details.maintain_all_indexes, details.maintained_indexes) == (False, ("idx", NEW))
    flush(table, 600, 50)
    table.merge()
    table.build_indexes()
    assert migration(table).switch().step == "switched"
    collect_all(table)
    status = migration(table).finish()
    assert status.step == "finished"
    assert status.new_balance is not None
    found = table.search(np.zeros(DIMENSION), k=3).to_table()
    assert found.num_rows == 3


def _native_nearest(table: memwal.Table, vector: Any) -> list[int]:
    found = native.nearest(table, "vector", np.asarray(vector, "float32").tolist(), k=1000)
    return sorted(int(key) for key in found)


def test_native_writers_and_readers_go_on_through_it(table: memwal.Table) -> None:
    """A native writer knows the indexes that there were when it was opened."""
    shard = native.writer(table, durable_write=True)
    try:
        migration(table).start(num_partitions=1)
        native.put(shard, table, rows(600, 20))
    finally:
        shard.close()
    assert migration(table).status().lacking == ((REGION, 1),)
    assert _native_nearest(table, np.zeros(DIMENSION)) == list(range(620))
    check_search(table)

    shard = native.writer(table, durable_write=True)
    try:
        native.put(shard, table, rows(620, 20))
    finally:
        shard.close()

    assert migration(table).status().lacking == ((REGION, 1),)
    assert _native_nearest(table, np.zeros(DIMENSION)) == list(range(640))
    table.checkpoint()
    migration(table).switch()
    flush(table, 640, 20)
    assert _native_nearest(table, np.zeros(DIMENSION)) == list(range(660))
    collect_all(table)
    migration(table).finish()
    assert _native_nearest(table, np.zeros(DIMENSION)) == list(range(660))
    check_search(table)
