"""Lance tables without MemWAL: everything but what needs a log, in the tables of other clients."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from support.data.tables import collect_now

import memwal
from memwal.errors import InvalidInputError, TableSetupError
from memwal.format.paths import MEM_WAL_DIR, REGION_MARKS_DIR

_SIZE = 8


def _rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    vectors = np.outer(ids, np.ones(_SIZE, np.float32)).ravel()
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": [f"row word{number % 7}" for number in ids],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors, pa.float32()), _SIZE),
        }
    )


@pytest.fixture
def stored(tmp_path: Path) -> lancedb.table.Table:
    """A table of LanceDB with three indexes, then 20 appends, and deleted rows."""
    table = lancedb.connect(tmp_path).create_table("plain", _rows(0, 1000))
    table.create_index("id", config=lancedb.index.BTree())
    table.create_index("text", config=lancedb.index.FTS())
    table.create_index("v", config=lancedb.index.IvfFlat(num_partitions=2))
    for number in range(20):
        table.add(_rows(1000 + 10 * number, 10))
    table.delete("id < 100")
    return table


def _dataset(table: memwal.Table) -> lance.LanceDataset:
    return lance.dataset(table.uri)


def test_queries_are_those_of_lance(stored: lancedb.table.Table) -> None:
    table = memwal.open(stored)
    assert table.primary_key == ()
    assert table.region_ids() == []
    expected = stored.to_arrow().sort_by("id")
    for queries in (table, table.fresh(), table.at_most(60), table.at(table.version)):
        assert queries.scan().to_table().sort_by("id") == expected
        assert queries.count_rows(filter="id >= 1000") == 200
    assert table.head(3).num_rows == 3
    assert table.to_dataset() is not None
    found = table.search([150.0] * _SIZE, column="v", k=3).to_table()
    assert sorted(found.column("id").to_pylist()) == [149, 150, 151]
    assert table.search_text("word3", k=None).to_table().num_rows == (
        stored.search("word3", query_type="fts").limit(1000).to_arrow().num_rows
    )
    assert table.explain(filter="id = 5").sources[0].kind == "base"
    with pytest.raises(InvalidInputError):
        table.lookup(150).to_table()


def test_a_declared_key_is_looked_up(tmp_path: Path) -> None:
    declared = {b"lance-schema:unenforced-primary-key": b"true"}
    rows = _rows(0, 10)
    schema = rows.schema.set(0, pa.field("id", pa.int64(), False, metadata=declared))
    lance.write_dataset(rows.cast(schema), tmp_path / "t.lance")
    table = memwal.open(tmp_path / "t.lance")
    assert table.lookup([3, 99]).to_table().column("id").to_pylist() == [3]


def test_jobs_clean_the_table_up(stored: lancedb.table.Table, tmp_path: Path) -> None:
    table = memwal.open(stored)
    expected = stored.to_arrow().sort_by("id")
    status = table.status()
    assert status.regions == ()
    assert {lag.rows for lag in status.indexes} == {200}
    assert status.small_fragments == 20
    assert status.deleted_rows == 100

    assert table.compact().metrics["fragments_removed"] == 21
    assert table.build_indexes().metrics["indexes"] == 3
    collected = collect_now(table, version_retention_seconds=0)
    assert collected.metrics["base_versions"] > 20

    after = table.status()
    assert [lag.rows for lag in after.indexes] == [0, 0, 0]
    assert (after.small_fragments, after.deleted_rows) == (0, 0)
    assert len(_dataset(table).versions()) == 1
    assert table.scan().to_table().sort_by("id") == expected
    stored.checkout_latest()
    assert stored.to_arrow().sort_by("id") == expected
    assert table.verify(deep=True).findings == ()
    # A second pass has nothing to do.
    assert table.compact().commits == table.build_indexes().commits == 0


def test_a_copy_is_a_table_like_it(stored: lancedb.table.Table, tmp_path: Path) -> None:
    table = memwal.open(stored)
    assert table.copy_to(tmp_path / "copy.lance").metrics["regions"] == 0
    copied = memwal.open(tmp_path / "copy.lance")
    assert copied.scan().to_table() == table.scan().to_table()
    assert [index.name for index in copied.list_indices()] == ["id_idx", "text_idx", "v_idx"]


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.writer(),
        lambda table: table.upsert({"id": 1}),
        lambda table: table.delete([1]),
        lambda table: table.merge(),
        lambda table: table.explain_merge(),
        lambda table: table.build_snapshot(),
        lambda table: table.recover(),
        lambda table: table.checkpoint(),
        lambda table: table.restore(1),
        lambda table: table.applied("source"),
        lambda table: table.region_spec(),
        lambda table: table.set_writer_defaults(max_memtable_age=3),
        lambda table: table.choose_indexes(add=["id_idx"]),
        lambda table: table.start_region_over(uuid4()),
    ],
)
def test_calls_that_need_a_log_name_the_command_that_enables_it(
    stored: lancedb.table.Table, call: Callable[[memwal.Table], object]
) -> None:
    table = memwal.open(stored)
    before = table.version
    with pytest.raises(TableSetupError, match=f"memwal enable {table.uri}"):
        call(table)
    assert table.version == before


@pytest.mark.parametrize("merged", [False, True])
def test_a_table_whose_spec_was_taken_away_is_not_plain(tmp_path: Path, merged: bool) -> None:
    database = lancedb.connect(tmp_path)
    stored = database.create_table("t", _rows(0, 10))
    table = memwal.enable(stored, primary_key="id")
    table.upsert(_rows(5, 10))
    if merged:
        table.merge()
    lance.dataset(table.uri).drop_index("__lance_mem_wal")

    calls: list[Callable[[], object]] = [
        table.scan().to_table,
        table.count_rows,
        lambda: table.fresh().count_rows(),
        lambda: table.at_most(timedelta(hours=1)).count_rows(),
        table.status,
        table.verify,
        lambda: table.copy_to(tmp_path / "copy.lance"),
        lambda: table.collect_garbage(dry_run=False),
        table.compact,
        table.build_indexes,
    ]
    for call in calls:
        with pytest.raises(TableSetupError, match=MEM_WAL_DIR):
            call()
    # A region whose folder is not found, because its disk is not mounted, still has its mark.
    folder = Path(table.uri)
    (folder / MEM_WAL_DIR).rename(tmp_path / "elsewhere")
    assert any((folder / REGION_MARKS_DIR).iterdir())
    with pytest.raises(TableSetupError, match=REGION_MARKS_DIR):
        table.count_rows()


def test_indexes_cover_rows_that_were_appended_beside_the_log(tmp_path: Path) -> None:
    stored = lancedb.connect(tmp_path).create_table("t", _rows(0, 100))
    stored.create_index("text", config=lancedb.index.FTS())
    stored.add(_rows(100, 300))
    table = memwal.enable(stored, primary_key=["id"], maintained_indexes=["text_idx"])
    assert [lag.rows for lag in table.status().indexes] == [300]
    table.build_indexes()
    assert [lag.rows for lag in table.status().indexes] == [0]
    stored.checkout_latest()
    stored.add(_rows(400, 50))
    table.checkpoint()
    assert [lag.rows for lag in table.status().indexes] == [0]


def test_enabling_needs_a_key_without_nulls(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, None, 3], pa.int64()), "n": [1, 2, 3]})
    stored = lancedb.connect(tmp_path).create_table("t", rows)
    with pytest.raises(InvalidInputError, match="id"):
        memwal.enable(stored, primary_key="id")
    assert lance.dataset(stored.uri).version == 1

    stored.delete("id IS NULL")
    table = memwal.enable(stored, primary_key="id")
    assert not table.schema.field("id").nullable
    assert len(table.region_ids()) == 1
    table.upsert({"id": [3, 4], "n": [30, 40]})
    assert sorted(table.scan().to_table().column("n").to_pylist()) == [1, 30, 40]


def test_a_null_that_is_appended_while_a_table_is_enabled_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = lancedb.connect(tmp_path).create_table("t", pa.table({"id": [1, 2]}))
    alter = lance.LanceDataset.alter_columns

    def append_first(dataset: lance.LanceDataset, *changes: object) -> None:
        monkeypatch.undo()
        stored.add(pa.table({"id": pa.array([None], pa.int64())}))
        alter(dataset, *changes)

    monkeypatch.setattr(lance.LanceDataset, "alter_columns", append_first)
    with pytest.raises(InvalidInputError, match="id"):
        memwal.enable(stored, primary_key="id")
    table = memwal.open(stored)
    assert table.schema.field("id").nullable
    assert table.count_rows() == 3
