"""Events through Airflow's connections, and what no log may show of them."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from memwal_airflow.notifications import listener
from memwal_airflow.notifications.events import notify_events
from memwal_airflow.notifications.notifier import MemWalNotifier
from support.airflow.webhook_server import WebhookServer, running_webhook
from support.oracles.secrecy import Secrecy

from memwal.catalog import Catalog


@pytest.fixture
def failing(catalog: Catalog) -> Catalog:
    for name, owner in (("flights", "air team"), ("trains", "rail")):
        catalog.register(name, uri=f"/{name}", owner=owner)
        catalog.backoffs.record_failure(name, "status", "no such bucket")
    return catalog


@pytest.fixture
def connect(
    monkeypatch: pytest.MonkeyPatch, webhook_server: WebhookServer, secrecy: Secrecy
) -> Callable[..., str]:
    """Return a function that makes a connection of a type, to the webhook_server."""

    def make(conn_type: str, name: str = "ops", **fields: Any) -> str:
        host = webhook_server.address.removeprefix("http://")
        ways: dict[str, dict[str, Any]] = {
            "slackwebhook": {
                "schema": "http",
                "host": f"{host}/services",
                "password": f"T0/{secrecy.marker}",
            },
            "http": {
                "host": f"{webhook_server.address}/services",
                "password": f"T0/{secrecy.marker}",
            },
        }
        text = json.dumps({"conn_type": conn_type, **ways.get(conn_type, {}), **fields})
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", text)
        monkeypatch.setenv("AIRFLOW__MEMWAL__NOTIFY_CONN_ID", name)
        return name

    return make


def warned(caplog: pytest.LogCaptureFixture) -> str:
    """The warnings and errors in the log."""
    records = (one for one in caplog.records if one.levelno >= logging.WARNING)
    return "\n".join(one.getMessage() for one in records)


def test_nobody_is_told_unless_somebody_is_named(
    failing: Catalog, webhook_server: WebhookServer
) -> None:
    assert notify_events() == 0
    assert webhook_server.received == []


@pytest.mark.few(1)
@pytest.mark.parametrize("conn_type", ["slackwebhook", "http"])
def test_events_are_told_once_and_their_end_too(
    failing: Catalog,
    webhook_server: WebhookServer,
    secrecy: Secrecy,
    connect: Callable[..., str],
    conn_type: str,
) -> None:
    connect(conn_type)
    assert notify_events() == 2
    assert notify_events() == 0
    (message,) = webhook_server.received
    assert message["path"] == f"/services/T0/{secrecy.marker}"
    assert message["body"]["text"].count("no such bucket") == 2
    secrecy.check()


@pytest.mark.few(2)
@pytest.mark.parametrize("conn_type", ["slackwebhook", "http"])
@pytest.mark.parametrize("broken", ["refuses", "redirects", "is slow", "is gone"])
def test_a_webhook_that_does_not_work_fails_nothing_and_is_not_shown(
    failing: Catalog,
    webhook_server: WebhookServer,
    secrecy: Secrecy,
    connect: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    conn_type: str,
    broken: str,
) -> None:
    connect(conn_type)
    if broken == "is slow":
        webhook_server.ready.clear()
    if broken == "is gone":
        with running_webhook() as gone:
            address = gone.address
        connect(
            conn_type,
            schema="http",
            host=f"{address.removeprefix('http://')}/services/{secrecy.marker}",
        )
    if broken in ("refuses", "redirects"):
        status = {"refuses": 403, "redirects": 307}[broken]
        webhook_server.answers.append(
            (status, {"Location": f"{webhook_server.address}/{secrecy.marker}"})
        )
    assert notify_events(attempts=1, timeout=1) == 0
    assert "ops" in warned(caplog)
    secrecy.check()
    webhook_server.ready.set()
    connect(conn_type)
    assert notify_events() == 2


def test_a_callback_sends_the_events_of_the_tables_that_it_names(
    failing: Catalog, webhook_server: WebhookServer, connect: Callable[..., str]
) -> None:
    connect("http")
    context: Any = {"params": {"table": "trains"}}
    MemWalNotifier(tables=["{{ params.table }}"])(context)
    (text,) = webhook_server.texts
    assert ("trains" in text, "flights" in text) == (True, False)


def test_owners_can_have_a_connection_of_their_own(
    failing: Catalog,
    webhook_server: WebhookServer,
    connect: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect("slackwebhook", "air")
    connect("http", "ops")
    monkeypatch.setenv("AIRFLOW__MEMWAL__NOTIFY_OWNERS", '{"air team": "air"}')
    assert notify_events() == 2
    assert sorted(text.split()[1] for text in webhook_server.texts) == ["flights", "trains"]
    assert notify_events() == 0
    monkeypatch.delenv("AIRFLOW__MEMWAL__NOTIFY_CONN_ID")
    failing.register("ships", uri="/s", owner="sea")
    failing.backoffs.record_failure("ships", "status", "no such bucket")
    assert notify_events() == 0
    assert notify_events(conn_id="sea") == 0


def test_headers_of_an_http_connection_are_sent_and_not_logged(
    failing: Catalog, webhook_server: WebhookServer, secrecy: Secrecy, connect: Callable[..., str]
) -> None:
    extra = {"X-Token": f"token {secrecy.marker}"}
    connect(
        "http",
        host=f"{webhook_server.address}/all",
        login="me",
        password=secrecy.marker,
        extra=extra,
    )
    assert notify_events() == 2
    (message,) = webhook_server.received
    assert message["path"] == "/all"
    assert message["headers"]["X-Token"] == f"token {secrecy.marker}"
    assert message["headers"]["Authorization"].startswith("Basic ")
    secrecy.check()


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("AIRFLOW__MEMWAL__NOTIFY_CONN_ID", "nowhere", "nowhere"),
        ("AIRFLOW__MEMWAL__NOTIFY_OWNERS", '["air"]', "notify_owners"),
        ("AIRFLOW_CONN_OPS", '{"conn_type": "generic"}', "generic"),
        ("MEMWAL_CATALOG_URL", "sqlite:////nowhere/none.db", "memwal catalog migrate"),
    ],
)
def test_wrong_settings_are_named_and_fail_nothing(
    failing: Catalog,
    connect: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
    named: str,
) -> None:
    connect("http")
    monkeypatch.setenv(name, value)
    assert notify_events() == 0
    assert named in warned(caplog)


class Failed:
    dag_id = "memwal__flights"


def test_a_failed_task_is_told_at_once_with_its_table_only(
    failing: Catalog, webhook_server: WebhookServer, connect: Callable[..., str]
) -> None:
    connect("slackwebhook")
    other = Failed()
    other.dag_id = "flights"
    listener.on_task_instance_failed(None, other, "boom")
    assert webhook_server.received == []
    listener.on_task_instance_failed(None, Failed(), "boom")
    (text,) = webhook_server.texts
    assert "flights" in text
    assert "trains" not in text


def test_airflow_takes_the_listener() -> None:
    from airflow._shared.listeners.listener import ListenerManager
    from airflow._shared.listeners.spec import lifecycle, taskinstance
    from airflow.listeners.spec import importerrors
    from memwal_airflow.plugin import MemWalPlugin

    manager = ListenerManager()
    manager.add_hookspecs(lifecycle)
    manager.add_hookspecs(taskinstance)
    manager.add_hookspecs(importerrors)
    for one in MemWalPlugin.listeners:
        manager.add_listener(one)
    manager.pm.check_pending()
    (found,) = manager.hook.on_task_instance_failed.get_hookimpls()
    assert found.plugin is listener
