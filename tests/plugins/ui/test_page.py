"""The built page in a browser, with canned answers.

Screenshots go to the folder that MEMWAL_SCREENSHOTS names, if it names one.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from support.airflow.page_server import PageServer
from support.waiting import until

pytestmark = pytest.mark.slow

WIDE = "clicks-wide"


def open_table(page: Page, server: PageServer, name: str) -> None:
    page.goto(f"{server.page}#/tables/{name}")
    expect(page.locator(".charts canvas")).to_have_count(4)


def picture(page: Page, name: str) -> None:
    folder = os.environ.get("MEMWAL_SCREENSHOTS")
    if folder:
        page.mouse.move(0, 0)
        page.screenshot(path=Path(folder) / f"ui-{name}.png")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_fleet(tab: Callable[..., Any], server: PageServer, theme: str) -> None:
    opened = tab(theme=theme)
    page = opened.page
    page.goto(server.page)
    expect(page.locator(".fleet tbody tr")).to_have_count(500)
    rows = server.answers.rows
    critical = sum(row["health"] == "critical" for row in rows)
    expect(page.get_by_role("button", name=f"Critical {critical}")).to_be_visible()
    skipped = sum(row["skipped_regions"] for row in rows)
    figure = page.locator(".figure", has_text="Skipped regions")
    expect(figure.locator(".figure-value")).to_have_text(str(skipped))
    assert page.locator("html").get_attribute("data-theme") == theme
    picture(page, f"fleet-{theme}")
    # Each kind of row is among fewer, which axe is done with sooner.
    page.get_by_role("searchbox").fill("flights")
    expect(page.locator(".fleet tbody tr:nth-child(90)")).to_have_count(0)
    assert opened.violations() == []
    assert opened.complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["flights", WIDE])
def test_table(tab: Callable[..., Any], server: PageServer, name: str, theme: str) -> None:
    opened = tab(theme=theme, height=1180)
    page = opened.page
    open_table(page, server, name)
    row = next(row for row in server.answers.rows if row["table"] == name)
    generations = page.locator(".level-waiting .level-value")
    waiting = sum(one["backlog_generations"] for one in server.answers.regions(row))
    expect(generations).to_contain_text(str(waiting) if waiting < 1000 else "k")
    stale = page.locator(".indexes li", has_text="city_idx").locator(".index-state")
    expect(stale).to_have_class("index-state is-failing")
    expired = page.get_by_role("row", name="search-cache")
    expect(expired).to_contain_text("the limit is 7 d")
    assert opened.violations() == []
    assert opened.complaints == []
    picture(page, f"table-{theme}" if name == "flights" else f"regions-{theme}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_table_without_mem_wal(tab: Callable[..., Any], server: PageServer, theme: str) -> None:
    server.answers.plain.add("flights")
    opened = tab(theme=theme, height=900)
    page = opened.page
    page.goto(f"{server.page}#/tables/flights")
    jobs = page.locator("table.due tbody tr")
    expect(jobs).to_have_count(3)
    for absent in ("Levels", "Regions"):
        expect(page.get_by_role("heading", name=absent, exact=True)).to_have_count(0)
    buttons = page.get_by_role("region", name="Start a run").get_by_role("button")
    expect(buttons).to_have_text(["Run now", "Dry run"])
    assert opened.violations() == []
    assert opened.complaints == []
    picture(page, f"plain-{theme}")


def test_sorted_and_filtered_by_keyboard(tab: Callable[..., Any], server: PageServer) -> None:
    page = tab().page
    page.goto(server.page)
    expect(page.locator(".fleet tbody tr")).to_have_count(500)
    first = page.locator(".fleet tbody tr").first.locator("a")
    reach(page, "Table")
    page.keyboard.press("Enter")
    names = sorted(row["table"] for row in server.answers.rows)
    expect(first).to_have_text(names[0])
    expect(page.locator("th.col-table[aria-sort=ascending]")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(first).to_have_text(names[-1])
    page.get_by_role("searchbox").focus()
    page.keyboard.type("flights payments")
    found = [
        row
        for row in server.answers.rows
        if "flights" in row["table"] and "payments" in (row["owner"], *row["tags"])
    ]
    expect(page.locator(".fleet tbody tr")).to_have_count(len(found))
    page.get_by_role("searchbox").fill("flights")
    page.get_by_role("link", name="flights", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("flights")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    assert page.title() == "flights · memwal"


def reach(page: Page, name: str) -> None:
    """Press Tab until a button of this name has the focus."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == name:
            return
    raise AssertionError(f"Tab never reaches {name}")


def test_regions_by_keyboard_and_as_a_table(tab: Callable[..., Any], server: PageServer) -> None:
    opened = tab()
    page = opened.page
    open_table(page, server, WIDE)
    row = next(row for row in server.answers.rows if row["table"] == WIDE)
    ids = sorted(region["region_id"] for region in server.answers.regions(row))
    cells = page.get_by_role("application")
    cells.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#cell-told code")).to_have_text(ids[0])
    page.keyboard.press("End")
    expect(page.locator("#cell-told code")).to_have_text(ids[-1])
    page.keyboard.press("Escape")
    expect(page.locator("#cell-told code")).to_have_count(0)
    page.get_by_label("Colour").select_option(label="Waiting rows")
    page.get_by_label("Largest first").check()
    most = max(region["backlog_rows"] for region in server.answers.regions(row))
    page.get_by_role("button", name="As a table").click()
    expect(page.locator(".region-rows tbody tr")).to_have_count(100)
    shown = page.locator(".region-rows tbody tr").first.locator("td").nth(3)
    assert shown.inner_text().startswith(str(most)[:2])
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".pages")).to_contain_text("101 to 200")
    assert opened.violations() == []


def test_merge_asks_first_and_then_starts(tab: Callable[..., Any], server: PageServer) -> None:
    opened = tab()
    page = opened.page
    open_table(page, server, "flights")
    before = page.locator(".panel").first.bounding_box()
    page.get_by_role("button", name="Merge now").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Start merge")).to_be_focused()
    assert server.posted == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Merge now")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Start merge")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#action-note")).to_contain_text("started as manual__1")
    assert page.locator(".panel").first.bounding_box() == before
    [(path, headers, body)] = server.posted
    assert path == "tables/flights/runs"
    assert headers["X-Requested-With"] == "memwal"
    assert headers["Content-Type"] == "application/json"
    # It is due by the canned answer, so it is not forced.
    assert body == {"jobs": ["merge"], "regions": [], "force": False, "dry_run": False}
    for button, confirmed in (("Checkpoint", "Start checkpoint"), ("Dry run", "Start dry run")):
        page.get_by_role("button", name=button).click()
        page.get_by_role("button", name=confirmed).click()
        expect(page.locator("#action-note")).to_contain_text(f"{button}: started")
    assert server.posted[1][2]["jobs"] == ["merge", "index"]
    assert server.posted[1][2]["force"] is True
    assert server.posted[2][2]["dry_run"] is True
    assert opened.complaints == []


def test_merge_of_one_region_and_retry(tab: Callable[..., Any], server: PageServer) -> None:
    page = tab().page
    open_table(page, server, "flights")
    page.get_by_role("application").focus()
    page.keyboard.press("Home")
    region = page.locator("#cell-told code").inner_text()
    page.get_by_role("button", name="Merge now").click()
    page.get_by_label("Only region").check()
    page.get_by_role("button", name="Start merge").click()
    expect(page.locator("#action-note")).to_contain_text("started as")
    assert server.posted[0][2]["regions"] == [region]
    skipped = server.answers.table("flights")["skipped_regions"][0]["region_id"]
    page.get_by_role("button", name=f"Retry region {skipped}").click()
    expect(page.locator("#skipped-title + .quiet")).to_contain_text("next merge")
    assert server.posted[1][0] == "tables/flights/retry"
    assert server.posted[1][2] == {"regions": [skipped]}


def test_viewer_may_look_only(tab: Callable[..., Any], server: PageServer) -> None:
    server.may_write = False
    opened = tab()
    page = opened.page
    open_table(page, server, "flights")
    for name in ("Merge now", "Checkpoint", "Dry run", "Retry all"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
    expect(page.locator("#action-note")).to_contain_text("You may look")
    assert opened.violations() == []


def test_refused_start_is_told(tab: Callable[..., Any], server: PageServer) -> None:
    page = tab().page
    open_table(page, server, "flights")
    server.may_write = False
    page.get_by_role("button", name="Checkpoint").click()
    page.get_by_role("button", name="Start checkpoint").click()
    expect(page.locator("#action-note")).to_contain_text("was not started: Forbidden")


def test_collection_on_demand(tab: Callable[..., Any], server: PageServer) -> None:
    page = tab().page
    open_table(page, server, "flights")
    assert not any("collection" in path for path in server.asked)
    page.get_by_role("button", name="Look into the store").click()
    expect(page.locator(".plan")).to_contain_text("log entries")
    expect(page.locator(".plan")).to_contain_text("an index does not cover it yet")


def test_anonymous_is_sent_to_the_log_in(tab: Callable[..., Any], server: PageServer) -> None:
    server.logged_in = False
    opened = tab()
    opened.page.goto(server.page)
    expect(opened.page.get_by_role("alert")).to_contain_text("You are not logged in")
    link = opened.page.get_by_role("link", name="log-in")
    assert link.get_attribute("href") == f"{server.origin}/team-a/"
    assert opened.violations() == []


def test_what_is_not_there(tab: Callable[..., Any], server: PageServer) -> None:
    page = tab().page
    page.goto(f"{server.page}#/tables/nothing")
    expect(page.get_by_role("alert")).to_contain_text("No table 'nothing' is registered.")
    server.answers.rows.clear()
    page.goto(server.page)
    expect(page.locator(".state-title")).to_have_text("No table is registered yet")


def test_nobody_has_looked_yet(tab: Callable[..., Any], server: PageServer) -> None:
    opened = tab()
    name = next(row["table"] for row in server.answers.rows if row["health"] == "unwatched")
    opened.page.goto(f"{server.page}#/tables/{name}")
    expect(opened.page.locator("main")).to_contain_text("The status of this table was not read yet")
    assert opened.complaints == []


def test_a_table_tells_each_of_its_states(tab: Callable[..., Any], server: PageServer) -> None:
    opened = tab()
    page = opened.page
    page.goto(server.page)
    row = next(row for row in server.answers.rows if row["health"] == "run_failed")
    count = sum(one["health"] == "run_failed" for one in server.answers.rows)
    page.get_by_role("button", name=f"Run failed {count}").click()
    expect(page.locator(".fleet tbody tr")).to_have_count(count)
    page.goto(f"{server.page}#/tables/{row['table']}")
    told = page.locator(".reasons li")
    expect(told).to_contain_text([row["reasons"][0]["text"]])
    expect(told.locator("code")).to_have_text("docs/runbooks/MemwalRunFailed.md")
    assert opened.violations() == []


def test_keeps_what_it_has_when_the_api_fails(tab: Callable[..., Any], server: PageServer) -> None:
    page = tab().page
    page.goto(server.page)
    expect(page.locator(".fleet tbody tr")).to_have_count(500)
    server.broken = True
    page.get_by_role("button", name="Refresh").click()
    expect(page.locator(".freshness")).to_contain_text("The catalog does not answer")
    expect(page.locator(".fleet tbody tr")).to_have_count(500)
    server.broken = False
    page.get_by_role("button", name="Refresh").click()
    expect(page.locator(".freshness")).to_contain_text("Read at")


def test_refreshes_by_itself_and_pauses_when_hidden(
    tab: Callable[..., Any], server: PageServer
) -> None:
    page = tab().page
    page.clock.install()
    page.goto(server.page)
    expect(page.locator(".fleet tbody tr")).to_have_count(500)
    page.clock.run_for(11_000)
    until(lambda: server.asked.count("fleet") == 2)
    hide = (
        "hidden => Object.defineProperty(document, 'hidden', {value: hidden, configurable: true})"
    )
    page.evaluate(hide, True)
    page.clock.run_for(60_000)
    assert server.asked.count("fleet") == 2
    page.evaluate(hide, False)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    until(lambda: server.asked.count("fleet") == 3)


def test_in_the_frame_of_airflow(tab: Callable[..., Any], server: PageServer) -> None:
    """It follows the theme around it, and its links leave a frame that may not navigate."""
    opened = tab(theme="light")
    page = opened.page
    page.goto(f"{server.origin}/around?theme=dark")
    frame = page.frame_locator("iframe")
    expect(frame.locator("html")).to_have_attribute("data-theme", "dark")
    page.evaluate("document.documentElement.className = 'light'")
    expect(frame.locator("html")).to_have_attribute("data-theme", "light")
    frame.get_by_role("link", name="flights", exact=True).click()
    expect(frame.get_by_role("heading", level=1)).to_have_text("flights")
    frame.get_by_role("link", name="Run 899 in Airflow").click()
    page.wait_for_url(f"{server.origin}/dags/memwal_flights/runs/manual__899")
    # Chromium warns of the frame that Airflow makes.
    assert [text for text in opened.complaints if "sandboxing" not in text] == []


def overflowing(page: Page) -> list[str]:
    """What is wider than the window: the document, or what scrolls sideways in it."""
    return page.evaluate(
        """() => [document.documentElement, ...document.querySelectorAll("body *")]
        .filter((one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 1)
        .filter((one) => ["auto", "scroll", "visible"].includes(getComputedStyle(one).overflowX))
        .filter((one) => one === document.documentElement || one.clientWidth > 0)
        .map((one) => `${one.tagName}.${one.className}: ${one.scrollWidth} > ${one.clientWidth}`)"""
    )


def cut_off(page: Page) -> list[str]:
    """Texts that are wider than the element that holds them, which shows only a part."""
    return page.evaluate(
        """() => [...document.querySelectorAll("body *")]
        .filter((one) => one.clientWidth > 2 && one.scrollWidth > one.clientWidth + 1)
        .filter((one) => one.matches("th, td, th *, td *, .figure *, .pairs *, .below, .chip"))
        .map((one) => `${one.tagName}.${one.className}: ${one.textContent}`)"""
    )


@pytest.mark.parametrize("width", [390, 760, 1280])
def test_narrow(tab: Callable[..., Any], server: PageServer, width: int) -> None:
    opened = tab(width=width, height=844)
    page = opened.page
    page.goto(server.page)
    expect(page.locator(".fleet tbody tr")).to_have_count(500)
    page.get_by_role("searchbox").fill("flights")
    expect(page.locator(".fleet tbody tr:nth-child(90)")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert cut_off(page) == []
    if width < 720:
        assert overflowing(page) == []
    picture(page, f"fleet-{width}")
    assert opened.violations() == []
    open_table(page, server, "flights")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert cut_off(page) == []
    if width < 720:
        assert overflowing(page) == []
    picture(page, f"table-{width}")
    assert opened.violations() == []


def test_the_address_holds_filter_and_order(tab: Callable[..., Any], server: PageServer) -> None:
    page = tab().page
    page.goto(server.page)
    expect(page.locator(".fleet tbody tr")).to_have_count(500)
    late = [row["table"] for row in server.answers.rows if row["health"] == "late"]
    word = late[0].split("-")[0]
    page.get_by_role("searchbox").fill(word)
    page.get_by_role("button", name="Late").click()
    page.locator("th.col-age button").click()
    shown = page.locator(".fleet tbody th a")
    expect(shown).to_have_count(sum(word in name for name in late))
    names = shown.all_inner_texts()
    page.reload()
    expect(page.get_by_role("searchbox")).to_have_value(word)
    expect(page.locator("th.col-age[aria-sort=descending]")).to_have_count(1)
    expect(shown).to_have_text(names)
    # The way back leads to the same.
    shown.first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(names[0])
    page.get_by_role("link", name="All tables").click()
    expect(page.get_by_role("searchbox")).to_have_value(word)


def test_the_address_of_airflow_follows(tab: Callable[..., Any], server: PageServer) -> None:
    page = tab().page
    page.goto(f"{server.origin}/around?theme=dark")
    frame = page.frame_locator("iframe")
    frame.get_by_role("link", name="flights", exact=True).click()
    expect(frame.get_by_role("heading", level=1)).to_have_text("flights")
    assert page.url == f"{server.origin}/around?theme=dark#/tables/flights"
    page.reload()
    expect(frame.get_by_role("heading", level=1)).to_have_text("flights")
    frame.get_by_role("link", name="All tables").click()
    frame.get_by_role("searchbox").fill("orders")
    expect(frame.locator(".fleet tbody tr:nth-child(90)")).to_have_count(0)
    assert page.url.endswith("#/?q=orders")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    frame.locator(".fleet tbody th a").first.click()
    frame.get_by_role("button", name="Copy link").click()
    expect(frame.get_by_text("copied", exact=True)).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_regions_are_read_when_the_status_was(tab: Callable[..., Any], server: PageServer) -> None:
    page = tab().page
    page.clock.install()
    open_table(page, server, WIDE)
    asked = f"tables/{WIDE}"
    page.clock.run_for(11_000)
    until(lambda: server.asked.count(asked) == 2)
    assert server.asked.count(f"{asked}/regions") == 1
    row = next(row for row in server.answers.rows if row["table"] == WIDE)
    row["sampled_at"] = server.answers.ago(0)
    page.clock.run_for(11_000)
    until(lambda: server.asked.count(f"{asked}/regions") == 2)


def test_what_fails_is_told_whole(tab: Callable[..., Any], server: PageServer) -> None:
    opened = tab()
    page = opened.page
    row = next(row for row in server.answers.rows if row["errors"])
    (error,) = row["errors"]
    error["reason"] = f"StoreUnavailableError: {'no answer ' * 40}from the store"
    open_table(page, server, row["table"])
    shown = page.locator(".errors li")
    expect(shown).to_contain_text(error["reason"])
    expect(shown).to_contain_text(error["action"])
    expect(shown).to_contain_text(error["runbook"])
    error["runbook_link"] = "https://docs.example/runbook.html#store"
    page.reload()
    link = page.get_by_role("link", name="Runbook")
    expect(link).to_have_attribute("href", "https://docs.example/runbook.html#store")
    assert opened.violations() == []


def test_a_skipped_region_tells_why(tab: Callable[..., Any], server: PageServer) -> None:
    page = tab().page
    open_table(page, server, "flights")
    (skipped,) = server.answers.table("flights")["skipped_regions"]
    row = next(row for row in server.answers.rows if row["table"] == "flights")
    ids = sorted(region["region_id"] for region in server.answers.regions(row))
    page.get_by_role("application").focus()
    page.keyboard.press("Home")
    for _ in range(ids.index(skipped["region_id"])):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#cell-told code")).to_have_text(skipped["region_id"])
    expect(page.locator("#cell-told")).to_contain_text(skipped["reason"])
