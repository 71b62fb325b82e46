"""Text searches beside the merged table's own, and with an index of the base table that lags."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from common import tables
from common.measure import Figure, Line, Rival, Target, interleaved, milliseconds
from lance.query import MatchQuery

import memwal

TEXTS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])

_REGIONS = 8
_GENERATIONS = 4
_BEHIND = 10
_PART = 80
_WORDS = 50_000
_WORDS_PER_TEXT = 12
# Zipf's law as Mandelbrot has it: without this the commonest word would be in most of the texts,
# as only those are that an index leaves out.
_OFFSET = 10.0
_WORDS_PER_QUERY = 2
_FOUND = 10
_ROUNDS = 3
_BLOCK = 30
_CHECKED = 5
_MS_PER_SOURCE = 2.0
_PIECE = 100_000


def text_lines(
    folder: Path, rows: int, *, regions: int = _REGIONS, generations: int = _GENERATIONS
) -> Iterator[Line]:
    """Text searches among a base table and flushed generations, half of whose rows are updates.

    Parameters
    ----------
    folder : Path
        Where the tables are made; they are removed again.
    rows : int
        In the base table; each generation has an eightieth of it.
    regions, generations : int, default 8 and 4
        Regions, and generations of each that are not merged.
    """
    queries = _queries()
    uri = _base(folder, rows)
    yield from _against_merged(folder, uri, rows, regions, generations, queries)
    shutil.rmtree(uri)
    uri = _base(folder, rows)
    yield from _behind(folder, uri, rows, queries)
    shutil.rmtree(uri)


def _against_merged(
    folder: Path, uri: str, rows: int, regions: int, generations: int, queries: list[str]
) -> Iterator[Line]:
    table = _enabled(uri, memwal.RegionSpec.bucket("id", regions))
    tables.flush_generations(table, rows, generations, max(rows // _PART, 1) * regions, _rows)
    merged_rows = table.scan().to_reader()
    merged_uri = str(folder / "merged-texts")
    merged = lance.write_dataset(merged_rows, merged_uri, schema=merged_rows.schema)
    merged.create_scalar_index("text", "INVERTED")
    merged = lance.dataset(merged_uri)
    for query in queries[:_CHECKED]:
        ours, theirs = _ours(table, query), _theirs(merged, query)
        if len(ours) != len(theirs) or not np.allclose(ours, theirs, atol=1e-3):
            raise SystemExit(f"{query!r} has scores {ours} instead of {theirs}")
    taken = interleaved(
        {
            "ours": lambda n: _ours(table, queries[n]),
            "merged": lambda n: _theirs(merged, queries[n]),
        },
        rounds=_ROUNDS,
        block=_BLOCK,
    )
    sources = len(table.explain().sources)
    native = milliseconds(taken["merged"])
    yield Line(
        name="text",
        what=f"text search over {sources} sources",
        ours=milliseconds(taken["ours"]),
        other=_bound(native, sources),
        unit="ms",
        against=f"1.5 times the merged table's {native} ms, and {_MS_PER_SOURCE:g} ms a source",
        rival=Rival.OURS,
        target=Target(1.0),
        note=f"{_FOUND} best of {_WORDS_PER_QUERY} words; ours with the collection of the sources",
    )
    yield Line(
        name="text",
        what=f"text search over {sources} sources",
        ours=milliseconds(taken["ours"]),
        other=native,
        unit="ms",
        against="merged",
        rival=Rival.OURS,
        target=Target(3.0),
        note=f"{_FOUND} best of {_WORDS_PER_QUERY} words; ours with the collection of the sources",
    )
    shutil.rmtree(merged_uri)


def _behind(folder: Path, uri: str, rows: int, queries: list[str]) -> Iterator[Line]:
    lagging = _enabled(uri, memwal.RegionSpec.unsharded())
    tables.flush_generations(lagging, rows, _BEHIND, max(rows // _PART, 1), _rows)
    lagging.merge()
    caught_up_uri = str(folder / "caught-up")
    shutil.copytree(uri, caught_up_uri)
    caught_up = memwal.open(caught_up_uri)
    caught_up.build_indexes()
    taken = interleaved(
        {
            "behind": lambda n: _ours(lagging, queries[n]),
            "caught up": lambda n: _ours(caught_up, queries[n]),
        },
        rounds=_ROUNDS,
        block=_BLOCK,
    )
    yield Line(
        name="text-lag",
        what=f"text search, index {_BEHIND} generations behind",
        ours=milliseconds(taken["behind"]),
        other=milliseconds(taken["caught up"]),
        unit="ms",
        against="index caught up",
        rival=Rival.OURS,
        target=Target(2.0),
        note=f"generations of {max(rows // _PART, 1):,} rows, merged and still stored",
    )
    shutil.rmtree(caught_up_uri)


def _ours(table: memwal.Table, query: str) -> list[float]:
    found = table.search_text(query, k=_FOUND, columns=["id"]).to_table()
    scores: list[float] = found["_score"].to_pylist()
    return scores


def _theirs(dataset: lance.LanceDataset, query: str) -> list[float]:
    found = dataset.scanner(
        columns=["id", "_score"],
        full_text_query=MatchQuery(query, "text"),
        limit=_FOUND,
        disable_scoring_autoprojection=True,
    ).to_table()
    scores: list[float] = found["_score"].to_pylist()
    return scores


def _bound(native: Figure, sources: int) -> Figure:
    """What ours may take."""
    low, median, high = (
        1.5 * value + _MS_PER_SOURCE * sources for value in (native.low, native.median, native.high)
    )
    return Figure(median, low, high, native.samples)


def _base(folder: Path, rows: int) -> str:
    """A table of texts with an index on them."""
    uri = str(folder / "texts")
    dataset = tables.write_in_pieces(uri, TEXTS, rows, _rows, piece=_PIECE)
    dataset.create_scalar_index("text", "INVERTED", name="text_idx")
    dataset.create_scalar_index("id", "BTREE")
    return uri


def _enabled(uri: str, spec: memwal.RegionSpec) -> memwal.Table:
    return memwal.enable(uri, primary_key=["id"], region_spec=spec, maintained_indexes=["text_idx"])


def _rows(ids: np.ndarray, seed: int) -> pa.Table:
    """Rows whose texts are of words by Zipf's law."""
    weights = 1 / (np.arange(_WORDS) + 1 + _OFFSET)
    random = np.random.default_rng(seed)
    numbers = random.choice(_WORDS, (len(ids), _WORDS_PER_TEXT), p=weights / weights.sum())
    words = pa.array([f"word{number}" for number in range(_WORDS)]).take(pa.array(numbers.ravel()))
    ends = np.arange(0, numbers.size + 1, _WORDS_PER_TEXT, dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(ends), words)
    return pa.table({"id": ids, "text": pc.binary_join(lists, " ")}, schema=TEXTS)


def _queries() -> list[str]:
    """Queries of words from frequent to rare, all as likely by the logarithm of their rank.

    Each is asked once, so that no side has the whole answer in a cache.
    """
    random = np.random.default_rng(2)
    shares = random.random(((_ROUNDS + 1) * _BLOCK, _WORDS_PER_QUERY))
    numbers = np.exp(shares * np.log(_WORDS)).astype(int) - 1
    return [" ".join(f"word{number}" for number in row) for row in numbers]
