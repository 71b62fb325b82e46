"""Cost of checks before a commit names files: the share of a flush, of a build, and of a merge."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from common.measure import Figure, Line, Rival, Target, rounds_of

import memwal
from memwal.base_table import named_files
from memwal.base_table.named_files import check_new_files
from memwal.base_table.snapshot import open_dataset, read_table_manifest
from memwal.format.lance_files import FileKind, NamedFile
from memwal.format.paths import PK_INDEX_DIR, generation_dir
from memwal.lsm.flush.generation import check_generation_files
from memwal.region.manifest_store import read_manifests

_ROUNDS = 7
_FLUSHED_ROWS = 50_000
_KINDS = 1_000
_TARGET = Target(1.02)


def check_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Flushes with two indexes, and extensions of an index over as many new rows."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("text", pa.string())]
    )
    table = memwal.create(
        str(folder / "checked"),
        schema,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.unsharded(),
        maintained_indexes=["id_idx", "n_idx"],
    )
    count = min(rows, _FLUSHED_ROWS)
    flushes, builds = list[tuple[float, float]](), list[tuple[float, float]]()
    for number in range(rounds_of(_ROUNDS)):
        ids = range(number * count, (number + 1) * count)
        data = pa.table({"id": ids, "n": ids, "text": [f"row {i}" for i in ids]}, schema=schema)
        with table.writer() as writer:
            writer.upsert(data)
            start = time.perf_counter()
            writer.flush()
            flush = time.perf_counter() - start
        flushes.append((flush, _seconds_of_flush_check(table)))
        table.merge()
        start = time.perf_counter()
        table.build_indexes()
        builds.append((time.perf_counter() - start, _seconds_of_build_check(table)))
    for what, samples in (("flush", flushes), ("extension of two indexes", builds)):
        yield Line(
            name="checks",
            what=f"{what}, {count:,} rows, with its look at the files",
            ours=Figure.of([1_000 * seconds for seconds, _ in samples]),
            other=Figure.of([1_000 * (seconds - check) for seconds, check in samples]),
            unit="ms",
            against="without",
            rival=Rival.OURS,
            target=_TARGET,
        )
    yield from decode_lines(folder, rows)


def decode_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Merge rows of which a column is a dictionary, which the commit decodes."""
    wide = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("id", pa.int64()), ("kind", wide), ("text", pa.string())])
    table = memwal.create(
        str(folder / "decoded"), schema, primary_key=["id"], region_spec="unsharded"
    )
    count = min(rows, _FLUSHED_ROWS)
    samples = []
    for number in range(rounds_of(_ROUNDS)):
        ids = range(number * count, (number + 1) * count)
        kinds = [f"kind {i % _KINDS}" for i in ids]
        table.upsert(pa.table({"id": ids, "kind": kinds, "text": [f"row {i}" for i in ids]}))
        before = table.base()
        start = time.process_time()
        table.merge()
        merge = time.process_time() - start
        known = [file.path for f in before.dataset.get_fragments() for file in f.data_files()]
        named_files.forget_decoded()
        start = time.process_time()
        named_files.decode_dictionaries(table.base().stored, table.uri, known=known)
        samples.append((merge, time.process_time() - start))
    yield Line(
        name="checks",
        what=f"merge, {count:,} rows, with the decoding of their dictionary",
        ours=Figure.of([1_000 * seconds for seconds, _ in samples]),
        other=Figure.of([1_000 * (seconds - check) for seconds, check in samples]),
        unit="ms of processor time",
        against="without",
        rival=Rival.OURS,
        target=Target(1.1),
    )


def _seconds_of_flush_check(table: memwal.Table) -> float:
    """Look at the newest generation again."""
    store = table.location.store
    (manifest,) = read_manifests(store).values()
    folder = generation_dir(manifest.region_id, manifest.flushed[-1].path)
    version = int(open_dataset(table.location, folder).version)
    files = [
        NamedFile(info.key.removeprefix(f"{folder}/"), FileKind.LANCE, size=info.size)
        for info in store.list(f"{folder}/{PK_INDEX_DIR}")
    ]
    start = time.perf_counter()
    check_generation_files(store, folder, files, version=version)
    return time.perf_counter() - start


def _seconds_of_build_check(table: memwal.Table) -> float:
    """Look again at what the last two versions added, one for each index."""
    location, newest = table.location, table.base().version
    seconds = 0.0
    for version in (newest - 1, newest):
        start = time.perf_counter()
        before = read_table_manifest(location, version - 1)
        check_new_files(location.store, read_table_manifest(location, version), before=before)
        seconds += time.perf_counter() - start
    return seconds
