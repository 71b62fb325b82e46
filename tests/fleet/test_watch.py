import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from support.data.policies import IDLE
from support.data.tables import folder, numbered
from support.oracles import native
from support.stores.faulty_store import FaultyStore, FaultyStores

import memwal
from memwal.catalog import Catalog
from memwal.errors import MemWalError, StoreAccessError
from memwal.fleet import JobRequest, run_job
from memwal.fleet import watch as watch_module
from memwal.fleet.watch import (
    FULL_READ_SECONDS,
    REPEAT_SECONDS,
    UNFLUSHED_SECONDS,
    PolledSurvey,
    TableWatch,
)
from memwal.format.paths import CHANGE_TRACE_KEY, region_dir
from memwal.jobs.job import JobResult, SkippedRegion
from memwal.region import change_trace
from memwal.region.change_trace import wait_for_traces
from memwal.storage.local import LocalStore


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


class Watched:
    """A table with a backlog in a catalog, with a snapshot and a collection behind it."""

    def __init__(self, table: memwal.Table, catalog: Catalog) -> None:
        self.table = table
        self.catalog = catalog
        self.watch = TableWatch()

    def poll(self, *, later: float = 0.0) -> PolledSurvey:
        now = datetime.now(UTC) + timedelta(seconds=later)
        return self.watch.poll(self.catalog, self.catalog.get("flights"), now=now)

    def settle(self) -> None:
        """Poll until the table has a status that is reused."""
        self.poll()
        assert not self.poll().is_fresh


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch_module, "boot_seconds", clock)
    return clock


each_way = pytest.mark.parametrize("flights", ["folder times", "next versions"], indirect=True)
"""How a poll of a local table sees a change; without it, by the times of folders."""


@pytest.fixture
def flights(
    managed: Callable[..., memwal.Table],
    catalog: Catalog,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Watched:
    if getattr(request, "param", None) == "next versions":
        monkeypatch.setattr(LocalStore, "folder_stamp", lambda store, prefix: None)
    # What was written a moment ago counts as settled, else each test would wait.
    monkeypatch.setattr(watch_module, "STAMP_SETTLES_NS", 0)
    table = managed(policy=IDLE)
    for job in (table.build_snapshot, table.collect_garbage):
        result = job()
        with catalog.record_run("flights", result.job) as run:
            run.finish(result)
    return Watched(table, catalog)


@each_way
def test_an_idle_table_is_read_once(flights: Watched, clock: Clock) -> None:
    first = flights.poll()
    assert first.is_fresh
    for _ in range(5):
        clock.seconds += 10
        reading = flights.poll(later=clock.seconds - 1_000)
        assert not reading.is_fresh
        assert reading.survey.status.backlog_generations == first.survey.status.backlog_generations
    before = first.survey.status.oldest_backlog_seconds or 0.0
    assert (reading.survey.status.oldest_backlog_seconds or 0.0) - before >= 50


def _flush(flights: Watched) -> None:
    flights.table.upsert(numbered(0, 1, n=9))


def _append_to_the_base_table(flights: Watched) -> None:
    dataset = lance.dataset(flights.table.uri)
    lance.write_dataset(numbered(500, 501), dataset, mode="append")


def _make_a_region(flights: Watched) -> None:
    entry = folder(flights.table) / region_dir(uuid4()) / "wal" / "0.arrow"
    entry.parent.mkdir(parents=True)
    entry.touch()


def _succeed(flights: Watched, job: str = "merge") -> None:
    """Record a run without effect."""
    with flights.catalog.record_run("flights", job) as run:
        run.finish(JobResult(job=job, table=flights.table.uri, version=1))


def _is_due(reading: PolledSurvey, job: str = "merge") -> bool:
    return reading.survey.due[job].reason is not None


def _change_the_policy(flights: Watched) -> None:
    flights.catalog.update("flights", policy=replace(IDLE, merge_at_generations=50))


@pytest.mark.few(4)
@each_way
@pytest.mark.parametrize(
    "change", [_flush, _append_to_the_base_table, _make_a_region, _change_the_policy]
)
def test_a_change_is_seen(flights: Watched, change: Callable[[Watched], None]) -> None:
    flights.settle()
    change(flights)
    assert flights.poll().is_fresh


@each_way
def test_a_change_during_the_read_is_seen_by_the_next_poll(
    flights: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights.settle()
    real = watch_module.survey

    def changed_behind(*arguments: object, **options: object) -> object:
        result = real(*arguments, **options)  # type: ignore[arg-type]
        _flush(flights)
        return result

    _flush(flights)
    monkeypatch.setattr(watch_module, "survey", changed_behind)
    seen = flights.poll().survey.status.backlog_generations
    monkeypatch.setattr(watch_module, "survey", real)
    reading = flights.poll()
    assert reading.is_fresh
    assert reading.survey.status.backlog_generations == seen + 1


def test_rows_in_the_log_are_polled_more_often(flights: Watched, clock: Clock) -> None:
    writer = flights.table.writer()
    writer.upsert(numbered(0, 1, n=9))
    reading = flights.poll()
    assert reading.survey.status.oldest_unflushed_seconds is not None
    assert not flights.poll().is_fresh
    clock.seconds += UNFLUSHED_SECONDS
    assert flights.poll().is_fresh
    writer.close()


def test_a_status_is_not_reused_for_ever(flights: Watched, clock: Clock) -> None:
    flights.settle()
    clock.seconds += FULL_READ_SECONDS - 60
    assert not flights.poll().is_fresh
    clock.seconds += 60
    assert flights.poll().is_fresh


@each_way
def test_after_a_long_pause_of_the_process_a_change_is_seen(flights: Watched, clock: Clock) -> None:
    flights.settle()
    clock.seconds += 7_200
    assert not flights.poll().is_fresh
    _flush(flights)
    clock.seconds += 7_200
    assert flights.poll().is_fresh


def test_ages_go_on_when_the_clock_is_set_back(flights: Watched, clock: Clock) -> None:
    flights.catalog.update("flights", policy=replace(IDLE, merge_at_age_seconds=3_600))
    flights.settle()
    clock.seconds += 4_000
    assert flights.poll(later=-4_000).is_fresh


def test_what_is_remembered_never_starts_a_job(flights: Watched) -> None:
    flights.catalog.update("flights", policy=replace(IDLE, merge_at_age_seconds=3_600))
    flights.settle()
    reading = flights.poll(later=4_000)
    assert reading.is_fresh
    # The clock of the store knows better than the one that this look was given.
    assert reading.survey.due["merge"].reason is None


def test_a_table_that_stays_due_is_read_once(flights: Watched) -> None:
    flights.catalog.update("flights", policy=replace(IDLE, merge_at_generations=1))
    assert flights.poll().survey.due["merge"].reason is not None
    reading = flights.poll(later=60)
    assert not reading.is_fresh
    assert reading.survey.due["merge"].reason is not None
    flights.table.merge()
    assert flights.poll().survey.due["merge"].reason is None


def test_what_the_catalog_says_meanwhile_counts(flights: Watched) -> None:
    flights.catalog.update("flights", policy=replace(IDLE, merge_at_generations=1))
    reading = flights.poll()
    assert reading.survey.due["merge"].reason is not None
    skipped = [
        SkippedRegion(region_id=region.region_id, generation=1, reason="damaged")
        for region in reading.survey.status.regions
    ]
    flights.catalog.backoffs.skip_regions("flights", skipped)
    for _ in range(2):
        reading = flights.poll()
        assert not reading.is_fresh
        assert reading.survey.due["merge"].reason is None
    flights.catalog.backoffs.retry_regions("flights")
    assert flights.poll(later=1).survey.due["merge"].reason is not None


def test_a_limit_that_only_time_reaches_is_noticed(
    flights: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights.catalog.update("flights", policy=replace(IDLE, gc_interval_seconds=3_600))
    flights.settle()
    assert flights.poll(later=60).survey.due["gc"].reason is None
    assert flights.poll(later=4_000).survey.due["gc"].reason is not None


@each_way
def test_a_poll_that_failed_is_followed_by_a_full_one(flights: Watched) -> None:
    flights.settle()
    root = folder(flights.table)
    shutil.move(root, root.with_name("aside"))
    with pytest.raises(MemWalError):
        flights.poll()
    shutil.move(root.with_name("aside"), root)
    assert flights.poll().is_fresh


def test_a_folder_that_changed_a_moment_ago_may_change_again_and_look_the_same(
    managed: Callable[..., memwal.Table],
    catalog: Catalog,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "STAMP_SETTLES_NS", 3_600_000_000_000)
    flights = Watched(managed(policy=IDLE), catalog)
    flights.poll()
    assert flights.poll().is_fresh


def test_on_a_local_disk_a_poll_at_an_idle_table_opens_no_file(
    managed: Callable[..., memwal.Table],
    catalog: Catalog,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "STAMP_SETTLES_NS", 0)
    flights = Watched(managed(policy=IDLE), catalog)
    flights.table.build_snapshot()
    with catalog.record_run("flights", "gc") as run:
        run.finish(flights.table.collect_garbage())
    flights.settle()
    for name in ("get", "get_range", "list", "head", "exists"):
        monkeypatch.setattr(LocalStore, name, _unexpected)
    assert not flights.poll().is_fresh


def _lower_the_limit(flights: Watched) -> None:
    flights.catalog.update("flights", policy=replace(IDLE, merge_at_generations=1))


@each_way
@pytest.mark.parametrize("change", [_flush, _append_to_the_base_table, _lower_the_limit])
def test_a_job_without_effect_is_due_again_after_a_pause_or_a_change(
    flights: Watched, change: Callable[[Watched], None]
) -> None:
    flights.catalog.update("flights", policy=replace(IDLE, merge_at_generations=2))
    # The first run may have begun before the poll, and the table may be as it left it.
    for _ in range(2):
        assert _is_due(flights.poll())
        _succeed(flights)
    assert not _is_due(flights.poll())
    assert not _is_due(flights.poll(later=REPEAT_SECONDS - 60))
    assert _is_due(flights.poll(later=REPEAT_SECONDS))
    _succeed(flights)
    assert not _is_due(flights.poll())
    change(flights)
    assert _is_due(flights.poll())


def _age_regions(flights: Watched, part: str, *, most: int) -> None:
    """Let objects of some regions be 100 seconds older."""
    for region in flights.table.region_ids()[:most]:
        for path in (folder(flights.table) / region_dir(region) / part).iterdir():
            at = path.stat().st_mtime - 100
            os.utime(path, (at, at))


def test_a_recovery_waits_as_its_job_does_and_is_due_again_for_another_region(
    flights: Watched, clock: Clock
) -> None:
    flights.catalog.update("flights", policy=replace(IDLE, recover_min_age_seconds=60))
    writer = flights.table.writer()
    writer.upsert(numbered(0, 20, n=9))
    writer.abort()
    # The rows are old, and a writer claimed their regions a moment ago.
    _age_regions(flights, "wal", most=2)
    assert not _is_due(flights.poll(), "recover")
    for dead in (1, 2):
        _age_regions(flights, "manifest", most=dead)
        clock.seconds += UNFLUSHED_SECONDS
        # Runs without effect.
        for _ in range(2):
            assert _is_due(flights.poll(), "recover")
            _succeed(flights, "recover")
        assert not _is_due(flights.poll(), "recover")
    assert flights.table.recover(min_age_seconds=60).metrics["recovered_regions"] == 2
    assert not _is_due(flights.poll(later=REPEAT_SECONDS), "recover")


def _dictionaries(uri: str) -> None:
    """Write a table of which Lance cannot compact the fragments: together they have 200 values."""
    for part in range(2):
        values = [f"{part}-{number}" for number in range(100)]
        keys = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), pa.array(values))
        lance.write_dataset(pa.table({"key": keys}), uri, mode="append")


def _few_vectors(uri: str) -> None:
    """Write a table with an index that Lance cannot train, and makes anew in each build."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(range(800), pa.float32()), 8)
    ids = pa.field("id", pa.int64(), nullable=False)
    rows = pa.table([range(100), vectors], schema=pa.schema([ids, ("v", vectors.type)]))
    dataset = lance.write_dataset(rows, uri)
    options = {"num_partitions": 2, "num_sub_vectors": 2}
    dataset.create_index("v", "IVF_PQ", name="v_idx", train=False, **options)
    table = memwal.enable(uri, primary_key="id", maintained_indexes=["v_idx"])
    table.upsert(rows.slice(0, 10))
    table.merge()


@pytest.mark.parametrize(("write", "job"), [(_dictionaries, "compact"), (_few_vectors, "index")])
def test_a_job_that_lance_cannot_do_is_not_due_all_the_time(
    catalog: Catalog, tmp_path: Path, write: Callable[[str], None], job: str
) -> None:
    uri = str(tmp_path / "flights.lance")
    write(uri)
    policy = replace(IDLE, compact_min_fragments=2, index_at_generations=1)
    table = memwal.open(uri)
    mem_wal = table.base().index is not None
    catalog.register("flights", uri=uri, policy=policy, mem_wal=mem_wal)
    watched = Watched(table, catalog)
    runs = 0
    while _is_due(watched.poll(), job):
        assert isinstance(run_job(catalog, JobRequest("flights", job)), JobResult)
        runs += 1
        assert runs < 5
    assert runs == 2


def _restarted(flights: Watched, *, probe: bool = True) -> None:
    """Store what the watcher knows, as its loop does, and watch with another process."""
    values = flights.watch.probe() if probe else None
    status = flights.poll().survey.status
    flights.catalog.record_backlog("flights", status, probe=values)
    flights.watch = TableWatch()


@each_way
def test_a_process_that_starts_reads_what_changed_meanwhile(flights: Watched) -> None:
    flights.settle()
    for change in (_append_to_the_base_table, _make_a_region, _change_the_policy):
        _restarted(flights)
        reading = flights.poll()
        assert not reading.is_fresh
        assert reading.survey.status.backlog_generations > 0
        assert not flights.poll().is_fresh
        _restarted(flights)
        change(flights)
        assert flights.poll().is_fresh


def test_a_process_that_starts_with_other_storage_options_reads_anew(
    flights: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights.settle()
    _restarted(flights)
    with monkeypatch.context() as patched:
        # As in a store whose commits a database decides.
        patched.setattr(LocalStore, "folder_stamp", lambda store, prefix: None)
        assert flights.poll().is_fresh
        _restarted(flights)
    assert flights.poll().is_fresh
    assert not flights.poll().is_fresh


def test_a_process_that_starts_reads_what_is_due(flights: Watched) -> None:
    flights.catalog.update("flights", policy=replace(IDLE, merge_at_generations=1))
    flights.settle()
    _restarted(flights)
    reading = flights.poll()
    assert reading.is_fresh
    assert reading.survey.due["merge"].reason is not None


def test_a_status_that_cannot_be_compared_is_not_reused(
    flights: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights.settle()
    _restarted(flights, probe=False)
    assert flights.poll().is_fresh
    _restarted(flights)
    # The clock was set back: the ages in the status would be wrong.
    assert flights.poll(later=-3_600).is_fresh
    _restarted(flights)
    monkeypatch.setattr("memwal.fleet.watch.__version__", "another")
    assert flights.poll().is_fresh


def _unexpected(*arguments: object, **options: object) -> object:
    raise AssertionError("a file was opened")


UNTRACED = replace(IDLE, untraced_poll_seconds=300)


class Remote(Watched):
    """A table in an object store that has been idle for hours."""

    def __init__(self, table: memwal.Table, catalog: Catalog, clock: Clock) -> None:
        super().__init__(table, catalog)
        self.clock = clock

    def is_read(self, *, after: float) -> bool:
        """Poll after a pause, and return whether the status was read again."""
        self.clock.seconds += after
        return self.poll(later=self.clock.seconds - 1_000).is_fresh

    def fresh_after(self) -> float:
        """Poll until the status is read again, and return how many seconds that took."""
        started = self.clock.seconds
        while not self.is_read(after=60):
            assert self.clock.seconds < started + 3_600
        return self.clock.seconds - started


@pytest.fixture
def store(faults: FaultyStores, flights: Watched) -> FaultyStore:
    return faults.of(flights.table.location)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> FaultyStores:
    monkeypatch.setattr(change_trace, "PAUSE_SECONDS", 0)
    return FaultyStores(monkeypatch, durable=False, remote=True)


@pytest.fixture
def remote(faults: FaultyStores, flights: Watched, clock: Clock) -> Remote:
    flights.catalog.update("flights", policy=UNTRACED)
    remote = Remote(memwal.open(flights.table.uri), flights.catalog, clock)
    remote.poll()
    assert not remote.is_read(after=9_000)
    _flush(remote)
    assert wait_for_traces(60)
    assert remote.is_read(after=60)
    return remote


def test_a_look_at_an_object_store_is_two_requests(
    remote: Remote, store: FaultyStore, clock: Clock
) -> None:
    for _ in range(3):
        clock.seconds += 60
        store.clear()
        assert not remote.poll().is_fresh
        assert [operation for operation, _ in store.calls] == ["head", "head"]


def test_two_requests_find_what_writers_of_ours_did(
    remote: Remote, store: FaultyStore, clock: Clock
) -> None:
    for write in (_flush, _append_to_the_base_table, _flush):
        write(remote)
        assert wait_for_traces(60)
        store.clear()
        clock.seconds += 60
        assert remote.poll().is_fresh
        look = store.calls[: store.calls.index(("head", CHANGE_TRACE_KEY), 1)]
        assert [operation for operation, _ in look] in (["head"], ["head", "head"])
        assert not remote.poll().is_fresh


def test_a_change_without_a_trace_is_found_by_a_round(remote: Remote) -> None:
    """And so are the next ones, sooner: the client that made it may go on."""
    region = remote.table.region_ids()[0]
    native.writer(remote.table, region)
    assert remote.fresh_after() == UNTRACED.untraced_poll_seconds
    for _ in range(2):
        native.writer(remote.table, region)
        assert remote.fresh_after() == 60
    assert not remote.is_read(after=3_000)
    native.writer(remote.table, region)
    assert remote.fresh_after() == 300


def test_a_new_region_without_a_trace_is_found_by_a_round(remote: Remote) -> None:
    _make_a_region(remote)
    assert remote.fresh_after() == 300


def test_log_entries_without_a_manifest_are_found_by_a_round(remote: Remote) -> None:
    with remote.table.writer() as writer:
        writer.claim()
        assert wait_for_traces(60)
        assert remote.fresh_after() == 60
        writer.upsert(numbered(0, 1, n=9))
        assert remote.fresh_after() == 300


def test_what_a_process_that_died_before_its_trace_committed_is_found_by_a_round(
    remote: Remote, store: FaultyStore
) -> None:
    store.fail("put", CHANGE_TRACE_KEY, StoreAccessError("no"), times=100)
    _flush(remote)
    assert remote.fresh_after() == 300


def test_two_writers_leave_two_traces(remote: Remote, clock: Clock) -> None:
    first, second = remote.table, memwal.open(remote.table.uri)
    for number, table in enumerate((first, second, first)):
        table.upsert(numbered(0, 1, n=number))
        assert wait_for_traces(60)
        clock.seconds += 60
        assert remote.poll().is_fresh


def test_a_process_that_paused_does_not_rely_on_the_absence_of_a_next_version(
    remote: Remote, store: FaultyStore
) -> None:
    """Meanwhile it can have been written and deleted."""
    store.clear()
    assert not remote.is_read(after=130)
    assert store.count("head", "_versions/*") == 2


def test_a_process_that_starts_compares_with_a_round(remote: Remote, store: FaultyStore) -> None:
    for change in (_flush, lambda _: native.writer(remote.table, remote.table.region_ids()[0])):
        _restarted(remote)
        store.clear()
        assert not remote.poll().is_fresh
        assert len(store.calls) < 6
        _restarted(remote)
        change(remote)
        assert wait_for_traces(60)
        assert remote.is_read(after=UNTRACED.untraced_poll_seconds)


def test_an_idle_table_in_an_object_store_is_looked_at_less_often(remote: Remote) -> None:
    watch = remote.watch
    pauses = []
    for after in (0, 400, 10_000):
        assert not remote.is_read(after=after)
        pauses.append(watch.pause_seconds(UNTRACED))
    assert pauses == [UNTRACED.poll_seconds, 40, UNTRACED.idle_poll_seconds]
    assert watch.pause_seconds(replace(UNTRACED, poll_seconds=7_200)) == 7_200
    _flush(remote)
    assert wait_for_traces(60)
    assert remote.is_read(after=100)
    assert watch.pause_seconds(UNTRACED) == UNTRACED.poll_seconds


def test_a_due_table_is_looked_at_as_often_as_before(remote: Remote) -> None:
    policy = replace(UNTRACED, merge_at_generations=1)
    remote.catalog.update("flights", policy=policy)
    assert remote.is_read(after=60)
    assert not remote.is_read(after=5_000)
    assert remote.watch.pause_seconds(policy) == policy.poll_seconds


def test_the_pauses_of_a_local_table_do_not_grow(flights: Watched, clock: Clock) -> None:
    flights.settle()
    clock.seconds += 10_000
    flights.poll()
    assert flights.watch.pause_seconds(IDLE) == IDLE.poll_seconds
