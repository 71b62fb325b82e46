"""Merging a backlog: beside ``merge_insert`` of the same rows, and by Spark's workers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from common import backlog as backlogs
from common.measure import Figure, Line, Rival, Target, constant, rates, rounds_of
from common.processes import merge_copy, run_child

import memwal
from memwal.jobs.merge.commit import read_source
from memwal.jobs.merge.job import read_candidates
from memwal.jobs.merge.picker import RegionSelection
from memwal.jobs.options import MergeOptions
from memwal.region.manifest_store import read_manifests

_MOST_OVERHEAD_SECONDS = 2.0
_ROUNDS = 7
_BACKLOGS = (1, 4, 16)
_MIB = 1 << 20
_PIECE = 50_000


def merge_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Eight regions with four generations each, into a base table of so many rows."""
    uri = str(folder / "merged")
    table = backlog_table(uri, rows)
    backlogs.write_generations(table, rows, fresh=backlogs.fresh_rows(rows))
    union, each, count = _sources(table, folder)
    tasks = {
        "ours": {"do": "ours", "commit_bytes": MergeOptions().commit_bytes},
        "union": _quicker(uri, folder, {"do": "union", "sources": [union]}),
        "each": _quicker(uri, folder, {"do": "each", "sources": each}),
    }
    found = {name: [] for name in tasks}  # type: dict[str, list[dict[str, float]]]
    for round_ in range(rounds_of(_ROUNDS)):
        for name in tasks if round_ % 2 else reversed(tasks):
            found[name].append(merge_copy(uri, tasks[name]))
    ours, one, many = (found[name] for name in ("ours", "union", "each"))
    note = (
        f"{count:,} rows; ours are on the disk when it ends; native {_way(tasks['union'])}, "
        f"for each generation {_way(tasks['each'])}"
    )
    yield Line(
        name="merge",
        what="merge of the backlog",
        ours=_seconds(ours, "seconds"),
        other=_seconds(one, "seconds"),
        unit="s",
        against="one merge_insert of the newest rows",
        target=Target(1.15),
        note=note,
    )
    yield Line(
        name="merge",
        what="merge of the backlog, and sync",
        ours=_seconds(ours, "synced"),
        other=_seconds(one, "synced"),
        unit="s",
        against="one merge_insert of the newest rows, and sync",
    )
    yield Line(
        name="merge",
        what="merge of the backlog",
        ours=rates(count, [sample["seconds"] for sample in ours]),
        other=rates(count, [sample["seconds"] for sample in many]),
        unit="rows/s",
        against="one merge_insert per generation",
        target=Target(1.3, at_least=True),
    )
    yield Line(
        name="merge memory",
        what="peak memory of a merge",
        ours=_peak(ours),
        other=_peak(one),
        unit="MiB",
        against="one merge_insert of the newest rows",
        target=Target(1.5),
    )


def memory_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Peak memory of a merge whose commits are bounded, while the backlog grows."""
    fresh = max(backlogs.fresh_rows(rows) // _BACKLOGS[-1], 1)
    peaks: list[Figure] = []
    for times in _BACKLOGS:
        uri = str(folder / f"backlog-{times}")
        table = backlog_table(uri, rows // 4)
        for _ in range(times):
            backlogs.write_generations(table, rows // 4, fresh=fresh)
        waiting = table.status().backlog_bytes
        budget = waiting // times // 2
        sample = merge_copy(uri, {"do": "ours", "commit_bytes": budget})
        peaks.append(_peak([sample]))
        shutil.rmtree(uri)
        yield Line(
            name="backlog memory",
            what=f"peak memory of a merge, {times} times the backlog",
            ours=peaks[-1],
            other=peaks[0],
            unit="MiB",
            against="the smallest backlog",
            rival=Rival.OURS,
            target=Target(1.25) if times > 1 else None,
            note=f"backlog of {waiting // _MIB} MiB, commits of {budget // _MIB} MiB",
        )


def backlog_table(uri: str, rows: int) -> memwal.Table:
    """A base table of so many rows, eight regions, and no backlog yet."""
    starts = range(0, rows, _PIECE)
    made = (backlogs.read_rows(min(_PIECE, rows - start), start) for start in starts)
    batches = (batch for piece in made for batch in piece.to_batches())
    reader = pa.RecordBatchReader.from_batches(backlogs.SCHEMA, batches)
    base = lance.write_dataset(reader, uri, schema=backlogs.SCHEMA)
    base.create_scalar_index("id", "BTREE", name="id_idx")
    return memwal.enable(
        uri,
        region_spec=memwal.RegionSpec.bucket("id", backlogs.REGIONS),
        primary_key=["id"],
        maintained_indexes=["id_idx"],
    )


def spark_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Merge eight regions with four generations each: in process, by one worker, and by two."""
    uri = str(folder / "merged")
    table = backlog_table(uri, rows)
    backlogs.write_generations(table, rows, fresh=backlogs.fresh_rows(rows))
    found = run_child(
        "spark_merging",
        {"uri": uri, "scratch": str(folder), "divided": False, "rounds": rounds_of(_ROUNDS)},
    )
    seconds = {name: Figure.of(way["seconds"]) for name, way in found.items()}
    here, one = seconds["here"], seconds["one"]
    yield Line(
        name="spark",
        what="what Spark adds to a merge, its workers warm",
        ours=constant(max(one.median - here.median, 1e-3)),
        other=constant(_MOST_OVERHEAD_SECONDS),
        unit="s",
        against="limit",
        rival=Rival.LIMIT,
        target=Target(1.0),
        note=f"{one} s beside {here} s in process",
    )
    yield Line(
        name="spark",
        what="merge with two of Spark's workers",
        ours=seconds["two"],
        other=one,
        unit="s",
        against="with one",
        rival=Rival.OURS,
        target=Target(1.1),
        note=f"{found['two']['what']}, beside {found['one']['what']}",
    )
    yield Line(
        name="spark",
        what="two halves of a backlog merged at once",
        ours=seconds["at once"],
        other=seconds["halves"],
        unit="s",
        against="one after the other",
        rival=Rival.OURS,
        note=f"{found['at once']['what']}, beside {found['halves']['what']}",
    )


def _quicker(uri: str, folder: Path, task: dict[str, Any]) -> dict[str, Any]:
    """The task with whichever of Lance's two ways to find the matches is quicker here.

    Its index cannot be used for many large rows: they do not fit what it allows itself in memory.
    """
    seconds: dict[bool, float] = {}
    for use_index in (False, True):
        try:
            way = {**task, "use_index": use_index}
            seconds[use_index] = merge_copy(uri, way)["seconds"]
        except subprocess.CalledProcessError as failure:
            if "Resources exhausted" not in failure.stderr:
                raise
    return {**task, "use_index": min(seconds, key=lambda use_index: seconds[use_index])}


def _way(task: Mapping[str, Any]) -> str:
    return "through its index" if task["use_index"] else "by a join"


def union_of_backlog(table: memwal.Table, folder: Path) -> tuple[str, int]:
    """The newest rows of all generations in one data set, and how many they are."""
    source = read_source(table.base(), _selections(table))
    if not source.selections:
        raise SystemExit("there is no backlog")
    union = str(folder / "union")
    lance.write_dataset(source.upserts, union)
    return union, int(source.upserts.num_rows)


def _selections(table: memwal.Table) -> list[RegionSelection]:
    manifests = read_manifests(table.location.store).values()
    return [
        RegionSelection(region.region_id, region.generations)
        for region in read_candidates(table.base(), manifests)
        if region.generations
    ]


def _sources(table: memwal.Table, folder: Path) -> tuple[str, list[str], int]:
    """The newest rows of all generations in one data set, those of each, and how many they are."""
    union, count = union_of_backlog(table, folder)
    base = table.base()
    each: list[str] = []
    for selection in _selections(table):
        for generation in selection.generations:
            single = read_source(base, [RegionSelection(selection.region_id, (generation,))])
            if not single.selections:
                raise SystemExit("a generation is gone")
            each.append(str(folder / f"each-{len(each)}"))
            lance.write_dataset(single.upserts, each[-1])
    return union, each, count


def _seconds(samples: list[dict[str, float]], key: str) -> Figure:
    return Figure.of([sample[key] for sample in samples])


def _peak(samples: list[dict[str, float]]) -> Figure:
    return constant(max(sample["peak"] - sample["baseline"] for sample in samples) / _MIB)
