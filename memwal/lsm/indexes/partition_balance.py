"""Balance of a vector index: how evenly its partitions are filled.

Under MemWAL the centroids stay as they were trained, while the incoming vectors may drift. A search
then scans partitions that hold far more than their share, and finds less in those that it scans.
The remedy is another model: :mod:`memwal.jobs.index.migration`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from memwal.base_table.snapshot import BaseTable

MAX_UNEVENNESS = 5.0
MAX_EMPTY_SHARE = 0.25

_FEWEST_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBalance:
    """Rows of a vector index by partition, over all its segments.

    Attributes
    ----------
    index : str
    partitions, empty : int
        How many there are, and how many hold no row.
    rows, largest : int
        Rows in all partitions, and in the fullest.
    segments : int
        Files that a search looks through.
    same_model : bool
        Whether all segments have the same number of partitions. Where somebody has extended the
        index past these jobs, they may not; then the fullest of each segment is counted.
    """

    index: str
    partitions: int
    empty: int
    rows: int
    largest: int
    segments: int
    same_model: bool = True

    @property
    def unevenness(self) -> float:
        """Rows of the fullest partition by those of the average one; 1 when there are none."""
        return self.largest * self.partitions / self.rows if self.rows else 1.0

    @property
    def empty_share(self) -> float:
        """Share of the partitions that hold no row."""
        return self.empty / self.partitions if self.partitions else 0.0

    @property
    def advice(self) -> str | None:
        """What to do about it; None while it is even enough, or too small to tell."""
        if self.rows < _FEWEST_ROWS * self.partitions:
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
    """Count the rows of a vector index by partition; None for an index of another kind.

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
    same = len({len(sizes) for sizes in segments}) == 1
    sizes = np.sum(segments, axis=0) if same else np.concatenate(segments)
    return PartitionBalance(
        index=name,
        partitions=len(sizes),
        empty=int(np.count_nonzero(sizes == 0)),
        rows=int(sizes.sum()),
        largest=int(sizes.max()),
        segments=len(segments),
        same_model=same,
    )


def balance_figures(balances: Iterable[PartitionBalance]) -> dict[str, int]:
    """The worst of several indexes, as figures of a job; none without one."""
    found = list(balances)
    if not found:
        return {}
    return {
        "unevenness_percent": max(round(100 * balance.unevenness) for balance in found),
        "empty_partitions_percent": max(round(100 * balance.empty_share) for balance in found),
    }


def advice_on(balances: Iterable[PartitionBalance]) -> tuple[str, ...]:
    """Advice for those that need it."""
    return tuple(balance.advice for balance in balances if balance.advice is not None)
