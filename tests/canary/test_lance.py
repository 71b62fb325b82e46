"""Facts about Lance that no other test shows by itself, each in the fewest steps."""

import uuid
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.dataset import Index
from lance.mem_wal import CompactedSsTable
from support.data.tables import REGION, MakeTable, manifest, rows

import memwal
from memwal.base_table.commit import DETAILS_TYPE_URL, MEM_WAL_INDEX_NAME
from memwal.format.paths import generation_dir


def marked(table: memwal.Table, generation: int) -> Any:
    """A merge of rows that carries the mark of a generation, ready to be executed."""
    merge = lance.dataset(table.uri).merge_insert(["id"])
    merge.when_matched_update_all().when_not_matched_insert_all()
    merge.mark_sstables_as_compacted([CompactedSsTable(str(REGION), generation)])
    return merge


def progress(table: memwal.Table) -> int:
    return table.base().details.merged.get(REGION, 0)


def test_a_mark_and_its_rows_are_one_commit(table: memwal.Table) -> None:
    before = table.base().version
    marked(table, 1).execute(rows({1: 1}))
    assert (progress(table), table.base().version) == (1, before + 1)


def test_a_mark_that_is_no_progress_is_refused_with_its_rows(table: memwal.Table) -> None:
    marked(table, 2).execute(rows({1: 1}))
    for generation in (1, 2):
        with pytest.raises(Exception, match=r"(?i)generation|conflict"):
            marked(table, generation).execute(rows({2: 2}))
    assert table.base().dataset.count_rows() == 1


def test_a_mark_that_skips_is_taken(table: memwal.Table) -> None:
    marked(table, 7).execute(rows({1: 1}))
    assert progress(table) == 7


def test_a_mark_is_lost_where_the_merge_is_committed_apart(table: memwal.Table) -> None:
    transaction, _ = marked(table, 1).execute_uncommitted(rows({1: 1}))
    lance.LanceDataset.commit(table.uri, transaction)
    assert table.base().dataset.count_rows() == 1
    assert progress(table) == 0


def test_a_stale_commit_of_the_details_takes_progress_back(table: memwal.Table) -> None:
    stale = table.base()
    marked(table, 1).execute(rows({1: 1}))
    assert progress(table) == 1
    assert stale.index is not None
    new = Index(
        uuid=str(uuid.uuid4()),
        name=MEM_WAL_INDEX_NAME,
        fields=[],
        dataset_version=stale.version,
        fragment_ids=set(),
        index_version=0,
        index_details=(DETAILS_TYPE_URL, stale.details.encode()),
    )
    old = replace(new, uuid=str(stale.index.uuid), index_details=None)
    operation = lance.LanceOperation.CreateIndex(new_indices=[new], removed_indices=[old])
    lance.LanceDataset.commit(table.uri, operation, read_version=stale.version)
    assert progress(table) == 0


def test_an_index_build_records_its_catch_up_and_a_compaction_withdraws_it(
    make_table: MakeTable,
) -> None:
    table = make_table(maintained_indexes=["id_idx"])

    def caught_up() -> int:
        return table.base().details.catchup.get("id_idx", {}).get(REGION, 0)

    for generation in (1, 2):
        marked(table, generation).execute(rows({generation: 1}))
        assert caught_up() < generation
        lance.dataset(table.uri).optimize.optimize_indices()
        assert caught_up() == generation
    lance.dataset(table.uri).optimize.compact_files()
    assert caught_up() == 0
    lance.dataset(table.uri).optimize.optimize_indices()
    assert caught_up() == 2


def test_a_later_column_takes_the_id_that_a_tombstone_has(table: memwal.Table) -> None:
    def ids(dataset: lance.LanceDataset) -> list[int]:
        return [field.id() for field in dataset.lance_schema.fields()]

    table.upsert(rows({1: 1}))
    (flushed,) = manifest(table).flushed
    generation = lance.dataset(table.location.child(generation_dir(REGION, flushed.path)))
    tombstone = max(ids(generation))
    assert tombstone == max(ids(lance.dataset(table.uri))) + 1
    lance.dataset(table.uri).add_columns(pa.field("later", pa.string()))
    assert max(ids(lance.dataset(table.uri))) == tombstone


def test_indexes_are_listed_by_name(table: memwal.Table) -> None:
    dataset = lance.dataset(table.uri)
    for name in ("b_idx", "a_idx"):
        dataset.create_scalar_index("n", "BTREE", name=name, replace=False)
    found = [one.name for one in lance.dataset(table.uri).describe_indices()]
    assert [name for name in found if not name.startswith("__")] == ["a_idx", "b_idx"]


def test_what_follows_a_whole_predicate_is_ignored(table: memwal.Table) -> None:
    lance.write_dataset(rows({1: 1, 2: 2}), table.uri, mode="append")
    found = lance.dataset(table.uri).to_table(filter="id = 1) OR (id = 2")
    assert found.column("id").to_pylist() == [1]
