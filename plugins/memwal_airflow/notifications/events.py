"""Send events through Airflow's connections: to Slack's webhooks, or to any address over HTTP.

``notify_conn_id`` and ``notify_owners`` of ``airflow.cfg`` name the connections.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial

from airflow.sdk import BaseHook

from memwal.catalog import Catalog
from memwal.errors import InvalidInputError, MemWalError
from memwal.fleet.alerts import (
    ATTEMPTS,
    TIMEOUT_SECONDS,
    Post,
    WebhookResponse,
    deliver,
    notify_channel,
)
from memwal.fleet.conditions import Condition
from memwal.util.records import JsonMapping
from memwal_airflow.provider.settings import NOTIFY_CONN_ID, NOTIFY_OWNERS, setting_by_owner
from memwal_airflow.version_compat import AirflowException

logger = logging.getLogger(__name__)

# Loggers of the libraries below, which log the address of a request.
_LOGGERS_WITH_ADDRESSES = ("urllib3.connectionpool", "urllib3.util.retry", "requests", "slack_sdk")


def notify_events(
    *,
    conn_id: str | None = None,
    tables: Sequence[str] | None = None,
    attempts: int = ATTEMPTS,
    timeout: float = TIMEOUT_SECONDS,
) -> int:
    """Send new events to all configured connections, and return the number of sent events.

    A failed delivery does not raise: it is logged without the address, and a later call sends its
    events.

    Parameters
    ----------
    conn_id : str, optional
        Send the events of all tables to this connection, instead of the one in ``airflow.cfg``.
    tables : sequence of str, optional
        Send events of these tables only; default: all.
    attempts : int, default 3
        Maximum attempts to deliver a message.
    timeout : float, default 10
        Seconds to wait for an answer.
    """
    default = conn_id or NOTIFY_CONN_ID.read() or None
    if default is None and not NOTIFY_OWNERS.read():
        return 0
    try:
        with closing(Catalog()) as catalog:
            recipients: Mapping[str, Sequence[str] | None] = (
                {conn_id: tables}
                if conn_id
                else _tables_by_connection(catalog, tables, default=default)
            )
            return sum(
                _notify_connection(catalog, connection, names, attempts=attempts, timeout=timeout)
                for connection, names in recipients.items()
            )
    except MemWalError as error:
        logger.warning("No events were sent: %s", error)
        return 0


def _tables_by_connection(
    catalog: Catalog,
    tables: Sequence[str] | None,
    *,
    default: str | None,
) -> dict[str, list[str]]:
    """Return the names of the tables whose events each connection receives."""
    owners = setting_by_owner(NOTIFY_OWNERS)
    tables_of: dict[str, list[str]] = {}
    for table in catalog.list():
        connection = owners.get(table.owner, default)
        if connection is not None and (tables is None or table.name in tables):
            tables_of.setdefault(connection, []).append(table.name)
    return tables_of


def _notify_connection(
    catalog: Catalog,
    conn_id: str,
    tables: Sequence[str] | None,
    *,
    attempts: int,
    timeout: float,
) -> int:
    def send(events: Sequence[Condition]) -> None:
        with _sender(conn_id, timeout) as post:
            deliver(post, events, attempts=attempts)

    try:
        events = notify_channel(catalog, f"airflow:{conn_id}"[:100], send, tables=tables)
    # RuntimeError: outside of Airflow's processes, connections cannot be read.
    except (MemWalError, AirflowException, OSError, RuntimeError, ValueError) as error:
        # Only our own messages are known to be free of addresses.
        why = str(error) if isinstance(error, MemWalError) else type(error).__name__
        logger.warning("No events were sent to the connection %s: %s", conn_id, why)
        return 0
    if events:
        logger.info("%d events were sent to the connection %s", len(events), conn_id)
    return len(events)


@contextmanager
def _sender(conn_id: str, timeout: float) -> Iterator[Post]:
    """Yield a function that posts through the provider's hook; logs do not show its address."""
    connection = BaseHook.get_connection(conn_id)
    match connection.conn_type:
        case "slackwebhook":
            post, url = _slack_post(conn_id, timeout)
        case "http":
            # Airflow stores a host in plain text and a password encrypted. Without a login, the
            # password field is not a password of HTTP, so it holds the secret part of the path.
            secret_path = None if connection.login else connection.password
            post, url = _http_post(conn_id, timeout, secret_path)
        case other:
            raise InvalidInputError(
                f"connection {conn_id!r} is of type {other}; events are sent to connections of "
                "type slackwebhook or http"
            )
    with _redact_logs(url):
        yield post


def _slack_post(conn_id: str, timeout: float) -> tuple[Post, str]:
    from airflow.providers.slack.hooks.slack_webhook import SlackWebhookHook

    quiet = logging.getLogger(f"{__name__}.slack")
    # The client checks the level itself, and logs the address when the level is DEBUG or unset.
    quiet.setLevel(logging.CRITICAL)
    hook = SlackWebhookHook(
        slack_webhook_conn_id=conn_id,
        timeout=max(1, round(timeout)),
        retry_handlers=[],
        logger=quiet,
    )
    client = hook.client

    def post(body: JsonMapping) -> WebhookResponse:
        answer = client.send_dict(dict(body))
        named = {name.lower(): value for name, value in answer.headers.items()}
        return WebhookResponse(answer.status_code, named.get("retry-after"))

    return post, client.url


def _http_post(conn_id: str, timeout: float, path: str | None) -> tuple[Post, str]:
    from airflow.providers.http.hooks.http import HttpHook

    hook = HttpHook(method="POST", http_conn_id=conn_id)
    session = hook.get_conn()
    url = hook.url_from_endpoint(path)
    send = partial(session.post, url, timeout=timeout, allow_redirects=False)

    def post(body: JsonMapping) -> WebhookResponse:
        with send(json=dict(body)) as answer:
            return WebhookResponse(answer.status_code, answer.headers.get("Retry-After"))

    return post, url


@contextmanager
def _redact_logs(url: str) -> Iterator[None]:
    """Redact an address in the logs of libraries, within the block."""
    host_and_path = re.sub(r"^\w+://", "", url)
    secrets = [part for part in (url, "/" + host_and_path.partition("/")[2]) if len(part) > 1]

    def redact(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        for secret in secrets:
            text = text.replace(secret, "/***")
        record.msg, record.args = text, ()
        return True

    loggers = [logging.getLogger(name) for name in _LOGGERS_WITH_ADDRESSES]
    for logger in loggers:
        logger.addFilter(redact)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(redact)
