"""Rows of the base table that unmerged generations replaced, from one version to the next."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.copied import copied_table
from support.data.tables import flush, numbered, rows, state

import memwal
from memwal.base_table.snapshot import BaseTable
from memwal.reader import base_rows

PENDING = {1: 100, 11: 110, 25: 250, 31: 310, 900: 9}


@pytest.fixture(params=[False, True], ids=["plain", "stable"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> memwal.Table:
    """Keys 0 to 29 in three fragments, and two generations; one key of them is deleted."""

    def make(uri: str) -> None:
        lance.write_dataset(
            numbered(0, 30), uri, max_rows_per_file=10, enable_stable_row_ids=request.param
        )
        flush(memwal.enable(uri, region_spec="unsharded", primary_key=["id"]), PENDING, [5])

    table = copied_table(f"replaced rows {request.param}", tmp_path / "table", make)
    check(table)
    return table


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Fragments in which keys of generations were searched for, of each search."""
    calls: list[list[int]] = []
    rows_of_keys = base_rows.rows_of_keys

    def spied(base: BaseTable, keys: pa.Array, fragments: Any = None) -> Any:
        calls.append(sorted(fragment.fragment_id for fragment in fragments))
        return rows_of_keys(base, keys, fragments)

    monkeypatch.setattr(base_rows, "rows_of_keys", spied)
    return calls


def check(table: memwal.Table) -> None:
    """Compare reads with the rows of the base table, by Lance, below those of the generations."""
    expected = state(lance.dataset(table.uri).to_table()) | PENDING
    expected.pop(5, None)
    assert state(table) == expected
    assert table.scan().count_rows() == len(expected)
    passing = {key: n for key, n in expected.items() if key % 2}
    for _ in range(3):
        assert state(table.scan(filter="id % 2 = 1").to_table()) == passing


def append(table: memwal.Table, start: int, count: int = 10) -> None:
    lance.write_dataset(numbered(start, count), table.uri, mode="append")


def update(dataset: lance.LanceDataset, n: int, where: str) -> None:
    text = f"cast(id as string) || '={n}'"
    dataset.update({"n": str(n), "text": text}, where=where)


def is_stable(table: memwal.Table) -> bool:
    return bool(lance.dataset(table.uri).has_stable_row_ids)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "commit",
    [
        lambda table: table.build_snapshot(),
        lambda table: lance.dataset(table.uri).create_scalar_index("id", "BTREE"),
        lambda table: lance.dataset(table.uri).update_config({"owner": "me"}),
    ],
    ids=["snapshot", "index", "config"],
)
def test_a_commit_without_rows_searches_nothing(
    table: memwal.Table, searched: list[list[int]], commit: Callable[[memwal.Table], object]
) -> None:
    commit(table)
    check(table)
    assert searched == []


def test_new_fragments_alone_are_searched(table: memwal.Table, searched: list[list[int]]) -> None:
    append(table, 30)
    check(table)
    assert searched == [[0, 1, 2, 3] if is_stable(table) else [3]]


def test_a_new_generation_is_searched_for_alone(
    table: memwal.Table, searched: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(table, {2: 200})
    monkeypatch.setitem(PENDING, 2, 200)
    check(table)
    assert searched == [[0, 1, 2]]
    table.build_snapshot()
    check(table)
    assert searched == [[0, 1, 2]]


def test_reads_of_few_rows_search_once_they_have_hashed_as_many_keys(
    table: memwal.Table, searched: list[list[int]]
) -> None:
    flush(table, {2: 200})
    # Each compares one of thirty rows with seven keys.
    for _ in range(3):
        assert state(table.scan(filter="text = '3=0'").to_table()) == {3: 0}
    assert searched == []
    for _ in range(3):
        assert state(table.scan(filter="text = '3=0'").to_table()) == {3: 0}
    assert searched == [[0, 1, 2]]


def test_few_keys_are_found_by_an_index_at_once(
    table: memwal.Table, searched: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_rows, "_ROWS_PER_KEY", 1)
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    flush(table, {2: 200})
    for _ in range(2):
        assert state(table.scan(filter="text = '3=0'").to_table()) == {3: 0}
    assert searched == [[0, 1, 2]]


@pytest.mark.few(4)
@pytest.mark.parametrize("condition", ["id < 13", "id = 11", "id = 12", "id >= 20"])
def test_deleted_rows_are_left_out_without_a_search(
    table: memwal.Table, searched: list[list[int]], condition: str
) -> None:
    for deleted in (condition, "id = 1 or id = 25"):
        lance.dataset(table.uri).delete(deleted)
        check(table)
    assert (searched == []) is not is_stable(table)


def test_rows_that_come_back_are_found(table: memwal.Table, searched: list[list[int]]) -> None:
    full = lance.dataset(table.uri).version
    lance.dataset(table.uri).delete("id = 11 or id = 3")
    check(table)
    lance.dataset(table.uri, version=full).restore()
    lance.dataset(table.uri).delete("id = 12 or id = 3")
    # Key 11 is there again.
    check(table)
    assert searched[-1:] == [[0, 1, 2] if is_stable(table) else [1]]


def test_rows_of_a_deletion_file_that_is_gone_are_searched_again(
    table: memwal.Table, searched: list[list[int]]
) -> None:
    lance.dataset(table.uri).delete("id = 11")
    check(table)
    (earlier,) = Path(table.uri, "_deletions").iterdir()
    lance.dataset(table.uri).delete("id = 12")
    earlier.unlink()
    searched.clear()
    check(table)
    assert searched == [[0, 1, 2] if is_stable(table) else [1]]


def test_ids_of_fragments_that_are_used_again_are_other_fragments(table: memwal.Table) -> None:
    first = lance.dataset(table.uri).version
    append(table, 30)
    check(table)
    for start in (900, 45):
        lance.dataset(table.uri, version=first).restore()
        # Key 31 is not in the fragment that gets the id, or in another row.
        append(table, start, 1)
        check(table)


def test_another_history_to_the_same_version_is_another_table(
    table: memwal.Table, tmp_path: Path
) -> None:
    shutil.copytree(table.uri, tmp_path / "copy")
    versions = []
    for start in (30, 900, 40):
        append(table, start)
        check(table)
        versions.append(lance.dataset(table.uri).version)
        shutil.rmtree(table.uri)
        shutil.copytree(tmp_path / "copy", table.uri)
    assert len(set(versions)) == 1


def test_moved_rows_are_found_where_they_are(table: memwal.Table) -> None:
    for change in (
        lambda dataset: update(dataset, 7, "id = 11"),
        lambda dataset: dataset.delete("id = 12"),
        lambda dataset: dataset.optimize.compact_files(),
        lambda dataset: dataset.merge_insert("id").when_matched_update_all().execute(rows({1: 8})),
    ):
        change(lance.dataset(table.uri))
        check(table)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_committed_between(table: memwal.Table, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    versions = [lance.dataset(table.uri).version]
    next_key = 1_000
    for _ in range(25):
        dataset = lance.dataset(table.uri)
        key = chosen.choice([1, 5, 11, 25, 31, 900, 2, 12, 22])
        match chosen.randrange(7):
            case 0:
                missing = key not in dataset.to_table(columns=["id"]).column("id").to_pylist()
                append(table, key if missing else next_key, 1)
                next_key += 1
            case 1 | 2:
                dataset.delete(f"id = {key}")
            case 3:
                update(dataset, next_key, f"id = {key} or id = {key + 1}")
            case 4:
                dataset.optimize.compact_files(target_rows_per_fragment=12)
            case 5:
                lance.dataset(table.uri, version=chosen.choice(versions)).restore()
            case _:
                table.build_snapshot()
        check(table)
        versions.append(lance.dataset(table.uri).version)
