"""A gateway before an object store: it counts requests, checks who asks, and fails on demand."""

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import SSLContext
from urllib.parse import urlsplit

from support.servers import serving

_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "date", "server"}
_ACCESS_KEY = re.compile(r"Credential=([^/,]+)/")


@dataclass(frozen=True)
class Request:
    """What a client asks.

    Attributes
    ----------
    method : str
        That of HTTP, or ``LIST``.
    path : str
        With its query.
    """

    method: str
    path: str
    headers: http.client.HTTPMessage = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def access_key(self) -> str | None:
        """Whose key signed it; None when it is not signed."""
        found = _ACCESS_KEY.search(self.headers.get("Authorization", ""))
        return found[1] if found else None

    @property
    def token(self) -> str | None:
        """The token of a session, of S3."""
        return self.headers.get("x-amz-security-token")


@dataclass(frozen=True)
class Answer:
    """What a store says.

    Attributes
    ----------
    headers : tuple of pair of str
        Without those that concern the connection alone.
    """

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def refusal(status: int, code: str, message: str = "no") -> Answer:
    """An error as S3 spells it."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Answer(status, body, (("Content-Type", "application/xml"),))


Forward = Callable[[], Answer]
Rule = Callable[[Request, Forward], Answer | None]
"""Decides what becomes of a request: an answer, of the store behind (``forward()``) or of its own;
None hangs up without one."""


def pass_on(request: Request, forward: Forward) -> Answer | None:
    """The rule of a gateway that only counts."""
    return forward()


class Gateway(ThreadingHTTPServer):
    """Passes requests on to a server as its ``rule`` says, and notes each: ``METHOD path``.

    A request keeps its host, which its signature covers.
    """

    daemon_threads = True

    def __init__(self, endpoint: str, tls: SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Pass)
        self.target = urlsplit(endpoint).netloc
        self.seen: list[str] = []
        self.rule: Rule = pass_on
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.endpoint = f"http{'s' if tls else ''}://127.0.0.1:{self.server_address[1]}"

    def taken(self) -> list[str]:
        """What was asked since the last call."""
        seen, self.seen = self.seen, []
        return seen

    def methods(self) -> list[str]:
        """The methods alone of what was asked since the last call."""
        return [request.partition(" ")[0] for request in self.taken()]

    def handle_error(self, request: object, client_address: object) -> None:
        """Expect clients that are gone."""

    def forward(self, request: Request) -> Answer:
        """Ask the server behind."""
        method = "GET" if request.method == "LIST" else request.method
        upstream = http.client.HTTPConnection(self.target, timeout=60)
        upstream.request(method, request.path, request.body, dict(request.headers.items()))
        answer = upstream.getresponse()
        content = answer.read()
        kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in _HOP_HEADERS]
        upstream.close()
        return Answer(answer.status, content, tuple(kept))


class _Pass(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer goes out in two parts, and the second must not wait for word of the first.
    disable_nagle_algorithm = True
    server: Gateway

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(1 << 16)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        method = "LIST" if self._lists() else self.command
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(method, self.path, self.headers, body)
        self.server.seen.append(f"{method} {self.path}")
        answer = self.server.rule(request, lambda: self.server.forward(request))
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response_only(answer.status)
        for key, value in answer.headers:
            self.send_header(key, value)
        if all(key.lower() != "content-length" for key, _ in answer.headers):
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, *arguments: object) -> None:
        """Stay silent, also about what is no HTTP."""

    def _lists(self) -> bool:
        return self.command == "GET" and ("list-type=" in self.path or "comp=list" in self.path)


@contextmanager
def gateway_before(endpoint: str, tls: SSLContext | None = None) -> Iterator[Gateway]:
    """Run a gateway before a server."""
    with serving(Gateway(endpoint, tls)) as gateway:
        yield gateway


@dataclass
class Sessions:
    """Who may ask, and until when: temporary keys that really end.

    Attributes
    ----------
    refused : list of str
        Access keys of requests that were turned away.
    """

    refused: list[str | None] = field(default_factory=list)
    _known: dict[str, tuple[str, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def issue(self, seconds: float) -> dict[str, str]:
        """New keys that are good for so long, as storage options of S3."""
        with self._lock:
            number = len(self._known) + 1
            key, token = f"ASIA{number:012d}", f"session-token-{number}"
            self._known[key] = (token, time.time() + seconds)
        return {
            "aws_access_key_id": key,
            "aws_secret_access_key": f"secret-of-{key}",
            "aws_session_token": token,
            "expires_at_millis": str(int((time.time() + seconds) * 1000)),
        }

    @contextmanager
    def kept_in(self, file: Path, seconds: float) -> Iterator[None]:
        """Write new keys into a file, which are good for so long, until the block ends."""
        over = threading.Event()

        def write() -> None:
            fresh = file.with_name("fresh.json")
            fresh.write_text(json.dumps(self.issue(seconds)))
            fresh.replace(file)

        def keep_writing() -> None:
            while not over.wait(seconds / 4):
                write()

        write()
        agent = threading.Thread(target=keep_writing)
        agent.start()
        try:
            yield
        finally:
            over.set()
            agent.join()

    @property
    def issued(self) -> int:
        """How many keys were given out."""
        return len(self._known)

    def rule(self, request: Request, forward: Forward) -> Answer | None:
        """Pass on what is asked with keys that are good."""
        token, end = self._known.get(request.access_key or "", ("", 0.0))
        if request.token == token and time.time() < end:
            return forward()
        self.refused.append(request.access_key)
        if not token:
            return refusal(403, "InvalidAccessKeyId", "no such key")
        return refusal(400, "ExpiredToken", "the token has expired")
