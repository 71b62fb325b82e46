"""A Dockerfile as data, and which files go to an engine."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

INSTRUCTIONS = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "LABEL", "RUN", "USER", "WORKDIR"
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """An instruction: ``RUN``, its flags (``--mount=...``), and the rest with lines joined."""

    keyword: str
    flags: tuple[str, ...]
    text: str
    line: int

    def words(self) -> list[str]:
        """The rest, as JSON if it is a list, else as a shell splits it."""
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)

    def pairs(self) -> dict[str, str]:
        """``A=b C=d`` of ``ENV``, ``LABEL`` and ``ARG``; an ``ARG`` without default is empty."""
        return {key: value for key, _, value in (word.partition("=") for word in self.words())}


@dataclass(frozen=True)
class Stage:
    """What begins with ``FROM base AS name``."""

    name: str
    base: str
    steps: tuple[Step, ...]

    def of(self, *keywords: str) -> list[Step]:
        return [step for step in self.steps if step.keyword in keywords]


@dataclass(frozen=True)
class Dockerfile:
    """Arguments before the first stage, and the stages by name, in order."""

    arguments: dict[str, str]
    stages: dict[str, Stage]

    def line(self, name: str) -> list[Stage]:
        """A stage and those that it is built on, from the lowest."""
        stage = self.stages[name]
        return [*(self.line(stage.base) if stage.base in self.stages else []), stage]

    def lasting(self, name: str, keyword: str) -> Step | None:
        """The last ``USER``, ``ENTRYPOINT``, ... that counts for a stage."""
        found = [step for stage in self.line(name) for step in stage.of(keyword)]
        return found[-1] if found else None


def read(path: Path) -> Dockerfile:
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for step in _steps(path.read_text()):
        if step.keyword == "FROM":
            base, _, name = re.fullmatch(r"(\S+)( AS (\S+))?", step.text).groups()  # type: ignore[union-attr]
            base = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found.group(1)], base)
            stages[name or str(len(stages))] = current = Stage(name or "", base, ())
        elif not stages:
            arguments.update(step.pairs())
        else:
            current = Stage(current.name, current.base, (*current.steps, step))
            stages[current.name] = current
    return Dockerfile(arguments, stages)


def _steps(text: str) -> Iterator[Step]:
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first = first if joined else number
        joined += line.strip().removesuffix("\\")
        if line.endswith("\\"):
            continue
        keyword, _, rest = joined.partition(" ")
        if keyword not in INSTRUCTIONS:
            raise ValueError(f"line {first}: {keyword} is not read here")
        flags = []
        while found := re.match(r"(--\S+)\s+", rest):
            flags.append(found.group(1))
            rest = rest[found.end() :]
        yield Step(keyword, tuple(flags), rest.strip(), first)
        joined = ""


def context(root: Path, ignore: Path) -> set[str]:
    """Files that go to an engine: below ``root`` and not left out by a ``.dockerignore``."""
    rules = [
        line.strip() for line in ignore.read_text().splitlines() if line.strip() and line[0] != "#"
    ]
    found = set()
    for folder, names, files in os.walk(root):
        inside = Path(folder).relative_to(root)
        # Folders that are left out whole are not gone through: Git's and environments' are large.
        names[:] = [name for name in names if _wanted((inside / name).as_posix(), rules, True)]
        found |= {
            path for name in files if _wanted(path := (inside / name).as_posix(), rules, False)
        }
    return found


def _wanted(path: str, rules: list[str], folder: bool) -> bool:
    wanted = True
    parts = path.split("/")
    heads = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    for rule in rules:
        pattern = rule.removeprefix("!")
        if rule.startswith("!") and folder and pattern.startswith(f"{path}/"):
            wanted = True
        elif any(_matches(head, pattern) for head in heads):
            wanted = rule.startswith("!")
    return wanted


def _matches(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch(path.rsplit("/", 1)[-1], pattern.removeprefix("**/"))
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch, parts, wanted))
