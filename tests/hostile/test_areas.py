"""Hostile input to every place where something of a user is read.

More of it, with a seed of one's own:
``PYTHONPATH=tests:plugins python -m hostile.try_inputs all 10000``.
"""

from pathlib import Path

import pytest
from hostile.areas import AREAS
from hostile.harness import SECRET, Area, Broken, fuzz, safely, survey

from memwal.errors import InvalidInputError
from memwal.quality.rules import QualityRules

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


@pytest.mark.parametrize("area", AREAS, ids=str)
def test_an_area(area: Area, tmp_path: Path) -> None:
    fuzz(area, tmp_path, examples=area.examples)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("area", AREAS, ids=str)
def test_an_area_at_length(area: Area, tmp_path: Path) -> None:
    fuzz(area, tmp_path, examples=15 * area.examples)


@pytest.mark.parametrize("area", AREAS, ids=str)
def test_an_area_notices(area: Area, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read there fails as a careless function would."""
    owner, name = area.weakness

    def careless(*_: object, **__: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(owner, name, careless)
    found = survey(area, tmp_path, examples=area.examples, number=1)
    assert any("KeyError" in place for place in found), found


def test_a_quarantine_has_no_password_in_its_address() -> None:
    for uri in (f"s3://AKIA:{SECRET}@b/t", f"s3://AKIA:x/{SECRET}@b/t"):
        refused = safely(lambda uri=uri: QualityRules(quarantine_uri=uri))
        assert isinstance(refused, InvalidInputError)


def test_a_secret_is_noticed() -> None:
    def tells() -> None:
        raise InvalidInputError("wrong") from ValueError(f"no such thing: {SECRET}")

    with pytest.raises(Broken, match="ValueError"):
        safely(tells)
