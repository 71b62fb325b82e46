"""Telling people of events through Airflow's connections: Slack's webhooks, or any over HTTP.

Who is told stands in section ``[memwal]`` of ``airflow.cfg``:

``notify_conn_id``
    Connection of type ``slackwebhook`` or ``http``; nobody is told without it.
``notify_owners``
    JSON object from owners of tables to connections of their own: ``{"air team": "slack_air"}``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException

from memwal.catalog import Catalog
from memwal.errors import InvalidInputError, MemWalError
from memwal.fleet.alerts import ATTEMPTS, TIMEOUT_SECONDS, Answer, Event, Post, deliver, tell
from memwal.util.safe_json import read_json
from memwal_airflow.spark.settings import SECTION

SLACK: Final = "slackwebhook"
HTTP: Final = "http"

log = logging.getLogger(__name__)

# What the libraries below log of a request has its address in it.
_TALKATIVE = ("urllib3.connectionpool", "urllib3.util.retry", "requests", "slack_sdk")


def notify_events(
    *,
    conn_id: str | None = None,
    tables: Sequence[str] | None = None,
    attempts: int = ATTEMPTS,
    timeout: float = TIMEOUT_SECONDS,
    catalog: Catalog | None = None,
) -> int:
    """Tell everybody who is to be told what is new, and never fail for it.

    What could not be told is in the log, without the address, and is told by a later call.

    Parameters
    ----------
    conn_id : str, optional
        Tell this connection about all tables, whatever ``airflow.cfg`` says.
    tables : sequence of str, optional
        Only of these tables; by default of all.
    attempts : int, default 3
        Most tries to deliver a message.
    timeout : float, default 10
        Seconds to wait for an answer.
    catalog : Catalog, optional
        By default that of ``$MEMWAL_CATALOG_URL``.

    Returns
    -------
    int
        How many events were told.
    """
    if conn_id is None and configured_connection() is None and not _owners_text():
        return 0
    own = catalog or Catalog()
    try:
        audiences = {conn_id: tables} if conn_id else _audiences(own, tables)
        return sum(
            _told(own, connection, about, attempts=attempts, timeout=timeout)
            for connection, about in audiences.items()
        )
    except MemWalError as error:
        log.warning("Nobody was told of events: %s", error)
        return 0
    finally:
        if catalog is None:
            own.close()


def configured_connection() -> str | None:
    """Connection id of ``[memwal] notify_conn_id`` in ``airflow.cfg``, if any."""
    return conf.get(SECTION, "notify_conn_id", fallback=None) or None


def _owners_text() -> str:
    return str(conf.get(SECTION, "notify_owners", fallback="") or "").strip()


def _audiences(catalog: Catalog, tables: Sequence[str] | None) -> dict[str, list[str]]:
    """Which connection hears of which tables."""
    text = _owners_text()
    try:
        owners = read_json(text) if text else {}
    except ValueError:
        owners = None
    if not isinstance(owners, dict) or not all(isinstance(v, str) for v in owners.values()):
        raise InvalidInputError(
            f"[{SECTION}] notify_owners in airflow.cfg must be a JSON object from owners to "
            'connection ids: {"air team": "slack_air"}'
        )
    usual = configured_connection()
    found: dict[str, list[str]] = {}
    for table in catalog.list():
        connection = owners.get(table.owner, usual)
        if connection is not None and (tables is None or table.name in tables):
            found.setdefault(connection, []).append(table.name)
    return found


def _told(
    catalog: Catalog,
    conn_id: str,
    tables: Sequence[str] | None,
    *,
    attempts: int,
    timeout: float,
) -> int:
    def send(events: Sequence[Event]) -> None:
        with _sender(conn_id, timeout) as post:
            deliver(post, events, attempts=attempts)

    try:
        events = tell(catalog, f"airflow:{conn_id}"[:100], send, tables=tables)
    # RuntimeError: outside of Airflow's processes there is nobody to ask for a connection.
    except (MemWalError, AirflowException, OSError, RuntimeError, ValueError) as error:
        # Only our own messages are known to be free of addresses.
        why = str(error) if isinstance(error, MemWalError) else type(error).__name__
        log.warning("The connection %s was not told of events: %s", conn_id, why)
        return 0
    if events:
        log.info("The connection %s was told of %d events", conn_id, len(events))
    return len(events)


@contextmanager
def _sender(conn_id: str, timeout: float) -> Iterator[Post]:
    """Post through the provider's hook of a connection, with its address kept out of logs."""
    connection = BaseHook.get_connection(conn_id)
    match connection.conn_type:
        case "slackwebhook":
            post, url = _slack(conn_id, timeout)
        case "http":
            # Airflow keeps a host in the clear, and a password encrypted. Without a login, it is
            # no password of HTTP.
            secret_path = None if connection.login else connection.password
            post, url = _http(conn_id, timeout, secret_path)
        case other:
            raise InvalidInputError(
                f"connection {conn_id!r} is of type {other}; events are told to connections of "
                f"type {SLACK} or {HTTP}"
            )
    with _hidden(url):
        yield post


def _slack(conn_id: str, timeout: float) -> tuple[Post, str]:
    from airflow.providers.slack.hooks.slack_webhook import SlackWebhookHook

    quiet = logging.getLogger(f"{__name__}.slack")
    # The client looks at the level itself, and writes the address when it is DEBUG or not set.
    quiet.setLevel(logging.CRITICAL)
    hook = SlackWebhookHook(
        slack_webhook_conn_id=conn_id,
        timeout=max(1, round(timeout)),
        retry_handlers=[],
        logger=quiet,
    )
    client = hook.client

    def post(body: Mapping[str, Any]) -> Answer:
        answer = client.send_dict(dict(body))
        named = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(answer.status_code, named.get("retry-after"))

    return post, client.url


def _http(conn_id: str, timeout: float, path: str | None) -> tuple[Post, str]:
    from airflow.providers.http.hooks.http import HttpHook

    hook = HttpHook(method="POST", http_conn_id=conn_id)
    session = hook.get_conn()
    url = hook.url_from_endpoint(path)
    send = partial(session.post, url, timeout=timeout, allow_redirects=False)

    def post(body: Mapping[str, Any]) -> Answer:
        with send(json=dict(body)) as answer:
            return Answer(answer.status_code, answer.headers.get("Retry-After"))

    return post, url


@contextmanager
def _hidden(url: str) -> Iterator[None]:
    """Keep an address out of what the libraries log meanwhile."""
    host_and_path = re.sub(r"^\w+://", "", url)
    secrets = [part for part in (url, "/" + host_and_path.partition("/")[2]) if len(part) > 1]

    def without(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        for secret in secrets:
            text = text.replace(secret, "/***")
        record.msg, record.args = text, ()
        return True

    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    for logger in loggers:
        logger.addFilter(without)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(without)
