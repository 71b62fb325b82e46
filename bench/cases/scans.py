"""Scans and lookups beside Lance's own readers and a merged table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from common import tables
from common.backlog import A_DAY, GENERATIONS, REGIONS, SCHEMA, Backlog
from common.measure import Line, Rival, Target, constant, interleaved, milliseconds, rates
from common.processes import run_child
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner

_SCANS = 15
_LOOKUPS = 40
_MANY = 1_000
_SAMPLE = 50
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Query:
    """What is scanned: some columns of the rows that pass a filter."""

    name: str
    columns: list[str]
    filter: str | None = None
    of_merged: float | None = None  # The least rate to be reached, of that of the merged table.


_QUERIES = (
    _Query("all columns", SCHEMA.names, of_merged=0.8),
    _Query("the key", ["id"], of_merged=0.5),
    _Query("two columns where value < 0.1", ["id", "kind"], "value < 0.1"),
    _Query("two columns of a day, by its index", ["id", "kind"], f"day = {A_DAY}", of_merged=0.6),
)


def scan_lines(state: Backlog) -> Iterator[Line]:
    """Scans as streams of batches."""
    native = lance.dataset(state.table.uri)
    snapshots = tables.native_snapshots(state.table)

    def by_native(query: _Query) -> Iterable[pa.RecordBatch]:
        scanner = LsmScanner.from_snapshots(native, snapshots).project(query.columns)
        return (scanner if query.filter is None else scanner.filter(query.filter)).to_batches()

    for query in _QUERIES:
        options: dict[str, Any] = {"columns": query.columns, "filter": query.filter}
        yield from _rate_lines(
            f"scan of {query.name}",
            query.of_merged,
            {
                "ours": lambda o=options: state.table.scan(**o).to_batches(),
                "native": lambda q=query: by_native(q),
                "merged": lambda o=options: state.merged.scanner(**o).to_batches(),
            },
        )


def _rate_lines(
    what: str, of_merged: float | None, sides: dict[str, Callable[[], Iterable[Any]]]
) -> Iterator[Line]:
    """Lines of ours against the others, all of which must yield as many rows."""
    expected = sum(batch.num_rows for batch in sides["merged"]())

    def count(read: Callable[[], Iterable[Any]]) -> None:
        found = sum(batch.num_rows for batch in read())
        if found != expected:
            raise SystemExit(f"{what}: {found} rows were read instead of {expected}")

    calls = {name: lambda _, r=read: count(r) for name, read in sides.items()}
    # A scan by it takes as long as hundreds of the others.
    native = calls.pop("native")
    taken = {
        **interleaved({"native": native}, rounds=1),
        **interleaved(calls, rounds=_SCANS),
    }
    merged = None if of_merged is None else Target(of_merged, at_least=True)
    for other, target in (("native", Target(0.9, at_least=True)), ("merged", merged)):
        yield Line(
            name="scan",
            what=what,
            ours=rates(expected, taken["ours"]),
            other=rates(expected, taken[other]),
            unit="rows/s",
            against=other,
            rival=Rival.LANCE if other == "native" else Rival.OURS,
            target=target,
            note=f"{expected:,} rows, ours with the collection of the sources",
        )


def memory_lines(state: Backlog) -> Iterator[Line]:
    """Peak memory of a scan of all columns, over a base table and over half of it."""
    whole, smaller, native = (
        run_child("reading", {"do": "scan", "side": side, "uri": table.uri})
        for table, side in (
            (state.table, "ours"),
            (state.smaller, "ours"),
            (state.table, "native"),
        )
    )
    flushed = REGIONS * GENERATIONS
    note = (
        f"{flushed} generations beside {state.rows:,} rows; "
        f"{whole['baseline'] / _MIB:.0f} MiB before"
    )
    for against, other, target in (
        ("half of the base table, the same generations", smaller, Target(1.2)),
        ("native", native, None),
    ):
        yield Line(
            name="scan-memory",
            what="peak memory of a scan of all columns",
            ours=constant((whole["peak"] - whole["baseline"]) / _MIB),
            other=constant((other["peak"] - other["baseline"]) / _MIB),
            unit="MiB",
            against=against,
            rival=Rival.LANCE if against.startswith("native") else Rival.OURS,
            target=target,
            note=note,
        )


def lookup_lines(state: Backlog) -> Iterator[Line]:
    """Lookups of keys that exist."""
    random = np.random.default_rng(0)
    wanted = random.integers(0, state.rows, (_LOOKUPS * 2, 1))
    many = random.choice(state.rows, min(_MANY, state.rows), replace=False)
    native = lance.dataset(state.table.uri)
    snapshots = tables.native_snapshots(state.table)
    planner = LsmPointLookupPlanner(native, snapshots, pk_columns=["id"])

    def ours(keys: Any) -> None:
        _check(state.table.lookup(pa.array(keys)).to_table(), keys)

    def by_native(keys: Any) -> None:
        for key in keys:
            _check(planner.plan_lookup(pa.array([key])).to_table(), [key])

    def by_merged(keys: Any) -> None:
        listed = ", ".join(map(str, keys))
        _check(state.merged.to_table(filter=f"id IN ({listed})"), keys)

    sides = {"ours": ours, "native": by_native, "merged": by_merged}
    one = interleaved(
        {name: lambda n, s=side: s(wanted[n]) for name, side in sides.items()},
        rounds=1,
        block=_LOOKUPS,
    )
    fewer = many[:_SAMPLE]
    thousand = {
        **interleaved({"native": lambda _: by_native(fewer)}, rounds=1),
        **interleaved(
            {"ours": lambda _: ours(many), "merged": lambda _: by_merged(many)}, rounds=9
        ),
    }
    # One by one, a thousand take as much longer as they are more.
    thousand["native"] = [taken * len(many) / len(fewer) for taken in thousand["native"]]
    for what, taken, target in (
        ("lookup of one key", one, Target(1.2)),
        (f"lookup of {len(many):,} keys", thousand, Target(1 / 20)),
    ):
        for other, against, bound in (
            (
                "native",
                f"native, one by one, by {len(fewer)} of them" if taken is thousand else "native",
                target,
            ),
            ("merged", "merged", Target(1.5)),
        ):
            yield Line(
                name="lookup",
                what=what,
                ours=milliseconds(taken["ours"]),
                other=milliseconds(taken[other]),
                unit="ms",
                against=against,
                rival=Rival.LANCE if against.startswith("native") else Rival.OURS,
                target=bound,
                note="ours with the collection of the sources",
            )


def _check(found: pa.Table, keys: Any) -> None:
    if found.num_rows != len(keys):
        raise SystemExit(f"{found.num_rows} rows were found instead of {len(keys)}")
