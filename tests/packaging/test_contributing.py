"""What contributors start from names programs, make targets and checks that exist."""

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.M))
AREAS = set(re.findall(r"^AREA_([a-z]+) :=", MAKEFILE, re.M))
CONTAINER: dict[str, Any] = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
PYTHONS = SpecifierSet(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
)


def workflow(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found


def jobs() -> list[Any]:
    """Return every job of every workflow."""
    return [
        pytest.param(job, id=f"{path.stem}-{name}")
        for path in WORKFLOWS
        for name, job in workflow(path)["jobs"].items()
    ]


def commands() -> list[str]:
    """Return every line that a workflow, what it runs, or the container runs."""
    lines = str(CONTAINER["postCreateCommand"]).split(" && ")
    for path in WORKFLOWS:
        for job in workflow(path)["jobs"].values():
            lines += [step["run"] for step in job["steps"] if "run" in step]
    lines += [
        line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")
    ]
    return lines


@pytest.mark.parametrize("command", commands())
def test_a_command_exists(command: str) -> None:
    words = [word for word in command.split() if "=" not in word]
    if words[0] == "make":
        assert set(words[1:]) <= TARGETS | {"}}", "matrix.area"}
    elif words[0].startswith(".venv"):
        assert (ROOT / "tests" / f"{words[2]}.py").is_file()
    else:
        program = ROOT / words[0]
        assert program.is_file()
        assert os.access(program, os.X_OK)


@pytest.mark.parametrize("job", jobs())
def test_a_job_is_bounded_and_runs_the_same_tomorrow(job: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-z]+-[\d.]+", job["runs-on"])
    assert job["timeout-minutes"] > 0
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@(v\d+(\.\d+)*|[0-9a-f]{40})", step["uses"])
        if "python-version" in step.get("with", {}):
            assert step["with"]["python-version"] in PYTHONS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_starts_by_itself_and_may_only_read(path: Path) -> None:
    found = workflow(path)
    # YAML takes the key "on" for a boolean.
    assert {"pull_request", "schedule"} & set(found[True])
    assert found["permissions"] == {"contents": "read"}


def test_every_area_of_the_slow_tests_runs_by_night() -> None:
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    assert set(nightly["jobs"]["slow"]["strategy"]["matrix"]["area"]) == AREAS - {"all"}


def test_a_hook_runs_what_the_set_up_installs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    for hook in config["repos"][0]["hooks"]:
        words = hook["entry"].split()
        assert words[0] in (".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/python")
        assert all((ROOT / word).exists() for word in words if word.endswith(".py"))
