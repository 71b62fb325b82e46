"""Collecting what a read needs, while writers, mergers and collectors go on."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from support.data.tables import (
    REGION,
    SCHEMA,
    MakeTable,
    generations,
    keys,
    manifest,
    merged,
    region_folders,
    rows,
    state,
)
from support.faults.collecting import DAY, collect
from support.oracles.read_sources import collect_sources
from support.stores.faulty_store import REGION_MANIFEST, FaultyStores

import memwal
from memwal.errors import CorruptDataError, MemWalError, StoreUnavailableError
from memwal.format.paths import generation_dir, manifest_key
from memwal.reader.sources import generation as generations_module
from memwal.reader.sources import narrow_columns
from memwal.reader.sources import snapshot as snapshot_module


def flushed(table: memwal.Table, *states: dict[int, int | None]) -> None:
    """Flush one generation for each of the given rows."""
    with table.writer() as writer:
        for values in states:
            writer.upsert(rows(values))
            writer.flush()


def collect_all(table: memwal.Table) -> None:
    """Collect all that is merged, as of a day from now."""
    for _ in range(2):
        collect(table, DAY)


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object], *, times: int = 1
) -> list[int]:
    """Do something right before a function that collects sources is called."""
    module = generations_module if name == "open_generation" else snapshot_module
    real = getattr(module, name)
    done: list[int] = []

    def called(*args: Any, **kwargs: Any) -> Any:
        if len(done) < times:
            done.append(1)
            act()
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, called)
    return done


class TestWhatIsRead:
    def test_the_base_table_and_what_it_does_not_contain(self, table: memwal.Table) -> None:
        flushed(table, {1: 1}, {2: 2})
        table.merge()
        flushed(table, {3: 3})

        found = collect_sources(table.location)

        assert found.base.dataset.count_rows() == 2
        assert [source.generation for source in found.generations] == [3]
        assert [source.region_id for source in found.generations] == [REGION]

    def test_generations_tell_whether_their_files_are_of_this_machine(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flushed(table, {1: 1})
        plan = collect_sources(table.location).plan
        stored = plan.generations[0]

        def is_local() -> bool:
            return generations_module.open_generation(
                plan.base, stored.region_id, stored.generation, stored.path
            ).is_local

        assert is_local()
        monkeypatch.setattr(type(table.location.store), "is_local", False)
        assert not is_local()

    def test_generations_are_oldest_first_in_each_region(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        with table.writer() as writer:
            for turn in range(12):
                writer.upsert(rows(dict.fromkeys(range(10), turn)))
                writer.flush()

        found = collect_sources(table.location)

        for region in table.region_ids():
            numbers = [s.generation for s in found.generations if s.region_id == region]
            assert numbers == list(range(1, 13))

    def test_a_damaged_manifest_is_an_error_and_not_an_empty_region(
        self, table: memwal.Table
    ) -> None:
        flushed(table, {1: 1})
        for version in range(1, manifest(table).version + 1):
            table.location.store.put(manifest_key(REGION, version), b"\xff\xff")

        with pytest.raises(CorruptDataError):
            table.scan().to_table()

    def test_a_store_that_fails_is_an_error_and_not_an_empty_region(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table()
        flushed(table, {1: 1})
        faults.of(table.location).fail("*", REGION_MANIFEST, times=1000)

        with pytest.raises(StoreUnavailableError):
            table.scan().to_table()


class TestRaces:
    @pytest.mark.parametrize("point", ["read_manifests", "open_base", "open_generation"])
    def test_a_merge_and_a_collection_at_any_point_change_nothing(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch, point: str
    ) -> None:
        flushed(table, {1: 1, 2: 2}, {2: 22, 3: 3})
        table.delete(keys(1))

        def act() -> None:
            table.merge()
            collect_all(table)
            assert region_folders(table) == set()

        done = meanwhile(monkeypatch, point, act)

        assert state(table) == {2: 22, 3: 3}
        assert done
        assert table.lookup(keys(1, 2, 3)).to_table().column("n").to_pylist() == [22, 3]

    @pytest.mark.few(3)
    @pytest.mark.parametrize("point", ["read_manifests", "open_base", "open_generation"])
    @pytest.mark.parametrize("collected", [False, True])
    def test_a_flush_at_any_point_hides_nothing_from_the_writer(
        self,
        table: memwal.Table,
        monkeypatch: pytest.MonkeyPatch,
        point: str,
        collected: bool,
    ) -> None:
        flushed(table, {1: 1})
        writer = table.writer()
        writer.upsert(rows({2: 2}))
        writer.delete(keys(1))

        def act() -> None:
            writer.flush()
            table.merge()
            if collected:
                collect_all(table)

        meanwhile(monkeypatch, point, act)

        assert state(writer) == {2: 2}
        writer.close()

    @pytest.mark.parametrize("point", ["read_manifests", "open_base"])
    @pytest.mark.parametrize("merge", [False, True])
    def test_what_was_written_during_the_read_is_seen_whole_or_not_at_all(
        self,
        table: memwal.Table,
        monkeypatch: pytest.MonkeyPatch,
        point: str,
        merge: bool,
    ) -> None:
        """Of one thread's writes, a later one is never seen without the earlier ones."""
        writer = table.writer()
        writer.upsert(rows({1: 1}))

        def act() -> None:
            writer.upsert(rows({1: 11}))
            writer.upsert(rows({2: 2}))
            writer.flush()
            if merge:
                table.merge()

        meanwhile(monkeypatch, point, act)

        assert state(writer) in ({1: 1}, {1: 11}, {1: 11, 2: 2})
        writer.close()

    def test_a_generation_that_vanished_is_planned_again(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The manifest is from before the merge, the collection from before the open."""
        flushed(table, {1: 1}, {2: 2})
        old = {REGION: manifest(table)}
        table.merge()
        collect_all(table)
        flushed(table, {3: 3})
        real = snapshot_module.read_manifests
        answers = [old]
        monkeypatch.setattr(
            snapshot_module,
            "read_manifests",
            lambda store, regions=None, **_: answers.pop() if answers else real(store),
        )
        old_base = table.base().dataset.checkout_version(2)
        assert old_base.count_rows() == 0
        real_base = snapshot_module.open_base
        bases = [2]
        monkeypatch.setattr(
            snapshot_module,
            "open_base",
            lambda location, **_: real_base(location, version=bases.pop() if bases else None),
        )

        assert state(table) == {1: 1, 2: 2, 3: 3}
        assert not answers
        assert not bases

    def test_a_generation_that_is_named_and_gone_is_lost(self, table: memwal.Table) -> None:
        flushed(table, {1: 1})
        folder = generation_dir(REGION, manifest(table).flushed[0].path)
        table.location.store.delete_folder(folder)

        with pytest.raises(CorruptDataError, match=folder):
            table.scan().to_table()

    def test_a_scan_that_was_made_earlier_runs_on_the_state_of_its_moment(
        self, table: memwal.Table
    ) -> None:
        flushed(table, {1: 1})
        scan = table.scan()
        assert state(scan.to_table()) == {1: 1}
        flushed(table, {1: 11, 2: 2})
        table.merge()
        collect_all(table)

        assert state(scan.to_table()) == {1: 11, 2: 2}

    def test_a_scan_that_runs_goes_on_within_the_grace_period(self, table: memwal.Table) -> None:
        flushed(table, {key: key for key in range(100)}, {1: 11})
        reader = table.scan().to_reader()
        table.merge()
        collect(table, 500)

        assert state(reader.read_all()) == {**{key: key for key in range(100)}, 1: 11}

    def test_a_scan_whose_generation_is_gone_says_so(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Longer than the grace period: an error, never a part of the answer."""
        monkeypatch.setattr(narrow_columns, "is_narrow", lambda _type: False)
        flushed(table, {key: key for key in range(100)})
        flushed(table, {key: key for key in range(100, 200)})
        reader = table.scan().to_reader()
        for name in region_folders(table):
            table.location.store.delete_folder(generation_dir(REGION, name))

        with pytest.raises(MemWalError):
            reader.read_all()


def test_generations_of_today_are_read_from_disk_and_not_copied(table: memwal.Table) -> None:
    flushed(table, {1: 1})

    (source,) = collect_sources(table.location).generations

    assert source.identity is not None
    assert generations(table) == [1]
    assert merged(table) == 0
    assert source.dataset.schema.names == [*SCHEMA.names, "_tombstone"]
    assert pa.types.is_boolean(source.dataset.schema.field("_tombstone").type)


def test_what_is_copied_for_a_new_column_counts_by_its_bytes(table: memwal.Table) -> None:
    flushed(table, {number: number for number in range(1000)})
    (before,) = collect_sources(table.location).generations
    assert before.copied_bytes == 0
    table.base().dataset.add_columns(pa.field("more", pa.int64()))
    (copied,) = collect_sources(table.location).generations
    assert copied.identity is None
    assert copied.copied_bytes > 1000 * 16


class TestEvicted:
    """Generations that were open once, and are not any more."""

    def evict(self) -> None:
        generations_module._generations.clear()

    def test_a_lookup_opens_only_those_that_may_have_the_key(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flushed(table, {1: 1}, {2: 2}, {3: 3})
        assert state(table.lookup(keys(2)).to_table()) == {2: 2}
        self.evict()
        opened: list[str] = []
        plain = generations_module.open_generation

        def open_generation(base: Any, region_id: Any, generation: int, path: str) -> Any:
            opened.append(path)
            return plain(base, region_id, generation, path)

        monkeypatch.setattr(generations_module, "open_generation", open_generation)
        assert state(table.lookup(keys(2)).to_table()) == {2: 2}
        assert len(opened) == 1
        assert state(table.lookup(keys(9)).to_table()) == {}
        assert len(opened) == 1
        self.evict()
        identities = [source.identity for source in collect_sources(table.location).generations]
        assert len({*identities}) == 3

    def test_one_that_was_merged_and_collected_since_is_planned_again(
        self, table: memwal.Table
    ) -> None:
        flushed(table, {1: 1}, {2: 2})
        assert state(table.lookup(keys(2)).to_table()) == {2: 2}
        assert state(table) == {1: 1, 2: 2}
        self.evict()
        table.merge()
        collect_all(table)
        assert state(table.lookup(keys(2)).to_table()) == {2: 2}
        assert state(table) == {1: 1, 2: 2}
