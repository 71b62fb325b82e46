"""Rows of a table without a primary key are there once, whoever is killed, or it is noticed."""

import os
from pathlib import Path

import lance
import pytest
from histories.appends import check, create, finish, part_rows, run
from histories.plain import BATCH, LEAST_ADDS, BrokenPromise

SECONDS = float(os.environ.get("MEMWAL_HISTORIES_SECONDS", "30"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a table with two batches of rows that are noted."""
    create(tmp_path)
    return tmp_path


def test_rows_that_are_as_noted_are_right(folder: Path) -> None:
    check(folder)
    finish(folder)


def test_a_row_that_is_there_twice_is_noticed(folder: Path) -> None:
    lance.write_dataset(part_rows(0, 0), folder / "t.lance", mode="append")
    with pytest.raises(BrokenPromise, match="twice"):
        check(folder)


def test_lost_rows_are_noticed(folder: Path) -> None:
    finish(folder)
    lance.dataset(folder / "t.lance").delete(f"id < {BATCH}")
    with pytest.raises(BrokenPromise):
        check(folder)


@pytest.mark.slow
def test_fresh_plays_keep_their_promises() -> None:
    seed = int.from_bytes(os.urandom(4))
    played = run(seed, SECONDS)
    print(seed, played)
    assert played["done add"] > LEAST_ADDS
