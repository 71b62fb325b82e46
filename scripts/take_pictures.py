"""Take the pictures of the page in Airflow: ``python scripts/take_pictures.py [--check]``.

One shows the running demo, whose backlog grows and is merged; the others come from the tests of the
page, with many tables. It needs chromium, and takes about five minutes. ``--check`` takes none: it
tells by the exit code whether the sources of the page have changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SOURCES = ROOT / "plugins" / "memwal_airflow" / "ui" / "src"
TAKEN = IMAGES / "pictures.json"

_TESTS = ("tests/plugins/ui/test_page.py", "-k", "test_fleet or (test_table and flights)")
_DEMO = ("--rows", "120000", "--seconds", "240")
_MERGES = 3
_LONGEST_SECONDS = 400.0
# The page asks again every ten seconds.
_REFRESHED_MS = 15_000


def digest() -> str:
    """Of the sources that the pictures show."""
    found = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file():
            found.update(path.relative_to(SOURCES).as_posix().encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def of_the_tests() -> None:
    """Pictures of many tables and of one, light and dark."""
    environment = {**os.environ, "MEMWAL_SCREENSHOTS": str(IMAGES)}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", *_TESTS]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def of_the_demo() -> None:
    """The page of the demo's table in Airflow, after some merges."""
    sys.path.append(str(ROOT / "tests"))
    from playwright.sync_api import expect, sync_playwright
    from support.airflow.browser import CHROMIUM, FLAGS

    with (
        tempfile.TemporaryDirectory() as folder,
        _demo(Path(folder, "run")) as output,
        sync_playwright() as driver,
    ):
        url, passwords = _address(output)
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_context(viewport={"width": 1440, "height": 1000}).new_page()
        page.goto(url.partition("/dags/")[0])
        page.locator("input[name=username]").fill("admin")
        page.locator("input[name=password]").fill(json.loads(passwords.read_text())["admin"])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="memwal").first.wait_for()
        page.goto(url)
        _wait_for_merges(Path(folder, "run"))
        page.wait_for_timeout(_REFRESHED_MS)
        expect(page.frame_locator("iframe").locator(".charts canvas")).to_have_count(4)
        page.screenshot(path=IMAGES / "ui-in-airflow.png")
        browser.close()


@contextmanager
def _demo(folder: Path) -> Iterator[IO[str]]:
    """Run the demo, and interrupt it at the end; its output."""
    program = ROOT / "examples" / "flights" / "demo.py"
    process = subprocess.Popen(
        [sys.executable, str(program), "--output", str(folder), *_DEMO],
        env={**os.environ, "COLUMNS": "400"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def _address(output: IO[str]) -> tuple[str, Path]:
    """Of the page, and the file with the password."""
    for line in output:
        found = re.search(r"(http\S+/plugin/memwal-table) \(user and password: (.*?)\)", line)
        if found:
            return found[1], Path(found[2])
    raise RuntimeError("the demo ended before its Airflow was up")


def _wait_for_merges(folder: Path) -> None:
    from memwal.catalog import Catalog

    deadline = time.monotonic() + _LONGEST_SECONDS
    with closing(Catalog(f"sqlite:///{folder / 'catalog.db'}")) as catalog:
        while len(catalog.runs(table="flights", job="merge")) < _MERGES:
            if time.monotonic() > deadline:
                raise RuntimeError("the demo has not merged often enough")
            time.sleep(1)


def main() -> None:
    """Take them, or tell whether they are current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="take none; tell by the exit code")
    if parser.parse_args().check:
        current = TAKEN.exists() and json.loads(TAKEN.read_text())["sources"] == digest()
        sys.exit(0 if current else "the page has changed: run python scripts/take_pictures.py")
    of_the_tests()
    of_the_demo()
    TAKEN.write_text(json.dumps({"sources": digest()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
