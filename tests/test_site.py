"""The documentation site: whole, strict, built and read without a network."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hooks
import pytest
import yaml
from support.docs.pages import ROOT, pages

DOCS = ROOT / "docs"


def settings() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return found


def navigation() -> list[str]:
    config: Any = SimpleNamespace(docs_dir=str(DOCS), nav=settings()["nav"])
    return list(hooks._named(hooks.on_config(config).nav))


class TestNavigation:
    def test_every_page_is_in_it_once(self) -> None:
        written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
        named = navigation()

        assert sorted(named) == sorted(written | set(hooks.ELSEWHERE))


def test_generated_parts_are_known() -> None:
    marks = [
        mark for page in pages() for mark in re.findall(r"<!-- generated: (.+?) -->", page.text)
    ]

    assert sorted(marks) == sorted(hooks.GENERATED)


@pytest.mark.parametrize(
    ("page", "link", "turned"),
    [
        ("index.md", "[w](docs/writer.md#options)", "[w](writer.md#options)"),
        ("index.md", "[c](CONTRIBUTING.md)", "[c](contributing.md)"),
        ("metrics.md", "[f](../README.md#use-it)", "[f](index.md#use-it)"),
        ("runbooks/stuck-lease.md", "[d](../design)", "[d](../design/README.md)"),
        ("metrics.md", "[the tests](../tests/test_site.py)", "the tests (`tests/test_site.py`)"),
        ("metrics.md", "[gone](../nowhere.md)", "[gone](../nowhere.md)"),
        ("index.md", "![p](docs/images/roles.svg)", "![p](images/roles.svg)"),
        ("metrics.md", "[lance](https://lance.org)", "[lance](https://lance.org)"),
    ],
)
def test_links_of_the_repository_are_turned(page: str, link: str, turned: str) -> None:
    there: Any = SimpleNamespace(file=SimpleNamespace(src_uri=page))

    assert hooks.on_page_markdown(link, there) == turned


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; every proxy leads nowhere, so that what asks the network fails."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    nowhere = "http://127.0.0.1:9"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "http_proxy": nowhere,
            "https_proxy": nowhere,
            "NO_MKDOCS_2_WARNING": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")]),
        },
        text=True,
        capture_output=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


class Loads(HTMLParser):
    """What a page loads by itself, not what it leads to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(given.get("href", ""))
        if tag != "a":
            self.found += [
                given[name] for name in ("src", "srcset", "data", "poster") if name in given
            ]
        self.found += re.findall(r"url\(\s*['\"]?([^'\")]+)", given.get("style", ""))


@pytest.mark.slow
class TestBuilt:
    def test_every_page_is_there_and_leads_to_the_others(self, site: Path) -> None:
        for name in navigation():
            page = (site / name).with_suffix(".html")
            if page.stem == "README":
                page = page.with_name("index.html")
            text = page.read_text()
            assert "<h1" in text, name
            assert "Runbooks" in text, name

    def test_nothing_is_loaded_from_elsewhere(self, site: Path) -> None:
        pages = sorted(site.rglob("*.html"))
        assert len(pages) > 50
        for page in pages:
            loads = Loads(page.read_text()).found
            assert loads, page
            assert [one for one in loads if re.match(r"(https?:)?//", one)] == [], page
        for sheet in site.rglob("*.css"):
            text = sheet.read_text()
            assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import\s+['\"]?(https?:)?//", text)

    def test_marks_for_the_tests_are_not_in_it(self, site: Path) -> None:
        mark = re.compile(r"<!-- (page )?(needs|given|prints|fails|run by|slow|in the repository)")
        assert [page for page in site.rglob("*.html") if mark.search(page.read_text())] == []

    def test_the_front_page_is_the_readme(self, site: Path) -> None:
        text = (site / "index.html").read_text()
        assert "The open maintenance plane for Lance MemWAL tables" in text
        assert 'href="writer.html"' in text

    def test_search_finds_what_is_generated(self, site: Path) -> None:
        index = json.loads((site / "search" / "search_index.json").read_text())
        places = {entry["location"] for entry in index["docs"]}
        assert {
            "reference/cli.html#memwal-merge",
            "reference/policy.html#gc_grace_seconds",
            "reference/errors.html#regionfencederror",
            "reference/tables.html#memwal.Table.merge",
        } <= places

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_a_browser_shows_it_from_files_and_searches(self, site: Path, scheme: Any) -> None:
        from playwright.sync_api import sync_playwright
        from support.airflow.browser import CHROMIUM, FLAGS

        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
            page = browser.new_page(color_scheme=scheme)
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            faults: list[str] = []
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.goto((site / "index.html").as_uri())
            page.get_by_role("textbox", name="Search").click()
            page.get_by_role("textbox", name="Search").press_sequentially("gc_grace_seconds")
            hit = page.locator(".md-search-result__link").first
            hit.wait_for()
            hit.click()
            page.wait_for_url(re.compile("grace|policy|catalog"))
            shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
            browser.close()
        bright = [int(part) for part in re.findall(r"\d+", shown)[:3]]
        assert (min(bright) > 200) == (scheme == "light"), shown
        assert faults == []
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
