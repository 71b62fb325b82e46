"""Requests to S3: of each flush of the log, and of each kind of query over a backlog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import lance
from common import tables
from common.backlog import (
    GENERATIONS,
    REGIONS,
    SCHEMA,
    fresh_rows,
    read_rows,
    write_generations,
)
from common.measure import Figure, Line, Rival, Target, constant
from common.processes import run_child
from common.s3 import gateway_before, running_emulator

import memwal

_WARM_UP = 5
# An IVF_PQ index is trained with 256 rows at least, and a thousand of two thousand keys are wanted.
_LEAST_ROWS = 2_000
_MOST_ROWS = 20_000


def flush_requests(folder: Path, rows: int) -> Iterator[Line]:
    """Requests per upsert while one producer writes steadily; the target is one PUT."""
    count = max(rows // 500, 20)
    batches = [tables.narrow_rows(10, number * 10) for number in range(_WARM_UP + count)]
    with running_emulator(folder) as emulator, gateway_before(emulator.endpoint) as proxy:
        options = {**emulator.storage_options, "aws_endpoint": proxy.endpoint}
        uri = f"s3://{emulator.create_bucket()}/table"
        with tables.open_ours(tables.create_narrow(uri, storage_options=options)) as writer:
            for batch in batches[:_WARM_UP]:
                writer.upsert(batch)
            proxy.taken()
            for batch in batches[_WARM_UP:]:
                writer.upsert(batch)
            seen = Counter(proxy.methods())
    names = ", ".join(f"{number} {name}" for name, number in sorted(seen.items()))
    yield Line(
        name="requests",
        what="requests to S3 for each flush of the log",
        ours=constant(sum(seen.values()) / count),
        other=constant(1.0),
        unit="requests",
        against="one PUT",
        rival=Rival.LIMIT,
        target=Target(1.0),
        note=f"{names} for {count} flushes",
    )


def query_requests(folder: Path, rows: int) -> Iterator[Line]:
    """Requests of a query that is not the first of its kind.

    Ours ask for the state of the table with each query. Lance's readers were told it before, which
    is not counted; where it has none, and for what a backlog costs, there is our reader on the same
    rows merged.
    """
    rows = min(max(rows // 20, _LEAST_ROWS), _MOST_ROWS)
    with running_emulator(folder) as emulator:
        options = emulator.storage_options
        uri = f"s3://{emulator.create_bucket()}/table"
        tables.index(
            lance.write_dataset(read_rows(rows, 0), uri, schema=SCHEMA, storage_options=options)
        )
        table = memwal.enable(
            uri,
            region_spec=memwal.RegionSpec.bucket("id", REGIONS),
            primary_key=["id"],
            maintained_indexes=list(tables.MAINTAINED),
            storage_options=options,
        )
        write_generations(table, rows, fresh=fresh_rows(rows))
        task = {"do": "requests", "uri": table.uri, "storage_options": options}
        ours = run_child("reading", {**task, "side": "ours"})
        native = run_child("reading", {**task, "side": "native"})
        table.merge()
        table.build_indexes()
        merged = run_child("reading", {**task, "side": "ours"})
    for kind in ours:
        for against, other in (("native", native), ("ours, merged", merged)):
            if kind in other:
                yield Line(
                    name="read-requests",
                    what=f"requests to S3 of a {kind}",
                    ours=_following(ours[kind]),
                    other=_following(other[kind]),
                    unit="requests",
                    against=against,
                    rival=Rival.LANCE if other is native else Rival.OURS,
                    note=_note(ours[kind], other[kind]),
                )


def _following(counted: list[int]) -> Figure:
    return constant(fmean(counted[1:]))


def _note(ours: list[int], other: list[int]) -> str:
    per_region = fmean(ours[1:]) / REGIONS
    return (
        f"{per_region:.3g} a region of {GENERATIONS} generations; the first of its kind "
        f"{ours[0]}, the other's {other[0]}"
    )
