"""A table with stable row ids that Lance's writer, LanceDB and memwal write together."""

from pathlib import Path

import lancedb
import pytest
from support.data.merging import Merge
from support.data.tables import SCHEMA, MakeTable, flush, rows
from support.oracles import native
from support.oracles.native import collect_all, everything

import memwal

NAME = "stable"


def row_ids(table: memwal.Table) -> dict[int, int]:
    found = table.base().dataset.to_table(["id"], with_row_id=True)
    return dict(
        zip(found.column("id").to_pylist(), found.column("_rowid").to_pylist(), strict=True)
    )


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    return memwal.create(
        tmp_path / f"{NAME}.lance",
        SCHEMA,
        primary_key="id",
        maintained_indexes=["id_idx"],
        stable_row_ids=True,
    )


def test_ids_stay_whoever_writes(table: memwal.Table, merge: Merge) -> None:
    flush(table, dict.fromkeys(range(20), 0))
    merge(table)
    first = row_ids(table)
    native.upsert(table, rows({1: 1, 20: 1}))
    merge(table)
    lancedb.connect(Path(table.uri).parent).open_table(NAME).optimize()
    flush(table, {2: 2, 21: 2}, [3])
    merge(table)
    table.build_indexes()
    collect_all(table)
    table.compact(min_fragments=2)
    everything(table)
    last = row_ids(table)
    assert last.keys() == (first.keys() | {20, 21}) - {3}
    assert {key: last[key] for key in first if key != 3} == {
        key: row_id for key, row_id in first.items() if key != 3
    }


def test_lance_tells_what_merges_changed(table: memwal.Table, merge: Merge) -> None:
    flush(table, {1: 0, 2: 0, 3: 0})
    merge(table)
    before = table.base().version
    flush(table, {2: 2, 4: 4}, [1])
    merge(table)
    table.compact(min_fragments=2)
    delta = native.dataset(table).delta(compared_against=before)
    inserted, updated = (
        found.read_all().column("id").to_pylist()
        for found in (delta.get_inserted_rows(), delta.get_updated_rows())
    )
    assert (inserted, updated) == ([4], [2])


def test_status_tells_it(table: memwal.Table, make_table: MakeTable) -> None:
    assert table.status().stable_row_ids
    assert make_table().status().stable_row_ids is False
