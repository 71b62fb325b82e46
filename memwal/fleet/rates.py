"""How fast rows come in and are merged, from samples of the backlog and the runs of merges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memwal.catalog.latest import MergedRows
    from memwal.catalog.records import BacklogSample

WINDOW = timedelta(minutes=15)
"""What the present rates are taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rows per second.

    Attributes
    ----------
    rows_in : float or None
        Flushed: what the backlog grew by, and what merges took out of it meanwhile. Rows of one
        key that were merged as one count as one. Never below 0; None with less than two samples.
    rows_merged : float
        Upserted and deleted by merges.
    """

    rows_in: float | None
    rows_merged: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """A sample, and the rates since the one before.

    Attributes
    ----------
    sample : BacklogSample
    rates : Rates or None
        None for the first.
    """

    sample: BacklogSample
    rates: Rates | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        sample, rates = self.sample, self.rates
        return {
            "at": sample.at.isoformat(),
            "generations": sample.generations,
            "rows": sample.rows,
            "bytes": sample.bytes,
            "wal_entries": sample.wal_entries,
            "oldest_seconds": sample.oldest_seconds,
            "lag_generations": sample.lag_generations,
            "lag_rows": sample.lag_rows,
            "reclaimable_bytes": sample.reclaimable_bytes,
            "base_rows": sample.base_rows,
            "rows_in_per_second": None if rates is None else rates.rows_in,
            "rows_merged_per_second": None if rates is None else rates.rows_merged,
        }


def present_rates(
    first: BacklogSample | None,
    last: BacklogSample | None,
    merges: Iterable[MergedRows],
    *,
    window: timedelta = WINDOW,
) -> Rates:
    """Take the rates of a window.

    Parameters
    ----------
    first, last : BacklogSample or None
        The first and the last sample in the window.
    merges : iterable of MergedRows
        Of this table, in the window.
    window : timedelta, default 15 minutes
        Its length.
    """
    found = list(merges)
    merged = sum(one.rows for one in found) / window.total_seconds()
    rows_in = None
    if first is not None and last is not None and last.at > first.at:
        meanwhile = sum(one.rows for one in found if first.at < one.at <= last.at)
        rows_in = _grown(first, last, meanwhile)
    return Rates(rows_in=rows_in, rows_merged=merged)


def history_points(
    samples: Sequence[BacklogSample], merges: Sequence[MergedRows]
) -> list[HistoryPoint]:
    """Put rates to the samples of one table.

    Parameters
    ----------
    samples : sequence of BacklogSample
        Oldest first.
    merges : sequence of MergedRows
        Of the same table, oldest first.
    """
    times = [one.at for one in merges]
    points = [HistoryPoint(sample=one, rates=None) for one in samples[:1]]
    for before, sample in pairwise(samples):
        seconds = (sample.at - before.at).total_seconds()
        if seconds <= 0:
            points.append(HistoryPoint(sample=sample, rates=None))
            continue
        between = merges[bisect_right(times, before.at) : bisect_right(times, sample.at)]
        merged = sum(one.rows for one in between)
        rates = Rates(rows_in=_grown(before, sample, merged), rows_merged=merged / seconds)
        points.append(HistoryPoint(sample=sample, rates=rates))
    return points


def _grown(first: BacklogSample, last: BacklogSample, merged: int) -> float:
    seconds = (last.at - first.at).total_seconds()
    return max(0.0, (last.rows - first.rows + merged) / seconds)
