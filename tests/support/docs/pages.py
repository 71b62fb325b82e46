"""The code of the documents: which blocks a page has, and what their comments ask for.

What the comments mean is told in CONTRIBUTING.md.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

NEEDS = {
    "a cluster",
    "Airflow",
    "Spark",
    "an object store",
    "PostgreSQL",
    "a network",
    "a service",
    "a checkout",
}
"""What a machine that runs the tests need not have."""

RUN = {"python", "bash"}
PARSED = {"yaml", "json", "toml"}
SHOWN = {"text", "ini", "sql", "promql", "properties", "dockerfile", "html", "typescript", "diff"}

KEYS = {"needs", "slow", "run by", "given", "prints", "fails"}

PLACES = {
    "generated",
    "figures",
    "end of figures",
    "versions",
    "end of versions",
    "in the repository",
}
"""Comments about a place of the page rather than about a block."""

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w+-]*)[^\n`]*\n(?P<code>.*?)^(?P=indent)``` *$", re.M | re.S
)
_CODE = re.compile(r"`[^`\n]+`")
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.S)
_COMMENTS_BEFORE = re.compile(r"(?:^ *<!--.*?--> *\n)+\Z", re.M)


@dataclass(frozen=True)
class Mark:
    """What one comment says: ``<!-- page needs: a cluster -->``."""

    key: str
    value: str
    of_page: bool

    @classmethod
    def read(cls, comment: str) -> Mark:
        key, _, value = comment.partition(": ")
        return cls(key.removeprefix("page "), value.strip(), key.startswith("page "))


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, with the marks that hold for it."""

    page: str
    line: int
    language: str
    code: str
    marks: tuple[Mark, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def values(self, key: str) -> list[str]:
        """What the marks with this key say, those of the page first."""
        return [mark.value for mark in self.marks if mark.key == key]

    @property
    def slow(self) -> bool:
        return bool(self.values("slow"))

    @property
    def needs(self) -> str | None:
        return next(iter(self.values("needs")), None)

    @property
    def runs(self) -> bool:
        """Whether the tests of the pages run it themselves."""
        return self.language in RUN and not self.needs and not self.values("run by")


@dataclass(frozen=True)
class Page:
    """A page: its blocks in order, and its comments that belong to no block."""

    name: str
    text: str
    blocks: tuple[Block, ...]
    given: tuple[str, ...]
    stray: tuple[str, ...]

    @property
    def prose(self) -> str:
        """The text without its blocks, comments and inline code."""
        return _COMMENT.sub("", _CODE.sub("", self.prose_with_code))

    @property
    def prose_with_code(self) -> str:
        """The text without its blocks."""
        return _FENCE.sub("", self.text)


def read_page(path: Path) -> Page:
    """Find the blocks of a page."""
    text = path.read_text()
    name = str(path.relative_to(ROOT))
    comments = _comments(_CODE.sub("", _FENCE.sub("", text)))
    of_page = [mark for mark in comments if mark.of_page]
    blocks, attached = [], []
    for fence in _FENCE.finditer(text):
        before = _COMMENTS_BEFORE.search(text[: fence.start()])
        own = [mark for mark in _comments(before[0] if before else "") if not mark.of_page]
        attached += own
        blocks.append(
            Block(
                page=name,
                line=text.count("\n", 0, fence.start()) + 1,
                language=fence["language"],
                code=textwrap.dedent(fence["code"]),
                marks=(*(mark for mark in of_page if mark.key != "given"), *own),
            )
        )
    return Page(
        name=name,
        text=text,
        blocks=tuple(blocks),
        given=tuple(mark.value for mark in of_page if mark.key == "given"),
        stray=tuple(
            f"{mark.key}: {mark.value}"
            for mark in comments
            if mark.key not in {*KEYS, *PLACES}
            or (mark.key in KEYS and not mark.of_page and mark not in attached)
        ),
    )


def _comments(text: str) -> Sequence[Mark]:
    return [Mark.read(found) for found in _COMMENT.findall(text)]


def pages() -> list[Page]:
    """Every page that is written by hand, the front page first."""
    documents = sorted((ROOT / "docs").rglob("*.md")) + sorted(
        (ROOT / "examples").rglob("README.md")
    )
    return [read_page(path) for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *documents)]
