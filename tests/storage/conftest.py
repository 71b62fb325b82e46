"""The stores that the behaviour suite runs over, and an S3 server that fails on demand."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pytest
from support.servers import serving
from support.stores.s3_emulator import S3Emulator
from support.systems import BARE, TAKEN, take_away

from memwal.storage.folders import locks
from memwal.storage.object_store import ObjectStore
from memwal.storage.open import open_store

KINDS = (
    *("local", "local-not-durable", "memory", "s3", f"local-{BARE}"),
    *(pytest.param(f"local-{name}", marks=pytest.mark.slow) for name in TAKEN),
)


@pytest.fixture(scope="session")
def bucket(emulator: S3Emulator) -> str:
    return emulator.create_bucket()


@pytest.fixture(params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ObjectStore:
    """An empty store of each kind."""
    if request.param == "memory":
        return open_store(f"memory://{uuid4().hex}/table")
    if request.param == "s3":
        emulator = request.getfixturevalue("emulator")
        bucket = request.getfixturevalue("bucket")
        return open_store(f"s3://{bucket}/{uuid4().hex}/table", emulator.storage_options)
    # However slowly others go on who hold a lock.
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 240)
    take_away(monkeypatch, request.param.removeprefix("local-"))
    return open_store(tmp_path / "table", durable=request.param != "local-not-durable")


@dataclass
class FailingS3:
    """A tiny S3 with objects, conditional puts and a script of failures.

    ``script`` is worked off from the left, one step per request; afterwards all goes well.
    ``quoted_tags=False`` refuses an ``If-Match`` in the quotes that the server itself hands out,
    as Ceph does.
    """

    endpoint: str = ""
    quoted_tags: bool = True
    objects: dict[str, bytes] = field(default_factory=dict)
    script: deque[Callable[[_Handler], bool]] = field(default_factory=deque)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def storage_options(self) -> dict[str, str]:
        return {
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
            "aws_access_key_id": "the-key-id",
            "aws_secret_access_key": "the-secret-key",
            "aws_region": "us-east-1",
            "client_max_retries": "2",
        }

    def open(self, **options: str) -> ObjectStore:
        return open_store("s3://bucket/table", self.storage_options | options)

    def answer(self, status: int, code: str = "", message: str = "") -> None:
        """Answer the next request with an error and do nothing."""
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ""
        self.script.append(lambda handler: handler.reply(status, body.encode()))

    def work_then_answer(self, status: int) -> None:
        """Carry the next request out and answer with an error all the same."""
        self.script.append(lambda handler: handler.work(answer=status))

    def work_then_hang_up(self) -> None:
        """Carry the next request out and close the connection without an answer."""
        self.script.append(lambda handler: handler.work(answer=None))

    def work_then_sleep(self, seconds: float) -> None:
        """Carry the next request out and answer after the client gave up."""
        self.script.append(lambda handler: handler.work(delay=seconds))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    s3: FailingS3

    def log_message(self, *arguments: object) -> None:
        """Stay silent."""

    def handle_one(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.s3.requests.append((self.command, self.path, dict(self.headers)))
        step = self.s3.script.popleft() if self.s3.script else _Handler.work
        step(self)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = handle_one

    def work(self, *, answer: int | None = 200, delay: float = 0.0) -> bool:
        with self.s3.lock:
            status, body, tag = self._work()
        time.sleep(delay)
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return True
        return self.reply(status if answer == 200 else answer, body, tag)

    def _work(self) -> tuple[int, bytes, str]:
        objects = self.s3.objects
        held = objects.get(self.path)
        if self.command == "PUT":
            wanted = self.headers.get("If-Match")
            if self.headers.get("If-None-Match") == "*" and held is not None:
                return 412, b"", ""
            if wanted is not None and (held is None or wanted != self._spelt(_tag(held))):
                return 412, b"", ""
            objects[self.path] = self.body
            return 200, b"", _tag(self.body)
        if self.command == "POST":
            keys = re.findall(r"<Key>([^<]*)</Key>", self.body.decode())
            for key in keys:
                objects.pop(f"/bucket/{key}", None)
            told = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return 200, f"<DeleteResult>{told}</DeleteResult>".encode(), ""
        if held is None:
            return 404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>", ""
        return 200, held, _tag(held)

    def _spelt(self, tag: str) -> str:
        return tag if self.s3.quoted_tags else tag.strip('"')

    def reply(self, status: int, body: bytes = b"", tag: str = "") -> bool:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Fri, 20 Nov 2026 18:00:00 GMT")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True


def _tag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Expect clients that are gone."""


@pytest.fixture
def failing_s3() -> Iterator[FailingS3]:
    s3 = FailingS3()
    handler = type("Handler", (_Handler,), {"s3": s3})
    with serving(_Server(("127.0.0.1", 0), handler)) as server:
        s3.endpoint = f"http://127.0.0.1:{server.server_port}"
        yield s3
