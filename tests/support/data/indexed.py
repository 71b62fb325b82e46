"""Tables with an index of any kind, and what their indexes consist of and answer."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from support.data.copied import copy_of

import memwal
from memwal.lsm.indexes.catchup import describe_index
from memwal.lsm.indexes.kinds import read_index_spec

DIMENSION = 8
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("labels", pa.list_(pa.string())),
        pa.field("vector", pa.list_(pa.float32(), DIMENSION)),
    ]
)
SCALAR = {
    "BTREE": ("n", "n >= 17 AND n < 40"),
    "BITMAP": ("n", "n = 17"),
    "ZONEMAP": ("n", "n = 17"),
    "BLOOMFILTER": ("n", "n = 17"),
    "LABEL_LIST": ("labels", "array_has_any(labels, ['label 3'])"),
    "NGRAM": ("text", "contains(text, 'word17')"),
}
VECTOR = (
    "IVF_FLAT",
    "IVF_PQ",
    "IVF_SQ",
    "IVF_RQ",
    "IVF_HNSW_FLAT",
    "IVF_HNSW_PQ",
    "IVF_HNSW_SQ",
)
KINDS = (*SCALAR, "INVERTED", *VECTOR)


def rows(start: int, count: int, *, seed: int | None = None, shift: float = 0.0) -> pa.Table:
    """Rows with consecutive keys; those of the same keys and seed are the same."""
    random = np.random.default_rng(start if seed is None else seed)
    vectors = (random.standard_normal((count, DIMENSION)) + shift).astype("float32")
    ids = range(start, start + count)
    return pa.table(
        {
            "id": list(ids),
            "n": [i % 97 for i in ids],
            "text": [f"word{i % 31} and more{i % 7}" for i in ids],
            "labels": [[f"label {i % 5}", f"label {i % 11}"] for i in ids],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSION),
        },
        schema=SCHEMA,
    )


def create_index(dataset: lance.LanceDataset, kind: str, name: str = "idx", **options: Any) -> None:
    """Build an index of one kind over the column that fits it."""
    if kind in VECTOR:
        options.setdefault("num_partitions", 4)
        if kind.endswith("_PQ"):
            options = {"num_sub_vectors": 4, "num_bits": 4, **options}
        dataset.create_index("vector", kind, name=name, **options)
        return
    column = "text" if kind == "INVERTED" else SCALAR[kind][0]
    dataset.create_scalar_index(column, kind, name=name)


def indexed_table(
    folder: Path, kind: str, *, count: int = 600, stable_row_ids: bool = False, **options: Any
) -> memwal.Table:
    """Make a table of one region whose index ``idx`` is maintained."""
    uri = str(folder / "indexed")
    dataset = lance.write_dataset(
        rows(0, count), uri, schema=SCHEMA, enable_stable_row_ids=stable_row_ids
    )
    create_index(dataset, kind, **options)
    return memwal.enable(
        uri,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.unsharded(),
        # Lance takes few kinds by name, and any with "all of them".
        maintained_indexes=None,
    )


def indexed_copy(
    folder: Path, kind: str, *, stable_row_ids: bool = False, backlog: bool = False
) -> memwal.Table:
    """Copy such a table, which all tests share.

    With a backlog of four merges, if wanted: new rows and changed ones, also of fragments that are
    indexed.
    """

    def make(made: Path) -> None:
        if not backlog:
            indexed_table(made, kind, stable_row_ids=stable_row_ids)
            return
        table = indexed_copy(made, kind, stable_row_ids=stable_row_ids)
        parts = [rows(600 + 200 * n, 200) for n in range(3)]
        merge_rows(table, *parts, rows(550, 100, seed=1))

    copy_of(f"indexed {kind} {stable_row_ids} {backlog}", folder, make)
    return memwal.open(str(folder / "indexed"))


def merge_rows(table: memwal.Table, *parts: pa.Table) -> None:
    """Let each part be a merge of its own, and so a fragment."""
    for part in parts:
        table.upsert(part)
        table.merge()


def segments(table: memwal.Table, name: str = "idx") -> list[list[int]]:
    """Fragments of each segment of an index."""
    description = describe_index(table.base(), name)
    assert description is not None
    return [sorted(segment.fragment_ids) for segment in description.segments]


def models(table: memwal.Table, name: str = "idx") -> set[bytes]:
    """Model of each segment of a vector index, bit for bit; one if all have the same."""
    base = table.base()
    description = describe_index(base, name)
    assert description is not None
    found = set()
    for segment in description.segments:
        options = read_index_spec(base.location, description, segment.uuid).parameters
        arrays = [options[key] for key in ("ivf_centroids", "pq_codebook") if key in options]
        bits = b"".join(array.values.to_numpy().tobytes() for array in arrays)
        found.add(bits + str(options.get("rabitq_model")).encode())
    return found


def answers(table: memwal.Table, kind: str) -> list[list[int]]:
    """Keys of the rows that questions through the index find, in the base table alone."""
    dataset = table.base().dataset
    if kind in SCALAR:
        found = dataset.to_table(columns=["id"], filter=SCALAR[kind][1])
        return [sorted(found.column("id").to_pylist())]
    if kind == "INVERTED":
        found = dataset.to_table(columns=["id"], full_text_query="word17")
        return [sorted(found.column("id").to_pylist())]
    return [
        dataset.to_table(
            columns=["id"],
            nearest={"column": "vector", "q": query, "k": 10, "nprobes": 4, "refine_factor": 2},
        )
        .column("id")
        .to_pylist()
        for query in np.random.default_rng(7).standard_normal((50, DIMENSION))
    ]


def recall(table: memwal.Table, found: list[list[int]]) -> float:
    """Share of the true nearest rows among the answers to the vector questions."""
    everything = table.base().dataset.to_table(columns=["id", "vector"])
    ids = everything.column("id").to_numpy()
    vectors = np.stack(everything.column("vector").to_pylist())
    hits = 0
    queries = np.random.default_rng(7).standard_normal((50, DIMENSION))
    for query, answer in zip(queries, found, strict=True):
        nearest = ids[np.argsort(((vectors - query) ** 2).sum(axis=1))[:10]]
        hits += len(set(nearest.tolist()) & set(answer))
    return hits / (10 * len(found))
