"""A table with a damaged file is read or refused, with a next step; nothing is lost or written."""

import os
from pathlib import Path
from random import choice

import pytest
from fuzz import damage
from fuzz.children import play_in_children
from fuzz.damage import READS, WRITES, Case, Found, check, damaged
from support.data.tables import folder

import memwal

# Of what Lance does not read: that may end the process.
KINDS = ("log entry", "bloom filter", "region manifest")


@pytest.mark.few(1)
@pytest.mark.parametrize("kinds", [("version hint",), KINDS], ids=["never needed", "others"])
def test_a_damaged_file_is_no_disaster(kinds: tuple[str, ...]) -> None:
    with damaged(os.urandom(4).hex(), 0, kind=choice(kinds), table="typed") as case:
        outcomes = dict(check(case))
    assert outcomes.keys() == READS.keys() | WRITES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_damaged_files_of_every_kind_are_no_disaster(part: int) -> None:
    play_in_children("fuzz.damage", os.urandom(4).hex(), count=5)


# What the harness would notice.


@pytest.fixture
def case(table: memwal.Table, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A table that nobody damaged, and no acts."""
    monkeypatch.setattr(damage, "READS", {})
    monkeypatch.setattr(damage, "WRITES", {})
    return Case(table.uri, folder(table).name, "data", "x", "nothing")


def test_another_error_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(damage.READS, "act", lambda case: {}["x"])
    with pytest.raises(Found, match="KeyError"):
        list(check(case))


def test_a_write_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(damage.READS, "act", lambda case: Path(case.uri, "new").touch())
    with pytest.raises(Found, match="wrote or deleted"):
        list(check(case))


def test_a_file_beside_the_table_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def beside(case: Case) -> None:
        Path(f"{case.uri}-beside").touch()

    monkeypatch.setitem(damage.WRITES, "act", beside)
    with pytest.raises(Found, match="beside the table"):
        list(check(case))
