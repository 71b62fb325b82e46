"""A proxy before an object store, which counts the requests that are made of it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "date", "server"}


class Proxy(ThreadingHTTPServer):
    """Passes every request on to a server, and notes it: its method, or ``LIST``, and its path."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Pass)
        self.target = urlsplit(endpoint).netloc
        self.seen: list[str] = []
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"

    def taken(self) -> list[str]:
        """What was asked since the last call."""
        seen, self.seen = self.seen, []
        return seen

    def methods(self) -> list[str]:
        """The methods alone of what was asked since the last call."""
        return [request.partition(" ")[0] for request in self.taken()]


class _Pass(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(1 << 16)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        method = "LIST" if "list-type=" in self.path else self.command
        self.server.seen.append(f"{method} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream = http.client.HTTPConnection(self.server.target, timeout=60)
        upstream.request(self.command, self.path, body, dict(self.headers.items()))
        answer = upstream.getresponse()
        content = answer.read()
        self.send_response_only(answer.status, answer.reason)
        kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in _HOP_HEADERS]
        for key, value in kept:
            self.send_header(key, value)
        if all(key.lower() != "content-length" for key, _ in kept):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        upstream.close()


@contextmanager
def counting_proxy(endpoint: str) -> Iterator[Proxy]:
    """Run a proxy before a server, which notes what is asked of it."""
    with Proxy(endpoint) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
