"""Which fragments have rows that merges brought: for the others no generation may answer."""

from collections.abc import Callable
from pathlib import Path

import lance
import pytest
from support.data.copied import copied_table
from support.data.searched import Searched
from support.data.tables import SCHEMA, MakeTable, rows
from support.oracles.read_sources import forget_caches

import memwal
from memwal.reader import base_indexes as module
from memwal.reader.base_indexes import merged_fragments


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """Return a table with one fragment of each of three merges, and one that was appended."""

    def make(uri: str) -> None:
        table = memwal.create(uri, SCHEMA, primary_key=["id"], region_spec="unsharded")
        for number in (1, 2):
            merge(table, number)
        lance.write_dataset(rows({99: 99}), uri, mode="append")
        merge(table, 3)

    table = copied_table("of three merges", tmp_path / "merged", make)
    assert found(table) == [0, 1, 3]
    return table


def merge(table: memwal.Table, number: int) -> None:
    table.upsert(rows(dict.fromkeys(range(10 * number, 10 * number + 5), number)))
    table.merge()


def found(table: memwal.Table) -> list[int]:
    base = table.base()
    asked = base.dataset.fragment_ids()
    once = merged_fragments(base, asked)
    assert merged_fragments(base, asked) == once, "what is remembered says something else"
    return sorted(once)


def compact(table: memwal.Table) -> None:
    lance.dataset(table.uri).optimize.compact_files()


def update(table: memwal.Table, values: dict[int, int]) -> None:
    lance.dataset(table.uri).merge_insert("id").when_matched_update_all().execute(rows(values))


def test_an_update_by_hand_is_none_of_them(table: memwal.Table) -> None:
    update(table, {11: 100})
    assert found(table) == [0, 1, 3]
    update(table, dict.fromkeys(range(20, 25), 100))
    assert found(table) == [0, 3]
    merge(table, 4)
    assert len(found(table)) == 3


def test_an_update_of_every_row_is_no_compaction(table: memwal.Table) -> None:
    lance.dataset(table.uri).update({"n": "n + 1"})
    assert found(table) == []


def test_an_index_and_a_delete_change_nothing(table: memwal.Table) -> None:
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    lance.dataset(table.uri).delete("id = 11")
    table.build_snapshot()
    assert found(table) == [0, 1, 3]


@pytest.mark.parametrize("indexed", [False, True])
def test_rows_of_merges_are_so_after_a_compaction(make_table: MakeTable, indexed: bool) -> None:
    table = make_table()
    for number in (1, 2, 3):
        merge(table, number)
    if indexed:
        # Which a compaction remaps; pylance does not show such a commit.
        lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    compact(table)
    assert len(found(table)) == len(table.base().dataset.fragment_ids()) == 1


def test_rows_of_a_compaction_with_others_are_not(table: memwal.Table) -> None:
    compact(table)
    assert found(table) == []


def test_a_column_that_was_written_again_is_not(table: memwal.Table) -> None:
    dataset = lance.dataset(table.uri)
    fragment = dataset.get_fragment(1)
    changed, fields = fragment.update_columns(
        rows(dict.fromkeys(range(20, 25), 7)).select(["id", "n"]), left_on="id"
    )
    operation = lance.LanceOperation.Update(updated_fragments=[changed], fields_modified=fields)
    lance.LanceDataset.commit(table.uri, operation, read_version=dataset.version)
    assert found(table) == [0, 3]


def test_a_version_that_was_taken_back_is_no_merge(table: memwal.Table) -> None:
    update(table, {11: 100})
    before = table.base().version
    update(table, {11: 101})
    merge(table, 4)
    lance.dataset(table.uri, version=before).restore()
    assert found(table) == [0, 1, 3]
    assert len(table.base().dataset.fragment_ids()) == 5


def test_nothing_is_known_past_what_was_cleaned_up(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(table, 4)
    known = found(table)
    forget_caches()
    monkeypatch.setattr(module, "_MAX_TRACED_COMMITS", 1)
    assert found(table) == known[-1:]


@pytest.mark.few(1)
@pytest.mark.parametrize("in_memory", [False, True])
def test_searches_see_what_was_updated_by_hand(
    tmp_path: Path, in_memory: bool, search_in_memory: Callable[[bool], None]
) -> None:
    """Also where generations that brought the rows before are still stored, and indexes lag."""
    search_in_memory(in_memory)
    searched = Searched(tmp_path, rows=300)

    def check() -> None:
        for _ in range(2):
            searched.check_nearest(searched.table, least=10, refine_factor=40, nprobes=10)
            searched.check_text(searched.table, searched.query())

    searched.table.upsert(searched.rows(range(100, 150)))
    searched.table.merge()
    check()
    searched.update_by_hand(range(105, 145))
    check()
    searched.table.upsert(searched.rows(range(140, 160)))
    searched.table.merge()
    check()
    compact(searched.table)
    check()
