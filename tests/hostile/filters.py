"""Predicates over a table of which rows are deleted, replaced and not merged."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from hostile.harness import Area, Broken, safely
from hostile.values import texts, words
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import memwal
from memwal.errors import MemWalError
from memwal.expressions.parser import parse_alternatives
from memwal.reader import scan

LIVE = frozenset(range(10)) - {3, 4}


@contextmanager
def filtered_table(folder: Path) -> Iterator[memwal.Table]:
    """A table of ten rows, two of them deleted; half of it is merged."""
    table = memwal.create(
        str(folder / "filtered.lance"),
        pa.schema(
            [pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("t", pa.utf8())]
        ),
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
    )
    with table.writer() as writer:
        writer.upsert(_rows(range(10), -1))
        writer.flush()
        table.merge()
        writer.delete(pa.array([3]))
        writer.upsert(_rows(range(5, 10), 1))
        writer.flush()
        writer.delete(pa.array([4]))
        writer.flush()
        yield table


def _rows(ids: range, number: int) -> pa.Table:
    return pa.table({"id": list(ids), "n": [number] * len(ids), "t": ["x"] * len(ids)})


_COMMENTS = ("--", "-- '\n", "/*", "*/", "/* ' */", "/* ( */", "/* ) */", '/* " */', "#")
_QUOTES = ("'", "''", "'a'", "'\\'", "E'\\''", "$$", "$$)$$", '"', '"a"', "`", "`n`", "X'00'", "\\")
_PIECES = (
    *("id", "n", "t", " ", "(", ")", "true", "false", " or ", " and ", "not ", ">", "=", "0", "-1"),
    *(" is null", " in (1, 2)", " between 0 and 9", "n = 1", "id >= 0", "_rowid", "_rowaddr", ","),
    *("select 1", "abs(", "random()", "now()", ";", "::int", "cast(", " as int)", "1e400", "[1]"),
    *_COMMENTS,
    *_QUOTES,
)


def filters() -> SearchStrategy[str]:
    """Predicates that are nearly right, and others."""
    whole = st.sampled_from(("id >= 0", "n = 1", "t = 'x'", "true"))
    return (
        words(*_PIECES)
        | st.builds("{}{}{}".format, whole, st.sampled_from(_PIECES), words(*_PIECES))
        | texts("n = 1")
    )


def _read(table: memwal.Table, filter: str) -> None:
    safely(lambda: parse_alternatives(filter))
    found = safely(lambda: table.scan(filter=filter).to_table())
    if isinstance(found, MemWalError):
        return
    ids = found.column("id").to_pylist()
    if len(set(ids)) != len(ids) or not LIVE.issuperset(ids):
        raise Broken(f"the filter {filter!r} gives rows that are gone: {sorted(ids)}")
    stale = [row for row in found.to_pylist() if row["id"] >= 5 and row["n"] != 1]
    if stale:
        raise Broken(f"the filter {filter!r} gives rows that were replaced: {stale}")


AREAS = (
    Area(
        "filters",
        filters(),
        _read,
        (scan, "parenthesize_filter"),
        filtered_table,
        examples=8,
    ),
)
