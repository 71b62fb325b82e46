"""Slow tests that would starve each other run one after another."""

from __future__ import annotations

import re
import tomllib

from support.docs.pages import ROOT
from support.groups import group_of, is_slow_run

AIRFLOWS = ("tests/dags/test_in_airflow.py::test_a", "tests/plugins/web/test_in_airflow.py::test_b")
CASES = ("tests/fuzz/test_x.py::test_a[1]", "tests/fuzz/test_x.py::test_a[2]")


def test_runs_of_slow_tests_are_known_by_their_markers() -> None:
    expressions = re.findall(
        r'pytest.* -m "?((?:slow|soak)\b[a-z ]*)', (ROOT / "Makefile").read_text()
    )
    assert len(expressions) == 2
    assert all(map(is_slow_run, expressions))
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    (default,) = re.findall(r"-m '(.*?)'", options["addopts"])
    assert not is_slow_run(default)


def test_airflows_share_a_process_and_independent_cases_do_not() -> None:
    assert len({group_of(test, slow=True) for test in AIRFLOWS}) == 1
    assert len({group_of(case, slow=True) for case in CASES}) == 2
    assert len({group_of(test, slow=False) for test in AIRFLOWS}) == 2
    assert len({group_of(case, slow=False) for case in CASES}) == 1
