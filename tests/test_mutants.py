"""The safeguards that ``make safeguards`` takes out are those of the code, and have tests."""

import ast
from pathlib import Path

import pytest
from mutants import Safeguard, read_safeguards

ROOT = Path(__file__).resolve().parents[1]
SAFEGUARDS = read_safeguards(ROOT)


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda safeguard: safeguard.name)
def test_a_safeguard_is_in_the_code_once(safeguard: Safeguard) -> None:
    compile(safeguard.take_out(ROOT), safeguard.module, "exec")


def test_an_edit_that_does_not_fit_is_an_error() -> None:
    stale = Safeguard("stale", SAFEGUARDS[0].module, "no such text", "", [])
    with pytest.raises(ValueError, match="stale"):
        stale.take_out(ROOT)


def test_every_test_exists() -> None:
    for safeguard in SAFEGUARDS:
        assert safeguard.tests, safeguard.name
        for test in safeguard.tests:
            file, *names = test.partition("[")[0].split("::")
            body = ast.parse((ROOT / file).read_text()).body
            for name in names:
                found = [node for node in body if getattr(node, "name", None) == name]
                assert found, f"{safeguard.name}: no test {test}"
                body = getattr(found[0], "body", [])
