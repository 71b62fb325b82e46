"""Each safeguard of what surrounds the core is taken out: the test of its case must fail then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs.gc import test_links as links
from lsm.indexes import test_trust as trust_cases
from support.data import stale_indexes
from support.data.tables import REGION, MakeTable
from writer import test_moved_table as moved

import memwal
from memwal.lsm.indexes import trust
from memwal.storage.folders import delete
from memwal.storage.local import LocalStore

pytestmark = pytest.mark.slow

Case = Callable[[MakeTable, Path], None]


def deletions_follow_links(patch: pytest.MonkeyPatch) -> None:
    """A folder on the way to what is deleted may be a link."""

    def follow(parent: int, name: str, flags: int, *, path: str) -> int:
        return os.open(name, flags, dir_fd=parent)

    patch.setattr(delete, "_open_inside", follow)


def folders_have_no_identity(patch: pytest.MonkeyPatch) -> None:
    """A writer takes whatever has the name of its region's folder for that folder."""
    patch.setattr(LocalStore, "hold", lambda self, folders: self)


def every_index_is_believed(patch: pytest.MonkeyPatch) -> None:
    """A row that an index does not find is taken for absent."""
    patch.setattr(trust, "find_doubts", lambda base: trust.Doubts())


def collect_through_a_link(make_table: MakeTable, _path: Path) -> None:
    links.test_another_table_loses_nothing_through_a_link(make_table, f"_mem_wal/{REGION}")


def write_to_a_moved_table(make_table: MakeTable, _path: Path) -> None:
    moved.test_a_table_that_was_moved_takes_no_more_rows(make_table(), "upsert", False)


def write_to_a_backup(make_table: MakeTable, _path: Path) -> None:
    moved.test_a_backup_in_the_place_of_a_table_is_left_alone(make_table(), "upsert")


def read_after_a_compaction(_make_table: MakeTable, path: Path) -> None:
    stale_indexes.make(path / "read.lance", stable_row_ids=True)
    stale_indexes.optimize(path / "read.lance")
    trust_cases.check_reads(memwal.open(str(path / "read.lance")))


def merge_after_a_compaction(_make_table: MakeTable, path: Path) -> None:
    stale_indexes.make(path / "merge.lance", stable_row_ids=True)
    stale_indexes.optimize(path / "merge.lance")
    table = memwal.open(str(path / "merge.lance"))
    table.upsert(stale_indexes.rows(0, 40, plus=1000))
    table.merge()
    ids = table.base().dataset.to_table(columns=["id"])["id"].to_pylist()
    assert sorted(ids) == list(range(stale_indexes.ROWS))


@pytest.mark.parametrize(
    ("take_out", "case"),
    [
        (deletions_follow_links, collect_through_a_link),
        (folders_have_no_identity, write_to_a_moved_table),
        (folders_have_no_identity, write_to_a_backup),
        (every_index_is_believed, read_after_a_compaction),
        (every_index_is_believed, merge_after_a_compaction),
    ],
)
def test_a_missing_safeguard_is_noticed(
    take_out: Callable[[pytest.MonkeyPatch], None],
    case: Case,
    make_table: MakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case(make_table, tmp_path / "with it")
    # The tables of the second run have new names: what is cached of the first does not count.
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    take_out(monkeypatch)
    # An AssertionError, and pytest's own for an error that was not raised, which is none.
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        case(make_table, tmp_path / "without it")
