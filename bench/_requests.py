"""Requests to an object store, counted on their way."""

from __future__ import annotations

import http.client
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import _tables as tables
from _measure import Line, Target, constant

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.s3_emulator import running_emulator

_WARM_UP = 5
_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "date", "server"}


def requests(folder: Path, rows: int) -> Iterator[Line]:
    """Requests per upsert while one producer writes steadily; the target is one PUT."""
    count = max(rows // 500, 20)
    batches = [tables.narrow_rows(10, number * 10) for number in range(_WARM_UP + count)]
    with running_emulator(folder) as emulator, counting_proxy(emulator.endpoint) as proxy:
        options = {**emulator.storage_options, "aws_endpoint": proxy.endpoint}
        uri = f"s3://{emulator.create_bucket()}/table"
        with tables.open_ours(tables.create_narrow(uri, storage_options=options)) as writer:
            for batch in batches[:_WARM_UP]:
                writer.upsert(batch)
            proxy.seen.clear()
            for batch in batches[_WARM_UP:]:
                writer.upsert(batch)
            seen = Counter(proxy.seen)
    names = ", ".join(f"{number} {name}" for name, number in sorted(seen.items()))
    yield Line(
        name="requests",
        what="requests to S3 for each flush of the log",
        ours=constant(sum(seen.values()) / count),
        other=constant(1.0),
        unit="requests",
        against="one PUT" if set(seen) == {"PUT"} else "one PUT, but others were seen",
        target=Target(1.0),
        note=f"{names} for {count} flushes",
    )


class Proxy(ThreadingHTTPServer):
    """Passes every request on to a server, and notes its method, or that it lists."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Pass)
        self.target = urlsplit(endpoint).netloc
        self.seen: list[str] = []
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"


class _Pass(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(1 << 16)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.server.seen.append("LIST" if "list-type=" in self.path else self.command)
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
