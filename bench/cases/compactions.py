"""Scans of a base table whose rows were replaced again and again, before and after compaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
from common.measure import Line, Rival, Target, interleaved, milliseconds, rounds_of

import memwal
from cases.merge_growth import make_table, write_rows

_BATCHES = 40
_FLOATS = 16
# Of the rows of the base table, in each batch.
_BATCH_PART = 100
_ROUNDS = 9


def compaction_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Merge batches of updates into half as many rows, and scan them."""
    count = max(rows // 2, 1)
    table = make_table(folder / "merged", count, floats=_FLOATS)
    numbers = np.random.default_rng(3)
    batch = max(count // _BATCH_PART, 1)
    batches = rounds_of(_BATCHES)
    for _ in range(batches):
        write_rows(table, numbers.choice(count, batch, replace=False), _FLOATS)
        table.merge()
    fresh = str(folder / "fresh")
    lance.write_dataset(table.base().dataset.to_table(), fresh)
    yield _scan(table.uri, fresh, f"after {batches} merges", None, batch)
    table.compact()
    target = Target(1.15)
    yield _scan(table.uri, fresh, f"after {batches} merges and a compaction", target, batch)


def _scan(uri: str, fresh: str, when: str, target: Target | None, batch: int) -> Line:
    table, dataset = memwal.open(uri), lance.dataset(fresh)
    samples = interleaved(
        {"ours": lambda _: table.scan().to_table(), "fresh": lambda _: dataset.to_table()},
        rounds=_ROUNDS,
    )
    return Line(
        name="compaction",
        what=f"scan of all columns {when}",
        ours=milliseconds(samples["ours"]),
        other=milliseconds(samples["fresh"]),
        unit="ms",
        against="Lance's scan of the same rows, freshly written",
        rival=Rival.LANCE,
        target=target,
        note=f"{dataset.count_rows():,} rows, {batch:,} replaced by each merge",
    )
