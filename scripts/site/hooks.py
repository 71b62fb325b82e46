"""What the documentation site is made of besides the pages in ``docs``.

The front page is the README. Parts of the reference are generated where a page says so, from what
they describe. Diagrams are put into their pages, so that they follow the palette.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import airflow_settings
import commands
import errors
import figures
import findings
import metric_tables
import policies
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md"}
"""Pages that stand in the folder above."""

GENERATED: dict[str, Callable[[], str]] = {
    "Airflow settings": airflow_settings.markdown,
    "commands": commands.markdown,
    "costs": figures.costs,
    "exit codes": commands.exit_codes,
    "errors": errors.markdown,
    "figures": figures.markdown,
    "findings": findings.markdown,
    "growth": figures.growth_table,
    "metrics": metric_tables.markdown,
    "policy": policies.markdown,
}
"""What ``<!-- generated: NAME -->`` stands for."""

_MARK = re.compile(r"^ *<!-- (?:page )?(?:needs|slow|run by|given|prints|fails)\b.*?-->\n", re.M)
_GENERATED = re.compile(r"<!-- generated: (.+?) -->")
_IN_THE_REPOSITORY = re.compile(r"^<!-- in the repository -->\n(?:> .*\n)+\n?", re.M)
_DIAGRAM = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?P<source>[^":]+\.svg)"[^>]*>')
_LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>[^\]\n]*(?:\n[^\]\n]+)?)\]\((?!\w+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]+)?\)"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that match into the navigation."""
    pages = [
        path.relative_to(config.docs_dir).as_posix()
        for path in sorted(Path(config.docs_dir).rglob("*.md"), key=_place)
    ]
    named = set(_named(config.nav))
    config.nav = _expanded(config.nav, [page for page in pages if page not in named])
    return config


def _place(page: Path) -> tuple[Path, int, str]:
    """Where a page comes in its folder: as the README there leads to it, others after these."""
    readme = page.with_name("README.md")
    text = readme.read_text() if readme.exists() else ""
    first = 0 if page == readme else text.find(f"({page.name}") + 1 or len(text) + 1
    return page.parent, first, page.name


def _named(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _named(inner)


def _expanded(entries: list[Any], pages: list[str]) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            ((title, inner),) = entry.items()
            inner = _expanded(inner, pages) if isinstance(inner, list) else inner
            found.append({title: inner})
        elif "*" in entry:
            # The first pattern that matches has the page; none reaches into folders.
            matching = [
                page
                for page in pages
                if fnmatch.fnmatch(page, entry) and page.count("/") == entry.count("/")
            ]
            found += matching
            for page in matching:
                pages.remove(page)
        else:
            found.append(entry)
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand elsewhere."""
    for name, source in ELSEWHERE.items():
        text = (ROOT / source).read_text()
        if name == "index.md":
            text = f"---\nhide: [navigation]\n---\n\n{text}"
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in what is generated, and turn links and pictures.

    What the tests are told, and what is for readers of the repository, is left out.
    """
    name = page.file.src_uri
    written = ROOT / ELSEWHERE.get(name, f"docs/{name}")
    markdown = _IN_THE_REPOSITORY.sub("", markdown)
    markdown = _MARK.sub("", _GENERATED.sub(lambda mark: GENERATED[mark[1]](), markdown))
    return _LINK.sub(lambda link: _turned(link, written.parent, name), markdown)


def _turned(link: re.Match[str], folder: Path, page: str) -> str:
    """A link of the repository, as it is in the site.

    A folder is its README. What is not in the site is named, and leads nowhere.
    """
    target = (folder / link["path"]).resolve()
    if not target.exists() or not target.is_relative_to(ROOT):
        return link[0]  # the build tells of it
    if target.is_dir():
        target /= "README.md"
    inside = target.relative_to(ROOT).as_posix()
    for name, source in ELSEWHERE.items():
        if inside == source:
            inside = f"docs/{name}"
    if not inside.startswith("docs/"):
        return f"{link['text']} (`{inside}`)"
    relative = posixpath.relpath(inside.removeprefix("docs/"), posixpath.dirname(page) or ".")
    return f"{link['image']}[{link['text']}]({relative}{link['anchor'] or ''})"


def on_page_content(html: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Put diagrams into the page."""
    folder = Path(config.site_dir, page.file.dest_uri).parent

    def inlined(found: re.Match[str]) -> str:
        inside = (folder / found["source"]).resolve().relative_to(Path(config.site_dir).resolve())
        drawing = Path(config.docs_dir, inside).read_text()
        drawing = re.sub(r"^.*?(?=<svg)", "", drawing, count=1, flags=re.S)
        drawing = re.sub(r"\s*<title>.*?</title>", "", drawing, count=1, flags=re.S)
        return f'<span class="diagram" role="img" aria-label="{found["alt"]}">{drawing}</span>'

    return _DIAGRAM.sub(inlined, html)
