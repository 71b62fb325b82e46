"""Indexes that miss rows since another client compacted the table, and what reads do about them."""

import logging
import shutil
from datetime import UTC, datetime
from pathlib import Path

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from support.data.tables import keys

import memwal
from memwal.jobs.due import due
from memwal.jobs.policy import Policy
from memwal.jobs.status import IndexLag, TableStatus
from memwal.lsm.indexes import unusable
from memwal.lsm.indexes.unusable import find_unusable, unusable_indexes

ROWS = 80
INDEXED = ("id", "n", "at")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("at", pa.timestamp("us")),
        pa.field("vec", pa.list_(pa.float32(), 4)),
    ]
)


def rows(first: int, last: int, *, plus: int = 0) -> pa.Table:
    """Return rows with keys from first to last, and a number that is larger by ``plus``."""
    numbers = np.arange(first, last)
    vectors = np.repeat(numbers, 4).astype(np.float32)
    return pa.table(
        {
            "id": numbers,
            "n": numbers + plus,
            "at": pa.array(numbers, pa.timestamp("us")),
            "vec": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 4),
        },
        schema=SCHEMA,
    )


def make(path: Path, *, stable_row_ids: bool) -> None:
    """Write four fragments with pylance, and BTREE indexes on the scalar columns."""
    step = ROWS // 4
    for first in range(0, ROWS, step):
        lance.write_dataset(
            rows(first, first + step), path, mode="append", enable_stable_row_ids=stable_row_ids
        )
    dataset = lance.dataset(path)
    names = [f"{column}_idx" for column in INDEXED]
    for column, name in zip(INDEXED, names, strict=True):
        dataset.create_scalar_index(column, "BTREE", name=name)
    memwal.enable(path, region_spec="unsharded", primary_key="id", maintained_indexes=names)


def optimize(path: Path) -> None:
    """Compact with LanceDB, whose Lance is older than that of pylance: indexes become stale."""
    lancedb.connect(path.parent).open_table(path.stem).optimize()


@pytest.fixture(scope="module", params=[True, False], ids=["stable", "plain"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "t.lance"
    make(path, stable_row_ids=request.param)
    return path


def compact(path: Path) -> None:
    lance.dataset(path).optimize.compact_files()


def compact_and_defer(path: Path) -> None:
    lance.dataset(path).optimize.compact_files(defer_index_remap=True)


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "t.lance"))


@pytest.fixture
def table(path: Path) -> memwal.Table:
    return memwal.open(str(path))


def is_stable(path: Path) -> bool:
    return bool(lance.dataset(path).has_stable_row_ids)


ID = pa.field("id", pa.int64(), nullable=False)


def check_reads(table: memwal.Table, plus: int = 0) -> None:
    """Every read must find every row."""
    found = table.lookup(keys(*range(ROWS))).to_table()
    assert sorted(found.column("id").to_pylist()) == list(range(ROWS))
    assert table.scan(filter="n >= 0").count_rows() == ROWS
    assert table.scan(filter="id in (3, 30, 70)").to_table().num_rows == 3
    assert table.scan(filter="at < timestamp '1970-01-01 00:00:01'").to_table().num_rows == ROWS
    nearest = table.search([5.0] * 4, column="vec", k=3, filter=f"n < {ROWS + plus}").to_table()
    assert nearest.column("id").to_pylist()[0] == 5
    assert sorted(table.scan().to_table().column("id").to_pylist()) == list(range(ROWS))


@pytest.mark.few(3)
@pytest.mark.parametrize("other", [optimize, compact, compact_and_defer])
def test_after_a_compaction_of_another_client(path, table, other):
    if other is compact_and_defer and is_stable(path):
        with pytest.raises(OSError, match="defer_index_remap"):
            other(path)
        return
    other(path)
    assert len(table.base().dataset.fragment_ids()) == 1
    check_reads(table)
    with table.writer() as writer:
        writer.upsert(rows(0, ROWS // 2, plus=1000))
        writer.delete(keys(ROWS - 1))
    table.merge()
    merged = table.base().dataset.to_table()
    assert sorted(merged.column("id").to_pylist()) == list(range(ROWS - 1))
    table.upsert(rows(ROWS - 1, ROWS))
    table.merge()
    table.build_indexes()
    assert find_unusable(table.base()) == unusable.UnusableIndexes()
    assert [lag.generations for lag in table.status().indexes] == [0, 0, 0]
    check_reads(table, plus=1000)
    assert table.verify().findings == ()


def test_only_an_index_that_misses_rows_is_unusable(path, table):
    assert unusable_indexes(table.base()) == ()
    compact(path)
    assert unusable_indexes(table.base()) == ()
    optimize(path)
    # Nothing is left to compact.
    assert unusable_indexes(table.base()) == ()


def test_what_is_said_about_a_stale_index(path, table, caplog):
    optimize(path)
    stale = ("at_idx", "id_idx", "n_idx") if is_stable(path) else ()
    with caplog.at_level(logging.WARNING):
        assert tuple(sorted(unusable_indexes(table.base()))) == stale
        check_reads(table)
    assert len([it for it in caplog.records if it.name == unusable.__name__]) == len(stale)
    status = table.status()
    assert sorted(lag.name for lag in status.indexes if lag.stale) == list(stale)
    assert TableStatus.from_dict(status.to_dict()) == status
    findings = table.verify().findings
    assert [(it.code, it.object) for it in findings] == [("index-stale", name) for name in stale]
    result = table.build_indexes()
    assert result.metrics["indexes"] == len(stale)
    assert not any(lag.stale for lag in table.status().indexes)
    assert table.verify().clean


def test_a_fragment_is_probed_once(path, table, monkeypatch):
    probed = []
    take = lance.LanceDataset.take

    def counted(dataset, indices, columns=None):
        if isinstance(columns, dict) and "value" in columns:
            probed.append(columns["value"])
        return take(dataset, indices, columns)

    monkeypatch.setattr(lance.LanceDataset, "take", counted)
    table.upsert(rows(0, 3, plus=5))
    check_reads(table)
    first = len(probed)
    assert first == (3 if is_stable(path) else 0)
    table.merge()
    check_reads(table)
    # The new fragment is covered by none of the indexes.
    assert len(probed) == first


def test_an_index_on_a_child_of_a_column_is_probed(tmp_path):
    path = tmp_path / "t.lance"
    for first in (0, 20, 40, 60):
        numbers = list(range(first, first + 20))
        nested = pa.table({"id": numbers, "s": [{"a": {"x": n}, "y": 0} for n in numbers]})
        nested = nested.cast(pa.schema([ID, nested.schema.field("s")]))
        lance.write_dataset(nested, path, mode="append", enable_stable_row_ids=True)
    lance.dataset(path).delete("id < 5 or id = 40")
    lance.dataset(path).create_scalar_index("s.a.x", "BTREE", name="x_idx")
    memwal.enable(str(path), region_spec="unsharded", primary_key=["id"])
    table = memwal.open(str(path))
    assert find_unusable(table.base()) == unusable.UnusableIndexes()
    optimize(path)
    (covered,) = table.base().dataset.fragment_ids()
    assert find_unusable(table.base()) == unusable.UnusableIndexes(stale={"x_idx": (covered,)})


def test_an_index_build_is_due_for_a_stale_index_alone():
    now = datetime(2026, 6, 1, tzinfo=UTC)
    for stale in (False, True):
        lag = IndexLag(name="id_idx", generations=0, regions=0, rows=0, stale=stale)
        status = TableStatus(
            uri="t", version=1, regions=(), indexes=(lag,), snapshot_age_seconds=0.0
        )
        decided = due(status, Policy(), now=now, last_runs={})
        assert (decided["index"].reason is not None) == stale


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_any_history_with_other_clients(path, table, seed):
    random = np.random.default_rng(seed)
    wanted = {number: number for number in range(ROWS)}

    def write() -> None:
        written = rows(int(random.integers(ROWS)), ROWS + 10, plus=int(random.integers(1_000)))
        gone = [int(number) for number in random.integers(ROWS, size=3)]
        with table.writer() as writer:
            writer.upsert(written)
            writer.delete(keys(*gone))
        wanted.update(zip(written["id"].to_pylist(), written["n"].to_pylist(), strict=True))
        for number in gone:
            wanted.pop(number, None)

    steps = [
        write,
        table.merge,
        table.build_indexes,
        table.compact,
        lambda: optimize(path),
        lambda: compact(path),
    ]
    for step in random.choice(len(steps), 12):
        steps[step]()
        found = table.lookup(keys(*range(ROWS + 10)), columns=["id", "n"]).to_table().to_pydict()
        assert dict(zip(found["id"], found["n"], strict=True)) == wanted
        few = table.lookup(keys(*sorted(wanted)[:3]), columns=["id"]).to_table()
        assert few.num_rows == 3
        filtered = table.scan(filter="n < 40", columns=["id"]).to_table()["id"].to_pylist()
        assert sorted(filtered) == sorted(k for k, n in wanted.items() if n < 40)
        merged = table.base().dataset.to_table(columns=["id"])["id"].to_pylist()
        assert len(set(merged)) == len(merged)
    assert [it.code for it in table.verify().findings if it.code != "index-stale"] == []


@pytest.mark.parametrize("is_older", [True, False])
def test_rows_that_are_found_beside_rows_that_are_missed(path, table, is_older):
    """Lance puts rows of a stale fragment and of another one into one, and rewrites the index."""
    theirs = lancedb.connect(path.parent).open_table(path.stem)
    if is_older:
        optimize(path)
    lance.write_dataset(rows(ROWS, ROWS + 1), path, mode="append")
    if not is_older:
        # The handle of before the append: what is compacted comes after the new fragment.
        theirs.optimize()
    lance.dataset(path).optimize.optimize_indices()
    fragments = [len(fragment.to_table()) for fragment in lance.dataset(path).get_fragments()]
    assert fragments == ([ROWS, 1] if is_older else [1, ROWS])
    compact(path)
    assert len(lance.dataset(path).fragment_ids()) == 1
    assert bool(unusable_indexes(table.base())) == is_stable(path)
    table.upsert(rows(0, ROWS + 1, plus=1000))
    table.merge()
    assert sorted(table.base().dataset.to_table().column("id").to_pylist()) == list(range(ROWS + 1))
