"""Add, replace and withdraw documents, and search them at the same time.

    python ingest.py --table library.lance [--model minilm] [--rounds 8] [--documents 1200]

Prints a line for each round. If it is killed and started again, it resumes where it stopped.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from documents import Changes, chunks, corpus, history
from embed import WORDS, Embed, by_meaning, by_words
from library import Library, Upkeep

K = 10
QUESTIONS = 20
REFINE = 10
"""How many times ``K`` candidates the codebook's guess is checked for by the vectors themselves."""


@dataclass(frozen=True, slots=True)
class Look:
    """Measurements of one round.

    Attributes
    ----------
    documents, rows, backlog : int
        Number of documents, rows, and unmerged generations.
    vector : float
        Share of the ten nearest chunks, determined by a full comparison, that a search finds.
    text, hybrid : float
        Share of questions whose source chunk is among the first ten results.
    ghosts : int
        Withdrawn or replaced chunks among all answers. Must be 0.
    seen_by_writer, seen_by_all : float
        Seconds until the writing process, and until other processes, find the newest document.
    """

    documents: int
    rows: int
    backlog: int
    vector: float
    text: float
    hybrid: float
    ghosts: int
    seen_by_writer: float
    seen_by_all: float

    HEAD = (
        "round  documents  chunks  backlog | vector  text  hybrid  ghosts | seen by writer, by all"
    )

    def line(self, number: int) -> str:
        """Format the round as a line of the table."""
        return (
            f"{number:5}  {self.documents:9}  {self.rows:6}  {self.backlog:7} |"
            f" {self.vector:6.2f}  {self.text:4.2f}  {self.hybrid:6.2f}  {self.ghosts:6} |"
            f" {self.seen_by_writer * 1000:6.0f} ms       {self.seen_by_all:5.1f} s"
        )


class Truth:
    """The expected content of the table, kept in memory."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self.rows: dict[tuple[str, int], str] = {}
        self._vectors: dict[tuple[str, int], np.ndarray] = {}

    def change(self, changes: Changes) -> None:
        """Apply the same changes as :meth:`library.Library.change`."""
        self.rows = {key: text for key, text in self.rows.items() if key[0] not in changes}
        new = {
            (doc, part): text
            for doc, whole in changes.items()
            for part, text in enumerate(chunks(whole or ""))
        }
        self.rows |= new
        vectors = self._embed([f"{doc}: {text}" for (doc, _), text in new.items()])
        self._vectors |= dict(zip(new, vectors, strict=True))

    def nearest(self, vector: np.ndarray) -> set[tuple[str, int]]:
        """Find the nearest chunks by a full comparison."""
        keys = list(self.rows)
        nearness = np.stack([self._vectors[key] for key in keys]) @ vector
        return {keys[n] for n in np.argsort(-nearness)[:K]}

    def ghosts(self, answer: pa.Table) -> int:
        """Count the chunks of an answer that should not be there."""
        given = zip(*(answer[name].to_pylist() for name in ("doc", "part", "text")), strict=True)
        return sum(self.rows.get((doc, part)) != text for doc, part, text in given)


def look(library: Library, truth: Truth, embed: Embed, fresh: str, dice: random.Random) -> Look:
    """Ask questions, and measure how long the newest document takes to become visible."""
    columns = ["doc", "part", "text"]
    started = time.monotonic()
    question = embed([f"{fresh}: {truth.rows[fresh, 0]}"])[0]

    def sees(reader: object) -> bool:
        found = reader.search(question, k=K, refine_factor=REFINE, columns=["doc"]).to_table()
        return fresh in found["doc"].to_pylist()

    if not sees(library.writer):
        raise AssertionError(f"the writer does not find {fresh}, which it has just written")
    by_writer = time.monotonic() - started
    while not sees(library.table):
        time.sleep(0.05)
    by_all = time.monotonic() - started
    vector, text, hybrid, ghosts = [], [], [], 0
    for key in dice.sample(sorted(truth.rows), QUESTIONS):
        words = _question(truth.rows[key], dice)
        near = embed([words])[0]
        # The writer's own searches see the latest writes, so they can be compared with the truth.
        answers = [
            library.writer.search(near, k=K, refine_factor=REFINE, columns=columns).to_table(),
            library.writer.search_text(words, column="text", k=K, columns=columns).to_table(),
            library.writer.search_hybrid(
                near, words, text_column="text", k=K, refine_factor=REFINE, columns=columns
            ).to_table(),
        ]
        keys = [set(zip(a["doc"].to_pylist(), a["part"].to_pylist(), strict=True)) for a in answers]
        vector.append(len(keys[0] & truth.nearest(near)) / K)
        text.append(key in keys[1])
        hybrid.append(key in keys[2])
        ghosts += sum(truth.ghosts(answer) for answer in answers)
    return Look(
        documents=len({doc for doc, _ in truth.rows}),
        rows=len(truth.rows),
        backlog=library.table.status().backlog_generations,
        vector=float(np.mean(vector)),
        text=float(np.mean(text)),
        hybrid=float(np.mean(hybrid)),
        ghosts=ghosts,
        seen_by_writer=by_writer,
        seen_by_all=by_all,
    )


def _question(text: str, dice: random.Random) -> str:
    """Choose some words of a chunk, in order, as a user may remember them."""
    words = WORDS.findall(text.lower())
    start = dice.randrange(max(1, len(words) - 8))
    return " ".join(words[start : start + 8])


def ingest(uri: str, *, embed: Embed, rounds: int, documents: int) -> list[Look]:
    """Ingest all rounds that are not in the table yet, and measure each."""
    chosen = dict(islice(corpus().items(), documents))
    steps = list(history(chosen, rounds=rounds))
    truth = Truth(embed)
    dice = random.Random(0)  # noqa: S311 - only for reproducible rounds
    looks = []
    if Path(uri).exists():
        library = Library(uri, embed)
    else:
        library = Library.create(uri, embed, {k: v for k, v in steps[0].items() if v is not None})
    print(Look.HEAD)
    with library, Upkeep(library.table):
        done = library.progress()
        for number, changes in enumerate(steps):
            truth.change(changes)
            if number == 0 or number < done:
                continue
            library.change(changes, step=number)
            fresh = next(doc for doc, text in changes.items() if text is not None)
            found = look(library, truth, embed, fresh, dice)
            looks.append(found)
            print(found.line(number), flush=True)
    return looks


def main(arguments: Sequence[str] | None = None) -> None:
    """Ingest all rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", default="library.lance")
    parser.add_argument("--model", choices=["words", "minilm"], default="words")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--documents", type=int, default=1200)
    given = parser.parse_args(arguments)
    embed = by_meaning() if given.model == "minilm" else by_words
    ingest(given.table, embed=embed, rounds=given.rounds, documents=given.documents)


if __name__ == "__main__":
    main()
