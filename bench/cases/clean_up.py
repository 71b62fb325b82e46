"""Cleaning up tables of small fragments, beside LanceDB's ``optimize()``; wide rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from common.measure import Figure, Line, Rival, Target, constant, rounds_of
from common.processes import run_child

from memwal.jobs.options import CompactOptions

_MIB = 1 << 20
_WIDE = _MIB
_PEAK = 600
# Of 2,000,000 rows: 4 GiB of wide rows, 500,000 of narrow ones in 10,000 fragments.
_ROWS_PER_WIDE = 488
_NARROW_PART = 4
_NARROW_FRAGMENT = 50
_GROWTHS = 6
_NEW = 60
_FLOATS = 32
_ROUNDS = 5
_WORDS = np.array([f"word{number}" for number in range(2_000)])


def wide_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Compact rows of 1 MiB, and once more, and while their table grows."""
    count = max(rows // _ROWS_PER_WIDE, 16)
    path = folder / "wide"
    _append_wide(path, count, max(count // 256, 1))
    before = _stored(path)
    done = run_child("compacting", {"do": "compact", "uri": str(path)})
    what = f"{before / (1 << 30):.2g} GiB of rows of 1 MiB"
    yield Line(
        name="wide compaction",
        what="peak memory of a compaction of rows of 1 MiB",
        ours=constant((done["peak"] - done["baseline"]) / _MIB),
        other=constant(_PEAK),
        unit="MiB",
        against="limit",
        rival=Rival.LIMIT,
        target=Target(1),
        note=f"{what}, {done['fragments_removed']:,} fragments, {done['processor']:.1f} s of a "
        "processor",
    )
    first = _stored(path)
    run_child("compacting", {"do": "compact", "uri": str(path)})
    yield Line(
        name="wide compaction",
        what="files of a table of rows of 1 MiB after a second compaction",
        ours=constant(_stored(path) / _MIB),
        other=constant(first / _MIB),
        unit="MiB",
        against="after the first: it writes nothing",
        rival=Rival.OURS,
        target=Target(1),
        note=what,
    )
    shutil.rmtree(path)
    yield _growth(folder / "growing", max(count * _NEW // 4_096, 8))


def _growth(path: Path, new: int) -> Line:
    """Compact after each append of ``new`` rows in as many fragments."""
    most = 0
    for _ in range(rounds_of(_GROWTHS)):
        _append_wide(path, new, 1)
        before = _stored(path)
        run_child("compacting", {"do": "compact", "uri": str(path)})
        most = max(most, _stored(path) - before)
    limit = new * _WIDE + CompactOptions().target_bytes
    return Line(
        name="wide compaction",
        what="bytes that a compaction writes of a growing table, rows of 1 MiB",
        ours=constant(most / _MIB),
        other=constant(limit / _MIB),
        unit="MiB",
        against="the new rows and one old fragment",
        rival=Rival.LIMIT,
        target=Target(1),
        note=f"the most of {rounds_of(_GROWTHS)} compactions, each after {new} new rows",
    )


def clean_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Bring a table of fragments of 50 rows, with three indexes, in order."""
    count = max(rows // _NARROW_PART, 20 * _NARROW_FRAGMENT)
    source = folder / "source.lance"
    _write_narrow(source, count)
    fragments = len(lance.dataset(str(source)).get_fragments())
    sides: dict[str, dict[str, Any]] = {
        "ours": {"do": "ours"},
        "optimize": {"do": "optimize"},
        "one": {"do": "ours", "workers": 1},
        "two": {"do": "ours", "workers": 2},
    }
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for round_ in range(rounds_of(_ROUNDS)):
        for side in sides if round_ % 2 else reversed(sides):
            copy = folder / side / "table.lance"
            shutil.copytree(source, copy)
            found[side].append(run_child("compacting", {**sides[side], "uri": str(copy)}))
            shutil.rmtree(copy)
    note = f"{fragments:,} fragments of {_NARROW_FRAGMENT} rows; the indexes cover half of them"
    ours, other = found["ours"], found["optimize"]
    yield Line(
        name="clean-up",
        what="processor time to clean up many fragments, with three indexes",
        ours=Figure.of([sample["processor"] for sample in ours]),
        other=Figure.of([sample["processor"] for sample in other]),
        unit="s",
        against="LanceDB's optimize()",
        target=Target(1),
        note=f"{note}; compaction, index build, collection",
    )
    yield Line(
        name="clean-up",
        what="peak memory of cleaning up many fragments, with three indexes",
        ours=Figure.of([(sample["peak"] - sample["baseline"]) / _MIB for sample in ours]),
        other=Figure.of([(sample["peak"] - sample["baseline"]) / _MIB for sample in other]),
        unit="MiB",
        against="LanceDB's optimize()",
        target=Target(1),
        note=note,
    )
    yield Line(
        name="clean-up",
        what="time to clean up many fragments by two workers",
        ours=Figure.of([sample["seconds"] for sample in found["two"]]),
        other=Figure.of([sample["seconds"] for sample in found["one"]]),
        unit="s by two, a core each",
        against="by one",
        rival=Rival.OURS,
        target=Target(0.65),
        note=note,
    )


def _stored(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "data").iterdir())


def _append_wide(path: Path, rows: int, rows_per_fragment: int) -> None:
    """Append rows of 1 MiB that cannot be compressed, in fragments of so many."""
    bits = np.random.default_rng(5)
    start = lance.dataset(str(path)).count_rows() if path.exists() else 0
    for at in range(start, start + rows, rows_per_fragment):
        numbers = range(at, min(at + rows_per_fragment, start + rows))
        values = pa.array([bits.bytes(_WIDE) for _ in numbers], pa.large_binary())
        mode = "append" if at else "create"
        lance.write_dataset(pa.table({"id": numbers, "value": values}), str(path), mode=mode)


def _write_narrow(path: Path, rows: int) -> None:
    """Write the first half of the rows, index it, and append the other half."""
    half = rows // 2 // _NARROW_FRAGMENT * _NARROW_FRAGMENT
    schema = _narrow(0, 1).schema
    limit = {"max_rows_per_file": _NARROW_FRAGMENT, "schema": schema}
    fragments = lance.fragment.write_fragments(_narrow(0, half), str(path), **limit)
    operation: Any = lance.LanceOperation.Overwrite(schema, fragments)
    dataset = lance.LanceDataset.commit(str(path), operation)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("text", "INVERTED")
    partitions = 16 if half >= 4_096 else 1
    dataset.create_index("vector", "IVF_PQ", num_partitions=partitions, num_sub_vectors=4)
    fragments = lance.fragment.write_fragments(_narrow(half, rows), dataset, **limit)
    operation = lance.LanceOperation.Append(fragments)
    lance.LanceDataset.commit(str(path), operation, read_version=dataset.version)


def _narrow(start: int, stop: int) -> pa.Table:
    bits = np.random.default_rng(start)
    words = _WORDS[bits.integers(0, len(_WORDS), (stop - start, 8))]
    values = pa.array(bits.random((stop - start) * _FLOATS, dtype=np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(values, _FLOATS)
    texts = [" ".join(row) for row in words]
    return pa.table({"id": np.arange(start, stop), "text": texts, "vector": vectors})
