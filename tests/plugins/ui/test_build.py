"""The build of the page: what it needs to be current, and what its files may hold."""

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

UI = Path(__file__).resolve().parents[3] / "plugins" / "memwal_airflow" / "ui"


def test_lock_names_no_registry() -> None:
    packages = json.loads((UI / "package-lock.json").read_text())["packages"]
    assert len(packages) > 10
    assert [name for name, one in packages.items() if "resolved" in one] == []
    assert all("integrity" in one for name, one in packages.items() if name)


def test_sources_load_nothing_from_elsewhere() -> None:
    for path in [UI / "index.html", *(UI / "src").rglob("*.*")]:
        assert not re.search(r"https?://(?!www\.w3\.org/)", path.read_text()), path


@pytest.mark.slow
def test_built_page_has_no_inline_code(built: ModuleType) -> None:
    page = (built.STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert "style=" not in page
    assert all(link.startswith("./") for link in re.findall(r'(?:src|href)="([^"]+)"', page))


@pytest.mark.slow
def test_built_again_only_when_a_source_changes(
    built: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(built, "npm", lambda *arguments: ran.append(arguments))
    built.build()
    assert ran == []
    assert built.main(["--check"]) == 0
    monkeypatch.setattr(built, "STATIC", tmp_path / "static")
    assert built.main(["--check"]) == 1


@pytest.mark.slow
def test_units(built: ModuleType) -> None:
    built.npm("run", "--silent", "test")
