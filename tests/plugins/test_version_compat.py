import json
import re
from dataclasses import asdict
from pathlib import Path

import memwal_airflow
import pytest
from memwal_airflow.version_compat import FEATURES
from typer.testing import CliRunner

from memwal.cli.commands import checks as checks_module
from memwal.cli.commands.app import app
from memwal.util import versions

ROOT = Path(__file__).parents[2]
PACKAGE = Path(memwal_airflow.__file__).parent
# What differs between versions of Airflow, and what asks for one.
DIFFERS = re.compile(
    r"common\.compat\.sdk|airflow\.sdk\.(configuration|exceptions|types|definitions\.timetables)"
    r"|skipmixin import|DeadlineReference|airflow\.__version__|apache-airflow"
)


def test_one_module_depends_on_the_version_of_airflow() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if "node_modules" not in path.parts]
    found = {path.name for path in modules if DIFFERS.search(path.read_text())}
    assert found == {"version_compat.py"}


def test_the_page_has_a_row_for_what_an_older_airflow_lacks() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    for feature in FEATURES:
        assert f"| {feature.name} | Airflow {feature.since} | {feature.without} |" in page


@pytest.mark.parametrize(
    ("installed", "here"), [("3.1.8", False), ("3.2.0rc1", True), ("4.0", True)]
)
def test_a_feature_is_there_from_a_version_on(
    installed: str, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "version", lambda _: installed)
    assert versions.Feature("a package without cache", installed, "3.2", "").here is here
    versions._installed.cache_clear()


def test_doctor_lists_what_this_airflow_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def checks() -> dict[str, str]:
        done = CliRunner().invoke(app, ["doctor", "--versions", "--json"])
        assert done.exit_code == 0, done.output
        return {check["name"]: check["state"] for check in json.loads(done.stdout)["checks"]}

    lacking = {feature.name: "warning" for feature in FEATURES if not feature.here}
    found = checks()
    assert found.items() >= {"apache-airflow": "ok", "sqlalchemy": "ok", **lacking}.items()
    monkeypatch.setattr(checks_module, "_ask_airflow", lambda _: [asdict(FEATURES[0])])
    assert checks()[FEATURES[0].name] == "warning"
