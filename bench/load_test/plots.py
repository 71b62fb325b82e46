"""One figure of a load: what was written, how long it took, what waited, and what it used."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter
from numpy.typing import NDArray

from load_test.processes import KINDS
from load_test.report import Load, merged_rows
from load_test.samples import FILES
from load_test.state import WRITES, of_kind

_BINS = 240
_GIB, _MIB = 1 << 30, 1 << 20
_INK, _LINE = "#1f2933", "#7b8b95"
# Colours that stand apart on white and on black paper.
_COLOURS = ("#0b7285", "#d9480f", "#7048e8", "#2b8a3e", "#c2255c", "#7b8b95", "#1971c2", "#e67700",
            "#495057")  # fmt: skip
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "load", "font.family": "sans-serif"}
# The site gives these other values on its dark paper.
_PALETTE = {_INK: "--ink", _LINE: "--line", "#0b7285": "--accent", "#d9480f": "--warm",
            "#ffffff": "--paper"}  # fmt: skip


def plot(load: Load, folder: Path) -> list[Path]:
    """Write ``load.svg`` and ``load.png`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    panels: list[tuple[str, Callable[[Axes, Load], None]]] = [
        ("rows/s", _throughput),
        ("write, ms", _writes),
        ("rows that wait", _backlog),
        ("age, s", _ages),
        ("read, ms", _reads),
        ("memory, MiB", _memory),
        ("files", _files),
        ("stored, GiB", _stored),
        ("processors", _processors),
        ("disk, MiB/s", _disk),
    ]
    figure = Figure(figsize=(9, 1.7 * len(panels)), layout="constrained", facecolor="#ffffff")
    axes = figure.subplots(len(panels), 1, sharex=True)
    for (name, draw), one in zip(panels, axes, strict=True):
        for kill in load.kills:
            one.axvline((kill["at"] - load.began) / 60, color=_LINE, linewidth=0.6, alpha=0.5)
        draw(one, load)
        _dress(one, name)
    axes[-1].set_xlabel(
        "minutes" + (", grey lines: something is killed" if load.kills else ""), color=_INK
    )
    axes[-1].set_xlim(0, load.seconds / 60)
    paths = [folder / "load.svg", folder / "load.png"]
    for path in paths:
        # Letters stay letters, and the same load is the same file.
        with mpl.rc_context(_SETTINGS):
            figure.savefig(path, dpi=100, metadata={"Date": None} if path.suffix == ".svg" else {})
    paths[0].write_text(_with_palette(paths[0].read_text()))
    return paths


def _throughput(axes: Axes, load: Load) -> None:
    writes = of_kind(load.events, *WRITES)
    at, rows = _binned(load, writes, lambda events, s: events["rows"].sum() / s, empty=0)
    axes.plot(at, rows, color=_COLOURS[0], label="acknowledged")
    merged = np.zeros(len(at))
    width = load.seconds / len(at)
    for run in load.runs:
        if run["job"] == "merge" and run["result"] and run["finished"] is not None:
            number = int((run["finished"] - load.began) / width)
            if 0 <= number < len(merged):
                merged[number] += merged_rows(run) / width
    window = max(len(at) // 30, 1)
    smooth = np.convolve(merged, np.ones(window) / window, mode="same")
    axes.plot(at, smooth, color=_COLOURS[1], label="merged, smoothed")
    rates = _of_samples(load, lambda sample: sample["rate"])
    if np.isfinite(rates[1]).all():
        axes.plot(*rates, color=_LINE, linewidth=0.8, linestyle="--", label="asked for")


def _writes(axes: Axes, load: Load) -> None:
    writes = of_kind(load.events, *WRITES)
    for colour, (name, share) in zip(
        _COLOURS, (("50 %", 50), ("99 %", 99), ("slowest", 100)), strict=False
    ):
        at, times = _binned(
            load, writes, lambda events, _, q=share: 1e3 * np.percentile(events["seconds"], q)
        )
        axes.plot(at, times, color=colour, label=name)
    axes.set_yscale("log")


def _backlog(axes: Axes, load: Load) -> None:
    names = {"backlog_rows": "for a merge", "index_rows": "for an index"}
    for colour, (key, name) in zip(_COLOURS, names.items(), strict=False):
        axes.plot(*_of_samples(load, lambda s, k=key: s[k]), color=colour, label=name)


def _ages(axes: Axes, load: Load) -> None:
    at, waiting = _of_samples(load, lambda s: s["oldest"])
    axes.plot(at, waiting, color=_COLOURS[0], label="oldest generation\nthat waits")
    stale = of_kind(load.events, "stale")
    at, oldest = _binned(load, stale, lambda events, _: events["seconds"].max())
    axes.plot(at, oldest, color=_COLOURS[1], label="newest row\nthat is read")


def _reads(axes: Axes, load: Load) -> None:
    for colour, kind in zip(_COLOURS, ("lookup", "range", "vector", "text", "scan"), strict=False):
        events = of_kind(load.events, kind)
        at, times = _binned(load, events, lambda some, _: 1e3 * np.percentile(some["seconds"], 50))
        axes.plot(at, times, color=colour, label=kind)
    axes.set_yscale("log")


def _memory(axes: Axes, load: Load) -> None:
    for colour, kind in zip(_COLOURS, KINDS, strict=False):
        line = _of_samples(load, lambda s, k=kind: s["memory"][k] / _MIB)
        axes.plot(*line, color=colour, label=kind)


def _files(axes: Axes, load: Load) -> None:
    _by_kind(axes, load, "files", 1)


def _stored(axes: Axes, load: Load) -> None:
    _by_kind(axes, load, "bytes", _GIB)


def _by_kind(axes: Axes, load: Load, what: str, unit: int) -> None:
    for colour, (kind, name) in zip(_COLOURS, FILES.items(), strict=True):
        at, counts = _of_samples(load, lambda s, k=kind: s[what].get(k, 0) / unit)
        if counts.any():
            axes.plot(at, counts, color=colour, label=name)


def _processors(axes: Axes, load: Load) -> None:
    for colour, kind in zip(_COLOURS, (*KINDS, "this"), strict=False):
        at, used = _of_samples(load, lambda s, k=kind: s["processor"][k], smooth=True)
        axes.plot(at, used, color=colour, label="looking" if kind == "this" else kind)


def _disk(axes: Axes, load: Load) -> None:
    for colour, kind in zip(_COLOURS, ("wrote", "read"), strict=False):
        at, used = _of_samples(load, lambda s, k=kind: s[f"{k}_mib"], smooth=True)
        axes.plot(at, used, color=colour, label=kind)


def _of_samples(
    load: Load, value: Callable[[dict[str, Any]], float], *, smooth: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Minutes and values; smoothed, or every so manieth where there are many."""
    at = np.array([(sample["at"] - load.began) / 60 for sample in load.samples])
    values = np.array([float(value(sample)) for sample in load.samples])
    groups = np.array_split(np.arange(len(at)), min(len(at), _BINS if smooth else 4 * _BINS))
    middle = np.array([at[group].mean() for group in groups])
    return middle, np.array([values[group].mean() for group in groups])


def _binned(
    load: Load,
    events: NDArray[Any],
    value: Callable[[NDArray[Any], float], float],
    *,
    empty: float | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Minutes and a value of the events of each bin; those without are left out, or ``empty``."""
    count = max(min(_BINS, math.floor(load.seconds)), 1)
    edges = load.began + np.linspace(0, load.seconds, count + 1)
    width = load.seconds / count
    middles = (edges[:-1] + edges[1:] - 2 * load.began) / 120
    values = [
        empty if first == end else float(value(events[first:end], width))
        for first, end in pairwise(np.searchsorted(events["at"], edges))
    ]
    known = [number for number, one in enumerate(values) if one is not None]
    return middles[known], np.array([values[number] for number in known])


def _dress(axes: Axes, name: str) -> None:
    axes.set_ylabel(name, color=_INK)
    axes.grid(axis="y", color=_LINE, alpha=0.25, linewidth=0.5)
    axes.tick_params(colors=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_LINE)
    if axes.get_yscale() == "log" or axes.get_ylim()[1] >= 1_000:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_minor_formatter(NullFormatter())
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles,
            labels,
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
            frameon=False,
            fontsize="small",
            labelcolor=_INK,
        )


def _with_palette(svg: str) -> str:
    for colour, name in _PALETTE.items():
        svg = svg.replace(colour, f"var({name}, {colour})")
    return svg
