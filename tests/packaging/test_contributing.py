"""What contributors start from names programs, make targets and checks that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.M))
AREAS = set(re.findall(r"^AREA_([a-z]+) :=", MAKEFILE, re.M))


def commands() -> list[str]:
    """Return every line that a workflow or the container runs."""
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    lines = container["postCreateCommand"].split(" && ")
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            lines += [step["run"] for step in job["steps"] if "run" in step]
    return lines


@pytest.mark.parametrize("command", commands())
def test_a_command_exists(command: str) -> None:
    words = [word for word in command.split() if "=" not in word]
    if words[0] == "make":
        assert set(words[1:]) <= TARGETS | {"}}", "matrix.area"}
    elif words[0].startswith(".venv"):
        assert (ROOT / "tests" / f"{words[2]}.py").is_file()
    else:
        assert (ROOT / words[0]).is_file()


def test_every_area_of_the_slow_tests_runs_by_night() -> None:
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    assert set(nightly["jobs"]["slow"]["strategy"]["matrix"]["area"]) == AREAS - {"all"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_the_version(path: Path) -> None:
    form: dict[str, Any] = yaml.safe_load(path.read_text())
    fields = {part["id"]: part for part in form["body"]}
    assert form["name"]
    assert form["description"]
    assert fields["version"]["validations"]["required"]
    assert all(part["attributes"]["label"] for part in form["body"])


def test_a_hook_runs_what_the_set_up_installs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    for hook in config["repos"][0]["hooks"]:
        words = hook["entry"].split()
        assert words[0] in (".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/python")
        assert all((ROOT / word).exists() for word in words if word.endswith(".py"))
