"""Draw the pictures of the concept pages: ``python scripts/draw_diagrams.py [--check]``.

They are SVG with text as text. Colours are variables that the site sets for light and dark; where
nobody does, the colours after the comma show, on paper of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SMALL_COMMITS = Path(__file__).parents[1] / "bench" / "small_commits.json"

COLOURS = {
    "ink": "#1f2933",
    "paper": "#ffffff",
    "soft": "#e6eef2",
    "line": "#7b8b95",
    "accent": "#0b7285",
    "warm": "#d9480f",
}


def colour(name: str) -> str:
    """A colour of the palette."""
    return "none" if name == "none" else f"var(--{name}, {COLOURS[name]})"


class Drawing:
    """An SVG picture.

    Parameters
    ----------
    width, height : int
    title, description : str
        What a screen reader says.
    """

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.width, self.height = width, height
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="sans-serif">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f'<rect width="{width}" height="{height}" rx="10" fill="{colour("paper")}"/>',
        ]

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "soft",
        stroke: str = "line",
        thick: float = 1.2,
        dashed: bool = False,
        radius: float = 7,
    ) -> None:
        """A rectangle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'fill="{colour(fill)}" stroke="{colour(stroke)}" stroke-width="{thick:g}"{dash}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        lines: str | Sequence[str],
        *,
        size: float = 14,
        anchor: str = "start",
        bold: bool = False,
        fill: str = "ink",
        leading: float = 1.35,
        mono: bool = False,
    ) -> None:
        """Text; y is the base line of its first line."""
        weight = ' font-weight="600"' if bold else ""
        family = ' font-family="monospace"' if mono else ""
        for number, line in enumerate([lines] if isinstance(lines, str) else lines):
            self._parts.append(
                f'<text x="{x:g}" y="{y + number * size * leading:g}" font-size="{size:g}" '
                f'text-anchor="{anchor}" fill="{colour(fill)}"{weight}{family}>'
                f"{escape(line)}</text>"
            )

    def line(
        self,
        points: Sequence[tuple[float, float]],
        *,
        stroke: str = "line",
        thick: float = 1.6,
        dashed: bool = False,
        arrow: bool = False,
    ) -> None:
        """A line through points, with an arrow's head at its end if wanted."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        shown = list(points)
        if arrow:
            (x0, y0), (x, y) = points[-2:]
            length = math.hypot(x - x0, y - y0)
            dx, dy = (x - x0) / length, (y - y0) / length
            shown[-1] = (x - 7 * dx, y - 7 * dy)
            head = [
                (x, y),
                (x - 10 * dx - 4.5 * dy, y - 10 * dy + 4.5 * dx),
                (x - 10 * dx + 4.5 * dy, y - 10 * dy - 4.5 * dx),
            ]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in shown)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour(stroke)}" '
            f'stroke-width="{thick:g}" stroke-linejoin="round" stroke-linecap="round"{dash}/>'
        )
        if arrow:
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in head)
            self._parts.append(f'<polygon points="{path}" fill="{colour(stroke)}"/>')

    def dot(self, x: float, y: float, *, fill: str = "accent", radius: float = 5) -> None:
        """A filled circle."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{colour(fill)}"/>')

    def labelled(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        lines: Sequence[str],
        *,
        size: float = 13,
        bold_first: bool = True,
        fill: str = "soft",
        stroke: str = "line",
        ink: str = "ink",
        dashed: bool = False,
        loud: bool = False,
    ) -> None:
        """A box with lines of text in its middle.

        On accents no colour of the palette can be read in light and dark: a loud box has a thick
        line instead.
        """
        if loud:
            stroke = ink = "accent"
        self.box(
            x, y, width, height, fill=fill, stroke=stroke, dashed=dashed, thick=2.6 if loud else 1.2
        )
        leading = size * 1.35
        top = y + height / 2 - (len(lines) - 1) * leading / 2 + size * 0.35
        for number, line in enumerate(lines):
            self.text(
                x + width / 2,
                top + number * leading,
                line,
                size=size if number == 0 or not bold_first else size - 1,
                anchor="middle",
                bold=bold_first and number == 0,
                fill=ink,
            )

    def finish(self) -> str:
        """The file."""
        return "\n".join([*self._parts, "</svg>", ""])


def levels() -> str:
    """Where rows are, from the newest to the oldest."""
    d = Drawing(
        900,
        520,
        "The levels of a MemWAL table",
        "Two writers hold a MemTable each, for one region. Each region has a log and flushed "
        "generations in the object store. A merge brings the generations of all regions into the "
        "base table and its indexes. Readers ask the generations and the base table; the newest "
        "row of a key wins.",
    )
    d.text(24, 34, "newest", size=13, fill="accent", bold=True)
    d.text(24, 500, "oldest", size=13, fill="accent", bold=True)
    d.line([(46, 46), (46, 482)], stroke="accent", arrow=True)
    for number, (left, name) in enumerate(((90, "Region 1"), (400, "Region 2"))):
        d.text(left, 34, f"Writer of {name.lower()}", bold=True)
        d.text(left + 290, 34, "in memory", size=12, anchor="end", fill="line")
        d.labelled(left, 46, 290, 54, ["MemTable", "rows, keys, vectors and words, searchable"])
        d.box(left, 122, 290, 204, fill="none", dashed=True)
        d.text(left + 12, 144, name, bold=True)
        d.text(left + 278, 144, "in the store", size=12, anchor="end", fill="line")
        d.text(left + 12, 170, "log", size=13)
        for entry in range(6):
            covered = entry < (3 if number == 0 else 4)
            d.labelled(
                left + 52 + entry * 38,
                154,
                32,
                24,
                [str(entry + 11)],
                size=12,
                bold_first=False,
                fill="paper" if covered else "soft",
                ink="line",
                dashed=covered,
                loud=not covered,
            )
        for step in range(2):
            generation = 9 - step - number
            d.labelled(
                left + 12,
                200 + step * 60,
                266,
                50,
                [f"generation {generation}", "a small Lance table with its own indexes"],
                fill="soft",
            )
        d.line([(left + 145, 100), (left + 145, 121)], stroke="accent", arrow=True)
        d.line([(left + 145, 326), (left + 145, 380)], stroke="accent", arrow=True)
        d.text(left + 157, 360, "merge", size=13, fill="accent", bold=True)
    d.text(247, 115, "flush", size=13, fill="accent", bold=True)
    d.text(557, 115, "flush", size=13, fill="accent", bold=True)
    d.box(90, 382, 600, 108, fill="soft", stroke="line")
    d.text(106, 408, "Base table", bold=True)
    d.text(
        106,
        430,
        ["rows of all regions, with the progress of each merge", "in the same version"],
        size=13,
    )
    for number, name in enumerate(("index on the key", "vector index", "text index")):
        d.labelled(498, 392 + number * 31, 178, 25, [name], size=12, bold_first=False, fill="paper")
    d.labelled(
        730, 200, 150, 92, ["Reader", "newest row of", "each key wins"], fill="paper", stroke="warm"
    )
    d.line([(692, 226), (728, 238)], stroke="warm", arrow=True)
    d.line([(692, 436), (805, 436), (805, 294)], stroke="warm", arrow=True)
    d.line([(692, 73), (805, 73), (805, 198)], stroke="warm", arrow=True, dashed=True)
    d.text(700, 62, "only within the writer", size=12, fill="warm")
    return d.finish()


def write() -> str:
    """What happens to a write, and what survives when."""
    d = Drawing(
        900,
        330,
        "The life of a write",
        "A call is routed to its regions, waits for a log entry, is stored in the log, checked "
        "for a newer epoch, and acknowledged. From the log entry on it survives a crash. Later it "
        "is flushed as part of a generation, which all readers see, and merged.",
    )
    steps = [
        ("upsert(rows)", "checked, routed"),
        ("queue", "shares an entry"),
        ("log entry", "put if absent, fsync"),
        ("epoch", "still ours?"),
        ("returns", "acknowledged"),
        ("flush", "a generation"),
        ("merge", "in the base table"),
    ]
    width, gap, left, top = 108, 16, 24, 96
    for number, (name, what) in enumerate(steps):
        x = left + number * (width + gap)
        d.labelled(
            x,
            top,
            width,
            64,
            [name, what],
            size=13 if number else 12.5,
            loud=number == 4,
        )
        if number:
            d.line([(x - gap + 1, top + 32), (x - 1, top + 32)], stroke="line", arrow=True)
    third = left + 2 * (width + gap) - gap / 2
    fifth = left + 4 * (width + gap) - gap / 2
    d.text(left, 34, "A process that dies here ...", bold=True)
    d.line([(left, 76), (third - 10, 76)], stroke="warm", thick=3)
    d.text(left, 64, "wrote nothing", size=13, fill="warm")
    d.line([(third + 2, 76), (fifth - 8, 76)], stroke="warm", thick=3, dashed=True)
    d.text(third + 2, 64, "may have written it or not", size=13, fill="warm")
    d.line([(fifth, 76), (876, 76)], stroke="accent", thick=3)
    d.text(fifth, 64, "loses nothing", size=13, fill="accent")
    rows = [
        ("the writer's own reads see it", left + 4 * (width + gap)),
        ("every reader of the table sees it", left + 5 * (width + gap)),
        ("programs that do not know MemWAL see it", left + 6 * (width + gap)),
    ]
    for number, (what, x) in enumerate(rows):
        y = 206 + number * 40
        d.line([(x + 6, 164), (x + 6, y)], stroke="line", thick=1, dashed=True)
        d.line([(x + 6, y), (876, y)], stroke="accent", thick=2.4)
        d.dot(x + 6, y)
        d.text(x - 8, y + 5, what, size=13, anchor="end")
    return d.finish()


def generation() -> str:
    """From the flush to the last file."""
    d = Drawing(
        900,
        372,
        "The life of a generation",
        "A generation is flushed by its writer, merged by a merge, indexed by an index build, "
        "dropped from the region's manifest by a first collection, and deleted by a later one "
        "after the grace period. Until it is dropped readers may use it; until it is deleted "
        "those that planned with it may.",
    )
    steps = [
        ("flushed", "writer", "the manifest names it"),
        ("merged", "merge", "rows and mark at once"),
        ("caught up", "index build", "every maintained index"),
        ("named no more", "collection", "a new manifest"),
        ("gone", "later collection", "folder, log, old manifests"),
    ]
    width, gap, left, top = 152, 24, 24, 60
    for number, (state, who, how) in enumerate(steps):
        x = left + number * (width + gap)
        last = number == 4
        d.labelled(
            x,
            top,
            width,
            72,
            [state, how],
            size=14,
            fill="paper" if last else "soft",
            dashed=last,
        )
        d.text(x + width / 2, 42, who, size=13, anchor="middle", fill="accent", bold=True)
        if number:
            d.line([(x - gap + 1, top + 36), (x - 1, top + 36)], stroke="accent", arrow=True)
    centre = [left + number * (width + gap) + width / 2 for number in range(5)]
    bars = [
        ("holds the newest rows that the base table lacks", centre[0], centre[1], "accent"),
        ("answers searches until the indexes have its rows", centre[0], centre[2], "accent"),
        ("older kept versions, tags and reads may need it", centre[1], centre[3], "warm"),
        ("readers that planned with it finish: grace", centre[3], centre[4], "warm"),
    ]
    for number, (what, start, end, tone) in enumerate(bars):
        y = 176 + number * 50
        d.line([(start, y), (end, y)], stroke=tone, thick=3)
        d.dot(start, y, fill=tone, radius=4)
        d.dot(end, y, fill=tone, radius=4)
        d.text((start + end) / 2, y + 20, what, size=13, anchor="middle")
    return d.finish()


def claim() -> str:
    """Two writers and one region."""
    d = Drawing(
        900,
        560,
        "Claim and fence",
        "Writer A holds the region with epoch 1 and appends entries 7 and 8. Writer B claims: it "
        "commits a manifest with epoch 2, puts a fence at log position 9, and replays entries 7 "
        "and 8. The next entry of A meets the fence, is refused, and A stops.",
    )
    lanes = [(150, "Writer A"), (450, "Region in the store"), (750, "Writer B")]
    for x, name in lanes:
        d.labelled(x - 90, 18, 180, 34, [name], size=14, fill="soft")
        d.line([(x, 52), (x, 540)], stroke="line", thick=1, dashed=True)

    def send(y: float, start: float, end: float, label: str, tone: str = "accent") -> None:
        d.line([(start, y), (end, y)], stroke=tone, arrow=True)
        d.text((start + end) / 2, y - 7, label, size=13, anchor="middle", fill="ink")

    def holds(y: float, what: str, tone: str = "line") -> None:
        d.labelled(390, y - 15, 120, 29, [what], size=12, bold_first=False, stroke=tone)

    a, store, b = 150, 450, 750
    send(92, a, store - 62, "manifest: epoch 1")
    holds(92, "epoch 1")
    send(130, a, store - 62, "entry 7, epoch 1")
    holds(130, "log: 7")
    send(168, a, store - 62, "entry 8, epoch 1")
    holds(168, "log: 7 8")
    d.line([(a, 196), (a, 292)], stroke="warm", thick=4)
    d.text(
        a - 12,
        226,
        ["A stands still:", "a stopped machine,", "a long pause"],
        size=13,
        anchor="end",
    )
    send(226, b, store + 62, "1. manifest: epoch 2")
    holds(226, "epoch 2")
    send(266, b, store + 62, "2. a fence at the log's end")
    holds(266, "log: 7 8 fence", "warm")
    send(306, store + 62, b, "3. replays 7 and 8")
    d.text(b + 12, 330, ["has every row that", "was acknowledged,", "takes writes"], size=13)
    send(340, a, store - 62, "entry 9, epoch 1", "warm")
    holds(340, "9 is taken", "warm")
    send(382, store - 62, a, "by a higher epoch", "warm")
    d.labelled(
        a - 126, 402, 252, 50, ["RegionFencedError", "nothing was acknowledged"], stroke="warm"
    )
    send(424, b, store + 62, "entry 10, epoch 2")
    holds(424, "7 8 fence 10")
    d.box(230, 474, 440, 62, fill="soft", stroke="none")
    d.text(
        450,
        499,
        ["With the manifest alone, entry 9 of A would be stored", "and acknowledged, and lost."],
        size=13,
        anchor="middle",
    )
    return d.finish()


def progress() -> str:
    """Marks along the generations of a region."""
    d = Drawing(
        900,
        318,
        "Progress along the generations of a region",
        "Generations 1 to 3 are deleted. Generation 4 is covered by both indexes. The key index "
        "covers up to 6, the vector index up to 4. Merged up to 7. 8 and 9 are the backlog. "
        "Generation 10 is in memory, its rows in the log.",
    )
    left, width = 60, 78
    for number in range(1, 11):
        x = left + (number - 1) * width
        gone, memory = number <= 3, number == 10
        backlog = number in (8, 9)
        d.labelled(
            x + 3,
            64,
            width - 6,
            52,
            [str(number)],
            size=16,
            fill="none" if gone or memory else "soft",
            stroke="accent" if memory else "line",
            ink="line" if gone else "ink",
            dashed=gone or memory,
            loud=backlog,
        )

    def span(first: int, last: int, y: float, label: str, *, tone: str = "ink") -> None:
        start, end = left + (first - 1) * width + 6, left + last * width - 6
        d.line([(start, y + 6), (start, y), (end, y), (end, y + 6)], stroke="line", thick=1.2)
        d.text((start + end) / 2, y - 8, label, size=13, anchor="middle", fill=tone)

    span(1, 3, 50, "deleted")
    span(4, 7, 50, "merged, still stored")
    span(8, 9, 50, "backlog", tone="accent")
    span(10, 10, 50, "MemTable", tone="accent")

    def mark(upto: int, y: float, label: str, *, tone: str) -> None:
        end = left + upto * width - 3
        d.line([(left + 3, y), (end, y)], stroke=tone, thick=3)
        d.dot(end, y, fill=tone)
        d.line([(end, 118), (end, y)], stroke=tone, thick=0.8, dashed=True)
        d.text(end + 12, y + 5, label, size=13)

    mark(7, 150, "merged in the base table", tone="accent")
    mark(6, 184, "id_idx has caught up", tone="warm")
    mark(4, 218, "vector_idx has caught up", tone="warm")
    mark(4, 252, "may be collected: the least of all of these", tone="ink")
    d.text(
        left + 3,
        294,
        "Searches take generations 5 to 9 by the generations' own vector indexes, and the rest by "
        "the base table's.",
        size=13,
    )
    return d.finish()


def reads() -> str:
    """What each kind of read sees."""
    d = Drawing(
        900,
        300,
        "What a read sees",
        "A read of a writer sees the base table, flushed generations and its own MemTables. A read "
        "of the table sees all but MemTables. A read that may be stale sees the generations of the "
        "last snapshot. A read of a version sees the base table as it was.",
    )
    heads = [
        (300, 190, ["base table"]),
        (500, 170, ["generations in the", "last snapshot"]),
        (680, 90, ["newer", "generations"]),
        (780, 100, ["this writer's", "MemTables"]),
    ]
    for x, width, lines in heads:
        d.text(
            x + width / 2, 30 if len(lines) == 2 else 47, lines, size=13, anchor="middle", bold=True
        )
    kinds = [
        ("writer.scan()", "what this writer acknowledged", 4),
        ("table.scan()", "all that is flushed", 3),
        ("table.at_most(age).scan()", "no request to any region", 2),
        ("table.at(version).scan()", "exactly that version", 1),
    ]
    for row, (call, what, seen) in enumerate(kinds):
        y = 66 + row * 56
        d.text(24, y + 18, call, size=13.5, mono=True)
        d.text(24, y + 37, what, size=13, fill="line")
        for number, (x, width, _) in enumerate(heads):
            shown = number < seen
            d.box(
                x,
                y + 4,
                width,
                36,
                fill="accent" if shown else "none",
                stroke="accent" if shown else "line",
                dashed=not shown,
            )
    return d.finish()


def roles() -> str:
    """Who does what."""
    d = Drawing(
        900,
        470,
        "Who does what",
        "Producers with the embedded writer append to the table in the object store. Jobs, run by "
        "Airflow, a fleet or a person, in process or on Spark, merge, index, publish and collect. "
        "Readers read. The catalog holds policies, leases and runs and is asked by the jobs only.",
    )
    d.box(330, 128, 240, 216, fill="soft", stroke="accent")
    d.text(450, 154, "The table, in its store", bold=True, anchor="middle")
    for number, name in enumerate(
        ("logs of regions", "generations", "region manifests", "base table and indexes")
    ):
        d.labelled(350, 168 + number * 42, 200, 34, [name], bold_first=False, fill="paper")
    d.labelled(24, 128, 220, 92, ["Producers", "embed the writer", "one per region at a time"])
    d.line([(244, 168), (328, 168)], stroke="accent", arrow=True)
    d.text(286, 158, "append", size=12, anchor="middle")
    d.line([(244, 200), (328, 200)], stroke="accent", arrow=True)
    d.text(286, 190, "flush", size=12, anchor="middle")
    d.labelled(24, 252, 220, 92, ["Readers", "memwal, Lance, LanceDB,", "Spark, DuckDB, polars"])
    d.line([(328, 298), (246, 298)], stroke="accent", arrow=True)
    d.text(286, 288, "read", size=12, anchor="middle")
    d.labelled(
        656,
        128,
        220,
        216,
        [
            "Jobs",
            "merge, recovery",
            "index build",
            "compaction",
            "snapshot",
            "collection",
            "verify, quality",
        ],
    )
    d.line([(654, 208), (572, 208)], stroke="accent", arrow=True)
    d.line([(572, 264), (654, 264)], stroke="accent", arrow=True)
    d.text(613, 198, "commit", size=12, anchor="middle")
    d.text(613, 254, "read", size=12, anchor="middle")
    d.text(24, 40, ["Who starts", "the jobs"], size=13, bold=True)
    for x, lines in (
        (150, ["Airflow", "a DAG per table"]),
        (346, ["memwal fleet run", "a loop, or cron"]),
        (542, ["you", "one command or call"]),
    ):
        d.labelled(x, 16, 180, 54, lines, fill="paper")
    d.box(140, 8, 592, 70, fill="none", dashed=True)
    d.line([(732, 43), (766, 43), (766, 126)], stroke="line", arrow=True)
    d.labelled(
        330,
        392,
        240,
        62,
        ["Catalog (SQLite, PostgreSQL)", "policies, leases, runs, samples"],
        fill="paper",
    )
    d.line([(680, 344), (680, 423), (572, 423)], stroke="line", arrow=True)
    d.text(624, 413, "what is due?", size=12, anchor="middle")
    d.labelled(706, 392, 170, 62, ["Spark", "tasks of large jobs"], fill="paper", dashed=True)
    d.line([(790, 344), (790, 390)], stroke="line", arrow=True, dashed=True)
    d.text(
        24, 418, ["Nothing in the catalog is needed", "to read or to write."], size=13, fill="line"
    )
    return d.finish()


def region_change() -> str:
    """How a table is divided anew."""
    d = Drawing(
        900,
        186,
        "Dividing a table anew",
        "Merge while writers work, announce the new spec as pending, seal the old regions, merge "
        "the rest, put the new spec in force. Between announcing and putting in force no writer "
        "can be opened.",
    )
    steps = [
        ("merge", "writers go on"),
        ("announce", "the spec, pending"),
        ("seal", "every old region"),
        ("merge", "what is left"),
        ("in force", "new regions"),
    ]
    width, gap, left = 152, 24, 24
    for number, (name, what) in enumerate(steps):
        x = left + number * (width + gap)
        d.labelled(x, 24, width, 62, [name, what], size=14)
        if number:
            d.line([(x - gap + 1, 55), (x - 1, 55)], stroke="accent", arrow=True)
    closed = left + width + gap
    opened = left + 4 * (width + gap)
    d.line([(left, 120), (closed + width / 2, 120)], stroke="accent", thick=3)
    d.text(left, 142, "old regions take writes", size=13)
    d.line([(closed + width / 2 + 6, 120), (opened + width / 2 - 6, 120)], stroke="warm", thick=3)
    d.text(
        closed + width / 2 + 6,
        142,
        "no new writer opens; open ones end with their regions",
        size=13,
    )
    d.line([(opened + width / 2, 120), (876, 120)], stroke="accent", thick=3)
    d.text(876, 142, "new regions do", size=13, anchor="end")
    d.text(
        left,
        172,
        "Killed at any step, the same call goes on from there. Reads are right all the time.",
        size=13,
        fill="line",
    )
    return d.finish()


def small_commits() -> str:
    """The figures of bench/small_commits.py."""
    found = json.loads(SMALL_COMMITS.read_text())
    sides = [("plain", "one merge_insert each", "warm"), ("memwal", "the durable writer", "accent")]
    count = found["upserts"]
    d = Drawing(
        900,
        360,
        "Milliseconds of an upsert, as they add up",
        f"{count} upserts of 10 rows into a table of 100,000. Plain commits become slower with "
        "every version; the writer does not.",
    )
    left, right, top, bottom = 76, 640, 56, 300
    highest = max(max(found[side]["windows_ms"]) for side, _, _ in sides)
    step = 10 ** math.floor(math.log10(highest))
    step = step / 2 if highest / step < 3 else step
    ticks = [step * n for n in range(int(highest / step) + 2)]
    for tick in ticks:
        y = bottom - (bottom - top) * tick / ticks[-1]
        d.line([(left, y), (right, y)], stroke="soft", thick=1)
        d.text(left - 10, y + 4, f"{tick:g}", size=12, anchor="end")
    d.text(24, 34, "Median milliseconds of an upsert of 10 rows", bold=True)
    for fraction in (0, 0.25, 0.5, 0.75, 1):
        x = left + (right - left) * fraction
        d.text(x, bottom + 20, f"{count * fraction:,.0f}", size=12, anchor="middle")
    d.text((left + right) / 2, bottom + 42, "upserts so far", size=13, anchor="middle")
    for side, name, tone in sides:
        values = found[side]["windows_ms"]
        points = [
            (
                left + (right - left) * (number + 0.5) / len(values),
                bottom - (bottom - top) * value / ticks[-1],
            )
            for number, value in enumerate(values)
        ]
        d.line(points, stroke=tone, thick=2.6)
        d.text(right + 14, points[-1][1] + 5, name, size=13, fill=tone, bold=True)
    return d.finish()


DIAGRAMS: dict[str, Callable[[], str]] = {
    "levels": levels,
    "life-of-a-write": write,
    "life-of-a-generation": generation,
    "claim-and-fence": claim,
    "progress": progress,
    "reads": reads,
    "roles": roles,
    "region-change": region_change,
    "small-commits": small_commits,
}


def main() -> None:
    """Write the files, or see whether they are current."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the concept pages.")
    parser.add_argument("--check", action="store_true", help="only see whether they are current")
    check = parser.parse_args().check
    stale = []
    for name, draw in DIAGRAMS.items():
        path, drawn = IMAGES / f"{name}.svg", draw()
        if check:
            if not path.exists() or path.read_text() != drawn:
                stale.append(path.name)
        else:
            path.write_text(drawn)
    if stale:
        sys.exit(f"not current: {', '.join(stale)}; run python scripts/draw_diagrams.py")


if __name__ == "__main__":
    main()
