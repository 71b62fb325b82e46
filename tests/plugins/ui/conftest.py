"""The built page, a server for it, and a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from playwright.sync_api import BrowserContext, Page, Playwright, expect, sync_playwright
from support.airflow.browser import CHROMIUM, FLAGS
from support.airflow.page_server import PageServer
from support.docs.scripts import script

ROOT = Path(__file__).resolve().parents[3]
AXE = ROOT / "plugins" / "memwal_airflow" / "ui" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="session")
def built() -> ModuleType:
    """The page is built of the sources as they are."""
    builder = script("build_ui")
    builder.build()
    return builder


@pytest.fixture
def server(built: ModuleType) -> Iterator[PageServer]:
    """A server of the page with canned answers."""
    server = PageServer()
    yield server
    server.shutdown()
    server.server_close()


# Not of the session: while it is open, its thread has a running event loop.
@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """The driver of the browser."""
    # A busy machine draws a page later than in the five seconds of the default.
    expect.set_options(timeout=60_000)
    with sync_playwright() as driver:
        yield driver


class Tab:
    """A page of a browser of its own that writes down what goes wrong in it.

    Attributes
    ----------
    page : Page
    complaints : list of str
        Errors and warnings of the console, and requests to other servers.
    """

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._told)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(origin) else self.complaints.append(request.url)
            ),
        )

    def _told(self, message: object) -> None:
        if message.type in ("error", "warning"):  # type: ignore[attr-defined]
            self.complaints.append(message.text)  # type: ignore[attr-defined]

    def violations(self) -> list[str]:
        """Findings of axe, with the elements that they are about."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {', '.join(str(node['target']) for node in one['nodes'][:4])}"
            for one in found["violations"]
        ]


@pytest.fixture
def tab(playwright: Playwright, server: PageServer, tmp_path: Path) -> Iterator[Callable[..., Tab]]:
    """Opens a tab: ``tab(theme="dark")``."""
    contexts: list[BrowserContext] = []

    def open_tab(*, theme: str = "light", width: int = 1440, height: int = 900) -> Tab:
        context = playwright.chromium.launch_persistent_context(
            tmp_path / f"profile-{len(contexts)}",
            executable_path=CHROMIUM,
            args=list(FLAGS),
            color_scheme=theme,
            viewport={"width": width, "height": height},
        )
        contexts.append(context)
        return Tab(context.new_page(), server.origin)

    yield open_tab
    for context in contexts:
        context.close()
