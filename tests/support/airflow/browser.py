"""The browser of the tests: where it is, how it is started, and pictures of the page in Airflow."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTHS = (1280, 390)
# The page asks again every ten seconds.
_REFRESHED_MS = 12_000


@contextmanager
def pictures(airflow: Any) -> Iterator[Callable[..., None]]:
    """Keep the page of an embedded Airflow open; yield a function that takes pictures of it.

    ``take(name, *tables)`` shows the fleet and these tables, in each width, in files of the folder
    that MEMWAL_SCREENSHOTS names. Without that variable there is no browser, and it does nothing.
    """
    folder = os.environ.get("MEMWAL_SCREENSHOTS")
    if not folder:
        yield lambda *_: None
        return
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        pages = {}
        for width in WIDTHS:
            pages[width] = browser.new_context(viewport={"width": width, "height": 1000}).new_page()
            headers = {"Authorization": f"Bearer {airflow.token()}"}
            pages[width].context.set_extra_http_headers(headers)
            pages[width].goto(f"{airflow.url}/memwal/")

        def take(name: str, *tables: str) -> None:
            for view in ("fleet", *tables):
                address = "" if view == "fleet" else f"tables/{view}"
                for page in pages.values():
                    # The page stays loaded: only what is behind the # changes.
                    page.goto(f"{airflow.url}/memwal/#/{address}")
                page.wait_for_timeout(_REFRESHED_MS)
                for width, page in pages.items():
                    page.screenshot(path=Path(folder) / f"{name}-{view}-{width}.png")

        yield take
        browser.close()
