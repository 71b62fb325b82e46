"""Requests to S3: of each flush of the log, of each kind of query over a backlog, of a status."""

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
_LEAST_FRAGMENTS = 20
_MOST_FRAGMENTS = 10_000
_COMMITS = 20
_STATUS_LIMIT = 10.0


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


def status_requests(folder: Path, rows: int) -> Iterator[Line]:
    """Requests of the first status of a table without MemWAL that has very many fragments."""
    fragments = min(max(rows // 200, _LEAST_FRAGMENTS), _MOST_FRAGMENTS)
    with running_emulator(folder) as emulator, gateway_before(emulator.endpoint) as proxy:
        options = {**emulator.storage_options, "aws_endpoint": proxy.endpoint}
        uri = f"s3://{emulator.create_bucket()}/table"
        dataset = lance.write_dataset(tables.narrow_rows(50, 0), uri, storage_options=options)
        for kind in ("BTREE", "BITMAP", "ZONEMAP"):
            dataset.create_scalar_index("id", kind, name=kind)
        # No status reads a data file: one does for all fragments.
        (first,) = (fragment.metadata for fragment in dataset.get_fragments())
        for part in range(_COMMITS):
            added = (fragments - 1) * (part + 1) // _COMMITS - (fragments - 1) * part // _COMMITS
            append = lance.LanceOperation.Append([first] * added)
            version = dataset.latest_version
            lance.LanceDataset.commit(uri, append, read_version=version, storage_options=options)
        table = memwal.open(uri, storage_options=options)
        proxy.taken()
        found = table.status()
        ours = len(proxy.taken())
        dataset = lance.dataset(uri, storage_options=options)
        dataset.stats.dataset_stats()
        dataset.versions()
        for index in dataset.describe_indices():
            dataset.stats.index_stats(index.name)
        native = len(proxy.taken())
    yield Line(
        name="status-requests",
        what=f"requests to S3 of a status of {found.fragments:,} fragments and three indexes",
        ours=constant(float(ours)),
        other=constant(_STATUS_LIMIT),
        unit="requests",
        against="ten",
        rival=Rival.LIMIT,
        target=Target(1.0),
        note=f"the first of a process; Lance's own statistics and list of the {found.versions} "
        f"versions {native}",
    )


def _following(counted: list[int]) -> Figure:
    return constant(fmean(counted[1:]))


def _note(ours: list[int], other: list[int]) -> str:
    per_region = fmean(ours[1:]) / REGIONS
    return (
        f"{per_region:.3g} a region of {GENERATIONS} generations; the first of its kind "
        f"{ours[0]}, the other's {other[0]}"
    )
