"""Fresh reads: what any writer acknowledged, flushed or not."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from support.data.tables import (
    REGION,
    MakeTable,
    age,
    append_foreign,
    folder,
    keys,
    log,
    manifest,
    manifests,
    numbered,
    rows,
    state,
    without_key,
)
from support.faults.between_calls import away_between, moments_away
from support.faults.collecting import DAY, collect
from support.oracles import native
from support.oracles.read_sources import forget_caches
from support.stores.faulty_store import WAL, FaultyStore, FaultyStores

import memwal
from memwal.base_table.snapshot import open_base
from memwal.errors import (
    BackPressureError,
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    ReadTimeoutError,
    RegionLostError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal.format.paths import MEM_WAL_DIR, region_dir, wal_key
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal import follow
from memwal.lsm.wal.follow import LogFollower, UnflushedLog
from memwal.lsm.wal.position import WritePosition
from memwal.reader.sources import log_tails, plan
from memwal.region import manifest_store
from memwal.region.router import Router
from memwal.util.clock import boot_seconds


def fresh(table: memwal.Table) -> dict[int, int | None]:
    """What a fresh read shows."""
    return state(table.fresh())


class Clock:
    """The clock of this process, as the readers of logs and manifests see it: it stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead, began = 0.0, boot_seconds()
        for module in (manifest_store, log_tails, plan, follow):
            monkeypatch.setattr(module, "boot_seconds", lambda: began + self.ahead)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock that a test puts forward."""
    return Clock(monkeypatch)


@contextmanager
def in_another_process() -> Iterator[None]:
    """Let this process learn nothing about manifests in the block, and know nothing there."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(manifest_store, "_last_seen", {})
        yield


class TestSees:
    def test_rows_of_a_writer_that_died(self, table: memwal.Table) -> None:
        table.upsert(rows({1: 1, 2: 1, 3: 1}))
        table.merge()
        writer = table.writer()
        writer.upsert(rows({1: 2}))
        writer.delete(keys(3))
        writer.abort()
        assert fresh(table) == {1: 2, 2: 1}

    def test_rows_of_lances_own_writer(self, table: memwal.Table) -> None:
        table.upsert(rows({1: 1}))
        shard = native.writer(table)
        native.put(shard, table, rows({1: 2, 4: 4}))
        assert fresh(table) == {1: 2, 4: 4}
        shard.close()
        assert fresh(table) == {1: 2, 4: 4}

    def test_each_step_of_their_life_once(self, table: memwal.Table) -> None:
        expected: dict[int, int | None] = {}
        with table.writer() as writer:
            for number in range(4):
                writer.upsert(numbered(5 * number, 10, number))
                expected |= dict.fromkeys(range(5 * number, 5 * number + 10), number)
                assert fresh(table) == expected
                writer.flush()
                assert fresh(table) == expected
                if number % 2:
                    table.merge()
                    assert fresh(table) == expected
                    collect(table, 2 * DAY)
                    collect(table, 4 * DAY)
                    assert fresh(table) == expected

    def test_what_a_takeover_replays(self, table: memwal.Table) -> None:
        first = table.writer()
        first.upsert(rows({1: 1}))
        second = table.writer()
        second.upsert(rows({2: 2}))
        with pytest.raises(MemWalError):
            first.upsert(rows({3: 3}))
        assert fresh(table) == state(second) == {1: 1, 2: 2}
        second.close()
        with pytest.raises(MemWalError):
            first.close()

    def test_all_regions_and_those_of_keys(self, make_table: MakeTable) -> None:
        table = make_table(buckets=4)
        with table.writer() as writer:
            writer.upsert(numbered(0, 40))
            assert fresh(table) == dict.fromkeys(range(40), 0)
            found = table.fresh().lookup(keys(3, 17, 99)).to_table()
            assert sorted(found.column("id").to_pylist()) == [3, 17]
            assert table.fresh().scan(filter="id = 7").count_rows() == 1

    def test_of_a_view_that_is_used_again(self, table: memwal.Table) -> None:
        view = memwal.open(table.uri).fresh()
        with table.writer() as writer:
            for number in (1, 2):
                writer.upsert(rows({number: number}))
                assert state(view) == {n: n for n in range(1, number + 1)}
                assert state(table) == {}
            # Another writer of the same table takes no region by reading.
            with table.writer() as other:
                assert state(other.fresh()) == {1: 1, 2: 2}
                assert state(other) == {}

    @pytest.mark.parametrize("by_position", [False, True])
    def test_by_every_short_form_of_a_scan(self, table: memwal.Table, by_position: bool) -> None:
        with table.writer() as writer:
            position = writer.upsert(rows({1: 1, 2: 2})).position
            view = table.fresh(at_least=position if by_position else None)
            assert view.count_rows() == 2
            assert view.count_rows(filter="n > 1") == 1
            assert view.head(1).num_rows == 1
            assert sorted(view.to_pandas()["id"]) == [1, 2]
            assert sorted(view.to_polars()["id"]) == [1, 2]
            assert view.explain(filter="n = 1", columns=["id"]).consistency == "fresh"
            assert view.to_dataset() is None
            for other in (table, table.at_most(60)):
                assert other.count_rows() == other.head().num_rows == 0
                assert other.to_pandas().empty
                assert other.to_polars().is_empty()
                assert other.explain().consistency != "fresh"
                assert other.to_dataset() is not None


class TestOfAWriter:
    def test_sees_its_own_rows_and_those_of_others(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        regions = table.region_ids()
        first, second = (table.writer(region_ids=[region]) for region in regions)
        router = Router(table.region_spec()[1], table.schema)
        of_region: dict[UUID, list[int]] = {region: [] for region in regions}
        for key in range(20):
            ((assignment, _),) = router.route(rows({key: 0}).to_batches()[0])
            of_region[assignment.region_id].append(key)
        first.upsert(rows(dict.fromkeys(of_region[regions[0]], 1)))
        second.upsert(rows(dict.fromkeys(of_region[regions[1]], 2)))
        assert state(first) == dict.fromkeys(of_region[regions[0]], 1)
        assert len(state(first.fresh())) == 20
        first.close()
        second.close()

    def test_that_was_fenced_sees_what_came_since(self, table: memwal.Table) -> None:
        first = table.writer()
        first.upsert(rows({1: 1}))
        with table.writer() as second:
            second.upsert(rows({1: 2}))
            assert state(first.fresh()) == {1: 2}
        first.abort()


class TestCost:
    def test_each_entry_is_read_once(self, faults: FaultyStores, table: memwal.Table) -> None:
        store = faults.of(table.location)
        with table.writer() as writer:
            for number in range(20):
                writer.upsert(rows({number: number}))
            assert len(fresh(table)) == 20
            before = len(store.calls)
            assert len(fresh(table)) == 20
            idle = store.calls[before:]
            of_the_log = [call for call in idle if "/wal/" in str(call)]
            assert len(of_the_log) <= 2, of_the_log
            writer.upsert(rows({50: 50}))
            before = len(store.calls)
            assert len(fresh(table)) == 21
            assert len([call for call in store.calls[before:] if "/wal/" in str(call)]) <= 6

    def test_logs_of_regions_that_a_filter_rules_out_are_not_read(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=4)
        store = faults.of(table.location)
        with table.writer() as writer:
            position = writer.upsert(numbered(0, 40)).position
            table.fresh().lookup(keys(7)).to_table()
            for _ in range(2):
                before = len(store.calls)
                assert table.fresh().scan(filter="id = 7").count_rows() == 1
                logs = {
                    str(call).split("/wal/")[0][-36:]
                    for call in store.calls[before:]
                    if "/wal/" in str(call)
                }
                assert len(logs) == 1, logs
            plan_of_one = table.fresh().explain(filter="id = 7")
            assert len(plan_of_one.pruned) == 3
            assert all(not omitted.generations for omitted in plan_of_one.pruned)
            assert all(str(omitted.region_id) in str(plan_of_one) for omitted in plan_of_one.pruned)
            assert table.explain(filter="id = 7").pruned == ()
            # Whatever the filter, the read waits for the regions of the position.
            scan = table.fresh(at_least=str(position)).scan(filter="id = 7")
            assert scan.count_rows() == 1
            region, entry = position.entries[0]
            later = WritePosition(((region, entry + 1),))
            view = table.fresh(at_least=later, timeout=0.01)
            for other in range(40):
                with pytest.raises(ReadTimeoutError):
                    view.count_rows(filter=f"id = {other}")
            assert len(fresh(table)) == 40

    def test_too_many_rows_are_refused(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_tails, "_MAX_REGION_BYTES", 100)
        with table.writer() as writer:
            writer.upsert(numbered(0, 100))
            with pytest.raises(BackPressureError, match=str(REGION)):
                fresh(table)


class TestDamage:
    def test_a_lost_entry_is_told_by_a_process_that_has_read_it(
        self, table: memwal.Table, clock: Clock
    ) -> None:
        writer = table.writer()
        for number in range(3):
            writer.upsert(rows({number: number}))
        writer.abort()
        assert len(fresh(table)) == 3
        lost = folder(table) / wal_key(REGION, sorted(log(table))[-2])
        content = lost.read_bytes()
        lost.unlink()
        for _ in range(2):
            clock.ahead += 6
            with pytest.raises(CorruptDataError, match=str(REGION)):
                fresh(table)
        lost.write_bytes(content)
        clock.ahead += 6
        assert len(fresh(table)) == 3

    def test_a_lost_entry_is_told(self, table: memwal.Table) -> None:
        writer = table.writer()
        for number in range(3):
            writer.upsert(rows({number: number}))
        writer.abort()
        position = sorted(log(table))[-2]
        (folder(table) / wal_key(REGION, position)).unlink()
        with pytest.raises(CorruptDataError, match=str(REGION)):
            fresh(memwal.open(table.uri))

    @pytest.mark.parametrize("hinted", [True, False])
    def test_a_lost_end_of_the_log_is_told(self, table: memwal.Table, hinted: bool) -> None:
        """The manifest names a later position than the newest entry that is left, if any."""
        with table.writer() as writer:
            for number in range(4):
                writer.upsert(rows({number: number}))
            newest = max(log(table)) if hinted else 0
            if hinted:
                writer.abort()
        manifests(table).update(lambda latest: replace(latest, wal_last_seen=newest))
        for position in sorted(log(table))[-2 if hinted else 0 :]:
            (folder(table) / wal_key(REGION, position)).unlink()
        with pytest.raises(CorruptDataError, match=str(REGION)):
            fresh(table)

    def test_a_torn_entry_at_the_tip_was_never_acknowledged(self, table: memwal.Table) -> None:
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        writer.abort()
        assert fresh(table) == {1: 1}
        torn = folder(table) / wal_key(REGION, max(log(table)) + 1)
        torn.write_bytes(b"ARROW")
        assert fresh(table) == {1: 1}
        with table.writer() as writer:
            writer.upsert(rows({2: 2}))
            assert fresh(table) == {1: 1, 2: 2}

    def test_rows_that_no_claim_could_store(self, table: memwal.Table) -> None:
        table.upsert(rows({1: 1}))
        append_foreign(table, without_key({8: 8}, 0))
        with pytest.raises(CorruptDataError, match="repair"):
            fresh(table)


class TestReplacedTables:
    def test_one_that_was_restored(self, table: memwal.Table, tmp_path: Path, clock: Clock) -> None:
        """Other entries are at positions that were read before, some seconds ago."""
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        backup = shutil.copytree(folder(table), tmp_path / "backup")
        writer.upsert(rows({2: 2}))
        writer.abort()
        assert fresh(table) == {1: 1, 2: 2}
        shutil.rmtree(folder(table))
        shutil.copytree(backup, folder(table))
        clock.ahead += 6
        assert fresh(table) == {1: 1}
        with table.writer() as again:
            again.upsert(rows({3: 3}))
            again.upsert(rows({4: 4}))
            clock.ahead += 6
            assert fresh(table) == {1: 1, 3: 3, 4: 4}

    @pytest.mark.few(2)
    @pytest.mark.parametrize(
        ("part", "instead"),
        [
            ("", None),
            (MEM_WAL_DIR, []),
            (MEM_WAL_DIR, [f"{REGION}/manifest/version_hint.json"]),
            (region_dir(REGION), None),
            (region_dir(REGION), []),
            (region_dir(REGION), ["manifest/version_hint.json"]),
        ],
        ids=["table", "all", "all, with a hint", "region", "region, empty", "region, with a hint"],
    )
    def test_one_that_is_away_for_a_moment_of_the_read(
        self,
        table: memwal.Table,
        part: str,
        instead: list[str] | None,
        clock: Clock,
    ) -> None:
        """What was flushed and what was not, both since this process looked last."""
        path = folder(table) / part
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
            writer.flush()
            writer.upsert(rows({2: 2}))
            clock.ahead += 6
            with away_between(path, -1, -1) as calls:
                fresh(table)
            for first in range(calls.count):
                writer.upsert(rows({2: first}))
                writer.flush()
                writer.upsert(rows({3: first}))
                clock.ahead += 6  # A manifest is looked at anew by each read.
                with away_between(path, first, first + 1 + first % 3, instead=instead):
                    try:
                        seen = fresh(table)
                    except (StoreUnavailableError, TableSetupError, RegionLostError):
                        continue
                assert seen == {1: 1, 2: first, 3: first}
        assert calls.count > 4

    def test_an_entry_is_not_missed_while_the_region_is_away(self, table: memwal.Table) -> None:
        path, row_schema = (
            folder(table) / region_dir(REGION),
            RowSchema.of(open_base(table.location)),
        )
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
            log = UnflushedLog.behind(manifest(table))
            follower = LogFollower(table.location.store, REGION)

            def look() -> int:
                return follower.follow(log, row_schema, max_bytes=1 << 20).last_position

            look()
            for first, last in moments_away(path, look):
                newest = look()
                writer.upsert(rows({2: first}))
                with away_between(path, first, last):
                    try:
                        seen = look()
                    except (RegionLostError, StoreUnavailableError):
                        continue
                assert seen == newest + 1

    def test_one_that_was_made_anew(self, table: memwal.Table) -> None:
        def write(key: int) -> None:
            writer = memwal.open(table.uri).writer()
            writer.upsert(rows({key: key}))
            writer.abort()

        write(1)
        assert fresh(table) == {1: 1}
        shutil.rmtree(folder(table))
        memwal.create(table.uri, rows({}).schema, primary_key=["id"], region_spec="unsharded")
        assert fresh(table) == {}
        write(2)
        assert fresh(table) == {2: 2}

    def test_columns_that_were_added(self, table: memwal.Table) -> None:
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        writer.abort()
        assert fresh(table) == {1: 1}
        table.base().dataset.add_columns(pa.schema([("more", pa.int64())]))
        found = table.fresh().scan().to_table()
        assert found.column("more").to_pylist() == [None]


def take_over(table: memwal.Table) -> None:
    """Claim the region for another writer, which dies then."""
    other = table.writer()
    other.claim()
    other.abort()


STEPS: dict[str, Callable[[memwal.Table, memwal.Writer], object]] = {
    "write": lambda table, writer: writer.upsert(rows({2: 7, 9: 9})),
    "flush": lambda table, writer: writer.flush(),
    "flush and merge": lambda table, writer: (writer.flush(), table.merge()),
    "all of it": lambda table, writer: (
        writer.flush(),
        table.merge(),
        age(table, 10 * DAY),
        collect(table, 2 * DAY),
        collect(table, 4 * DAY),
    ),
    "takeover": lambda table, writer: take_over(table),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", STEPS)
def test_whatever_happens_between_its_requests(
    faults: FaultyStores, table: memwal.Table, name: str, known: bool
) -> None:
    """At each request of the read in turn."""
    expected = {1: 1, 2: 2, 3: 3}
    for number in range(40):
        forget_caches()
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            writer.flush()
            writer.upsert(rows({3: 3}))
            writer.delete(keys(9))
            writer.upsert(rows({2: 2}))
            if known:
                assert fresh(table) == expected
            store = faults.of(table.location)
            done: list[int] = []

            def meanwhile(done: list[int] = done, writer: memwal.Writer = writer) -> None:
                done.append(1)
                STEPS[name](memwal.open(table.uri), writer)

            store.act("*", meanwhile, skip=number)
            found = fresh(table)
            store.clear()
            assert {key: n for key, n in found.items() if key in (1, 3)} == {1: 1, 3: 3}
            assert found[2] in (2, 7)
            if not done:
                break
            if name == "takeover":
                writer.abort()
            else:
                writer.delete(keys(9))
    else:
        pytest.fail("the read sends ever more requests")


def test_an_append_is_seen_while_another_one_is_under_way(
    faults: FaultyStores, table: memwal.Table
) -> None:
    store = faults.of(table.location)
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        seen: list[dict[int, int | None]] = []
        store.act("create", lambda: seen.append(fresh(memwal.open(table.uri))), key=WAL)
        writer.upsert(rows({2: 2}))
        assert seen == [{1: 1}]
        assert fresh(table) == {1: 1, 2: 2}


class TestPosition:
    def test_of_a_write_is_seen_elsewhere(self, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        with table.writer() as writer:
            position = writer.upsert(numbered(0, 20)).position
            assert len(position.entries) == 3
            text = str(position)
            assert WritePosition.parse(text) == position
            assert table.fresh(at_least=text).count_rows() == 20
            assert len(table.fresh(at_least=position).lookup(keys(1, 2)).to_table()) == 2
            writer.flush()
            assert table.fresh(at_least=position).count_rows() == 20
        table.merge()
        collect(table, 2 * DAY)
        collect(table, 4 * DAY)
        assert table.fresh(at_least=position).count_rows() == 20

    def test_that_is_not_there_yet_is_waited_for(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            ((region, number),) = writer.upsert(rows({1: 1})).position.entries
            later = WritePosition(((region, number + 1),))
            with pytest.raises(ReadTimeoutError):
                table.fresh(at_least=later, timeout=0.05).scan().to_table()
            with ThreadPoolExecutor(1) as pool:
                found = pool.submit(state, table.fresh(at_least=later, timeout=30))
                writer.upsert(rows({2: 2}))
                assert found.result() == {1: 1, 2: 2}

    def test_of_the_own_region_of_a_writer_is_waited_for(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            position = writer.upsert(rows({1: 1})).position
            ((region, number),) = position.entries
            later = WritePosition(((region, number + 1),))
            assert state(writer.fresh(at_least=position)) == {1: 1}
            with pytest.raises(ReadTimeoutError):
                writer.fresh(at_least=later, timeout=0.05).scan().to_table()
            with ThreadPoolExecutor(1) as pool:
                found = pool.submit(state, writer.fresh(at_least=later, timeout=30))
                writer.upsert(rows({2: 2}))
                assert found.result() == {1: 1, 2: 2}
            writer.flush()
            # As a collection does with what is flushed.
            (folder(table) / wal_key(region, number)).unlink()
            assert state(writer.fresh(at_least=position)) == {1: 1, 2: 2}

    def test_of_another_table_is_never_there(self, table: memwal.Table) -> None:
        with pytest.raises(ReadTimeoutError):
            table.fresh(at_least=WritePosition(((uuid4(), 1),)), timeout=0).count_rows()

    def test_of_a_write_without_rows(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            position = writer.upsert(rows({})).position
        assert (str(position), position.entries) == ("none", ())
        assert table.fresh(at_least=str(position)).count_rows() == 0

    def test_texts_of_several_writes_are_joined(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            texts = [str(writer.upsert(rows(part)).position) for part in ({1: 1}, {}, {2: 2})]
            assert len(WritePosition.parse(",".join(texts)).entries) == 2
            for separator in (",", ", "):
                assert table.fresh(at_least=separator.join(texts)).count_rows() == 2

    @pytest.mark.parametrize("options", [{"at_least": ""}, {"timeout": -1}], ids=str)
    def test_options_that_are_refused(self, table: memwal.Table, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidInputError):
            table.fresh(**options)
        with table.writer() as writer, pytest.raises(InvalidInputError):
            writer.fresh(**options)

    @pytest.mark.parametrize(
        "text",
        [
            *("x", "1:2", f"{REGION}:1", ":", "," * 10),
            *(f"{REGION.hex}:{number}" for number in ("", "-1", "+1", "0", "1_0", "1\n", "9" * 20)),
            # Of Unicode, which int() takes.
            f"{REGION.hex}:\uff11",
            pytest.param("x" * 1_000_000, id="long"),
        ],
    )
    def test_what_is_none(self, table: memwal.Table, text: str) -> None:
        with pytest.raises(InvalidInputError) as caught:
            table.fresh(at_least=text)
        assert len(str(caught.value)) < 1_000

    @pytest.mark.parametrize(
        "entries",
        [[(REGION, 1)], ((str(REGION), 1),), ((REGION, 0),), ((REGION, True),), ((1,),), 7],
    )
    def test_that_is_made_of_something_else(self, entries: Any) -> None:
        with pytest.raises(InvalidInputError):
            WritePosition(entries)


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_process_that_is_paused_while_manifests_are_trimmed(
    faults: FaultyStores,
    table: memwal.Table,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    is_fresh: bool,
) -> None:
    """It finds no successor of the manifest that it knows, since that was trimmed too.

    An object store does not tell it that its own manifest is gone as well.
    """
    monkeypatch.setattr(FaultyStore, "exists_within", lambda store, key, **_: store.exists(key))

    def trim() -> None:
        with in_another_process():
            with table.writer() as writer:
                for turn in range(4):
                    writer.upsert(rows({turn: turn}))
                    writer.flush()
            collect(table, 2 * DAY)
            collect(table, 4 * DAY)
        clock.ahead += 4 * DAY

    for number in range(12):
        table.upsert(rows({5: 5}))
        table.merge()
        collect(table, 2 * DAY)
        collect(table, 4 * DAY)
        assert state(table.fresh() if is_fresh else table)[5] == 5
        key = 100 + number
        with in_another_process():
            # Versions that flush nothing are trimmed before those whose generations are not merged.
            take_over(table)
            take_over(table)
            table.upsert(rows({key: key}))
        before = clock.ahead
        store = faults.of(table.location)
        store.act("*", trim, key="*/manifest/*", skip=number)
        found = state(table.fresh() if is_fresh else table)
        store.clear()
        # It was acknowledged and flushed before the read began.
        assert found[5] == 5
        assert found[key] == key
        if clock.ahead == before:
            break
    assert number > 0


def test_a_process_that_is_paused_before_it_reads_an_entry(
    faults: FaultyStores, table: memwal.Table, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the entry is flushed, merged and collected, and all manifests since are trimmed.

    The process has the base table as it was, and finds neither the entry nor a newer manifest. An
    object store does not tell it that its own manifest is gone too.
    """
    monkeypatch.setattr(FaultyStore, "exists_within", lambda store, key, **_: store.exists(key))
    writer = table.writer()
    writer.upsert(rows({5: 5}))
    assert fresh(table) == {5: 5}
    writer.upsert(rows({6: 6}))
    known = manifest(table).version

    def pause() -> None:
        with in_another_process():
            for key in (7, 8):
                writer.flush()
                writer.upsert(rows({key: key}))
            writer.close()
            table.merge()
            collect(table, 2 * DAY)
            collect(table, 4 * DAY)
        assert min(manifests(table).list_versions()) > known + 1
        clock.ahead += 4 * DAY

    newest = wal_key(REGION, max(log(table)))
    faults.of(table.location).act("get", pause, key=newest)
    found = fresh(table)

    assert clock.ahead
    assert found == {key: key for key in (5, 6, 7, 8)}
