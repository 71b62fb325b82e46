"""First scans of a process with ever more deleted keys, regions and fragments."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import pyarrow as pa
from common import tables
from common.measure import Figure, Line, Rival, Target, rounds_of
from common.processes import run_child

import memwal

_MORE = 4
_ROUNDS = 5
_KEYS_AT_ONCE = 50_000
_SCHEMA = tables.NARROW.set(0, tables.NARROW.field(0).with_nullable(False))
# At the default number of rows.
_DELETED = 1_000_000
_REGIONS = 768
_FRAGMENTS = 10_000
_ROWS = 2_000_000


def scan_growth_lines(folder: Path, rows: int) -> Iterator[Line]:
    """First scans of two tables each, of which one has four times as much of something.

    Parameters
    ----------
    folder : Path
        Where the tables are made; they are removed again.
    rows : int
        In the base table. With fewer than two million there are fewer deleted keys, regions and
        fragments.
    """

    def scaled(count: int) -> int:
        return max(count * rows // _ROWS, _MORE)

    yield _line(folder, rows, _deleted, scaled(_DELETED), "unmerged deleted keys")
    yield _line(folder, rows, _regions, scaled(_REGIONS), "regions with a generation each")
    yield _line(folder, rows, _fragments, scaled(_FRAGMENTS), "fragments")


def _line(
    folder: Path, rows: int, make: Callable[[str, int, int], None], most: int, what: str
) -> Line:
    few = most // _MORE
    uris = {count: str(folder / f"{make.__name__}-{count}") for count in (few, most)}
    for count, uri in uris.items():
        make(uri, rows, count)
    seconds: dict[int, list[float]] = defaultdict(list)
    found: dict[int, int] = {}
    for round_ in range(rounds_of(_ROUNDS) + 1):
        for count, uri in uris.items():
            told = run_child("reading", {"do": "first-scan", "uri": uri})
            found[count] = told["rows"]
            seconds[count] += [told["seconds"]] * bool(round_)
    for uri in uris.values():
        shutil.rmtree(uri)
    return Line(
        name="scan-growth",
        what=f"first scan of a process with {most:,} {what}",
        ours=Figure.of(seconds[most]),
        other=Figure.of(seconds[few]),
        unit="s of a processor",
        against=f"with {few:,}",
        rival=Rival.OURS,
        target=Target(_MORE),
        note=f"{found[most]:,} and {found[few]:,} rows found",
    )


def _deleted(uri: str, rows: int, count: int) -> None:
    lance.write_dataset(_rows(rows, 0), uri)
    table = _enabled(uri, 4)
    with table.writer() as writer:
        for start in range(0, count, _KEYS_AT_ONCE):
            stop = min(start + _KEYS_AT_ONCE, count)
            writer.delete(_rows(stop - start, start).select(["id"]))


def _regions(uri: str, rows: int, count: int) -> None:
    lance.write_dataset(_rows(rows, 0), uri)
    with _enabled(uri, count).writer() as writer:
        writer.upsert(_rows(max(rows // 10, count), rows - rows // 20))


def _fragments(uri: str, rows: int, count: int) -> None:
    size = max(rows // count, 1)
    parts: list[pa.Table] = [_rows(size, number * size) for number in range(count)]
    reader = pa.RecordBatchReader.from_batches(
        parts[0].schema, (batch for part in parts for batch in part.to_batches())
    )
    lance.write_dataset(reader, uri, max_rows_per_file=size, max_rows_per_group=size)
    with _enabled(uri, 4).writer() as writer:
        writer.upsert(_rows(max(rows // 100, 1), rows - rows // 200))


def _rows(count: int, start: int) -> pa.Table:
    return tables.narrow_rows(count, start).cast(_SCHEMA)


def _enabled(uri: str, regions: int) -> memwal.Table:
    return memwal.enable(
        uri, primary_key=["id"], region_spec=memwal.RegionSpec.bucket("id", regions)
    )
