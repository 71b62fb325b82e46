"""MemWAL is taken away from a table, or given another spec, under an open writer."""

import os
import time
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import lance
import lancedb
import pytest
from lancedb import LsmWriteSpec
from lancedb.table import Table as LanceTable
from support.data.tables import log, rows, state
from support.stores.faulty_store import TABLE_MANIFEST, WAL, FaultyStores

import memwal
from memwal import RegionSpec
from memwal.base_table.spec_in_force import SpecCheck
from memwal.errors import OutcomeUnknownError, RegionSealedError, TableSetupError
from memwal.format.paths import VERSIONS_DIR
from memwal.util.concurrency import ThreadPool
from memwal.writer.table_writer import TableWriter


def by_lancedb(table: memwal.Table) -> LanceTable:
    path = Path(table.uri)
    return lancedb.connect(str(path.parent)).open_table(path.name.removesuffix(".lance"))


def make(tmp_path: Path, spec: RegionSpec | None, **options: object) -> memwal.Table:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(rows({0: 0}), uri, **options)
    return memwal.enable(uri, primary_key=["id"], region_spec=spec)


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    return make(tmp_path, RegionSpec.unsharded())


@pytest.mark.parametrize("busy", [True, False])
def test_an_unset_is_noticed_before_the_next_entry(table: memwal.Table, busy: bool) -> None:
    writer = table.writer()
    writer.claim()
    if busy:
        writer.upsert(rows({1: 1}))
    before = log(table).keys()

    by_lancedb(table).unset_lsm_write_spec()

    for _ in range(2):
        with pytest.raises(TableSetupError):
            writer.upsert(rows({2: 2}))
    writer.abort()
    assert log(table).keys() == before
    by_lancedb(table).set_lsm_write_spec(LsmWriteSpec.unsharded())
    assert state(table.fresh()) == ({0: 0, 1: 1} if busy else {0: 0})


def test_without_a_spec(tmp_path: Path) -> None:
    table = make(tmp_path, None)
    with table.writer(region=uuid4()) as writer:
        writer.upsert(rows({1: 1}))
        writer.flush()
        lance.dataset(table.uri).drop_index("__lance_mem_wal")
        with pytest.raises(TableSetupError):
            writer.upsert(rows({2: 2}))
        writer.abort()


def test_another_spec_of_the_same_number(table: memwal.Table) -> None:
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    by_lancedb(table).unset_lsm_write_spec()
    by_lancedb(table).set_lsm_write_spec(LsmWriteSpec.bucket("id", 4))

    with pytest.raises(RegionSealedError):
        writer.upsert(rows({2: 2}))
    writer.abort()


def test_the_same_spec_again(table: memwal.Table) -> None:
    """The log is read again, and the writer still holds the region."""
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        by_lancedb(table).unset_lsm_write_spec()
        by_lancedb(table).set_lsm_write_spec(LsmWriteSpec.unsharded())
        writer.upsert(rows({2: 2}))
    assert state(table) == {0: 0, 1: 1, 2: 2}


def test_commits_of_others_do_not_matter(table: memwal.Table) -> None:
    with table.writer() as writer:
        for n in range(3):
            writer.upsert(rows({1: n}))
            writer.flush()
            table.merge()
            table.compact()
    assert state(table) == {0: 0, 1: 2}


@pytest.mark.parametrize("inverted", [True, False])
def test_both_naming_schemes_and_a_cleanup(tmp_path: Path, inverted: bool) -> None:
    table = make(tmp_path, RegionSpec.unsharded(), enable_v2_manifest_paths=inverted)
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        by_lancedb(table).unset_lsm_write_spec()
        by_lancedb(table).delete("id = 0")
        lance.dataset(table.uri).cleanup_old_versions(timedelta(0))
        with pytest.raises(TableSetupError):
            writer.upsert(rows({2: 2}))
        writer.abort()


def test_an_unset_within_a_tick_of_the_file_system(table: memwal.Table) -> None:
    """The folder of versions has the same time before and after."""
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        versions = Path(table.uri, VERSIONS_DIR)
        before = versions.stat().st_mtime_ns
        by_lancedb(table).unset_lsm_write_spec()
        os.utime(versions, ns=(before, before))
        with pytest.raises(TableSetupError):
            writer.upsert(rows({2: 2}))
        writer.abort()


def test_a_quiet_table_costs_one_stat(table: memwal.Table, faults: FaultyStores) -> None:
    versions = Path(table.uri, VERSIONS_DIR)
    long_ago = time.time() - 60
    os.utime(versions, (long_ago, long_ago))
    # No wrapper: it has no time of a folder, as object stores have none.
    spec = table.base().details.region_specs[0]
    check = SpecCheck(table.location, ThreadPool(1))
    store = faults.of(table.location)
    store.folder_stamp = store.inner.folder_stamp  # type: ignore[method-assign]
    for _ in range(2):
        check.start(spec)
    store.clear()
    for _ in range(10):
        check.start(spec)
    assert store.calls == []


class TestObjectStore:
    """A store that has no time of a folder: the next version is asked for, beside the put."""

    @pytest.fixture
    def remote(self, monkeypatch: pytest.MonkeyPatch) -> FaultyStores:
        return FaultyStores(monkeypatch, durable=False, remote=True)

    @pytest.fixture
    def table(self, remote: FaultyStores, tmp_path: Path) -> memwal.Table:
        return make(tmp_path, RegionSpec.unsharded())

    @staticmethod
    def writer(table: memwal.Table, clock: list[float]) -> TableWriter:
        return TableWriter(
            table.base(), options=memwal.WriterOptions(fsync=False), clock=lambda: clock[0]
        )

    def test_one_look_beside_each_put(self, remote: FaultyStores, table: memwal.Table) -> None:
        store = remote.of(table.location)
        writer = self.writer(table, [0.0])
        writer.upsert(rows({1: 1}))
        store.clear()
        for n in range(5):
            writer.upsert(rows({1: n}))
        assert store.count("head", TABLE_MANIFEST) == 5
        assert store.count("*", "_versions/*") == 5
        writer.abort()

    def test_an_unset_is_noticed(self, table: memwal.Table) -> None:
        writer = self.writer(table, [0.0])
        writer.upsert(rows({1: 1}))
        by_lancedb(table).unset_lsm_write_spec()
        for _ in range(2):
            with pytest.raises(TableSetupError):
                writer.upsert(rows({2: 2}))
        writer.abort()

    def test_a_writer_that_was_paused_past_a_cleanup(self, table: memwal.Table) -> None:
        """The next version is gone again; the list of versions shows it."""
        clock = [0.0]
        writer = self.writer(table, clock)
        writer.upsert(rows({1: 1}))
        by_lancedb(table).unset_lsm_write_spec()
        by_lancedb(table).delete("id = 0")
        lance.dataset(table.uri).cleanup_old_versions(timedelta(0))
        clock[0] = 3.0
        with pytest.raises(TableSetupError):
            writer.upsert(rows({2: 2}))
        writer.abort()

    def test_paused_while_it_asks(self, remote: FaultyStores, table: memwal.Table) -> None:
        """The time counts until the answer: a question may leave long after it was made."""
        clock = [0.0]
        writer = self.writer(table, clock)
        writer.upsert(rows({1: 1}))

        def pause() -> None:
            by_lancedb(table).unset_lsm_write_spec()
            by_lancedb(table).delete("id = 0")
            lance.dataset(table.uri).cleanup_old_versions(timedelta(0))
            clock[0] = 60.0

        remote.of(table.location).act("head", pause, key=TABLE_MANIFEST)
        with pytest.raises(TableSetupError):
            writer.upsert(rows({2: 2}))
        writer.abort()

    def test_a_store_that_does_not_answer(self, remote: FaultyStores, table: memwal.Table) -> None:
        """Once: it is asked again. For longer: the entry is stored, and not acknowledged."""
        store = remote.of(table.location)
        writer = self.writer(table, [0.0])
        writer.upsert(rows({1: 1}))
        store.fail("head", TABLE_MANIFEST)
        writer.upsert(rows({2: 2}))
        store.fail("head", TABLE_MANIFEST, times=100)
        with pytest.raises(OutcomeUnknownError):
            writer.upsert(rows({3: 3}))
        store.clear()
        with pytest.raises(OutcomeUnknownError):
            writer.upsert(rows({4: 4}))
        assert store.count("create", WAL) == 0
        writer.abort()
        assert state(table.fresh()) == {0: 0, 1: 1, 2: 2, 3: 3}
