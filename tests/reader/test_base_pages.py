"""Keys of the base table are found in the pages of its index, while these tell all of them."""

import random
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.tables import numbered

import memwal
from memwal.reader import base_rows as base_pages
from memwal.reader.base_rows import addresses_in_pages
from memwal.reader.sources import key_index
from memwal.reader.sources.key_index import kept_bytes
from memwal.region.rows import key_column

ROWS = 3_000
KEYS = (0, 1, 7, 999, 1_000, 1_234, 2_998, 2_999, 5_000)
Change = Callable[[lance.LanceDataset], object]


def make(
    folder: Path, *, rows: int = ROWS, kind: pa.DataType | None = None, **options: object
) -> memwal.Table:
    """Return a table of three fragments, whose keys are in no order, with an index on them."""
    stored = numbered(0, rows).take(random.Random(0).sample(range(rows), rows))
    if kind is not None:
        column = stored.column("id").cast(kind)
        stored = stored.set_column(0, pa.field("id", kind, nullable=False), column)
    uri = str(folder / "table")
    lance.write_dataset(stored, uri, max_rows_per_file=1_000, **options)
    table = memwal.enable(uri, region_spec="unsharded", primary_key=["id"])
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    return table


def found_in_pages(table: memwal.Table, keys: pa.Array) -> int | None:
    base = table.base()
    columns = pa.table({"id": keys.cast(base.schema.field("id").type)})
    addresses = addresses_in_pages(base, key_column(columns, base.primary_key))
    return None if addresses is None else len(addresses)


def check(table: memwal.Table) -> None:
    """Compare lookups with Lance's own answer from the rows."""
    dataset = lance.dataset(table.uri)
    for keys in (KEYS[:1], KEYS, tuple(range(0, ROWS, 7))):
        wanted = pa.array(keys).cast(table.schema.field("id").type)
        told = ", ".join(repr(key) for key in wanted.to_pylist())
        expected = dataset.scanner(filter=f"id in ({told})", use_scalar_index=False).to_table()
        found = table.lookup(pa.table({"id": wanted})).to_table()
        assert found.sort_by("id").to_pylist() == expected.sort_by("id").to_pylist()


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.string()], ids=str)
def test_of_each_type(tmp_path: Path, kind: pa.DataType) -> None:
    table = make(tmp_path, kind=kind)
    assert found_in_pages(table, pa.array(KEYS)) == len(KEYS) - 1
    assert found_in_pages(table, pa.array([], pa.int64())) == 0
    check(table)


def test_many_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_JOINED_PAGES", 2)
    monkeypatch.setattr(key_index, "MAX_KEPT_BYTES", 0)
    table = make(tmp_path, rows=20_000)
    keys = pa.array(range(0, 20_000, 997))
    assert found_in_pages(table, keys) == len(keys)
    assert table.lookup(keys).to_table().sort_by("id").column("id").combine_chunks() == keys


def test_pages_in_any_order() -> None:
    pages = [pa.table({"values": [8, 9, 9], "ids": pa.array([1, 2, 3], pa.uint64())})]
    pages += [pa.table({"values": [None, 2, 8], "ids": pa.array([4, 5, 6], pa.uint64())})]
    ids, positions = key_index._SortedKeys.of(pa.concat_tables(pages)).find(np.array([2, 7, 8, 9]))
    assert sorted(zip(positions.tolist(), ids.tolist(), strict=True)) == [
        (0, 5),
        *((2, 1), (2, 6)),
        *((3, 2), (3, 3)),
    ]


def test_a_deleted_row_is_not_returned(tmp_path: Path) -> None:
    table = make(tmp_path)
    lance.dataset(table.uri).delete("id in (7, 999)")
    assert table.lookup([7, 999]).count_rows() == 0
    check(table)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("change", "in_pages"),
    [
        (lambda data: data.delete("id < 1000 and id % 2 = 0"), True),
        (lambda data: data.optimize.compact_files(), True),
        (lambda data: data.optimize.compact_files(defer_index_remap=True), False),
        (lambda data: data.update({"n": "1"}, "id < 10"), False),
        (lambda data: data.insert(numbered(5_000, 5_010)), False),
        (lambda data: data.drop_index("id_idx"), False),
        (lambda data: data.create_scalar_index("id", "BITMAP", name="id_idx"), False),
    ],
    ids=["delete", "compact", "compact and defer", "update", "append", "drop", "bitmap"],
)
def test_after_a_change_by_another_client(tmp_path: Path, change: Change, in_pages: bool) -> None:
    table = make(tmp_path)
    check(table)
    change(lance.dataset(table.uri))
    assert (found_in_pages(table, pa.array(KEYS)) is not None) is in_pages
    check(table)


def test_segments_that_cover_all_together(tmp_path: Path) -> None:
    table = make(tmp_path)
    lance.dataset(table.uri).insert(numbered(5_000, 5_010))
    lance.dataset(table.uri).optimize.optimize_indices(num_indices_to_merge=0)
    described = lance.dataset(table.uri).describe_indices()
    index = next(index for index in described if index.field_names == ["id"])
    assert len(index.segments) == 2
    assert found_in_pages(table, pa.array(KEYS)) == len(KEYS)
    check(table)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_an_index_too_large_to_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    table = make(tmp_path, kind=kind)
    (path,) = Path(table.uri).glob("_indices/*/page_data.lance")
    size = kept_bytes(table.location, f"_indices/{path.parent.name}")
    assert size >= ROWS * (8 + 8 if kind == pa.int64() else 8 + 4)
    monkeypatch.setattr(base_pages, "MAX_KEPT_BYTES", size - 1)
    assert found_in_pages(table, pa.array(KEYS)) is None
    check(table)


def test_an_index_of_no_rows(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(numbered(0, 0), uri)
    table = memwal.enable(uri, region_spec="unsharded", primary_key=["id"])
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    assert found_in_pages(table, pa.array(KEYS)) == 0
    check(table)


def test_stable_row_ids(tmp_path: Path) -> None:
    table = make(tmp_path, enable_stable_row_ids=True)
    assert found_in_pages(table, pa.array(KEYS)) is None
    check(table)


@pytest.mark.parametrize("name", ["page_data.lance", "page_lookup.lance"])
def test_a_damaged_file(tmp_path: Path, name: str) -> None:
    table = make(tmp_path)
    (path,) = Path(table.uri).glob(f"_indices/*/{name}")
    path.write_bytes(bytes(path.stat().st_size))
    assert found_in_pages(table, pa.array(KEYS)) is None
