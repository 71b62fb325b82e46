"""Mutants of the library: where they can be made, and that they are found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.docs.scripts import script

MUTANTS = script("mutants")
CODE = '''\
def take(rows: int = 1, *, log: object) -> int:
    """Not 1 and not 2."""
    log.warning("%s", rows < 3)
    for row in range(rows + 1):
        if not row and rows <= 2:
            break
    rows.sort(reverse=True)
    if rows:
        raise ValueError(f"{rows + 1}")
    return max(rows, 0)


class Table:
    def __repr__(self) -> str:
        return str(1 + 1)
'''


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one module and one test, which takes it for right."""
    (tmp_path / "memwal").mkdir()
    (tmp_path / "memwal" / "some.py").write_text(CODE)
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / "tests" / "test_some.py").write_text("def test_it():\n    import memwal.some\n")
    return tmp_path


def test_places_are_behaviour(repository: Path) -> None:
    places = MUTANTS.all_places(repository)
    assert [(place.kind, place.mutant) for place in places] == [
        ("plus/minus", "for row in range(rows - 1):"),
        ("number", "for row in range(rows + 2):"),
        ("condition", "if not (not row and rows <= 2):"),
        ("and/or", "if not row or rows <= 2:"),
        ("not removed", "if row and rows <= 2:"),
        ("comparison", "if not row and rows < 2:"),
        ("number", "if not row and rows <= 3:"),
        ("break/continue", "continue"),
        ("removed call", "pass"),
        ("true/false", "rows.sort(reverse=False)"),
        ("condition", "if not (rows):"),
        ("min/max", "return min(rows, 0)"),
        ("number", "return max(rows, 1)"),
    ]


def test_a_mutant_is_found_where_its_function_went(repository: Path) -> None:
    drawn = MUTANTS.draw(repository, 1, 5, ["memwal/"], 0)
    assert drawn == MUTANTS.draw(repository, 1, 5, ["memwal/"], 0)
    (repository / "memwal" / "some.py").rename(repository / "memwal" / "other.py")
    places = MUTANTS.all_places(repository)
    found = [MUTANTS.find(mutant, places) for mutant in drawn]
    assert [(place.module, place.line) for place in found] == [
        ("memwal/other.py", mutant.line) for mutant in drawn
    ]


def test_a_line_that_changed_is_not_found(repository: Path) -> None:
    [mutant] = MUTANTS.draw(repository, 1, 1, ["memwal/"], 0)
    lost = replace(mutant, line=mutant.line + " ", tests=["tests/test_gone.py"])
    assert MUTANTS.find(lost, MUTANTS.all_places(repository)) is None
    assert MUTANTS.check(repository, [mutant, lost]) == 1


@pytest.mark.parametrize(
    ("test", "result"),
    [
        pytest.param("assert take([1]) == 1", "survived", marks=pytest.mark.slow),
        ("assert take([5]) == 5", "killed"),
        pytest.param("assert take([5]) == 6", "unreliable", marks=pytest.mark.slow),
        pytest.param("while take([5]) < 5:\n        pass", "timeout", marks=pytest.mark.slow),
    ],
)
def test_a_mutant_is_judged_in_a_copy(tmp_path: Path, test: str, result: str) -> None:
    (tmp_path / "memwal").mkdir()
    (tmp_path / "memwal" / "__init__.py").write_text("")
    module = tmp_path / "memwal" / "some.py"
    module.write_text("def take(rows):\n    return max(*rows, 1)\n")
    (tmp_path / "tests").mkdir()
    head = "from memwal.some import take\n\ndef test_it():\n    "
    (tmp_path / "tests" / "test_some.py").write_text(head + test + "\n")
    (drawn,) = (mutant for mutant in MUTANTS.draw(tmp_path, 1, 1, ["memwal/"], 0))
    places = MUTANTS.all_places(tmp_path)
    (swapped,) = (place for place in places if place.kind == "min/max")
    judged = MUTANTS.judge(tmp_path, drawn, swapped, 5)
    assert judged["result"] == result, judged
    assert "max" in module.read_text()
