"""Chart of the backlog over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter
from upkeep import UpkeepJob, UpkeepRun
from watch import Sample

INK, MUTED, LINE = "#22303c", "#6b7785", "#d9dee4"
STATES = {"success": "#cfe6dc", "failed": "#f2c4c0"}
JOBS = {"merge": "#1d6b4f", "index": "#3f9a76", "snapshot": "#7fbf9f", "gc": "#a6d3bd"}
DARK_JOBS = ("merge", "index")
LABELLED_PART = 0.045
"""Part of the picture's width that a job must fill for its name to fit."""


def draw(
    path: Path,
    *,
    title: str,
    samples: Sequence[Sample],
    runs: Sequence[UpkeepRun],
    jobs: Sequence[UpkeepJob],
    run_name: str,
    started: float,
    marks: Mapping[str, float],
) -> None:
    """Draw the backlog of every region, the rounds of maintenance, and the writes.

    Parameters
    ----------
    path : Path
        PNG file to write.
    title : str
        Description of the run, in one line.
    samples, runs, jobs
        Observations of the run. At least one sample.
    run_name : str
        Word for rounds of maintenance.
    started : float
        Start of the run, in seconds since 1970.
    marks : mapping of str to float
        Times to mark with a line, in seconds since the start of the run.
    """
    figure = Figure(figsize=(11, 6.6), dpi=150, layout="constrained")
    backlog, rounds, writes = figure.subplots(3, 1, sharex=True, height_ratios=[5, 0.7, 2.2])
    seconds = np.array([sample.seconds for sample in samples])
    _backlog(backlog, seconds, np.array([sample.backlog_rows for sample in samples]))
    _rounds(rounds, runs, jobs, run_name, started, float(seconds[-1]))
    _writes(writes, seconds, np.array([sample.writes for sample in samples]))
    for axes in (backlog, writes):
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(axis="y", color=LINE, linewidth=0.6)
        axes.set_axisbelow(True)
    for axes in (backlog, rounds, writes):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(LINE)
        axes.tick_params(colors=MUTED, length=0)
        for moment in marks.values():
            axes.axvline(moment, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    for name, moment in marks.items():
        backlog.annotate(
            name,
            (moment, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-4, -4),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="top",
            fontsize=8,
            color=INK,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )
    backlog.set_xlim(0, max(1.02 * float(seconds[-1]), 1.0))
    writes.set_xlabel("seconds since the start", color=MUTED)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.savefig(path)


def _backlog(axes: Axes, seconds: np.ndarray, rows: np.ndarray) -> None:
    shades = mpl.colormaps["viridis"](np.linspace(0.12, 0.92, rows.shape[1]))
    labels = [f"region {number}" for number in range(rows.shape[1])]
    axes.stackplot(seconds, rows.T, colors=shades, labels=labels, edgecolor="white", linewidth=0.4)
    handles, labels = axes.get_legend_handles_labels()
    # From top to bottom, in the order in which the areas are stacked.
    axes.legend(
        handles[::-1],
        labels[::-1],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        fontsize=8,
        labelcolor=MUTED,
    )
    _name(axes, "Backlog: rows flushed and not merged yet")


def _rounds(
    axes: Axes,
    runs: Sequence[UpkeepRun],
    jobs: Sequence[UpkeepJob],
    name: str,
    started: float,
    end: float,
) -> None:
    for run in runs:
        begin = run.started - started
        width = (run.ended - started if run.ended is not None else end) - begin
        axes.barh(0, width, left=begin, height=0.9, color=STATES.get(run.state, LINE))
    for job in jobs:
        kind = job.result.job
        begin, width = job.started - started, job.ended - job.started
        if kind not in JOBS:
            continue
        axes.barh(0, width, left=begin, height=0.6, color=JOBS[kind], edgecolor="white")
        if width > LABELLED_PART * end:
            ink = "white" if kind in DARK_JOBS else INK
            axes.text(begin + width / 2, 0, kind, ha="center", va="center", fontsize=7, color=ink)
    axes.set_yticks([])
    axes.set_ylim(-0.5, 0.5)
    failed = sum(run.failed for run in runs)
    _name(axes, f"{name} ({len(runs)}{f', {failed} failed' if failed else ''}) and their jobs")


def _writes(axes: Axes, seconds: np.ndarray, writes: np.ndarray) -> None:
    axes.plot(seconds, writes, color="#2c6fbb", linewidth=2)
    axes.annotate(
        f"{writes[-1]:,}",
        (seconds[-1], writes[-1]),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=INK,
        annotation_clip=False,
    )
    _name(axes, "Acknowledged writes")


def _name(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, color=INK)
