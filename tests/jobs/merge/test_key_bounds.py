"""Small merges without an index on the key: they read fragments that may have their keys."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.tables import Rows, flush, folder, rows
from support.stores.faulty_store import FaultyStore, FaultyStores, Killed, Pause

import memwal
from memwal.errors import MemWalError
from memwal.jobs.merge import match
from memwal.jobs.merge.key_bounds import KeyBounds
from memwal.jobs.merge.run_files import MERGES_DIR

BOUNDS = f"{MERGES_DIR}/key-bounds.arrow"
ROWS, PART = 40_000, 2_000
RECENT: Rows = dict.fromkeys(range(ROWS - 50, ROWS + 50), 1)


@pytest.fixture(autouse=True)
def _few_rows_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match, "_MANY_ROWS", 0)


@pytest.fixture
def expected() -> Rows:
    """Rows of the base table as they should be."""
    return dict.fromkeys(range(ROWS), 0)


@pytest.fixture
def table(tmp_path: Path, expected: Rows) -> memwal.Table:
    """A table of 20 fragments without an index."""
    uri = str(tmp_path / "table")
    lance.write_dataset(rows(expected), uri, max_rows_per_file=PART)
    return memwal.enable(uri, primary_key=["id"], region_spec="bucket:id:2")


def change(
    table: memwal.Table, expected: Rows, written: Rows, deleted: tuple[int, ...] = ()
) -> None:
    """Write rows and deletes that a merge takes."""
    flush(table, written, list(deleted))
    expected |= written
    for key in deleted:
        expected.pop(key, None)


def check(table: memwal.Table, expected: Rows) -> None:
    """The base table has these rows, once each."""
    found = lance.dataset(table.uri).to_table(columns=["id", "n"])
    assert found.num_rows == len(expected)
    assert dict(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected


def bounds_of(table: memwal.Table, data_type: pa.DataType | None = None) -> KeyBounds:
    return KeyBounds.read(table.base(), data_type or pa.int64())


def unknown_of(table: memwal.Table, *wanted: int) -> tuple[list[int], list[int]]:
    """Ids of the fragments without bounds, and of those in whose bounds a key is."""
    unknown, possible = bounds_of(table).divide(
        pa.array(wanted, pa.int64()), table.base().dataset.get_fragments()
    )
    return [part.fragment_id for part in unknown], [part.fragment_id for part in possible]


def test_later_merges_read_few_fragments(table: memwal.Table, expected: Rows) -> None:
    change(table, expected, RECENT, (ROWS - 3, 5 * ROWS))
    first = table.merge()
    check(table, expected)
    assert unknown_of(table, 10, PART + 10, ROWS + 10) == ([20], [0, 1])

    change(table, expected, dict.fromkeys(range(ROWS, ROWS + 100), 2), (ROWS - 4, 10))
    second = table.merge()

    check(table, expected)
    assert (first.commits, second.commits) == (1, 1)
    assert 0 < second.metrics["bytes_read"] < first.metrics["bytes_read"] / 3
    assert unknown_of(table, ROWS + 10) == ([21], [20])


def test_keys_all_over_the_table_are_left_to_lance(table: memwal.Table, expected: Rows) -> None:
    table.merge()
    change(table, expected, dict.fromkeys(range(0, ROWS, 100), 1), (7,))
    assert table.merge().commits == 1, "bounds are not known yet"
    change(table, expected, dict.fromkeys(range(0, ROWS, 100), 2), (8,))
    assert table.merge().commits == 2
    check(table, expected)


KEYS: dict[str, Callable[[int], Any]] = {
    "text": lambda n: f"käse {n:06}",
    "binary": lambda n: b"\xff" + n.to_bytes(4),
    "large text": lambda n: f"{n:06}",
    "unsigned": lambda n: (1 << 63) + n,
    "negative": lambda n: n - (1 << 40),
    "two columns": lambda n: f"{n:06}",
}
TYPES = {
    "text": pa.string(),
    "binary": pa.binary(),
    "large text": pa.large_string(),
    "unsigned": pa.uint64(),
    "negative": pa.int64(),
    "two columns": pa.string(),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_each_type(tmp_path: Path, kind: str) -> None:
    names = ["key", "second"] if kind == "two columns" else ["key"]

    def made(numbers: range, n: int) -> pa.Table:
        schema = pa.schema(
            [
                pa.field("key", TYPES[kind], nullable=False),
                pa.field("second", pa.int32(), nullable=False),
                ("n", pa.int64()),
            ]
        )
        values = [[KEYS[kind](number) for number in numbers], [3] * len(numbers)]
        return pa.table([*values, [n] * len(numbers)], schema=schema)

    uri = str(tmp_path / "table")
    lance.write_dataset(made(range(1_000), 0), uri, max_rows_per_file=100)
    table = memwal.enable(uri, primary_key=names, region_spec=memwal.RegionSpec.unsharded())
    for n in (1, 2, 3):
        with table.writer() as writer:
            writer.upsert(made(range(930 + 10 * n, 1_000 + 10 * n), n))
            writer.delete(made(range(900 + n, 901 + n), n).select(names))
        assert table.merge().commits == 1

    found = lance.dataset(uri).to_table().sort_by("key")
    numbers = [n for n in range(1_030) if n not in (901, 902, 903)]
    assert found["key"].to_pylist() == [KEYS[kind](n) for n in numbers]
    assert found["n"].to_pylist() == [
        0 if n < 940 else 1 if n < 950 else 2 if n < 960 else 3 for n in numbers
    ]


def test_rows_that_are_deleted_count_since_they_may_come_back(
    table: memwal.Table, expected: Rows
) -> None:
    dataset = lance.dataset(table.uri)
    dataset.delete("id < 10 or id >= 2000 and id < 2005 or id = 3999")
    before = {key: expected.pop(key) for key in [*range(10), *range(2_000, 2_005), 3_999]}
    change(table, expected, RECENT)
    table.merge()
    assert unknown_of(table, 3) == ([20], [0])
    assert unknown_of(table, 3_999) == ([20], [1])
    check(table, expected)

    # As a client that writes directly would, in a version without these deletions.
    change(table, expected, dict.fromkeys(before, 7))
    table.merge()
    check(table, expected)


def append(table: memwal.Table, expected: Rows) -> None:
    more = dict.fromkeys(range(ROWS + 200, ROWS + 210), 5)
    lance.write_dataset(rows(more), table.uri, mode="append")
    expected |= more


def update(table: memwal.Table, expected: Rows) -> None:
    more = dict.fromkeys((3, ROWS + 205), 6)
    dataset = lance.dataset(table.uri)
    merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(rows(more))
    expected |= more


def compact(table: memwal.Table, expected: Rows) -> None:
    lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=3 * PART)


@pytest.mark.parametrize("other", [append, update, compact])
def test_other_clients_commit_in_between(
    table: memwal.Table, expected: Rows, other: Callable[[memwal.Table, Rows], None]
) -> None:
    change(table, expected, RECENT)
    table.merge()
    other(table, expected)
    for n in (1, 2):
        change(
            table, expected, dict.fromkeys((3, 4, ROWS - 5, ROWS + 205, ROWS + 206), 8 + n), (9,)
        )
        table.merge()
        check(table, expected)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:10],
        lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
        lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:],
        lambda data: None,
    ],
)
def test_without_the_whole_object_all_keys_are_read(
    table: memwal.Table, expected: Rows, damage: Callable[[bytes], bytes | None]
) -> None:
    change(table, expected, RECENT)
    table.merge()
    path = folder(table) / BOUNDS
    damaged = damage(path.read_bytes())
    path.unlink()
    if damaged is not None:
        path.write_bytes(damaged)
    assert len(unknown_of(table, 10)[0]) == 21

    change(table, expected, {3: 4, ROWS + 7: 4}, (ROWS - 1,))
    table.merge()

    check(table, expected)
    assert unknown_of(table, 3) == ([21], [0])


def test_bounds_of_other_types_do_not_count(table: memwal.Table) -> None:
    flush(table, RECENT)
    table.merge()
    assert bounds_of(table).stored.num_rows == 20
    assert bounds_of(table, pa.int32()).stored.num_rows == 0


def test_long_keys_are_read_each_time(tmp_path: Path) -> None:
    def made(*numbers: int) -> pa.Table:
        key = pa.field("id", pa.string(), nullable=False)
        values = [f"{n:04}" + "x" * (1_000 if n == 15 else 0) for n in numbers]
        return pa.table([values], schema=pa.schema([key]))

    uri = str(tmp_path / "table")
    lance.write_dataset(made(*range(100)), uri, max_rows_per_file=16)
    table = memwal.enable(uri, primary_key=["id"], region_spec=memwal.RegionSpec.unsharded())
    for _ in range(2):
        with table.writer() as writer:
            writer.upsert(made(15, 99, 100))
        table.merge()

    bounds = bounds_of(table, pa.string())
    unknown, _ = bounds.divide(pa.array(["0099"]), table.base().dataset.get_fragments())
    assert unknown[0].fragment_id == 0
    assert lance.dataset(uri).count_rows() == 101


@pytest.mark.parametrize("after", [False, True])
def test_a_death_where_bounds_are_stored_merges_nothing(
    faults: FaultyStores, table: memwal.Table, expected: Rows, after: bool
) -> None:
    change(table, expected, RECENT, (ROWS - 3,))
    store: FaultyStore = faults.of(table.location)
    store.kill("put", BOUNDS, after=after)
    with pytest.raises((Killed, MemWalError)):
        table.merge()
    store.clear()
    assert table.status().backlog_generations == 3

    assert table.merge().metrics["generations"] == 3
    check(table, expected)


@pytest.mark.parametrize("between", [None, append, update, compact])
def test_one_pauses_where_it_stores_bounds_and_comes_late(
    faults: FaultyStores,
    table: memwal.Table,
    expected: Rows,
    between: Callable[[memwal.Table, Rows], None] | None,
) -> None:
    change(table, expected, RECENT, (ROWS - 3,))
    pause = Pause()
    faults.of(table.location).act("put", pause.stand, key=BOUNDS)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(table.merge)
        try:
            assert pause.wait_until_reached(late)
            memwal.open(table.uri).merge()
            if between is not None:
                between(table, expected)
            change(table, expected, dict.fromkeys(range(ROWS - 60, ROWS + 60), 3), (1,))
            memwal.open(table.uri).merge()
        finally:
            pause.release()
        assert late.result().metrics["generations"] == 0
    check(table, expected)

    # What the late one stored leaves fragments out, and is true.
    change(table, expected, dict.fromkeys([2, *range(ROWS - 70, ROWS + 207)], 4), (1, 5))
    table.merge()
    check(table, expected)


def test_tables_with_stable_row_ids_keep_them(tmp_path: Path, expected: Rows) -> None:
    uri = str(tmp_path / "stable")
    lance.write_dataset(rows(expected), uri, max_rows_per_file=PART, enable_stable_row_ids=True)
    table = memwal.enable(uri, primary_key=["id"], region_spec="bucket:id:2")
    change(table, expected, RECENT)
    table.merge()
    found = lance.dataset(uri).to_table(columns=["id"], with_row_id=True)
    ids = dict(zip(found["id"].to_pylist(), found["_rowid"].to_pylist(), strict=True))
    assert [ids[key] for key in range(ROWS)] == list(range(ROWS))
    check(table, expected)
