"""No commit names a file that was not written whole."""

from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.tables import MakeTable, folder, keys, numbered, rows, state
from support.faults.lost_writes import bad_files, cut_new_files
from support.stores.faulty_store import FaultyStores

import memwal
from memwal.base_table.named_files import find_bad_files
from memwal.format.lance_files import FileKind, deleted_rows
from memwal.format.lance_manifest import named_files
from memwal.format.paths import table_manifest_keys
from memwal.storage.open import open_store
from memwal.util.retry import LostWriteError

# A version that is not named yet.
STAGED = "_versions/*.manifest-*"


def test_files_of_a_whole_table_are_sound_and_cut_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    count = 20_000
    data = {"id": range(count), "text": ["words of a row"] * count}
    dataset = lance.write_dataset(pa.table(data), path, max_rows_per_file=count // 2)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("text", "INVERTED")
    # Few deleted rows become a list, many a bitmap; some bitmaps have runs.
    dataset.delete("id < 3 or (id >= 10000 and (id % 3 = 0 or id > 15000))")
    manifest = (path / table_manifest_keys(dataset.version)[0]).read_bytes()
    files = named_files(manifest)
    store = open_store(path)

    assert {file.kind for file in files} == set(FileKind) - {FileKind.SEGMENT, FileKind.BLOBS}
    assert {path / file.key for file in files} == {
        file
        for pattern in ("data/*", "_deletions/*", "_indices/*/*")
        for file in path.glob(pattern)
    } | {max(path.glob("_transactions/*"), key=lambda file: int(file.name.partition("-")[0]))}
    assert find_bad_files(store, files) == []
    for file in files:
        whole = (path / file.key).read_bytes()
        for size in {0, 1, 128, 256, len(whole) // 2, len(whole) - 1} - {len(whole)}:
            (path / file.key).write_bytes(whole[:size])
            assert [bad.key for bad in find_bad_files(store, files)] == [file.key], (file, size)
        (path / file.key).unlink()
        assert [bad.problem for bad in find_bad_files(store, files)] == [None]
        (path / file.key).write_bytes(whole)


@pytest.mark.parametrize("shape", ["array", "bitmap", "runs", "few-runs"])
def test_a_bitmap_of_deleted_rows_is_as_long_as_it_says(tmp_path: Path, shape: str) -> None:
    ids = np.arange(300_000 if shape == "runs" else 140_000)
    condition = {
        "array": "id % 20 = 0",
        "bitmap": "id % 2 = 0",
        "runs": "id > 100",
        "few-runs": "id > 100",
    }[shape]
    dataset = lance.write_dataset(pa.table({"id": ids}), tmp_path / "t.lance")
    dataset.delete(condition)
    (file,) = (tmp_path / "t.lance").glob("_deletions/*.bin")
    manifest = (tmp_path / "t.lance" / table_manifest_keys(dataset.version)[0]).read_bytes()
    store = open_store(tmp_path / "t.lance")

    assert find_bad_files(store, named_files(manifest)) == []
    whole = file.read_bytes()
    left = dataset.to_table().column("id").to_numpy()
    assert np.array_equal(
        deleted_rows(whole, FileKind.DELETED_BITMAP), np.setdiff1d(ids, left, assume_unique=True)
    )
    for size in range(1, len(whole), max(1, len(whole) // 50)):
        file.write_bytes(whole[:size])
        assert len(find_bad_files(store, named_files(manifest))) == 1, size


@pytest.fixture
def table(make_table: MakeTable) -> memwal.Table:
    """A table of four fragments, with a generation to merge."""
    table = make_table(maintained_indexes=["id_idx"])
    for start in range(0, 40, 10):
        table.upsert(numbered(start, 10))
        table.merge()
    table.build_indexes()
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 100: 100}))
        writer.delete(keys(2))
    return table


Job = Callable[[memwal.Table], object]

JOBS: dict[str, Job] = {
    "merge": lambda table: table.merge(),
    "index": lambda table: table.build_indexes(),
    "compact": lambda table: table.compact(min_fragments=2),
    "snapshot": lambda table: table.build_snapshot(),
}


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("job", "pattern"),
    [
        ("merge", "data/*"),
        ("merge", "_deletions/*"),
        ("merge", "_transactions/*"),
        ("index", "_indices/*/*"),
        ("compact", "data/*"),
        ("snapshot", STAGED),
    ],
)
@pytest.mark.parametrize("size", [0, 128])
def test_a_file_that_lost_its_end_is_not_committed(
    table: memwal.Table, faults: FaultyStores, job: str, pattern: str, size: int
) -> None:
    if job == "index":
        table.merge()
    expected = state(table)
    store = faults.of(table.location)
    store.act("get", cut_new_files(table, pattern, size), key=STAGED, times=1_000)
    data = folder(table) / "data"
    before = set(data.iterdir())

    with pytest.raises(LostWriteError):
        JOBS[job](table)
    if job == "compact":
        assert set(data.iterdir()) == before
    assert bad_files(table) == []
    assert state(table) == expected

    store.clear()
    store.act("get", cut_new_files(table, pattern, size), key=STAGED)
    JOBS[job](table)
    assert bad_files(table) == []
    assert state(table) == expected
    assert state(lance.dataset(folder(table)).to_table())
