"""A table without MemWAL keeps its rows beside clients of LanceDB, or it is noticed."""

import os
from pathlib import Path

import lance
import lancedb
import pytest
from histories.plain import (
    BATCH,
    LEAST_ADDS,
    LEAST_KILLS,
    BrokenPromise,
    Notes,
    check,
    rows_of,
    run,
)

SECONDS = float(os.environ.get("MEMWAL_HISTORIES_SECONDS", "30"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a table with three batches of rows that are noted."""
    table = lancedb.connect(tmp_path).create_table("t", rows_of(range(3 * BATCH)))
    table.create_index("text", config=lancedb.index.FTS())
    notes = Notes(tmp_path / "0.notes")
    for first in range(0, 3 * BATCH, BATCH):
        with notes.call("add", first):
            pass
    return tmp_path


def test_rows_that_are_as_noted_are_right(folder: Path) -> None:
    check(folder, exactly=True)


def test_lost_rows_are_noticed(folder: Path) -> None:
    lance.dataset(folder / "t.lance").delete("id < 4")
    with pytest.raises(BrokenPromise):
        check(folder, exactly=False)


def test_rows_that_come_back_are_noticed(folder: Path) -> None:
    with Notes(folder / "1.notes").call("delete", BATCH):
        pass
    with pytest.raises(BrokenPromise):
        check(folder, exactly=False)


def test_repeated_rows_are_noticed(folder: Path) -> None:
    lance.write_dataset(rows_of(range(BATCH)), folder / "t.lance", mode="append")
    with pytest.raises(BrokenPromise, match="twice"):
        check(folder, exactly=False)


def test_a_part_of_an_append_is_noticed(folder: Path) -> None:
    lance.dataset(folder / "t.lance").delete("id = 1")
    with pytest.raises(BrokenPromise, match="part"):
        check(folder, exactly=False)


@pytest.mark.slow
def test_fresh_plays_keep_their_promises() -> None:
    seed = int.from_bytes(os.urandom(4))
    played = run(seed, SECONDS)
    print(seed, played)
    assert played["kill"] > LEAST_KILLS
    assert played["done add"] > LEAST_ADDS
