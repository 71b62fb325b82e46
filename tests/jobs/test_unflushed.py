"""Status tells which regions have rows of writers that are closed or dead."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.data.tables import REGION, MakeTable, folder, rows

import memwal
from memwal.format.paths import manifest_dir, wal_dir
from memwal.jobs.backlog import read_status


def age(table: memwal.Table, part: str, seconds: float) -> None:
    """Let the objects of a part of the region be older."""
    at = time.time() - seconds
    for path in (folder(table) / part).iterdir():
        os.utime(path, (at, at))


def test_a_region_that_was_closed_needs_none(make_table: MakeTable) -> None:
    table = make_table()
    with table.writer() as writer:
        writer.claim()
        writer.upsert(rows({1: 1}))

    (region,) = read_status(table.location, clock=lambda: time.time() + 3600).regions
    assert (region.oldest_unflushed_seconds, region.needs_recovery) == (None, False)


def test_a_region_that_was_claimed_and_not_written_needs_none(make_table: MakeTable) -> None:
    table = make_table()
    for _ in range(2):
        writer = table.writer()
        writer.claim()
        writer.abort()

    (region,) = read_status(table.location, clock=lambda: time.time() + 3600).regions
    assert region.unflushed_wal_entries == 0
    assert (region.oldest_unflushed_seconds, region.needs_recovery) == (None, False)


@pytest.mark.parametrize(
    ("written", "changed", "needed"), [(100, 100, False), (130, 100, False), (130, 130, True)]
)
def test_rows_count_as_without_a_writer_when_two_flushes_are_overdue(
    make_table: MakeTable, written: float, changed: float, needed: bool
) -> None:
    """A writer that claimed or flushed since then may live: it commits the manifest."""
    table = make_table()
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    writer.abort()
    age(table, wal_dir(REGION), written)
    age(table, manifest_dir(REGION), changed)

    status = table.status()

    (region,) = status.regions
    assert region.needs_recovery is needed
    assert status.regions_to_recover == int(needed)
    assert status.oldest_unflushed_seconds == pytest.approx(written, abs=30)
    assert status.to_dict()["regions_to_recover"] == int(needed)


def test_rows_that_a_writer_keeps_are_not_flushed_before_their_time(
    make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table()
    table.set_writer_defaults(max_memtable_age=0.05)
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        deadline = time.monotonic() + 30
        while not table.status().backlog_generations and time.monotonic() < deadline:
            time.sleep(0.01)
        assert table.status().oldest_unflushed_seconds is None
