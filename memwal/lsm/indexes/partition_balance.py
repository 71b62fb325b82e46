"""Partition balance of a vector index: how evenly rows are distributed over its partitions.

While MemWAL is enabled the centroids stay as they were trained, but the incoming vectors may drift.
A search then scans partitions that are far larger than the average, with lower recall. The remedy
is a new model: :mod:`memwal.jobs.index.migration`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from memwal.base_table.snapshot import BaseTable

MAX_UNEVENNESS = 5.0
MAX_EMPTY_SHARE = 0.25

_MIN_ROWS_PER_PARTITION = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBalance:
    """Rows per partition of a vector index, summed over its segments."""

    index: str
    """Name of the index."""
    partitions: int
    """Number of partitions."""
    empty: int
    """Number of partitions without rows."""
    rows: int
    """Rows in all partitions."""
    largest: int
    """Rows in the largest partition."""
    segments: int
    """Segments that a search reads."""
    same_model: bool = True
    """Whether all segments have the same number of partitions. They may differ if the index was
    extended by other means than these jobs; then the partitions of each segment count on their
    own."""

    @property
    def unevenness(self) -> float:
        """Rows of the largest partition divided by the average; 1 if there are no rows."""
        return self.largest * self.partitions / self.rows if self.rows else 1.0

    @property
    def empty_share(self) -> float:
        """Share of the partitions that have no rows."""
        return self.empty / self.partitions if self.partitions else 0.0

    @property
    def advice(self) -> str | None:
        """Advice to train a new model; None if partitions are even enough, or have few rows."""
        if self.rows < _MIN_ROWS_PER_PARTITION * self.partitions:
            return None
        if self.unevenness <= MAX_UNEVENNESS and self.empty_share <= MAX_EMPTY_SHARE:
            return None
        return (
            f"the partitions of index {self.index} are filled unevenly: the fullest of "
            f"{self.partitions} has {self.unevenness:.1f} times the average, {self.empty} are "
            "empty; searches get slower and find less. Train a new model with "
            "memwal index migrate start"
        )


def partition_balance(base: BaseTable, name: str) -> PartitionBalance | None:
    """Count the rows per partition of a vector index; None for an index of another kind.

    Parameters
    ----------
    base : BaseTable
        ``table.base()``.
    name : str
        Name of the index.

    Raises
    ------
    KeyError
        There is no such index.
    """
    statistics = base.dataset.stats.index_stats(name)
    segments = [
        np.array([partition["size"] for partition in segment["partitions"]], np.int64)
        for segment in statistics["indices"]
        if "partitions" in segment
    ]
    segments = [sizes for sizes in segments if len(sizes)]
    if not segments:
        return None
    same_model = len({len(sizes) for sizes in segments}) == 1
    sizes = np.sum(segments, axis=0) if same_model else np.concatenate(segments)
    return PartitionBalance(
        index=name,
        partitions=len(sizes),
        empty=int(np.count_nonzero(sizes == 0)),
        rows=int(sizes.sum()),
        largest=int(sizes.max()),
        segments=len(segments),
        same_model=same_model,
    )


def balance_metrics(balances: Iterable[PartitionBalance]) -> dict[str, int]:
    """Return the worst values of several indexes as metrics of a job; empty without an index."""
    balances = list(balances)
    if not balances:
        return {}
    return {
        "unevenness_percent": max(round(100 * balance.unevenness) for balance in balances),
        "empty_partitions_percent": max(round(100 * balance.empty_share) for balance in balances),
    }


def advice_on(balances: Iterable[PartitionBalance]) -> tuple[str, ...]:
    """Return the advice on each index that needs some."""
    return tuple(balance.advice for balance in balances if balance.advice is not None)
