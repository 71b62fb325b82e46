"""A webhook for tests: a server on 127.0.0.1 that keeps what it is sent and answers as told."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.servers import serving


@dataclass
class WebhookServer:
    """A running server.

    Attributes
    ----------
    address : str
        ``http://127.0.0.1:port``.
    answers : list of (int, dict)
        Status and headers of the next answers; then 200.
    received : list of dict
        Path, headers and body of what came.
    ready : threading.Event
        While it is not set, answers wait.
    """

    address: str = ""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)

    @property
    def texts(self) -> list[str]:
        """The text of every message."""
        return [one["body"]["text"] for one in self.received]


@contextmanager
def running_webhook() -> Iterator[WebhookServer]:
    """Run a webhook."""
    found = WebhookServer()
    found.ready.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.received.append(
                {"path": self.path, "headers": dict(self.headers), "body": json.loads(body)}
            )
            found.ready.wait(240)
            status, headers = found.answers.pop(0) if found.answers else (200, {})
            # The client may have given up by now.
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")
            except OSError:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.address = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        try:
            yield found
        finally:
            found.ready.set()
