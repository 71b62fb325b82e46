"""A region whose folder was lost, or came back older than the base table: nothing new is lost."""

import shutil
from pathlib import Path

import pytest
from support.data.tables import REGION, base_state, folder, manifest, rows, state

import memwal
from memwal.errors import CorruptDataError, RegionLostError


def merged_twice(table: memwal.Table, backup: Path) -> Path:
    """Two generations merged, with a backup of the regions from between; returns the regions."""
    regions = folder(table) / "_mem_wal"
    for n in (1, 2):
        with table.writer() as writer:
            writer.upsert(rows({1: n, n + 1: n}))
        table.merge()
        if n == 1:
            shutil.copytree(regions, backup)
    return regions


def test_a_region_that_begins_anew_does_not_use_numbers_twice(
    table: memwal.Table, tmp_path: Path
) -> None:
    shutil.rmtree(merged_twice(table, tmp_path / "backup"))
    with pytest.raises(RegionLostError):
        table.upsert(rows({1: 3, 4: 3}))
    table.start_region_over(REGION, dry_run=False)

    with table.writer() as writer:
        writer.upsert(rows({1: 3, 4: 3}))
        assert state(writer) == {1: 3, 2: 1, 3: 2, 4: 3}

    assert state(table) == {1: 3, 2: 1, 3: 2, 4: 3}
    table.merge()
    assert base_state(table) == {1: 3, 2: 1, 3: 2, 4: 3}
    assert table.verify().clean


def test_a_region_that_is_older_than_the_base_table_takes_no_rows(
    table: memwal.Table, tmp_path: Path
) -> None:
    regions = merged_twice(table, tmp_path / "backup")
    shutil.rmtree(regions)
    shutil.copytree(tmp_path / "backup", regions)
    before = manifest(table)

    with table.writer() as writer, pytest.raises(CorruptDataError):
        writer.upsert(rows({1: 3}))
    assert manifest(table) == before

    # What the message advises.
    table.start_region_over(REGION, dry_run=False)
    with table.writer() as writer:
        writer.upsert(rows({1: 3}))
    assert state(table) == {1: 3, 2: 1, 3: 2}
