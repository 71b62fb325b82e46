"""Jobs over very many regions in S3: requests for each region, seconds and memory.

Most regions are made up: their manifests, logs and generations are written straight through the
store, since no job here opens a generation. A few have been written by a writer. Each table has a
server of its own, whose listings take longer the more it holds.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from common import tables
from common.measure import Line, Rival, Target, constant
from common.processes import child_command, child_environment
from common.s3 import gateway_before, running_emulator

import memwal
from memwal.base_table.commit import commit_details
from memwal.format.paths import BLOOM_FILTER_NAME, generation_dir, wal_key
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.format.wal_encoder import encode_sentinel
from memwal.region.manifest_store import RegionManifestStore
from memwal.region.router import identity_region_id

# A table of so many rows in the other parts of this program has so many regions here.
_ROWS_PER_REGION = 400
_LEAST_REGIONS = 64
_SMALLER = 4
# Each key has a region of its own; these are written by a writer.
_REAL = 8
_SPEC = memwal.RegionSpec.identity("id")
_PARALLEL_WRITES = 32
_GENERATIONS = 2
_ENTRIES_PER_GENERATION = 2
_MIB, _KIB = 1 << 20, 1 << 10
# In this order: each leaves what the next one finds.
JOBS = {
    "status": "a look at the backlog",
    "snapshot": "a snapshot",
    "status-again": "a second look by the same process",
    "gc-dry": "a collection that only counts",
    "gc-drop": "a collection that drops a generation of each region",
    "gc-delete": "a collection that deletes it, its log and old manifests",
}


@dataclass(frozen=True, slots=True)
class _Found:
    """What a job took: requests by kind if they were counted, else seconds and bytes."""

    seen: Counter[str]
    seconds: float
    peak: int


def region_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Backlog, snapshot and collection, of so many regions and of a quarter of them."""
    regions = max(rows // _ROWS_PER_REGION, _LEAST_REGIONS)
    few = regions // _SMALLER
    fewest = max(few // _SMALLER, _REAL)
    large, small = _found(folder, regions), _found(folder, few)
    counted, less = _found(folder, few, count=True), _found(folder, fewest, count=True)
    for job, what in JOBS.items():
        each, once = _parted(counted[job].seen, less[job].seen, few, fewest)
        yield Line(
            name="region requests",
            what=f"requests for each region of {what}",
            ours=constant(counted[job].seen.total() / few),
            other=constant(less[job].seen.total() / fewest),
            unit="requests",
            against=f"with {fewest:,} regions instead of {few:,}",
            rival=Rival.OURS,
            target=Target(1.05),
            note=f"{each} for each region more; {once} besides",
        )
        yield Line(
            name="region seconds",
            what=f"{what} of {regions:,} regions",
            ours=constant(1e3 * large[job].seconds / regions),
            other=constant(1e3 * small[job].seconds / few),
            unit="ms a region",
            against=f"with {few:,} regions",
            rival=Rival.OURS,
            note=f"{large[job].seconds:.1f} s; on a server that shares the processors",
        )
        yield Line(
            name="region memory",
            what=f"peak memory of {what} of {regions:,} regions",
            ours=constant(large[job].peak / _MIB),
            other=constant(small[job].peak / _MIB),
            unit="MiB",
            against=f"with {few:,} regions",
            rival=Rival.OURS,
            note=f"{(large[job].peak - small[job].peak) / (regions - few) / _KIB:.1f} KiB for each "
            "region more",
        )


def _parted(many: Counter[str], less: Counter[str], regions: int, fewer: int) -> tuple[str, str]:
    """What of these requests every region costs, and what the table costs, by kind."""
    kinds = sorted(many.keys() | less.keys())
    each = {kind: (many[kind] - less[kind]) / (regions - fewer) for kind in kinds}
    once = {kind: many[kind] - each[kind] * regions for kind in kinds}
    return (
        ", ".join(f"{each[kind]:.2f} {kind}" for kind in kinds),
        ", ".join(f"{once[kind]:.0f} {kind}" for kind in kinds),
    )


def _found(folder: Path, regions: int, *, count: bool = False) -> dict[str, _Found]:
    with _table(folder / f"{regions}-{count}", regions) as table:
        return {job: _measured(table, job, count=count) for job in JOBS}


def _measured(table: memwal.Table, job: str, *, count: bool) -> _Found:
    """Let a child do a job; only what it does after it is ready is counted."""
    options = dict(table.location.storage_options)
    with gateway_before(options["aws_endpoint"]) as proxy:
        if count:
            options["aws_endpoint"] = proxy.endpoint
        task = {"do": job, "uri": table.uri, "storage_options": options}
        with subprocess.Popen(
            child_command("region_jobs", task),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        ) as child:
            if child.stdin is None or child.stdout is None:
                raise SystemExit("the child has no pipes")
            child.stdout.readline()
            proxy.taken()
            child.stdin.write("\n")
            child.stdin.flush()
            answer = child.stdout.read()
        if child.returncode:
            raise SystemExit(f"{job} failed")
        found = json.loads(answer)
        return _Found(Counter(proxy.methods()), found["seconds"], found["peak"] - found["baseline"])


@contextmanager
def _table(scratch: Path, regions: int) -> Iterator[memwal.Table]:
    """A table with so many regions, each with a merged generation and one that waits."""
    scratch.mkdir()
    with running_emulator(scratch) as emulator:
        uri = f"s3://{emulator.create_bucket()}/table"
        table = memwal.create(
            uri,
            tables.NARROW,
            primary_key=["id"],
            region_spec=_SPEC,
            storage_options=emulator.storage_options,
        )
        with table.writer() as writer:
            for _ in range(_GENERATIONS):
                writer.upsert(tables.narrow_rows(_REAL, 0))
                writer.flush()
        with ThreadPoolExecutor(_PARALLEL_WRITES) as pool:
            for _ in pool.map(lambda number: _make_up(table, number), range(_REAL, regions)):
                pass
        base = table.base()
        merged = dict.fromkeys(map(_region, range(regions)), 1)
        commit_details(base, replace(base.details, merged=merged))
        yield table


def _region(number: int) -> UUID:
    return identity_region_id(_value(number))


def _value(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _make_up(table: memwal.Table, number: int) -> None:
    """Write what a writer leaves that claimed the region of a key, and flushed it twice."""
    store = table.location.store
    region_id = _region(number)
    manifests = RegionManifestStore(store, region_id)
    manifest = RegionManifest(
        region_id=region_id,
        version=1,
        writer_epoch=1,
        spec_id=1,
        region_fields=((_SPEC.fields[0].field_id, _value(number)),),
    )
    manifests.commit(manifest)
    # The fence comes first. Entries without rows are enough: no job here reads any, but whether
    # memwal or another client wrote the newest one decides what is collected.
    entry = encode_sentinel(writer_epoch=1, writer_id=str(region_id))
    store.put(wal_key(region_id, 1), entry)
    position = 1
    for generation in range(1, _GENERATIONS + 1):
        for _ in range(_ENTRIES_PER_GENERATION):
            position += 1
            store.put(wal_key(region_id, position), entry)
        path = f"{generation:08x}_gen_{generation}"
        folder = generation_dir(region_id, path)
        store.put(f"{folder}/data/rows.lance", bytes(_KIB))
        store.put(f"{folder}/{BLOOM_FILTER_NAME}", bytes(_KIB))
        flushed = FlushedGeneration(
            region_id=region_id, generation=generation, path=path, memory_bytes=_KIB, rows=1
        )
        manifest = replace(
            manifest,
            version=manifest.version + 1,
            current_generation=generation + 1,
            replay_after=position,
            wal_last_seen=position,
            flushed=(*manifest.flushed, flushed),
        )
        manifests.commit(manifest)
