"""Building in parts what indexes lack, beside ``optimize_indices``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from common.measure import Figure, Line, Target, constant, seconds

import memwal
from memwal.jobs.index.job import build_indexes
from memwal.jobs.options import IndexOptions

_DIMENSIONS = 64
_ID = pa.field("id", pa.int64(), nullable=False)
_FIELDS = {
    "BTREE": _ID,
    "INVERTED": pa.field("text", pa.string()),
    "IVF_PQ": pa.field("vector", pa.list_(pa.float32(), _DIMENSIONS)),
}
# A scalar index is built that much faster, and divided when it lacks that many times the rows.
_TIMES = {"BTREE": 16}
_ROUNDS = 5
_PARTS = 2
_WORDS = 20_000
_QUERIES = 100
_NEAREST = 10
_INDEX = "measured"


def index_lines(folder: Path, rows: int) -> Iterator[Line]:
    """An index of each sort that covers half of so many rows, and lacks the others.

    Of 2^21 rows that is just what :func:`build_indexes` divides if it is not told otherwise; a
    scalar index has sixteen times as many.
    """
    for kind in _FIELDS:
        uri = str(folder / kind)
        _make(uri, kind, rows * _TIMES.get(kind, 1))
        yield from _compared(folder, uri, kind)
        shutil.rmtree(uri)


def _compared(folder: Path, uri: str, kind: str) -> Iterator[Line]:
    ways: dict[str, Callable[[str], None]] = {
        "parts": _in_parts,
        "whole": _whole,
        "optimized": _optimized,
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    recalls: dict[str, float] = {}
    for round_ in range(_ROUNDS):
        for name in ways if round_ % 2 else reversed(ways):
            copy = str(folder / "copy")
            shutil.copytree(uri, copy)
            os.sync()
            samples[name].append(seconds(lambda n=name, c=copy: ways[n](c)))
            statistics = lance.dataset(copy).stats.index_stats(_INDEX)
            if statistics["num_unindexed_rows"]:
                raise SystemExit(f"{kind}: {statistics['num_unindexed_rows']} rows are not covered")
            if kind == "IVF_PQ" and name not in recalls:
                recalls[name] = _recall(lance.dataset(copy))
            shutil.rmtree(copy)
    for name, what, note in (
        ("whole", "undivided", "as one process builds it"),
        ("parts", f"in {_PARTS} parts", "one process, one part after another"),
    ):
        yield Line(
            name="index",
            what=f"{kind} {what}",
            ours=Figure.of(samples[name]),
            other=Figure.of(samples["optimized"]),
            unit="s",
            against="optimize_indices that adds a segment",
            target=Target(1.2),
            note=f"{note}; ours is on the disk when it ends",
        )
    if recalls:
        yield Line(
            name="index",
            what=f"recall of {kind} in {_PARTS} parts",
            ours=constant(recalls["parts"]),
            other=constant(recalls["optimized"]),
            unit="of 1",
            against="after optimize_indices",
            target=Target(0.995, at_least=True),
            note=f"{_QUERIES} questions for {_NEAREST} rows",
        )


def _in_parts(uri: str) -> None:
    result = build_indexes(memwal.open(uri).location, IndexOptions(max_tasks=_PARTS, part_rows=1))
    if result.metrics.get("parts") != _PARTS:
        raise SystemExit(f"built in {result.metrics.get('parts')} parts instead of {_PARTS}")


def _whole(uri: str) -> None:
    build_indexes(memwal.open(uri).location)


def _optimized(uri: str) -> None:
    dataset = lance.dataset(uri)
    dataset.optimize.optimize_indices(index_names=[_INDEX], num_indices_to_merge=0)


def _make(uri: str, kind: str, rows: int) -> None:
    half = max(rows // 2, 300)
    column = _FIELDS[kind].name
    dataset = lance.write_dataset(_rows(kind, 0, half), uri)
    if kind == "IVF_PQ":
        partitions = max(half // 4096, 1)
        dataset.create_index(
            column, kind, name=_INDEX, num_partitions=partitions, num_sub_vectors=_DIMENSIONS // 4
        )
    else:
        dataset.create_scalar_index(column, kind, name=_INDEX)
    table = memwal.enable(
        uri,
        region_spec=memwal.RegionSpec.unsharded(),
        primary_key=["id"],
        maintained_indexes=[_INDEX],
    )
    # A build has something to do when something was merged; the rest is faster to append.
    with table.writer() as writer:
        writer.upsert(_rows(kind, half, 1))
    table.merge()
    step = max(half // _PARTS, 1)
    for part in range(_PARTS):
        piece = _rows(kind, half + 1 + part * step, step)
        lance.write_dataset(piece, uri, mode="append")


def _rows(kind: str, start: int, count: int) -> pa.Table:
    random = np.random.default_rng(start)
    columns = {"id": random.permutation(np.arange(start, start + count))}
    if kind == "INVERTED":
        columns["text"] = _texts(random, count)
    if kind == "IVF_PQ":
        columns["vector"] = _vectors(random, count)
    fields = [_ID] if kind == "BTREE" else [_ID, _FIELDS[kind]]
    return pa.table(columns, schema=pa.schema(fields))


def _texts(random: np.random.Generator, count: int) -> pa.Array:
    words = pa.array([f"word{number}" for number in range(_WORDS)])
    drawn = (words.take(pa.array(random.integers(0, _WORDS, count))) for _ in range(6))
    return pc.binary_join_element_wise(*drawn, " ")


def _vectors(random: np.random.Generator, count: int) -> pa.Array:
    # Around a few centres, as vectors that mean something are.
    centres = np.random.default_rng(0).standard_normal((256, _DIMENSIONS))
    vectors = centres[random.integers(0, 256, count)]
    vectors = (vectors + 0.5 * random.standard_normal(vectors.shape)).astype("float32")
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), _DIMENSIONS)


def _recall(dataset: lance.LanceDataset) -> float:
    """Share of the nearest rows that are found."""
    random = np.random.default_rng(1)
    vectors = dataset.to_table(columns=["vector"]).column("vector")
    found = 0
    for at in random.integers(0, len(vectors), _QUERIES):
        query = np.array(vectors[int(at)].as_py(), np.float32)
        asked = {"column": "vector", "q": query, "k": _NEAREST}
        exact, estimated = (
            set(dataset.to_table(columns=["id"], nearest=nearest).column("id").to_pylist())
            for nearest in (
                {**asked, "use_index": False},
                {**asked, "nprobes": 8, "refine_factor": 2},
            )
        )
        found += len(exact & estimated)
    return found / (_NEAREST * _QUERIES)
