"""The pictures of the pages are what the script draws, and can be read by everybody."""

import re
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "draw_diagrams.py"))
DIAGRAMS = sorted(SCRIPT["DIAGRAMS"])
PAGES = sorted(ROOT.glob("docs/**/*.md"))
SVG = "{http://www.w3.org/2000/svg}"


def drawn(name: str) -> str:
    return (ROOT / "docs" / "images" / f"{name}.svg").read_text()


@pytest.mark.parametrize("name", DIAGRAMS)
def test_is_what_the_script_draws(name: str) -> None:
    assert SCRIPT["DIAGRAMS"][name]() == drawn(name)


def test_pictures_of_the_page_show_it_as_it_is() -> None:
    script = ROOT / "scripts" / "take_pictures.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True)


@pytest.mark.parametrize("name", DIAGRAMS)
def test_stays_on_its_paper(name: str) -> None:
    root = ET.fromstring(drawn(name))
    _, _, width, height = map(float, root.get("viewBox", "").split())
    assert (root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")) != (None, None)
    for text in root.iter(f"{SVG}text"):
        # Half the size of the letters is about their width in the fonts that browsers take.
        size, long = float(text.get("font-size", "")), len(text.text or "")
        before = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor", "start")]
        left = float(text.get("x", "")) - before * 0.5 * size * long
        assert left >= 0, text.text
        assert left + 0.5 * size * long <= width, text.text
        assert 0 <= float(text.get("y", "")) <= height - 4, text.text


@pytest.mark.parametrize("name", DIAGRAMS)
def test_is_shown_with_words_for_those_who_do_not_see_it(name: str) -> None:
    shown = [
        match
        for page in PAGES
        for match in re.findall(rf"!\[([^\]]*)\]\((?:\.\./)?images/{name}\.svg\)", page.read_text())
    ]
    assert shown
    assert all(len(words) > 20 for words in shown)
