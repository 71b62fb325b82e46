"""What a lookup asks of an object store."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import lance
import pyarrow as pa
import pytest
from support.s3_emulator import running_emulator
from support.tables import keys, numbered, rows, state

import memwal

_GENERATIONS = 3
_ROWS = 2_000
_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "date", "server"}


class Counting(ThreadingHTTPServer):
    """Passes every request on to a server, and notes it."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Pass)
        self.target = urlsplit(endpoint).netloc
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.seen: list[str] = []

    def taken(self) -> list[str]:
        """What was asked since the last call."""
        seen, self.seen = self.seen, []
        return seen


class _Pass(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Counting

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(1 << 16)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.server.seen.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream = http.client.HTTPConnection(self.server.target, timeout=60)
        upstream.request(self.command, self.path, body, dict(self.headers.items()))
        answer = upstream.getresponse()
        content = answer.read()
        self.send_response_only(answer.status, answer.reason)
        kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in _HOP_HEADERS]
        for name, value in kept:
            self.send_header(name, value)
        if all(name.lower() != "content-length" for name, _ in kept):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        upstream.close()


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[memwal.Table, Counting]]:
    """Generation n has the keys that leave n when divided by the generations; the base has all."""
    scratch: Path = tmp_path_factory.mktemp("s3")
    with running_emulator(scratch) as emulator, Counting(emulator.endpoint) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        options = {**emulator.storage_options, "aws_endpoint": proxy.endpoint}
        uri = f"s3://{emulator.create_bucket()}/table"
        base = lance.write_dataset(numbered(0, _ROWS, n=9), uri, storage_options=options)
        base.create_scalar_index("id", "BTREE")
        table = memwal.enable(
            uri,
            region_spec=memwal.RegionSpec.unsharded(),
            primary_key=["id"],
            storage_options=options,
        )
        with table.writer() as writer:
            for n in range(_GENERATIONS):
                writer.upsert(rows({key: n for key in range(_ROWS // 2) if key % 4 == n}))
                writer.flush()
        yield table, proxy
        proxy.shutdown()
        thread.join()


def of_generations(seen: list[str]) -> list[str]:
    return [request for request in seen if "_gen_" in request]


def test_for_many_keys_are_those_for_a_few(
    counted: tuple[memwal.Table, Counting],
) -> None:
    table, proxy = counted
    table.lookup(keys(*range(8)))
    proxy.taken()
    assert state(table.lookup(keys(40, 41, 42, 43))) == {40: 0, 41: 1, 42: 2, 43: 9}
    few = proxy.taken()
    asked = list(range(100, 900))
    found = state(table.lookup(pa.array(asked)))
    many = proxy.taken()
    assert found == {key: key % 4 if key % 4 < 3 else 9 for key in asked}
    assert len(of_generations(few)) == len(of_generations(many)) == _GENERATIONS
    assert len(many) == len(few)
