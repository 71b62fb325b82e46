"""The page inside Airflow's own UI, in a browser: log in, look, start a merge, watch it finish.

A picture of it goes to the folder that MEMWAL_SCREENSHOTS names, if it names one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow_demo.standalone import AirflowStandalone
from playwright.sync_api import Browser, FrameLocator, Page, expect, sync_playwright
from support.airflow.browser import CHROMIUM, FLAGS

REPOSITORY = Path(__file__).resolve().parents[2]
BUTTONS = ("Merge now", "Checkpoint", "Dry run")
# The page asks again every 10 s, and others use the machine.
SOON = 60_000
JOB = 240_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def airflow(tmp_path: Path, registered: Any) -> Iterator[AirflowStandalone]:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "memwal_tables.py").symlink_to(REPOSITORY / "dags" / "memwal_tables.py")
    with AirflowStandalone(
        tmp_path / "airflow",
        dags_folder=dags,
        env=registered.env,
        settings={"memwal": {"spark_master": "local[1]"}},
        parallelism=2,
    ) as airflow:
        yield airflow


@pytest.fixture
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


def log_in(browser: Browser, airflow: AirflowStandalone, user: str) -> tuple[Page, FrameLocator]:
    """Come to the page of the table as people do; Airflow's window, and the frame in it."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(SOON)
    page.goto(airflow.url)
    page.locator("input[name=username]").fill(user)
    page.locator("input[name=password]").fill(airflow.password(user))
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="memwal").first.click()
    frame = page.frame_locator("iframe")
    frame.get_by_role("link", name="flights", exact=True).click()
    expect(frame.locator(".level-waiting")).to_be_visible(timeout=SOON)
    return page, frame


def status(uri: str) -> dict[str, Any]:
    """What ``memwal status --json`` tells."""
    code = "from memwal.cli.commands.app import run; run()"
    command = [sys.executable, "-c", code, "status", uri, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def levels(frame: FrameLocator) -> dict[str, list[str]]:
    """The words of each level, without the spaces that do not break."""
    return {
        kind: frame.locator(f".level-{kind}").inner_text().replace("\u00a0", " ").splitlines()
        for kind in ("wal", "waiting", "base", "retained")
    }


def told(found: dict[str, Any]) -> dict[str, list[str]]:
    """What the page is to show of a status; the numbers are small enough to be shown whole."""
    regions = found["regions"]
    waiting = [region for region in regions if region["backlog_generations"]]
    retained = sum(region["retained_generations"] for region in regions)
    reclaimable = sum(region["reclaimable_generations"] for region in regions)
    behind = [index for index in found["indexes"] if index["generations"] or index["rows"]]
    indexes = len(found["indexes"])
    size = found["backlog_bytes"]
    shown = f"{size / 1024:.2f} KiB".replace(".00 ", " ") if size else "0 B"
    return {
        "wal": ["Log", f"{found['unflushed_wal_entries']} entries not flushed", "in 0 regions"],
        "waiting": [
            "Waiting",
            f"{found['backlog_generations']} generations",
            f"{found['backlog_rows']} rows, {shown} in {len(waiting)} regions",
        ],
        "base": [
            "Base table",
            f"{found['base_rows']} rows",
            f"version {found['version']}; {indexes - len(behind)} of {indexes} index caught up",
        ],
        "retained": [
            "Merged, still stored",
            f"{retained} generations",
            f"{reclaimable} reclaimable, {retained - reclaimable} await indexes",
        ],
    }


def test_a_merge_is_started_and_watched_in_the_ui(
    airflow: AirflowStandalone, browser: Browser, registered: Any
) -> None:
    table, catalog = registered.table, registered.catalog
    registered.write(*range(100))
    table.merge()
    for start in (100, 200, 300):
        registered.write(*range(start, start + 100))
    catalog.record_backlog("flights", table.status())
    airflow.wait_dag("memwal__flights")

    # What is shown is what the command line tells.
    page, frame = log_in(browser, airflow, "admin")
    before = status(table.uri)
    assert (before["backlog_generations"], before["backlog_rows"]) == (6, 300)
    assert levels(frame) == told(before)
    folder = os.environ.get("MEMWAL_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / "ui-in-airflow.png")

    # A viewer sees the same, and can start nothing.
    _, looking = log_in(browser, airflow, "viewer")
    assert levels(looking) == told(before)
    for name in BUTTONS:
        expect(looking.get_by_role("button", name=name)).to_be_disabled()
    expect(looking.locator("#action-note")).to_contain_text("You may look")

    # It asks before it starts, tells the run, and shows how it went without being loaded again.
    frame.get_by_role("button", name="Merge now").click()
    assert catalog.runs(job="merge") == []
    frame.get_by_role("button", name="Start merge").click()
    expect(frame.locator("#action-note")).to_contain_text("started as manual__", timeout=SOON)
    waiting = frame.locator(".level-waiting .level-value")
    expect(waiting).to_have_text("0 generations", timeout=JOB)
    expect(frame.locator(".runs tbody tr").first).to_contain_text("succeeded", timeout=SOON)
    after = status(table.uri)
    assert (after["backlog_generations"], after["base_rows"]) == (0, 400)
    assert levels(frame) == told(after)
    (run,) = catalog.runs(job="merge")
    assert frame.locator(".runs tbody tr a").first.inner_text() == str(run.run_id)
    # The link leads Airflow's own window to the task, out of the frame.
    frame.locator(".runs tbody tr a").first.click()
    page.wait_for_url("**/dags/memwal__flights/runs/**")
    # The viewer, who did nothing, sees it too.
    expect(looking.locator(".level-waiting .level-value")).to_have_text(
        "0 generations", timeout=SOON
    )
