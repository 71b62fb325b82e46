"""Write the table of values in helm/memwal/README.md from the comments of values.yaml.

Usage: ``python scripts/describe_chart.py [--check]``. With ``--check`` nothing is written; the exit
code says whether the table is what values.yaml says today.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import operator
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parent.parent / "helm" / "memwal"
README = CHART / "README.md"
START = "<!-- values: written by scripts/describe_chart.py -->"
END = "<!-- end of values -->"

_KEY = re.compile(r"( *)([A-Za-z][A-Za-z0-9_.]*):")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value, or a section of them, with what the comment above it says."""

    path: str
    default: Any
    section: bool
    text: str


def described(text: str) -> Iterator[Value]:
    """Values that have a comment, in the order of the file."""
    lines = text.splitlines()
    values = yaml.safe_load(text)
    parents: list[str] = []
    comment: list[str] = []
    for number, line in enumerate(lines):
        key = _KEY.match(line)
        if line.lstrip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
        elif key is not None:
            depth = len(key[1]) // 2
            parents = [*parents[:depth], key[2]]
            if comment:
                yield Value(
                    path=".".join(parents),
                    default=functools.reduce(operator.getitem, parents, values),
                    section=_has_comments(lines[number + 1 :], depth),
                    text=" ".join(comment),
                )
            comment = []


def table(text: str) -> str:
    """The table, as Markdown."""
    lines = ["| value | default | |", "|---|---|---|"]
    for value in described(text):
        default = "" if value.section else f"`{json.dumps(value.default)}`"
        lines.append(f"| `{value.path}` | {default} | {value.text} |")
    return "\n".join(lines)


def written(readme: str, values: str) -> str:
    """The page with the table of today."""
    before, _, rest = readme.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table(values)}\n{END}{after}"


def main() -> int:
    """Write the table, or look whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    current = written(readme, values)
    if current == readme:
        return 0
    if check:
        print(f"{README} is not current: run python {sys.argv[0]}", file=sys.stderr)
        return 1
    README.write_text(current, encoding="utf-8")
    return 0


def _has_comments(below: Iterable[str], depth: int) -> bool:
    """Whether the lines of a key describe what is in it one by one."""
    deeper = "  " * (depth + 1)
    inside = itertools.takewhile(lambda line: line.startswith(deeper), below)
    return any(line.lstrip().startswith("#") for line in inside)


if __name__ == "__main__":
    sys.exit(main())
