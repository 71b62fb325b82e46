"""Verifying while everybody else is at work: nothing is found, and nothing is in the way."""

import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from support.data.tables import REGION, folder, manifest, numbered, rows, state
from support.oracles import native

import memwal
from memwal.errors import ConflictError
from memwal.format.paths import BLOOM_FILTER_NAME, generation_dir
from memwal.jobs.gc import generations
from memwal.jobs.options import VerifyOptions
from memwal.jobs.verify import job as verify_run
from memwal.jobs.verify import merged_rows, repair, verify
from memwal.region.manifest_store import RegionManifestStore


class Life:
    """Threads that use a table until they are told to stop, and at least a few times."""

    def __init__(self, *doings):
        self._stop = threading.Event()
        self._failures = []
        self._threads = [threading.Thread(target=self._go, args=(doing,)) for doing in doings]

    def _go(self, doing):
        try:
            while not self._stop.is_set():
                doing()
        except BaseException as error:
            self._failures.append(error)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]


def upkeep(table):
    try:
        table.checkpoint()
    except ConflictError:
        # The index job met too many merges.
        return
    table.build_snapshot()
    table.collect_garbage(dry_run=False, grace_seconds=0, retention_seconds=2)


def test_a_generation_that_is_collected_while_rows_are_compared(make_table, monkeypatch):
    table = make_table(buckets=2)
    table.upsert(numbered(0, 200, 1))
    table.merge()
    find, calls = merged_rows.find_newest, []

    def collected_first(sources, *given):
        calls.append([source.region_id for source in sources])
        if len(calls) == 1:
            manifests = RegionManifestStore(table.location.store, sources[0].region_id)
            latest = manifests.read_latest()
            paths = [flushed.path for flushed in latest.flushed]
            manifests.update(lambda latest: replace(latest, flushed=()))
            for path in paths:
                generations.delete_folder(table.location.store, sources[0].region_id, path)
        return find(sources, *given)

    monkeypatch.setattr(merged_rows, "find_newest", collected_first)

    assert verify(table.location).findings == ()
    # The other region was compared all the same.
    assert calls[1] == calls[0][1:] != []


@pytest.mark.slow
def test_a_table_that_is_written_merged_and_collected(make_table, monkeypatch):
    monkeypatch.setattr(verify_run, "time", time)
    table = make_table(buckets=2, maintained_indexes=["id_idx"])
    count = 0

    def write():
        nonlocal count
        count += 1
        writer.upsert(numbered(0, 200, count))
        writer.upsert(rows(dict.fromkeys(range(300 + count, 310 + count), -count)))
        writer.delete(numbered(count % 200, 1).select(["id"]))
        writer.flush()

    with table.writer() as writer, Life(write, lambda: upkeep(memwal.open(table.uri))):
        number = 0
        while number < 12 or count < 12:
            number += 1
            report = verify(table.location, VerifyOptions(quick=number % 3 == 2))
            assert report.findings == (), f"look {number}"
    assert verify(table.location).findings == ()


def test_writers_that_take_the_region_from_one_another(make_table):
    table = make_table()
    numbers = iter(range(10_000))

    def write():
        n = next(numbers)
        if n % 2:
            table.upsert(numbered(0, 50, n))
        else:
            shard = native.writer(table)
            native.put(shard, table, numbered(20, 50, n))
            shard.close()

    with Life(write):
        for number in range(8):
            assert verify(table.location).findings == (), f"look {number}"


@pytest.mark.few(1)
@pytest.mark.parametrize("rows_a_time", [1, 500])
def test_a_writer_that_does_not_flush(make_table, rows_a_time):
    table = make_table()
    with table.writer() as writer, Life(lambda: writer.upsert(numbered(0, rows_a_time))):
        for number in range(5):
            assert verify(table.location).findings == (), f"look {number}"


@pytest.mark.slow
def test_repairs_while_the_table_is_written_and_collected(make_table):
    table = make_table(maintained_indexes=["id_idx"])
    count = 0

    def write():
        nonlocal count
        count += 1
        writer.upsert(numbered(0, 100, count))
        writer.flush()

    def spoil():
        # A flush names no filter that is spoiled before it looks.
        for flushed in manifest(table).flushed:
            path = folder(table) / generation_dir(REGION, flushed.path) / BLOOM_FILTER_NAME
            # Where the collector is faster there is nothing to spoil.
            with suppress(FileNotFoundError):
                path.write_bytes(bytes(32_768))
        for path in folder(table).glob("_mem_wal/*/manifest/version_hint.json"):
            path.unlink(missing_ok=True)

    with table.writer() as writer:
        write()
        with Life(write, spoil, lambda: upkeep(memwal.open(table.uri))):
            looks = 0
            while looks < 8 or count < 12:
                looks += 1
                report = verify(table.location)
                kinds = {finding.code for finding in report.findings}
                assert kinds <= {"bloom-wrong", "bloom-missing", "hint-missing"}
                repair(table.location, report, dry_run=False)
    repair(table.location, verify(table.location), dry_run=False)
    assert verify(table.location).clean
    assert state(table) == dict.fromkeys(range(100), count)
    assert state(native.scan(table)) == dict.fromkeys(range(100), count)
