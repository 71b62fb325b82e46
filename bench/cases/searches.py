"""Vector searches beside Lance's own, beside the merged table, and with an index that lags."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from common import tables
from common.measure import Line, Rival, Target, constant, interleaved, milliseconds
from lance.mem_wal import LsmVectorSearchPlanner

import memwal

VECTORS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("vector", pa.list_(pa.float32(), tables.DIMENSIONS)),
    ]
)

_REGIONS = 8
_GENERATIONS = 4
_BEHIND = 10
_PART = 80
_PIECE = 50_000
# Embeddings lie in groups, and have fewer directions of their own than dimensions.
_GROUPS = 1_000
_DIRECTIONS = 24
_NOISE = 0.05
_SUB_VECTORS = 16
_QUERIES = 40
_FOUND = 10
_REFINE = 2
_ROUNDS = 4
_RECALL_LOST = 0.01
# Candidates for each row, tried until the merged table finds as many of the nearest rows.
_REFINES = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30)
_EQUAL_ROWS = 200_000


def vector_lines(
    folder: Path, rows: int, *, regions: int = _REGIONS, generations: int = _GENERATIONS
) -> Iterator[Line]:
    """Vector searches over a base table and flushed generations, half of whose rows are updates.

    Parameters
    ----------
    folder : Path
        Where the tables are made; they are removed again.
    rows : int
        In the base table; each generation has an eightieth of it.
    regions, generations : int, default 8 and 4
        Regions, and generations of each that are not merged.
    """
    vectors = queries(rows)
    base = _base(folder, rows)
    backlog = _copied(base, folder / "backlog")
    yield from _against_native(folder, backlog, rows, regions, generations, vectors)
    shutil.rmtree(backlog)
    yield from _behind(folder, base, rows, vectors)
    shutil.rmtree(base)
    yield _at_equal_recall(folder, min(rows, _EQUAL_ROWS), regions, generations)


def _at_equal_recall(folder: Path, rows: int, regions: int, generations: int) -> Line:
    """Searches of ours beside those of the merged table that find as many of the nearest rows."""
    vectors = queries(rows)
    uri = _base(folder, rows)
    table = _enabled(uri, memwal.RegionSpec.bucket("id", regions))
    tables.flush_generations(table, rows, generations, max(rows // _PART, 1) * regions, vector_rows)
    merged = _merge_elsewhere(table, folder)
    nearest = _nearest(merged, vectors)
    ours = _recall(lambda n: _ours(table, vectors[n]), nearest)
    for refine in _REFINES:
        other = _recall(lambda n, r=refine: _merged(merged, vectors[n], refine=r), nearest)
        if other >= ours:
            break
    taken = interleaved(
        {
            "ours": lambda n: _ours(table, vectors[n % _QUERIES]),
            "merged": lambda n: _merged(merged, vectors[n % _QUERIES], refine=refine),
        },
        rounds=_ROUNDS,
        block=_QUERIES,
    )
    sources = len(table.explain().sources)
    found = f"recall {ours:.3f}, merged {other:.3f} with refine_factor {refine}"
    shutil.rmtree(uri)
    shutil.rmtree(merged.uri)
    return Line(
        name="vector-equal",
        what=f"vector search over {sources} sources, {rows:,} rows",
        ours=milliseconds(taken["ours"]),
        other=milliseconds(taken["merged"]),
        unit="ms",
        against="merged, which finds no fewer" if other >= ours else "merged, which finds fewer",
        rival=Rival.OURS,
        target=Target(2.0),
        note=f"{_FOUND} nearest; {found}",
    )


def _against_native(
    folder: Path, uri: str, rows: int, regions: int, generations: int, vectors: np.ndarray
) -> Iterator[Line]:
    table = _enabled(uri, memwal.RegionSpec.bucket("id", regions))
    tables.flush_generations(table, rows, generations, max(rows // _PART, 1) * regions, vector_rows)
    merged = _merge_elsewhere(table, folder)
    planner = LsmVectorSearchPlanner(
        lance.dataset(uri), tables.native_snapshots(table), "vector", pk_columns=["id"]
    )
    searches: dict[str, Callable[[int], list[int]]] = {
        "ours": lambda n: _ours(table, vectors[n % _QUERIES]),
        "native": lambda n: _native(planner, vectors[n % _QUERIES]),
        "merged": lambda n: _merged(merged, vectors[n % _QUERIES]),
    }
    taken = interleaved(searches, rounds=_ROUNDS, block=_QUERIES)
    nearest = _nearest(merged, vectors)
    recall = {name: _recall(search, nearest) for name, search in searches.items()}
    sources = len(table.explain().sources)
    for other, target in (("native", Target(1.2)), ("merged", None)):
        yield Line(
            name="vector",
            what=f"vector search over {sources} sources",
            ours=milliseconds(taken["ours"]),
            other=milliseconds(taken[other]),
            unit="ms",
            against=other,
            rival=Rival.LANCE if other == "native" else Rival.OURS,
            target=target,
            note=f"{_FOUND} nearest; recall {recall['ours']:.3f}, {other} {recall[other]:.3f}",
        )
    for other, lost in (("native", 0.0), ("merged", _RECALL_LOST)):
        yield Line(
            name="vector-recall",
            what=f"recall of the {_FOUND} nearest",
            ours=constant(recall["ours"]),
            other=constant(recall[other] - lost),
            unit="",
            against=f"{other} less {lost:g}" if lost else other,
            rival=Rival.OURS if lost else Rival.LANCE,
            target=Target(1.0, at_least=True),
            note=f"mean of {_QUERIES} queries against exact search",
        )
    shutil.rmtree(merged.uri)


def _behind(folder: Path, uri: str, rows: int, vectors: np.ndarray) -> Iterator[Line]:
    lagging = _enabled(uri, memwal.RegionSpec.unsharded())
    fresh = max(rows // _PART, 1)
    tables.flush_generations(lagging, rows, _BEHIND, fresh, vector_rows)
    lagging.merge()
    caught_up_uri = _copied(uri, folder / "caught-up")
    caught_up = memwal.open(caught_up_uri)
    caught_up.build_indexes()
    searches = {
        "behind": lambda n: _ours(lagging, vectors[n % _QUERIES]),
        "caught up": lambda n: _ours(caught_up, vectors[n % _QUERIES]),
    }
    taken = interleaved(searches, rounds=_ROUNDS, block=_QUERIES)
    yield Line(
        name="vector-lag",
        what=f"vector search, index {_BEHIND} generations behind",
        ours=milliseconds(taken["behind"]),
        other=milliseconds(taken["caught up"]),
        unit="ms",
        against="index caught up",
        rival=Rival.OURS,
        target=Target(2.0),
        note=f"generations of {fresh:,} rows, merged and still stored",
    )
    shutil.rmtree(caught_up_uri)


def _ours(table: memwal.Table, vector: np.ndarray) -> list[int]:
    found = table.search(vector, k=_FOUND, columns=["id"], refine_factor=_REFINE).to_table()
    ids: list[int] = found["id"].to_pylist()
    return ids


def _native(planner: LsmVectorSearchPlanner, vector: np.ndarray) -> list[int]:
    plan = planner.plan_search(pa.array(vector), k=_FOUND, columns=["id", "_distance"])
    ids: list[int] = plan.to_table()["id"].to_pylist()
    return ids


def _merged(dataset: lance.LanceDataset, vector: np.ndarray, *, refine: int = _REFINE) -> list[int]:
    nearest = {"column": "vector", "q": vector, "k": _FOUND, "refine_factor": refine}
    scanner = dataset.scanner(columns=["id", "_distance"], nearest=nearest)
    ids: list[int] = scanner.to_table()["id"].to_pylist()
    return ids


def _recall(search: Callable[[int], list[int]], nearest: list[set[int]]) -> float:
    """Share of the nearest rows that a search finds, over all queries."""
    found = [len({*search(n)} & nearest[n]) for n in range(_QUERIES)]
    return float(np.mean(found)) / _FOUND


def _nearest(dataset: lance.LanceDataset, vectors: np.ndarray) -> list[set[int]]:
    """Keys of the rows that are nearest by exact search, of each query."""
    ids = np.empty((_QUERIES, 0), np.int64)
    distances = np.empty((_QUERIES, 0), np.float32)
    for batch in dataset.to_batches(columns=["id", "vector"]):
        own = batch["vector"].flatten().to_numpy().reshape(batch.num_rows, -1)
        # Up to the length of the query, which is the same for all rows.
        apart = np.vecdot(own, own) - 2 * vectors @ own.T
        distances = np.concatenate([distances, apart], axis=1)
        ids = np.concatenate(
            [ids, np.broadcast_to(batch["id"].to_numpy(), (_QUERIES, batch.num_rows))], axis=1
        )
        best = np.argpartition(distances, _FOUND - 1, axis=1)[:, :_FOUND]
        distances = np.take_along_axis(distances, best, axis=1)
        ids = np.take_along_axis(ids, best, axis=1)
    return [set(row.tolist()) for row in ids]


def queries(rows: int) -> np.ndarray:
    """Vectors to search for, shape (queries, dimension)."""
    queries = vector_rows(np.arange(_QUERIES), rows * 2)["vector"].combine_chunks()
    return np.asarray(queries.flatten().to_numpy().reshape(_QUERIES, -1))


def _merge_elsewhere(table: memwal.Table, folder: Path) -> lance.LanceDataset:
    """The rows of a table in a plain one, with the same indexes."""
    rows = table.scan().to_reader()
    uri = str(folder / "merged")
    _index(lance.write_dataset(rows, uri, schema=rows.schema))
    return lance.dataset(uri)


def _base(folder: Path, rows: int) -> str:
    """A table of vectors with an index on them."""
    uri = str(folder / "vectors")
    _index(tables.write_in_pieces(uri, VECTORS, rows, vector_rows, piece=_PIECE))
    return uri


def _copied(uri: str, folder: Path) -> str:
    shutil.copytree(uri, folder)
    return str(folder)


def _index(dataset: lance.LanceDataset) -> None:
    dataset.create_index("vector", "IVF_PQ", name="vector_idx", num_sub_vectors=_SUB_VECTORS)
    dataset.create_scalar_index("id", "BTREE")


def _enabled(uri: str, spec: memwal.RegionSpec) -> memwal.Table:
    return memwal.enable(
        uri, primary_key=["id"], region_spec=spec, maintained_indexes=["vector_idx"]
    )


def vector_rows(ids: np.ndarray, seed: int) -> pa.Table:
    """Rows whose vectors lie in groups."""
    shape = np.random.default_rng(0)
    scale = np.float32(_DIRECTIONS**-0.5)
    directions = shape.standard_normal((_DIRECTIONS, tables.DIMENSIONS), np.float32) * scale
    groups = 2 * shape.standard_normal((_GROUPS, _DIRECTIONS), np.float32)
    random = np.random.default_rng(seed)
    points = groups[random.integers(0, _GROUPS, len(ids))]
    points += random.standard_normal(points.shape, np.float32)
    vectors = points @ directions
    vectors += np.float32(_NOISE) * random.standard_normal(vectors.shape, np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), tables.DIMENSIONS)
    return pa.table({"id": ids, "vector": column}, schema=VECTORS)
