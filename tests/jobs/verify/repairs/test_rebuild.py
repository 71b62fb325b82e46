"""A generation that is made from the log again has the rows that its flush had."""

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import lance
import pyarrow as pa
import pytest
from support.data.sampled import drawn
from support.data.tables import (
    REGION,
    SCHEMA,
    MakeTable,
    flush,
    folder,
    generations,
    keys,
    log,
    manifest,
    manifest_versions,
    manifests,
    region_folders,
    rows,
    state,
)
from support.faults.collecting import DAY, collect, drop
from support.oracles import native
from support.stores.faulty_store import REGION_MANIFEST, FaultyStores, Killed

import memwal
from memwal.errors import CorruptDataError, StoreUnavailableError
from memwal.format.paths import generation_dir, manifest_key, wal_key
from memwal.format.region_manifest import FlushedGeneration
from memwal.format.wal_entry import WalEntry
from memwal.jobs.verify.repairs.rebuild import rebuild_generation
from memwal.lsm.wal.claim import claim_region
from memwal.writer.region_writer.options import WriterOptions

OTHER = UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff")


@pytest.fixture
def table(quick_faults: FaultyStores, make_table: MakeTable) -> memwal.Table:
    """Return a table on a disk that does not sync."""
    return make_table(maintained_indexes=["id_idx"])


def named(table: memwal.Table, number: int) -> FlushedGeneration:
    (flushed,) = [f for f in manifest(table).flushed if f.generation == number]
    return flushed


def stored(table: memwal.Table, number: int) -> list[dict[str, Any]]:
    """The rows of a generation, in the order of their keys, tombstones included."""
    path = folder(table) / generation_dir(REGION, named(table, number).path)
    return native.ordered(lance.dataset(str(path)).to_table())


def lose(table: memwal.Table, number: int) -> FlushedGeneration:
    lost = named(table, number)
    shutil.rmtree(folder(table) / generation_dir(REGION, lost.path))
    return lost


def rebuild(table: memwal.Table, lost: FlushedGeneration) -> bool:
    return rebuild_generation(table.base(), REGION, lost)


def check_each(table: memwal.Table) -> int:
    """Lose every generation there is, one after the other, and make it again; counts them."""
    for number in generations(table):
        before = stored(table, number)
        whole = state(table)
        lost = lose(table, number)
        assert rebuild(table, lost), number
        assert stored(table, number) == before
        assert state(table) == whole
    native.everything(table)
    return len(generations(table))


class TestRows:
    def test_the_newest_of_a_key_and_deletes(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            for n in range(5):
                writer.upsert(rows({1: n, 2: n, 3 + n: n}))
            writer.delete(pa.table({"id": keys(2)}))
            writer.flush()
            writer.upsert(rows({2: 9}))
        assert check_each(table) == 2
        assert state(table)[2] == 9

    def test_of_lances_own_writer(self, table: memwal.Table) -> None:
        for n in range(3):
            writer = native.writer(table)
            for _ in range(2):
                native.put(writer, table, rows(dict.fromkeys(range(n, 10), n)))
            writer.delete(pa.table({"id": keys(n)}))
            writer.close()
        assert check_each(table) == 3

    def test_while_lances_own_writer_goes_on(self, table: memwal.Table) -> None:
        """Its next flush keeps what the manifest names by then."""
        flush(table, {1: 1, 2: 1})
        writer = native.writer(table)
        native.put(writer, table, rows({2: 2, 3: 2}))
        lost = named(table, 1)
        assert rebuild(table, lose(table, 1))
        made = named(table, 1)
        native.put(writer, table, rows({4: 4}))
        writer.close()
        assert made != lost
        assert named(table, 1) == made
        assert generations(table) == [1, 2]
        assert state(table) == state(native.scan(table)) == {1: 1, 2: 2, 3: 2, 4: 4}

    def test_what_a_replay_flushed(self, table: memwal.Table) -> None:
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        writer.abort()
        shard = native.writer(table)
        native.put(shard, table, rows({1: 2, 2: 2}))
        shard.close()
        flush(table, {3: 3})
        assert check_each(table) == len(generations(table)) >= 2

    def test_not_what_was_abandoned_before_it(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        writer = table.writer()
        writer.upsert(rows({2: 2}))
        writer.abort()
        with table.writer(replay=False) as writer:
            writer.upsert(rows({3: 3}))
        assert check_each(table) == 2
        assert state(table) == {1: 1, 3: 3}

    def test_a_column_that_came_since_is_null(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        table.base().dataset.add_columns(pa.field("more", pa.int32()))
        assert rebuild(table, lose(table, 1))
        assert table.scan().to_table().to_pylist() == [
            {"id": 1, "n": 1, "text": "1=1", "more": None}
        ]

    def test_twice(self, table: memwal.Table) -> None:
        flush(table, {1: 1, 2: 1}, {2: 2, 3: 2}, {1: 3})
        assert check_each(table) == check_each(table) == 3

    def test_of_a_random_history(self, table: memwal.Table) -> None:
        play(table, random.Random(1), steps=12)

    @pytest.mark.parametrize("seed", drawn(4, range(100, 160), seed="rebuild"))
    def test_of_many_random_histories(self, table: memwal.Table, seed: int) -> None:
        play(table, random.Random(seed), steps=80)


def play(table: memwal.Table, dice: random.Random, *, steps: int = 25) -> None:
    """Writers of both kinds that die and are followed by others; then every generation again."""
    small = WriterOptions(max_memtable_rows=7, max_entry_bytes=200)
    n = made = 0
    while n < steps:
        ours = dice.random() < 0.6
        writer: Any = table.writer(options=small) if ours else native.writer(table)
        for _ in range(dice.randint(1, 8)):
            n += 1
            some = {dice.randrange(12): n for _ in range(dice.randint(1, 4))}
            if dice.random() < 0.25:
                writer.delete(pa.table({"id": keys(*some)}))
            elif ours:
                writer.upsert(rows(some))
            else:
                native.put(writer, table, rows(some))
            if ours and dice.random() < 0.2:
                writer.flush()
        if not ours or dice.random() < 0.5:
            writer.close()
        else:
            writer.abort()
        if dice.random() < 0.3 and generations(table):
            made += check_each(table)
        if dice.random() < 0.3:
            table.merge()
            collect(table, dice.choice([0, DAY]))
    flush(table, {1: n})
    assert made + check_each(table)


class TestBehindACollector:
    def test_it_keeps_what_is_needed(self, table: memwal.Table) -> None:
        flush(table, {1: 1}, {2: 2})
        table.merge()
        table.build_indexes()
        flush(table, {3: 3}, {4: 4})
        for days in range(1, 5):
            collect(table, days * DAY)
        assert generations(table) == [3, 4]
        assert manifest_versions(table)[0] > 1
        assert check_each(table) == 2
        table.merge()
        assert state(table) == {1: 1, 2: 2, 3: 3, 4: 4}

    def test_the_folder_that_was_lost_goes_and_the_new_one_stays(self, table: memwal.Table) -> None:
        flush(table, {1: 1}, {2: 2})
        lost = named(table, 1)
        assert rebuild(table, lost)
        for days in range(1, 5):
            collect(table, days * DAY)
        assert region_folders(table) == {f.path for f in manifest(table).flushed}
        assert lost.path not in region_folders(table)
        assert state(table) == {1: 1, 2: 2}

    def test_what_is_dropped_meanwhile_is_left(self, table: memwal.Table) -> None:
        flush(table, {1: 1}, {2: 2})
        lost = named(table, 1)
        table.merge()
        table.build_indexes()
        assert drop(table) == 2
        assert not rebuild(table, lost)
        assert generations(table) == []

    def test_a_sleeper_whose_folder_was_collected_changes_nothing(
        self, table: memwal.Table, quick_faults: FaultyStores
    ) -> None:
        flush(table, {1: 1}, {2: 2})
        lost = lose(table, 1)
        before = manifest(table)
        store = quick_faults.of(table.location)
        pause = store.pause("get", "*/version_hint.json", skip=1)
        with pause.holding(rebuild, table, lost) as rebuilding:
            assert len(region_folders(table)) == 2
            collect(table, 2 * DAY)
            assert len(region_folders(table)) == 1
        assert isinstance(rebuilding.exception(), StoreUnavailableError)
        assert manifest(table).flushed == before.flushed
        assert rebuild(table, lost)
        assert state(table) == {1: 1, 2: 2}

    def test_a_sleeper_that_names_what_is_gone_leaves_it_as_it_was(
        self, table: memwal.Table, quick_faults: FaultyStores
    ) -> None:
        flush(table, {1: 1}, {2: 2})
        lost = lose(table, 1)
        pause = quick_faults.of(table.location).pause("create", REGION_MANIFEST)
        with pause.holding(rebuild, table, lost) as rebuilding:
            collect(table, 2 * DAY)
        assert rebuilding.result()
        assert named(table, 1).path not in region_folders(table)
        assert rebuild(table, named(table, 1))
        assert state(table) == {1: 1, 2: 2}


class TestRefusals:
    """Nothing is changed."""

    def refuse(
        self, table: memwal.Table, lost: FlushedGeneration, number: int | None = None
    ) -> None:
        before = manifest(table), region_folders(table)
        with pytest.raises(CorruptDataError, match=None if number is None else rf"\b{number}\b"):
            rebuild(table, lost)
        assert (manifest(table), region_folders(table)) == before

    @pytest.fixture
    def lost(self, table: memwal.Table) -> FlushedGeneration:
        flush(table, {1: 1}, {2: 2, 3: 2}, {4: 4})
        return lose(table, 2)

    def test_an_entry_is_missing(self, table: memwal.Table, lost: FlushedGeneration) -> None:
        _, last = bounds(table, 2)
        (folder(table) / wal_key(REGION, last)).unlink()
        self.refuse(table, lost, last)

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_an_entry_is_damaged(self, table: memwal.Table, which: int) -> None:
        with table.writer() as writer:
            for n in range(3):
                writer.upsert(rows({n: n}))
            writer.flush()
            writer.upsert(rows({3: 3}))
        (damaged,) = [p for p, e in log(table).items() if rows({which: which}) in contents(e)]
        path = folder(table) / wal_key(REGION, damaged)
        path.write_bytes(path.read_bytes()[:-9])
        self.refuse(table, lose(table, 1), damaged)

    def test_entries_of_other_generations_may_be_gone(
        self, table: memwal.Table, lost: FlushedGeneration
    ) -> None:
        after, last = bounds(table, 2)
        for position in range(1, manifest(table).replay_after + 1):
            if not after < position <= last:
                (folder(table) / wal_key(REGION, position)).unlink()
        assert rebuild(table, lost)
        assert state(table) == {1: 1, 2: 2, 3: 2, 4: 4}

    def test_the_manifest_counts_other_rows(
        self, table: memwal.Table, lost: FlushedGeneration
    ) -> None:
        wrong = replace(lost, rows=7)
        manifests(table).update(
            lambda latest: replace(
                latest, flushed=tuple(wrong if f == lost else f for f in latest.flushed)
            )
        )
        self.refuse(table, wrong, 7)

    def test_the_manifest_does_not_count(
        self, table: memwal.Table, lost: FlushedGeneration
    ) -> None:
        silent = replace(lost, rows=None, memory_bytes=None, key_bytes=None)
        manifests(table).update(
            lambda latest: replace(
                latest, flushed=tuple(silent if f == lost else f for f in latest.flushed)
            )
        )
        assert rebuild(table, silent)
        assert named(table, 2).rows == 2

    @pytest.mark.parametrize("gap", [False, True])
    def test_the_versions_that_tell_are_gone(
        self, table: memwal.Table, lost: FlushedGeneration, gap: bool
    ) -> None:
        flushed = next(v for v in manifest_versions(table) if 2 in numbers(table, v))
        for version in [flushed] if gap else range(1, flushed):
            (folder(table) / manifest_key(REGION, version)).unlink()
        self.refuse(table, lost)

    def test_a_generation_that_nobody_names(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        assert not rebuild(table, replace(named(table, 1), path="00000000_gen_1"))
        assert not rebuild_generation(table.base(), OTHER, named(table, 1))


def contents(entry: WalEntry) -> list[pa.Table]:
    return [pa.table(batch).drop_columns(["_tombstone"]).cast(SCHEMA) for batch in entry.batches]


def numbers(table: memwal.Table, version: int) -> set[int]:
    return {flushed.generation for flushed in manifests(table).read(version).flushed}


def bounds(table: memwal.Table, number: int) -> tuple[int, int]:
    """Positions of the log that a flush covered, from behind the first up to the second."""
    versions = [manifests(table).read(v) for v in manifest_versions(table)]
    named_in = next(n for n, v in enumerate(versions) if number in numbers(table, v.version))
    return versions[named_in - 1].replay_after, versions[named_in].replay_after


# Which third differs from test to test; all requests are tried by the slow ones.
EVERY_THIRD = pytest.mark.parametrize(
    "stride", [pytest.param(3, id="some"), pytest.param(1, id="every", marks=pytest.mark.slow)]
)


class TestAnyMoment:
    """Whoever dies, or does anything in between: the rows are the same, and it can be repeated."""

    def prepared(self, table: memwal.Table, name: str) -> tuple[memwal.Table, FlushedGeneration]:
        path = folder(table).with_name(name)
        shutil.copytree(folder(table), path)
        copy = memwal.open(str(path))
        return copy, lose(copy, 2)

    @pytest.fixture
    def original(self, table: memwal.Table) -> memwal.Table:
        flush(table, {1: 1, 2: 1}, {2: 2, 3: 2}, {3: 3})
        return table

    def steps(
        self, original: memwal.Table, faults: FaultyStores, *, first: int, stride: int
    ) -> range:
        table, lost = self.prepared(original, "counted")
        store = faults.of(table.location)
        store.clear()
        assert rebuild(table, lost)
        assert len(store.calls) > 10
        return range(first % stride, len(store.calls), stride)

    @pytest.mark.few(1)
    @EVERY_THIRD
    @pytest.mark.parametrize("after", [False, True])
    def test_a_death(
        self, original: memwal.Table, quick_faults: FaultyStores, after: bool, stride: int
    ) -> None:
        for step in self.steps(original, quick_faults, first=int(after), stride=stride):
            table, lost = self.prepared(original, f"{step}")
            store = quick_faults.of(table.location)
            store.clear()
            store.kill("*", skip=step, after=after)
            with pytest.raises(Killed):
                rebuild(table, lost)
            store.clear()
            rebuild(table, named(table, 2))
            assert state(table) == {1: 1, 2: 2, 3: 3}
            native.everything(table)

    @pytest.mark.parametrize("answer", ["lost", "twice", "late"])
    def test_an_answer_of_the_store(
        self, original: memwal.Table, quick_faults: FaultyStores, answer: str
    ) -> None:
        """About the version of the manifest that names the new folder."""
        table, lost = self.prepared(original, answer)
        store = quick_faults.of(table.location)
        if answer == "lost":
            rule = store.fail("create", REGION_MANIFEST, after=True)
        elif answer == "twice":
            rule = store.deliver_twice("create", REGION_MANIFEST)
        else:
            rule = store.deliver_late("create", REGION_MANIFEST, by=2)
        assert rebuild(table, lost)
        store.arrive()
        assert rule.hits == 1
        assert region_folders(table) == {f.path for f in manifest(table).flushed}
        assert state(table) == {1: 1, 2: 2, 3: 3}
        native.everything(table)

    @pytest.mark.few(1)
    @EVERY_THIRD
    @pytest.mark.parametrize("other", ["rebuild", "flush", "collect", "claim"])
    def test_others_in_between(
        self, original: memwal.Table, quick_faults: FaultyStores, other: str, stride: int
    ) -> None:
        expected = {1: 1, 2: 2, 3: 3} | ({9: 9} if other == "flush" else {})
        first = list(OTHERS).index(other)
        for step in self.steps(original, quick_faults, first=first, stride=stride):
            table, lost = self.prepared(original, f"{step}")
            store = quick_faults.of(table.location)
            store.clear()
            rule = store.act("*", partial(OTHERS[other], table, lost), skip=step)
            made = rebuild(table, lost)
            assert rule.hits == 1
            assert made or other == "rebuild"
            assert named(table, 2).path != lost.path
            assert generations(table)[:3] == [1, 2, 3]
            assert state(table) == expected
            native.everything(table)


OTHERS: dict[str, Callable[[memwal.Table, FlushedGeneration], object]] = {
    "rebuild": rebuild,
    "flush": lambda table, _: flush(table, {9: 9}),
    "collect": lambda table, _: collect(table),
    "claim": lambda table, _: claim_region(table.location.store, REGION),
}
