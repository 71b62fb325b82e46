"""Writing a MemTable as a generation."""

import contextlib
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileReader
from support.data.dictionaries import DICTIONARIES, categories, dictionary_table, values, wanted
from support.data.tables import (
    REGION,
    MakeTable,
    folder,
    generations,
    keys,
    manifest,
    numbered,
    region_folders,
    rows,
    state,
)
from support.faults.collecting import DAY, collect
from support.faults.lost_writes import cut_new_files
from support.oracles.native import flushed
from support.stores.faulty_store import GENERATION, FaultyStores, Killed

import memwal
from memwal.errors import MemWalError
from memwal.format._proto import lance_manifest_pb2
from memwal.format.bloom import BloomFilter
from memwal.format.paths import generation_dir
from memwal.lsm.flush import generation
from memwal.lsm.indexes.maintained import maintained_indexes
from memwal.util.retry import LostWriteError


def path(table: memwal.Table) -> str:
    return str(folder(table) / generation_dir(REGION, manifest(table).flushed[-1].path))


def sidecar(table: memwal.Table, name: str) -> tuple[pa.Table, dict[str, str]]:
    reader = LanceFileReader(f"{path(table)}/_pk_index/{name}.lance")
    metadata = reader.metadata().schema.metadata or {}
    return reader.read_all().to_table(), {k.decode(): v.decode() for k, v in metadata.items()}


def test_is_one_file_however_many_batches_it_is_written_from(table: memwal.Table) -> None:
    """Each file costs a reader a request, and a take of its own."""
    wide = pa.table({"id": range(5_000), "text": ["x" * 1_000] * 5_000, "n": [0] * 5_000})
    dataset = flushed(table, wide.slice(0, 3_000), wide.slice(3_000))
    (fragment,) = dataset.get_fragments()
    assert (fragment.physical_rows, len(fragment.data_files())) == (5_000, 1)


def test_that_ends_between_two_of_its_files_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches whose dictionaries have too many values together are written into a file each."""
    table = dictionary_table(tmp_path / "table.lance")
    written: list[Any] = []
    write = generation.write_fragments

    def first_only(*arguments: Any, **options: Any) -> Any:
        if written:
            raise OSError("LanceError(IO): No space left on device (os error 28)")
        written.append(write(*arguments, **options))
        return written[-1]

    writer = table.writer(options=memwal.WriterOptions(flush_attempts=1))
    for start in (0, 100):
        writer.upsert(categories(start, start + 100))
    monkeypatch.setattr(generation, "write_fragments", first_only)
    with pytest.raises(MemWalError):
        writer.flush()
    with pytest.raises(MemWalError):
        writer.close()
    assert len(written) == 1

    monkeypatch.undo()
    with table.writer() as successor:
        successor.claim()
    found = lance.dataset(path(table))
    assert len(found.get_fragments()) == 2
    assert values(found.to_table(columns=DICTIONARIES.names)) == wanted(200)


def test_many_keys_have_a_filter_of_their_size_as_well(table: memwal.Table) -> None:
    flushed(table, numbered(0, 500))
    assert not Path(path(table), "memwal_bloom.bin").exists()
    flushed(table, numbered(0, 50_000), keys(100_000))
    bloom = BloomFilter.from_sized(Path(path(table), "memwal_bloom.bin").read_bytes())
    assert bloom.might_contain([keys(*range(50_000), 100_000)]).all()
    assert bloom.might_contain([keys(*range(200_000, 300_000))]).mean() < 0.002


@pytest.mark.parametrize("name", ["memwal_bloom.bin", "bloom_filter.bin"])
@pytest.mark.parametrize("after", [False, True])
def test_a_flush_that_sleeps_at_a_filter_until_its_folder_is_collected_is_made_good(
    quick_faults: FaultyStores, make_table: MakeTable, name: str, after: bool
) -> None:
    """What it writes when it goes on is an orphan once more, which the next collection deletes."""
    table = make_table()
    store = quick_faults.of(table.location)
    writer = table.writer()
    writer.upsert(numbered(0, 25_000))
    found: list[set[str]] = []

    def sleep() -> None:
        found.append(region_folders(table))
        for days in (2, 4, 6):
            collect(table, days * DAY)
        assert region_folders(table) < found[0]

    rule = store.act("put", sleep, key=f"{GENERATION}/{name}", after=after)
    writer.flush()
    writer.close()

    assert rule.hits
    (flushed,) = manifest(table).flushed
    assert table.count_rows() == 25_000
    for days in (8, 10, 12):
        collect(table, days * DAY)
    assert region_folders(table) == {flushed.path}
    assert table.count_rows() == 25_000


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
def test_a_flush_that_fails_at_the_sized_filter_is_made_good(
    quick_faults: FaultyStores, make_table: MakeTable, after: bool, repeated: bool
) -> None:
    """The process dies there, or the store does not answer and the flush is repeated."""
    table = make_table()
    store = quick_faults.of(table.location)
    writer = table.writer()
    writer.upsert(numbered(0, 25_000))
    key = f"{GENERATION}/memwal_bloom.bin"
    if repeated:
        rule = store.fail("put", key, after=after)
    else:
        rule = store.kill("put", key, after=after, times=1_000)
    with contextlib.suppress(MemWalError, Killed):
        writer.flush()
    assert rule.hits
    if not repeated:
        assert generations(table) == []
        writer.abort()
        store.clear()
        with table.writer() as writer:
            writer.claim()
            writer.flush()
    else:
        writer.close()
    assert len(generations(table)) == 1
    assert BloomFilter.from_sized(Path(path(table), "memwal_bloom.bin").read_bytes())
    assert table.count_rows() == 25_000


def test_has_a_sorted_index_of_its_keys(table: memwal.Table) -> None:
    dataset = flushed(table, rows({key: key for key in (5, 3, 9, 1)}), rows({3: 33}), keys(7))
    position = {row["id"]: at for at, row in enumerate(dataset.to_table().to_pylist())}

    data, _ = sidecar(table, "page_data")
    lookup, metadata = sidecar(table, "page_lookup")

    assert data.column("values").to_pylist() == sorted(position)
    assert data.column("ids").to_pylist() == [position[key] for key in sorted(position)]
    assert lookup.to_pylist() == [{"min": 1, "max": 9, "null_count": 0, "page_idx": 0}]
    assert metadata["batch_size"] == "8192"
    assert metadata["range_partitioned"] == "false"


def test_has_an_index_page_for_each_8192_keys(table: memwal.Table) -> None:
    flushed(table, numbered(0, 20_000))

    data, _ = sidecar(table, "page_data")
    lookup, _ = sidecar(table, "page_lookup")

    assert data.num_rows == 20_000
    assert [(row["min"], row["max"]) for row in lookup.to_pylist()] == [
        (0, 8191),
        (8192, 16_383),
        (16_384, 19_999),
    ]


def test_composite_keys_are_indexed_as_one(make_table: MakeTable) -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False),
            pa.field("b", pa.string(), nullable=False),
            pa.field("n", pa.int64()),
        ]
    )
    table = make_table(schema, primary_key=("a", "b"))
    pairs = [(2, "x"), (-1, "y"), (2, ""), (0, "a\0b")]
    flushed(
        table,
        pa.table(
            {
                "a": pa.array([a for a, _ in pairs], pa.int32()),
                "b": [b for _, b in pairs],
                "n": range(4),
            },
            schema=schema,
        ),
    )

    data, _ = sidecar(table, "page_data")

    assert data.schema.field("values").type == pa.binary()
    assert data.column("ids").to_pylist() == [1, 3, 2, 0]


class TestMaintainedIndexes:
    def test_are_those_that_the_table_names(self, make_table: MakeTable) -> None:
        table = make_table(maintained_indexes=["n_idx"])
        table.base().dataset.create_scalar_index("text", "BITMAP", name="other")

        assert [
            (i.name, i.column, i.kind.pylance_name) for i in maintained_indexes(table.base())
        ] == [("n_idx", "n", "BTREE")]

    def test_that_do_not_exist_are_left_out(self, make_table: MakeTable) -> None:
        table = make_table(maintained_indexes=["n_idx"])
        table.base().dataset.drop_index("n_idx")
        dataset = flushed(table, rows({1: 1}))
        assert not dataset.describe_indices()


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.int64()), [[1, 2], [], None]),
        (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [3.0, 4.0]]),
        (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, None, None]),
        (pa.timestamp("us", "UTC"), [0, None, 5]),
        (pa.decimal128(10, 2), [None, None, None]),
        (pa.binary(), [b"", b"\0", None]),
        (pa.bool_(), [True, None, False]),
        (pa.date32(), [0, None, 1]),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_manifest_is_that_of_lances_own_commit(
    make_table: MakeTable, kind: pa.DataType, values: list[Any]
) -> None:
    """Of columns of every type, whose values are in tests/writer/test_types.py."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", kind)])
    table = make_table(schema)
    table.upsert(pa.table({"id": [1, 2, 3], "x": pa.array(values, kind)}, schema=schema))
    check_manifest(lance.dataset(path(table)), table)


def check_manifest(dataset: lance.LanceDataset, table: memwal.Table) -> None:
    """Compare the manifest of a generation with the one of Lance's own commit of the rows."""
    version = dataset.data_storage_version
    native = lance.write_dataset(
        dataset.to_table(), f"{folder(table)}-native", data_storage_version=version
    )
    ours, theirs = (
        lance_manifest_pb2.Manifest.FromString(each._ds.serialized_manifest())
        for each in (dataset, native)
    )
    for message in (ours, theirs):
        for name in ("timestamp", "transaction_file", "transaction_section"):
            message.ClearField(name)
        for file in message.fragments[0].files:
            file.path, file.file_size_bytes = "", 0
    assert ours == theirs


@pytest.mark.few(3)
@pytest.mark.usefixtures("of_few_rows")
@pytest.mark.parametrize(
    "pattern",
    [
        "data/*",
        "_pk_index/page_data.lance",
        "_pk_index/page_lookup.lance",
        "_indices/*/*",
        "_versions/*.manifest",
        "_transactions/*",
        "bloom_filter.bin",
    ],
)
def test_a_generation_with_a_file_that_lost_its_end_is_written_again(
    make_table: MakeTable, quick_faults: FaultyStores, pattern: str
) -> None:
    table = make_table(maintained_indexes=["id_idx"])
    files = f"_mem_wal/*/*_gen_*/{pattern}"
    store = quick_faults.of(table.location)
    store.act("sync", cut_new_files(table, files, 128), key=GENERATION, times=1_000)

    with table.writer(options=memwal.WriterOptions(flush_attempts=1)) as writer:
        writer.upsert(rows({1: 1}))
        with pytest.raises(LostWriteError):
            writer.flush()
        assert generations(table) == []
        assert state(writer) == {1: 1}
        store.clear()
        writer.flush()
    with table.writer(options=memwal.WriterOptions(flush_attempts=2)) as writer:
        store.act("sync", cut_new_files(table, files), key=GENERATION)
        writer.upsert(rows({2: 2}))
        writer.flush()

    assert len(generations(table)) == 2
    assert state(table) == {1: 1, 2: 2}
    assert table.verify().clean
