"""The documents keep their word: their Python runs, and the commands they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
DOCS = sorted((ROOT / "docs").glob("*.md"))
MAKEFILE = (ROOT / "Makefile").read_text()


def test_the_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)

    exec(compile(example, "README.md", "exec"), {})

    printed = capsys.readouterr().out
    assert "[[1]]" in printed
    assert "{'id': 1, 'city': 'EWR', 'delay': 0.5}" in printed


@pytest.mark.parametrize(
    "name",
    [
        "writer.md",
        "search.md",
        "reading.md",
        "maintenance.md",
        "indexes.md",
        "verify.md",
        "catalog.md",
        "fleet.md",
        "events.md",
        "quality.md",
        "stores.md",
    ],
)
def test_the_examples_of_a_guide_run_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / name).read_text()
    examples = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert examples
    names: dict[str, object] = {}
    for number, example in enumerate(examples):
        exec(compile(example, f"{name}, example {number}", "exec"), names)


DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in DOCS)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_targets_that_are_named_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / name).read_text(), flags=re.MULTILINE))

    assert named - {"it"} <= targets


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text())

    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (ROOT / name).parent.joinpath(link).exists()] == []


def test_the_readme_leads_to_every_guide() -> None:
    links = set(re.findall(r"\]\((docs/[^)#]+)\)", README))

    assert {f"docs/{path.name}" for path in DOCS} <= links
