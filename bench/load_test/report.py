"""What a load came to: figures, whether memory and files stayed flat, what gave way first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from common.measure import Figure, Line, Rival, Target, constant
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Screen

from load_test.processes import KINDS
from load_test.rate import INDEXES_BEHIND_SECONDS, MERGES_BEHIND_SECONDS
from load_test.state import READS, WRITES, of_kind

Samples = Sequence[dict[str, Any]]

_MIB = 1 << 20
_FLAT = Target(1.1)
# What the sampler itself may take of a processor.
_COST = 0.05
# Of a run whose rate was never settled, the beginning that nothing is judged by.
_BEGINNING = 0.2
# Signs are looked for in the means of so many samples.
_WINDOW = 30


@dataclass(frozen=True, slots=True)
class Load:
    """All that was seen of a load, from its beginning to the moment the producers were told to end.

    Attributes
    ----------
    samples : sequence of dict
        One a second, as of ``Sampler``.
    events : array
        As of ``Events``.
    steady : float
        When the rate was changed last; the end of the beginning where it never was.
    runs : sequence of dict
        Runs of the jobs, as the catalog tells, without those that were told to end with it.
    kills : sequence of dict
    """

    samples: Samples
    events: NDArray[Any]
    steady: float
    runs: Sequence[dict[str, Any]]
    kills: Sequence[dict[str, Any]]

    @classmethod
    def of(
        cls,
        samples: Samples,
        events: NDArray[Any],
        changes: Sequence[dict[str, Any]],
        runs: Sequence[dict[str, Any]],
        kills: Sequence[dict[str, Any]],
    ) -> Load:
        first, last = samples[0]["at"], samples[-1]["at"]
        inside = events[(events["at"] >= first) & (events["at"] <= last)]
        beginning = first + _BEGINNING * (last - first)
        # A rate that changed at the very end has not shown anything yet.
        middle = (first + last) / 2
        settled = [change["at"] for change in changes if change["at"] <= middle]
        over = [run for run in runs if run["finished"] is not None and run["finished"] <= last]
        return cls(samples, inside, max([beginning, *settled]), over, kills)

    @property
    def began(self) -> float:
        return float(self.samples[0]["at"])

    @property
    def seconds(self) -> float:
        return float(self.samples[-1]["at"] - self.samples[0]["at"])

    def halves(self) -> tuple[Samples, Samples]:
        """The samples of the steady part, divided in the middle."""
        steady = [sample for sample in self.samples if sample["at"] >= self.steady]
        return steady[: len(steady) // 2], steady[len(steady) // 2 :]


def lines(load: Load) -> Iterator[Line]:
    """The second half of the steady part beside the first: what must not grow."""
    before, behind = load.halves()
    if not before or not behind:
        return

    def line(
        what: str, unit: str, value: Callable[[dict[str, Any]], float], *, seconds: float = 0.0
    ) -> Line:
        first, second = (Figure.of(_averages(half, value, seconds)) for half in (before, behind))
        # What is less than one is nothing, and no ratio can be told of it.
        least = Figure(*(max(figure, 1.0) for figure in (first.median, first.low, first.high)))
        return _line(what, second, least, unit)

    for kind in KINDS:
        yield line(f"memory of all {kind}", "MiB", lambda s, k=kind: s["memory"][k] / _MIB)
    yield line("files", "files", lambda s: sum(s["files"].values()))
    yield line("stored", "MiB", lambda s: sum(s["bytes"].values()) / _MIB)
    # They come and go by whole generations: a median of seconds tells one or two of them.
    yield line("rows that wait for a merge", "rows", lambda s: s["backlog_rows"], seconds=60.0)
    yield line("rows that wait for an index", "rows", lambda s: s["index_rows"], seconds=60.0)
    middle = behind[0]["at"]
    steady = of_kind(load.events[load.events["at"] >= load.steady], *WRITES)
    halves = steady[steady["at"] < middle], steady[steady["at"] >= middle]
    if all(map(len, halves)):
        p99 = [float(np.percentile(1e3 * half["seconds"], 99)) for half in halves]
        first, second = map(constant, p99)
        yield _line("99th percentile of a write", second, first, "ms")
    cost = _mean(load.samples, lambda s: s["processor"]["this"])
    yield Line(
        name="load",
        what="processors that looking takes",
        ours=constant(cost),
        other=constant(_COST),
        unit="of one",
        against="limit",
        rival=Rival.LIMIT,
        target=Target(1.0),
    )


def _averages(
    samples: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float], seconds: float
) -> list[float]:
    """The value in each stretch of so many seconds; that of each sample if it is 0."""
    if not seconds:
        return [value(one) for one in samples]
    stretches: dict[int, list[float]] = {}
    for one in samples:
        stretches.setdefault(int((one["at"] - samples[0]["at"]) // seconds), []).append(value(one))
    return [float(np.mean(stretch)) for stretch in stretches.values()]


def _line(what: str, second: Figure, first: Figure, unit: str) -> Line:
    return Line(
        name="load",
        what=what,
        ours=second,
        other=first,
        unit=unit,
        against="the first half",
        rival=Rival.OURS,
        target=_FLAT,
    )


def figures(load: Load) -> dict[str, Any]:
    """What was written, read, merged and used, by name."""
    steady = load.events[load.events["at"] >= load.steady]
    steady_seconds = max(load.began + load.seconds - load.steady, 1e-9)
    writes = of_kind(load.events, *WRITES)
    found: dict[str, Any] = {
        "seconds": load.seconds,
        "steady from second": load.steady - load.began,
        "rows acknowledged": int(writes["rows"].sum()),
        "calls": len(writes),
        "rows/s, steady": float(of_kind(steady, *WRITES)["rows"].sum()) / steady_seconds,
        "share of the time that producers waited for flushes, steady": float(
            of_kind(steady, "waited")["seconds"].sum()
        )
        / steady_seconds,
    }
    for kind in (*WRITES, "flush", "settled", *READS):
        some = of_kind(load.events, kind)
        if len(some):
            found[f"{kind}, ms"] = _percentiles(1e3 * some["seconds"])
            found[f"{kind}, times"] = len(some)
    stale = of_kind(load.events, "stale")
    if len(stale):
        found["age of the newest row that is read, s"] = _percentiles(stale["seconds"])
    for name in ("generations", "backlog_rows", "oldest", "index_generations", "index_rows"):
        found[f"most {name}"] = max(sample[name] for sample in load.samples)
    for kind in (*KINDS, "this"):
        found[f"most memory of {kind}, MiB"] = round(
            max(sample["memory"][kind] for sample in load.samples) / _MIB
        )
        found[f"processors of {kind}"] = _mean(load.samples, lambda s, k=kind: s["processor"][k])
    found["most files"] = max(sum(sample["files"].values()) for sample in load.samples)
    found["most GiB stored"] = max(sum(s["bytes"].values()) for s in load.samples) / (1 << 30)
    found["processors busy"] = _mean(load.samples, lambda s: s["busy"])
    found["disk busy"] = _mean(load.samples, lambda s: s["disk_busy"])
    found["MiB/s written to the disk"] = _mean(load.samples, lambda s: s["wrote_mib"])
    at, waiting = (
        np.array([s[key] for s in load.samples if s["at"] >= load.steady])
        for key in ("at", "backlog_rows")
    )
    if len(at) > 1:
        # Nothing but flushes slows producers: without end, this is too much for the merges.
        grows = float(np.polyfit(at - at[0], waiting, 1)[0])
        found["rows/s more that wait for a merge, steady"] = grows
    versions = load.samples[-1]["version"] - load.samples[0]["version"]
    found["commits/s"] = versions / max(load.seconds, 1e-9)
    merged = [run for run in load.runs if run["job"] == "merge" and run["result"]]
    rows = sum(merged_rows(run) for run in merged)
    found["rows/s merged"] = rows / max(load.seconds, 1e-9)
    found["runs"] = dict(Counter(f"{run['job']} {run['state']}" for run in load.runs))
    found["kills"] = dict(Counter(kill["who"] for kill in load.kills))
    return found


def merged_rows(run: dict[str, Any]) -> int:
    """Rows that a run of a merge brought into the base table or took out of it."""
    counted = run["result"]["metrics"]
    return int(counted["rows_upserted"] + counted["rows_deleted"])


def signs(load: Load) -> list[dict[str, Any]]:
    """What gave way, in the order in which it was first seen, and in how much of the time."""
    samples = load.samples

    def smooth(key: str) -> NDArray[np.float64]:
        return _smooth([sample[key] for sample in samples], _WINDOW)

    at = np.array([sample["at"] for sample in samples])
    rate = np.maximum(smooth("rows"), 1)
    waiting, unindexed = (
        np.array([sample[key] for sample in samples]) / rate
        for key in ("backlog_rows", "index_rows")
    )
    begins, slowest = _p99_by_second(load)
    usual = float(np.median(slowest)) if len(slowest) else 0.0
    stale = of_kind(load.events, "stale")
    seen = {
        "the processors are busy (95 %)": (at, smooth("busy") >= 0.95),
        "the disk is busy (90 %)": (at, smooth("disk_busy") >= 0.9),
        "producers wait for flushes (10 % of the time)": (at, smooth("waited") >= 0.1),
        "merges are behind (30 s of writing wait)": (at, waiting > MERGES_BEHIND_SECONDS),
        "indexes are behind (60 s of writing wait)": (at, unindexed > INDEXES_BEHIND_SECONDS),
        "writes are slow (p99 of a second ten times as usual)": (begins, slowest > 10 * usual),
        "what is read is old (60 s)": (stale["at"], stale["seconds"] > 60),
    }
    found = [_sign(load, what, times, is_seen) for what, (times, is_seen) in seen.items()]
    return sorted(found, key=lambda one: math.inf if one["first"] is None else one["first"])


def _sign(
    load: Load, what: str, at: NDArray[np.float64], is_seen: NDArray[np.bool_]
) -> dict[str, Any]:
    first = float(at[is_seen].min() - load.began) if is_seen.any() else None
    return {"what": what, "first": first, "share": float(is_seen.mean()) if len(at) else 0.0}


def show(
    title: str, checks: Sequence[Any], found: dict[str, Any], gave: Sequence[dict[str, Any]]
) -> None:
    """Print checks, figures and signs."""
    console = Console()
    screen = Screen("what must be", "so", "found", title=title)
    for check in checks:
        screen.add_row(check.what, "yes" if check.held else "NO", check.found)
    console.print(screen)
    screen = Screen("figure", "value")
    for name, value in found.items():
        screen.add_row(name, _shown(value))
    console.print(screen)
    screen = Screen("what gives way", "first seen, s", "share of the time")
    for sign in gave:
        first = "never" if sign["first"] is None else f"{sign['first']:.0f}"
        screen.add_row(sign["what"], first, f"{sign['share']:.0%}")
    console.print(screen)


def _p99_by_second(load: Load) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Beginning of every second with writes, and the 99th percentile of these."""
    writes = of_kind(load.events, *WRITES)
    begins = load.began + np.arange(math.floor(load.seconds) + 1)
    cuts = np.searchsorted(writes["at"], np.append(begins, np.inf))
    full = np.flatnonzero(np.diff(cuts))
    p99 = [np.percentile(writes["seconds"][cuts[n] : cuts[n + 1]], 99) for n in full]
    return begins[full], np.array(p99)


def _smooth(values: Sequence[float], window: int) -> NDArray[np.float64]:
    """Mean of each value and those before it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def _mean(samples: Samples, value: Callable[[dict[str, Any]], float]) -> float:
    return float(np.mean([value(sample) for sample in samples]))


def _percentiles(samples: NDArray[Any]) -> dict[str, float]:
    p50, p99 = np.percentile(samples, [50, 99])
    return {"p50": float(p50), "p99": float(p99), "most": float(samples.max())}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:,.3g}"
