"""The corpus: docstrings of installed packages, and how the documents change over time."""

from __future__ import annotations

import importlib
import inspect
import random
import re
from collections.abc import Iterator, Mapping

MODULES = (
    *("argparse", "asyncio", "collections", "concurrent.futures", "contextlib", "csv", "datetime"),
    *("decimal", "email.message", "functools", "http.client", "inspect", "itertools", "json"),
    *("logging", "os", "pathlib", "random", "shutil", "socket", "sqlite3", "statistics"),
    *("subprocess", "tarfile", "textwrap", "urllib.request", "zipfile", "numpy", "numpy.linalg"),
    *("pyarrow", "pyarrow.compute", "pyarrow.parquet"),
)
CHUNK_CHARACTERS = 400

Changes = dict[str, str | None]
"""Documents by name: what they say now, or None for those that are withdrawn."""


def corpus() -> dict[str, str]:
    """Return the docstring of every documented function and class, by its name."""
    found = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name, member in sorted(vars(module).items(), key=lambda item: item[0]):
            is_documented = inspect.isclass(member) or callable(member)
            text = inspect.getdoc(member) if is_documented and name[0] != "_" else None
            if text is not None and len(text) > 80:
                found[f"{module_name}.{name}"] = text
    return found


def chunks(text: str) -> list[str]:
    """Split a text into chunks to embed: paragraphs, short ones joined."""
    pieces: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(paragraph.split())
        if pieces and len(pieces[-1]) + len(plain) < CHUNK_CHARACTERS:
            pieces[-1] += f" {plain}"
        elif plain:
            pieces.append(plain)
    return pieces


def history(documents: Mapping[str, str], *, rounds: int, seed: int = 0) -> Iterator[Changes]:
    """Yield the changes of the documents, the same for each seed.

    First a third of them are added, half of these as drafts with only their first chunk. In each
    round more are added, drafts are completed, and a few are withdrawn, some of which come back.
    """
    dice = random.Random(seed)  # noqa: S311 - only for reproducible rounds
    waiting = sorted(documents)
    dice.shuffle(waiting)
    drafts: list[str] = []
    withdrawn: list[str] = []

    def arrive(count: int) -> Changes:
        arrived: Changes = {}
        for name in waiting[:count]:
            is_draft = dice.random() < 0.5
            arrived[name] = chunks(documents[name])[0] if is_draft else documents[name]
            if is_draft:
                drafts.append(name)
        del waiting[:count]
        return arrived

    some = len(waiting) * 2 // (3 * rounds)
    known = arrive(len(waiting) // 3)
    yield dict(known)
    for _ in range(rounds):
        changes = arrive(some)
        changes |= {name: documents[name] for name in drafts[: some // 2]}
        changes |= {name: documents[name] for name in withdrawn[: some // 8]}
        del drafts[: some // 2], withdrawn[: some // 8]
        present = sorted(name for name, text in known.items() if text and name not in changes)
        gone = dice.sample(present, min(some // 4, len(present)))
        changes |= dict.fromkeys(gone)
        drafts = [name for name in drafts if name not in gone]
        withdrawn += gone
        known |= changes
        yield changes
