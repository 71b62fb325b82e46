"""Requests to S3 for each kind of query, in a table with a backlog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import _tables as tables
import lance
from _backlog import (
    GENERATIONS,
    READER,
    REGIONS,
    SCHEMA,
    fresh_rows,
    read_rows,
    write_generations,
)
from _measure import Figure, Line, constant
from _memory import in_a_process
from _requests import running_emulator

import memwal

# An IVF_PQ index is trained with 256 rows at least, and a thousand of two thousand keys are wanted.
_LEAST_ROWS = 2_000
_MOST_ROWS = 20_000


def request_lines(folder: Path, rows: int) -> Iterator[Line]:
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
        task = {"do": "requests", "storage_options": options}
        ours = in_a_process(table, {**task, "side": "ours"}, program=READER)
        native = in_a_process(table, {**task, "side": "native"}, program=READER)
        table.merge()
        table.build_indexes()
        merged = in_a_process(table, {**task, "side": "ours"}, program=READER)
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
