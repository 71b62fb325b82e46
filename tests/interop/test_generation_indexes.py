"""Generations carry the base table's indexes with its parameters, and Lance searches by them."""

import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader
from lance.indices import IndexConfig
from lance.mem_wal import LsmVectorSearchPlanner
from lance.query import DocumentGranularity
from support.data.merging import Merge
from support.data.tables import REGION, manifest
from support.oracles import native
from support.oracles.native import flushed
from support.stores.s3_emulator import S3Emulator

import memwal
from memwal.format.paths import generation_dir

pytestmark = pytest.mark.usefixtures("of_few_rows")

DIMENSION = 16
BASE_ROWS = 600

KEY = pa.field("id", pa.int64(), nullable=False)
VECTORS = pa.schema([KEY, pa.field("v", pa.list_(pa.float32(), DIMENSION))])
TEXTS = pa.schema([KEY, pa.field("s", pa.string())])

POINTS = np.random.default_rng(7).random((BASE_ROWS + 100, DIMENSION), dtype=np.float32)

VECTOR_KINDS: dict[str, dict[str, Any]] = {
    "IVF_FLAT": {},
    "IVF_PQ": {"num_sub_vectors": 4},
    "IVF_SQ": {},
    "IVF_RQ": {"num_bits": 3},
    "IVF_HNSW_FLAT": {"m": 12, "ef_construction": 60, "max_level": 5},
    "IVF_HNSW_PQ": {"num_sub_vectors": 8},
    "IVF_HNSW_SQ": {"m": 8},
}


METRICS = ["l2", "cosine", "dot"]
# By default each kind with one metric, and each metric with two kinds or three.
EACH_KIND_AND_METRIC = pytest.mark.parametrize(
    ("kind", "metric"),
    [
        pytest.param(kind, metric, marks=[] if (k + m) % len(METRICS) == 0 else pytest.mark.slow)
        for k, kind in enumerate(VECTOR_KINDS)
        for m, metric in enumerate(METRICS)
    ],
)


def vectors(ids: range, *, points: np.ndarray[Any, Any] = POINTS) -> pa.Table:
    column = pa.FixedSizeListArray.from_arrays(points[list(ids)].ravel(), DIMENSION)
    return pa.table({"id": pa.array(ids), "v": column}, schema=VECTORS)


def enabled(path: Path, *, data: pa.Table, index: Callable[[lance.LanceDataset], object]) -> Any:
    """A table over data that has an index, and maintains it."""
    uri = str(path / "table")
    index(lance.write_dataset(data, uri, data_storage_version="2.2"))
    return memwal.enable(uri, primary_key=["id"], region_spec="unsharded", maintained_indexes=None)


@functools.cache
def first_table(kind: str, metric: str) -> tuple[tempfile.TemporaryDirectory[str], str]:
    """The table that each test gets a copy of, and the folder that goes with the process."""
    home = tempfile.TemporaryDirectory(prefix="memwal-vectors-")
    table = enabled(
        Path(home.name),
        data=vectors(range(BASE_ROWS)),
        index=lambda d: d.create_index(
            "v", kind, name="i", metric=metric, num_partitions=2, **VECTOR_KINDS[kind]
        ),
    )
    return home, table.uri


def vector_table(path: Path, kind: str, *, metric: str = "l2") -> memwal.Table:
    uri = str(path / "table")
    shutil.copytree(first_table(kind, metric)[1], uri)
    return memwal.open(uri)


def description(dataset: lance.LanceDataset) -> Any:
    (found,) = [d for d in dataset.describe_indices() if not d.name.startswith("__")]
    return found


def model(dataset: lance.LanceDataset) -> dict[str, Any]:
    """What decides about the distances of a vector index: read as bytes, without our code."""
    found = description(dataset)
    folder = f"{dataset.uri}/_indices/{found.segments[0].uuid}"
    index = LanceFileReader(f"{folder}/index.idx")
    auxiliary = LanceFileReader(f"{folder}/auxiliary.idx")
    storage = json.loads(json.loads(auxiliary.metadata().schema.metadata[b"storage_metadata"])[0])
    position = storage.get("codebook_position")
    centroids = lance.lance.indices.get_ivf_model(dataset._ds, found.name).centroids
    details = {k: v for k, v in found.details.items() if k != "runtime_hints"}
    return {
        "kind": json.loads(index.metadata().schema.metadata[b"lance:index"]),
        "centroids": centroids.flatten().to_numpy().tobytes(),
        "codebook": auxiliary.read_global_buffer(position) if position else None,
        "details": details,
        # Scalar quantization takes its bounds from the data; they do not shift distances.
        "storage": {k: v for k, v in storage.items() if k != "bounds"},
    }


def nearest(
    table: memwal.Table, point: np.ndarray[Any, Any], *, k: int = 5, metric: str = "l2"
) -> dict[int, float]:
    """Ids and distances of what Lance's own vector search finds, nearest first."""
    planner = LsmVectorSearchPlanner(
        native.dataset(table), native.snapshots(table), "v", distance_type=metric
    )
    found = planner.plan_search(pa.array(point, pa.float32()), k=k, nprobes=100).to_table()
    found = found.sort_by("_distance")
    return dict(zip(found["id"].to_pylist(), found["_distance"].to_pylist(), strict=True))


@pytest.mark.few(4)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", VECTOR_KINDS)
def test_vector_index_has_the_model_of_the_base_table(
    tmp_path: Path, kind: str, metric: str
) -> None:
    table = vector_table(tmp_path, kind, metric=metric)

    dataset = flushed(table, vectors(range(BASE_ROWS, BASE_ROWS + 60)))

    assert model(dataset) == model(native.dataset(table))
    assert description(dataset).num_rows_indexed == 60


@pytest.mark.few(2)
@EACH_KIND_AND_METRIC
def test_native_vector_search_sees_flushed_rows(tmp_path: Path, kind: str, metric: str) -> None:
    table = vector_table(tmp_path, kind, metric=metric)
    copies = vectors(range(5, 7)).set_column(0, KEY, pa.array([1000, 1001]))

    flushed(table, vectors(range(BASE_ROWS, BASE_ROWS + 60)), copies)

    found = nearest(table, POINTS[5], k=60, metric=metric)
    assert found[1000] == found[5]
    if metric != "dot":
        for key in range(BASE_ROWS, BASE_ROWS + 60, 4):
            assert next(iter(nearest(table, POINTS[key], metric=metric))) == key


@pytest.mark.few(3)
@EACH_KIND_AND_METRIC
def test_equal_vectors_have_equal_codes(tmp_path: Path, kind: str, metric: str) -> None:
    """Estimated distances of the base table and of a generation are then equal too."""
    table = vector_table(tmp_path, kind, metric=metric)
    dataset = flushed(table, vectors(range(BASE_ROWS)))
    assert codes(dataset).equals(codes(native.dataset(table)))


def codes(dataset: lance.LanceDataset) -> pa.Table:
    folder = f"{dataset.uri}/_indices/{description(dataset).segments[0].uuid}"
    return LanceFileReader(f"{folder}/auxiliary.idx").read_all().to_table().sort_by("_rowid")


@pytest.mark.parametrize("kind", VECTOR_KINDS)
class TestFewVectors:
    def test_one_row(self, tmp_path: Path, kind: str) -> None:
        table = vector_table(tmp_path, kind)
        flushed(table, vectors(range(BASE_ROWS, BASE_ROWS + 1)))
        assert next(iter(nearest(table, POINTS[BASE_ROWS]))) == BASE_ROWS
        assert next(iter(nearest(table, POINTS[3]))) == 3

    def test_no_vector_at_all(self, tmp_path: Path, kind: str) -> None:
        table = vector_table(tmp_path, kind)
        nulls = pa.nulls(2, VECTORS.field("v").type)
        dataset = flushed(table, pa.table([pa.array([1, 1000]), nulls], schema=VECTORS))
        assert description(dataset).name == "i"
        assert not {1, 1000} & nearest(table, POINTS[1], k=50).keys()

    @pytest.mark.few(3)
    def test_vectors_without_a_distance(self, tmp_path: Path, kind: str) -> None:
        table = vector_table(tmp_path, kind, metric="cosine")
        odd = np.array([np.full(DIMENSION, n) for n in (np.nan, np.inf, 0)], np.float32)
        flushed(table, vectors(range(3), points=odd), vectors(range(BASE_ROWS, BASE_ROWS + 1)))
        found = nearest(table, POINTS[BASE_ROWS], k=50, metric="cosine")
        assert next(iter(found)) == BASE_ROWS
        assert not {0, 1, 2} & found.keys()

    def test_deletes_alone(self, tmp_path: Path, kind: str) -> None:
        table = vector_table(tmp_path, kind)
        flushed(table, pa.array([1, 2, 1000]))
        found = nearest(table, POINTS[1], k=50)
        assert found
        assert not {1, 2, 1000} & found.keys()


@pytest.mark.parametrize(
    ("item", "kind", "metric", "options"),
    [
        (pa.float16(), "IVF_PQ", "l2", {"num_sub_vectors": 4}),
        (pa.float64(), "IVF_PQ", "cosine", {"num_sub_vectors": 4, "num_bits": 4}),
        (pa.float64(), "IVF_HNSW_SQ", "l2", {}),
        (pa.uint8(), "IVF_FLAT", "hamming", {}),
    ],
    ids=str,
)
def test_vectors_of_every_type(
    tmp_path: Path, item: pa.DataType, kind: str, metric: str, options: dict[str, Any]
) -> None:
    schema = pa.schema([KEY, pa.field("v", pa.list_(item, DIMENSION))])

    def rows(ids: range) -> pa.Table:
        values = pa.array((POINTS[list(ids)] * 250).ravel().astype(item.to_pandas_dtype()))
        column = pa.FixedSizeListArray.from_arrays(values, DIMENSION)
        return pa.table({"id": pa.array(ids), "v": column}, schema=schema)

    table = enabled(
        tmp_path,
        data=rows(range(BASE_ROWS)),
        index=lambda d: d.create_index(
            "v", kind, name="i", metric=metric, num_partitions=2, **options
        ),
    )
    dataset = flushed(table, rows(range(BASE_ROWS, BASE_ROWS + 9)))
    assert model(dataset) == model(native.dataset(table))
    assert description(dataset).num_rows_indexed == 9


def test_several_vectors_in_a_row(tmp_path: Path) -> None:
    schema = pa.schema([KEY, pa.field("v", pa.list_(pa.list_(pa.float32(), DIMENSION)))])

    def rows(ids: range) -> pa.Table:
        pairs = [[POINTS[i], POINTS[i + 1]] for i in ids]
        return pa.table({"id": pa.array(ids), "v": pa.array(pairs, schema.field("v").type)})

    table = enabled(
        tmp_path,
        data=rows(range(BASE_ROWS)).cast(schema),
        index=lambda d: d.create_index(
            "v", "IVF_PQ", name="i", metric="cosine", num_partitions=2, num_sub_vectors=4
        ),
    )
    dataset = flushed(table, rows(range(BASE_ROWS, BASE_ROWS + 9)))
    assert model(dataset) == model(native.dataset(table))


def test_index_over_several_segments(tmp_path: Path, merge: Merge) -> None:
    table = vector_table(tmp_path, "IVF_PQ")
    first = model(native.dataset(table))
    flushed(table, vectors(range(BASE_ROWS, BASE_ROWS + 20)))
    merge(table)
    table.base().dataset.optimize.optimize_indices(num_indices_to_merge=0)
    assert len(description(native.dataset(table)).segments) > 1

    dataset = flushed(table, vectors(range(BASE_ROWS + 20, BASE_ROWS + 60)))

    assert model(dataset) == first


def test_index_that_was_trained_again(tmp_path: Path) -> None:
    table = vector_table(tmp_path, "IVF_PQ")
    flushed(table, vectors(range(BASE_ROWS, BASE_ROWS + 20)))
    native.dataset(table).create_index(
        "v", "IVF_PQ", name="i", num_partitions=3, num_sub_vectors=2, replace=True
    )
    dataset = flushed(table, vectors(range(BASE_ROWS + 20, BASE_ROWS + 60)))
    assert model(dataset) == model(native.dataset(table))


WORDS = [
    "The running dogs jumped",
    "die Häuser der Stadt",
    "getUserName is camelCase code99",
    "naïve café supercalifragilisticexpialidocious",
    "foo bar foo",
]

TEXT_OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "German": {"language": "German"},
    "nothing folded": {"stem": False, "lower_case": False, "ascii_folding": False},
    "all words": {"remove_stop_words": False, "max_token_length": None},
    "own stop words": {"custom_stop_words": ["foo", "dogs"], "max_token_length": 10},
    "positions": {"with_position": True},
    "whitespace": {"base_tokenizer": "whitespace"},
    "raw": {"base_tokenizer": "raw", "max_token_length": 100},
    "ngram": {
        "base_tokenizer": "ngram",
        "min_ngram_length": 2,
        "max_ngram_length": 4,
        "prefix_only": True,
    },
    "code": {"analyzer": "code"},
    "large blocks": {"block_size": 256},
    "old format": {"format_version": 1},
    "new format": {"format_version": 3},
}


def texts(start: int, words: list[str | None]) -> pa.Table:
    return pa.table({"id": range(start, start + len(words)), "s": words}, schema=TEXTS)


def text_parameters(dataset: lance.LanceDataset) -> list[Any]:
    found = description(dataset)
    folder = f"{dataset.uri}/_indices/{found.segments[0].uuid}"
    metadata = LanceFileReader(f"{folder}/metadata.lance").metadata().schema.metadata
    return [
        found.index_type,
        found.details,
        found.segments[0].index_version,
        json.loads(metadata[b"params"]),
        {key: value for key, value in metadata.items() if key not in (b"params", b"partitions")},
    ]


@pytest.mark.few(6)
@pytest.mark.parametrize("options", TEXT_OPTIONS.values(), ids=TEXT_OPTIONS.keys())
def test_text_index_has_the_tokenizer_of_the_base_table(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    table = enabled(
        tmp_path,
        data=texts(0, [*WORDS]),
        index=lambda d: d.create_scalar_index("s", "INVERTED", name="i", **options),
    )

    dataset = flushed(table, texts(100, [*WORDS, None, ""]))

    base = native.dataset(table)
    assert text_parameters(dataset) == text_parameters(base)
    for query in ("dog", "dogs", "haus", "Häuser", "the", "user", "cafe", "ru", "foo"):
        # Each word is found where the base table finds it, and nowhere else.
        found = dataset.to_table(full_text_query=query, columns=["id"])["id"].to_pylist()
        wanted = base.to_table(full_text_query=query, columns=["id"])["id"].to_pylist()
        assert sorted(found) == sorted(key + 100 for key in wanted), query


def test_phrases_are_found_by_positions(tmp_path: Path) -> None:
    table = enabled(
        tmp_path,
        data=texts(0, [*WORDS]),
        index=lambda d: d.create_scalar_index("s", "INVERTED", name="i", with_position=True),
    )
    dataset = flushed(table, texts(100, ["blue dogs jumped", "dogs blue jumped"]))
    query = lance.query.PhraseQuery("dogs jumped", "s")
    assert dataset.to_table(full_text_query=query)["id"].to_pylist() == [100]


def test_texts_in_lists(tmp_path: Path) -> None:
    schema = pa.schema([KEY, pa.field("s", pa.list_(pa.string()))])
    table = enabled(
        tmp_path,
        data=pa.table({"id": [1], "s": [["one dog", "two cats"]]}, schema=schema),
        index=lambda d: d.create_scalar_index(
            "s", "INVERTED", name="i", document_granularity=DocumentGranularity.LIST_ELEMENT
        ),
    )
    dataset = flushed(table, pa.table({"id": [2], "s": [["three dogs", "one"]]}, schema=schema))
    assert text_parameters(dataset) == text_parameters(native.dataset(table))


@pytest.mark.parametrize("parts", [[None], [None, None], [""]], ids=str)
def test_text_index_without_a_word(tmp_path: Path, parts: list[str | None]) -> None:
    table = enabled(
        tmp_path,
        data=texts(0, [*WORDS]),
        index=lambda d: d.create_scalar_index("s", "INVERTED", name="i"),
    )
    dataset = flushed(table, texts(100, parts), pa.array([1]))
    assert description(dataset).name == "i"
    assert dataset.to_table(full_text_query="dogs").num_rows == 0


def test_text_index_that_was_made_without_rows(tmp_path: Path) -> None:
    table = enabled(
        tmp_path,
        data=texts(0, []),
        index=lambda d: d.create_scalar_index("s", "INVERTED", name="i", language="German"),
    )
    dataset = flushed(table, texts(100, [*WORDS]))
    assert text_parameters(dataset)[1:4] == text_parameters(native.dataset(table))[1:4]
    assert dataset.to_table(full_text_query="Haus")["id"].to_pylist() == [101]


POINT = pa.field(
    "p",
    pa.struct([pa.field("x", pa.float64(), False), pa.field("y", pa.float64(), False)]),
    metadata={"ARROW:extension:name": "geoarrow.point", "ARROW:extension:metadata": "{}"},
)
SCALARS = pa.schema(
    [
        KEY,
        pa.field("n", pa.int64()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("s", pa.string()),
        POINT,
    ]
)

# Column, kind, and a condition that it answers.
SCALAR_KINDS: dict[str, tuple[str, Any, str | None]] = {
    "BTREE": ("n", "BTREE", "n = 3"),
    "BTREE with pages": ("n", IndexConfig("btree", {"zone_size": 7}), "n = 3"),
    "BITMAP": ("n", "BITMAP", "n = 3"),
    "LABEL_LIST": ("tags", "LABEL_LIST", "array_has_any(tags, ['t1'])"),
    "NGRAM": ("s", "NGRAM", "contains(s, 'word')"),
    "ZONEMAP": ("n", IndexConfig("zonemap", {"rows_per_zone": 9}), "n = 3"),
    "BLOOMFILTER": (
        "n",
        IndexConfig("bloomfilter", {"number_of_items": 20, "probability": 0.01}),
        "n = 3",
    ),
    "RTREE": ("p", IndexConfig("rtree", {"page_size": 11}), None),
    "MINHASHLSH": (
        "s",
        IndexConfig(
            "minhashlsh",
            {"num_hashes": 64, "num_bands": 8, "tokenizer": {"language": "German"}},
        ),
        None,
    ),
    "FM": ("s", IndexConfig("fm", {}), "contains(s, 'word')"),
}


def scalars(ids: range) -> pa.Table:
    return pa.table(
        [
            pa.array(ids),
            pa.array([n % 10 for n in ids]),
            pa.array([[f"t{n % 3}"] for n in ids]),
            pa.array([f"word{n} and more" for n in ids]),
            pa.array([{"x": n, "y": -n} for n in ids], POINT.type),
        ],
        schema=SCALARS,
    )


@pytest.mark.few(5)
@pytest.mark.parametrize(("column", "kind", "condition"), SCALAR_KINDS.values(), ids=SCALAR_KINDS)
def test_scalar_index_has_the_parameters_of_the_base_table(
    tmp_path: Path, column: str, kind: Any, condition: str | None
) -> None:
    table = enabled(
        tmp_path,
        data=scalars(range(60)),
        index=lambda d: d.create_scalar_index(column, kind, name="i"),
    )

    # The same values, so that whatever the index counts is the same.
    dataset = flushed(table, scalars(range(60)))

    base = native.dataset(table)
    found, wanted = description(dataset), description(base)
    assert (found.index_type, found.type_url) == (wanted.index_type, wanted.type_url)
    assert found.details == wanted.details
    assert found.num_rows_indexed == 60
    assert dataset.stats.index_stats("i")["segments"] == base.stats.index_stats("i")["segments"]
    if condition is not None:
        scanner = dataset.scanner(filter=condition)
        assert "ScalarIndexQuery" in scanner.explain_plan()
        assert scanner.count_rows() == base.count_rows(condition)
        assert len(native.scan(table, filter=condition)) == base.count_rows(condition)


@pytest.mark.few(5)
@pytest.mark.parametrize(("column", "kind", "condition"), SCALAR_KINDS.values(), ids=SCALAR_KINDS)
def test_scalar_index_of_deletes_and_of_one_row(
    tmp_path: Path, column: str, kind: Any, condition: str | None
) -> None:
    table = enabled(
        tmp_path,
        data=scalars(range(60)),
        index=lambda d: d.create_scalar_index(column, kind, name="i"),
    )
    dataset = flushed(table, pa.array([3, 13]))
    assert description(dataset).num_rows_indexed == 2
    if condition is not None:
        left = native.dataset(table).count_rows(f"({condition}) and id not in (3, 13)")
        assert len(native.scan(table, filter=condition)) == left
    flushed(table, scalars(range(3, 4)))
    assert 3 in native.scan(table)["id"].to_pylist()


def test_on_an_object_store(emulator: S3Emulator) -> None:
    """The parameters are read with the table's credentials, and all indexes come in one commit."""
    schema = pa.schema([*VECTORS, TEXTS.field("s"), pa.field("n", pa.int64())])

    def data(ids: range) -> pa.Table:
        columns = [*vectors(ids).columns, pa.array([f"dog {n}" for n in ids]), pa.array([*ids])]
        return pa.table(columns, schema=schema)

    uri = f"s3://{emulator.create_bucket()}/lake/t.lance"
    options = emulator.storage_options
    dataset = lance.write_dataset(data(range(BASE_ROWS)), uri, storage_options=options)
    dataset.create_index("v", "IVF_PQ", num_partitions=2, num_sub_vectors=4)
    dataset.create_scalar_index("s", "INVERTED")
    dataset.create_scalar_index("n", IndexConfig("btree", {"zone_size": 7}))
    table = memwal.enable(
        uri,
        primary_key=["id"],
        region_spec="unsharded",
        maintained_indexes=None,
        storage_options=options,
    )
    table.upsert(data(range(BASE_ROWS, BASE_ROWS + 20)))
    found = lance.dataset(
        table.location.child(generation_dir(REGION, manifest(table).flushed[-1].path)),
        storage_options=options,
    )
    assert found.version == 2
    assert {d.name: d.num_rows_indexed for d in found.describe_indices()} == {
        "v_idx": 20,
        "s_idx": 20,
        "n_idx": 20,
    }
    models = [
        lance.lance.indices.get_ivf_model(d._ds, "v_idx").centroids
        for d in (found, table.base().dataset)
    ]
    assert models[0].equals(models[1])
