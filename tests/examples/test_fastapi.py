"""The service: what it acknowledges is there, and what it cannot do it says."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orders
import pyarrow as pa
import pytest
import service
from bodies import ARROW, MAX_BYTES, to_arrow
from support.waiting import until

import memwal
from memwal.errors import BackPressureError, OutcomeUnknownError, StoreFullError

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using `httpx` with")
    from starlette.testclient import TestClient

HERE = Path(__file__).parents[2] / "examples" / "fastapi"


def order(key: int, total: float = 1.0) -> dict[str, Any]:
    return {"id": key, "customer": f"c{key}", "state": "new", "total": total}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, TestClient]]:
    uri = str(tmp_path_factory.mktemp("orders") / "orders.lance")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORDERS_TABLE", uri)
        with TestClient(service.create_app()) as client:
            yield uri, client


@pytest.fixture
def client(shared: tuple[str, TestClient]) -> Iterator[TestClient]:
    client = shared[1]
    yield client
    client.app.state.orders.lost = None


class TestRequests:
    def test_json_and_arrow_are_written_read_and_deleted(self, client: TestClient) -> None:
        assert client.get("/orders/1").status_code == 404
        assert client.post("/orders", json=[order(1), order(2)]).json() == {"rows": 2}
        rows = pa.Table.from_pylist([order(1, 2.5), order(3)], schema=orders.SCHEMA)
        answer = client.post("/orders", content=to_arrow(rows), headers={"content-type": ARROW})
        assert answer.json() == {"rows": 2}
        assert client.get("/orders/1").json() == order(1, 2.5)
        assert client.delete("/orders/2").status_code == 200
        assert client.post("/orders/delete", json=[{"id": 3}]).status_code == 200
        assert [client.get(f"/orders/{key}").status_code for key in (1, 2, 3)] == [200, 404, 404]

    @pytest.mark.parametrize(
        "body",
        [
            *(b"", b"{}", b"7", b"[7]", b'[{"id": "x"}]', b'[{"id": null}]', b"\xff"),
            *(b'[{"id": 1, "color": "red"}]', b'[{"customer": "c"}]'),
            *(b'[{"id": 1, "total": NaN}]', b'[{"id": 1, "total": 1e999}]'),
        ],
    )
    def test_what_is_no_order_is_refused(self, client: TestClient, body: bytes) -> None:
        if body == b"{}":
            assert client.post("/orders", content=body).json() == {"rows": 0}
            return
        answer = client.post("/orders", content=body)
        assert answer.status_code == 422
        assert answer.json()["error"]

    @pytest.mark.parametrize("key", ["x", str(2**63), "1.5"])
    def test_what_is_no_key_is_refused(self, client: TestClient, key: str) -> None:
        assert client.get(f"/orders/{key}").status_code == 422
        assert client.delete(f"/orders/{key}").status_code == 422

    def test_a_body_that_is_too_large(self, client: TestClient) -> None:
        assert client.post("/orders", content=b" " * (MAX_BYTES + 1)).status_code == 413

    def test_too_many_writes_at_once_are_told_to_come_back(
        self, client: TestClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "MAX_WRITES", 0)
        answer = client.post("/orders", json=[order(1)])
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")

    @pytest.mark.parametrize(
        ("error", "status", "ready", "healthy"),
        [
            (BackPressureError("slow"), 429, 200, 200),
            (StoreFullError("full"), 503, 200, 200),
            (OutcomeUnknownError("who knows"), 503, 503, 503),
        ],
    )
    def test_what_the_writer_says_decides_the_answer(
        self,
        client: TestClient,
        monkeypatch: pytest.MonkeyPatch,
        error: Exception,
        status: int,
        ready: int,
        healthy: int,
    ) -> None:
        async def fail(*_: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(client.app.state.orders.writer, "upsert", fail)
            answer = client.post("/orders", json=[order(1)])
        assert (answer.status_code, answer.json()) == (status, {"error": str(error)})
        assert "retry-after" in answer.headers
        assert client.get("/readyz").status_code == ready
        assert client.get("/healthz").status_code == healthy


def test_a_process_whose_regions_were_taken_sends_clients_elsewhere_and_flushes_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "orders.lance")
    monkeypatch.setenv("ORDERS_TABLE", uri)
    with TestClient(service.create_app()) as old:
        assert old.post("/orders", json=[order(1), order(2)]).status_code == 200
        with TestClient(service.create_app()) as new:
            assert new.post("/orders", json=[order(1, 5.0), order(2, 5.0)]).status_code == 200
            answer = old.post("/orders", json=[order(1, 3.0)])
            assert answer.status_code == 503
            assert answer.json().keys() == {"error"}
            assert old.get("/readyz").status_code == 503
            assert old.get("/healthz").status_code == 200
            assert new.get("/readyz").status_code == 200
        found = memwal.open(uri).scan().to_table().sort_by("id")
        assert found["total"].to_pylist() == [5.0, 5.0]


class TestOwnership:
    def test_two_processes_take_each_others_rows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ORDERS_TABLE", str(tmp_path / "orders.lance"))
        monkeypatch.setenv("ORDERS_PEERS", "http://zero,http://one")
        monkeypatch.setattr(service, "POSITION_SECONDS", 0.1)
        apps = []
        for number in range(2):
            monkeypatch.setenv("ORDERS_NUMBER", str(number))
            apps.append(service.create_app())

        async def run() -> None:
            async with (
                apps[0].router.lifespan_context(apps[0]),
                apps[1].router.lifespan_context(apps[1]),
            ):
                clients = [
                    httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{n}")
                    for app, n in zip(apps, ("zero", "one"), strict=True)
                ]
                for app, other in zip(apps, reversed(clients), strict=True):
                    app.state.orders.peers = other
                rows = [order(key) for key in range(40)]
                answer = await clients[0].post("/orders", json=rows)
                assert answer.json() == {"rows": 40}
                position = {service.POSITION: answer.headers[service.POSITION]}
                for client in clients:
                    found = [
                        await client.get(f"/orders/{key}", headers=position) for key in (1, 2, 3, 4)
                    ]
                    assert [one.json() for one in found] == rows[1:5]
                    assert (await client.get("/orders/99")).status_code == 404
                assert (await clients[1].delete("/orders/7")).status_code == 200
                assert (await clients[0].get("/orders/7")).status_code == 404
                # A position of another table.
                strange = {service.POSITION: f"{'0' * 31}7:12"}
                assert (await clients[0].get("/orders/1", headers=strange)).status_code == 503
                assert (
                    await clients[0].get("/orders/1", headers={service.POSITION: "x"})
                ).status_code == 422
                # One that asks the wrong process is told, and not sent around.
                headers = {**service.FORWARDED}
                answer = await clients[0].post("/orders", json=rows, headers=headers)
                assert answer.status_code == 503

        asyncio.run(run())


def test_workers_of_uvicorn_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.multiprocessing, "parent_process", lambda: object())
    with pytest.raises(RuntimeError, match=r"serve\.py --processes"):
        service.create_app()


# Processes that are killed


def free_port(count: int = 1) -> int:
    """A port that is free now, with as many as wanted behind it."""
    while True:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port: int = found.getsockname()[1]
        try:
            for other in range(port, port + count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", other))
        except OSError:
            continue
        return port


def start(uri: str, port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "uvicorn", "--factory", "service:create_app"),
            *("--app-dir", str(HERE), "--port", str(port), "--log-level", "warning"),
        ],
        env={**os.environ, "ORDERS_TABLE": uri},
    )
    wait_until_ready(port)
    return process


def wait_until_ready(port: int) -> None:
    def is_ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    until(is_ready)


class Clients:
    """Threads that write keys of their own, each with a growing total, and note what was
    acknowledged and what may have been."""

    def __init__(self, port: int, threads: int = 4) -> None:
        self.port = port
        self.acknowledged: dict[int, float] = {}
        self.sent: dict[int, float] = {}
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        total = 0.0
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30) as client:
            while not self._done.is_set():
                total += 1
                keys = [number * 10 + n for n in range(3)]
                self.sent |= dict.fromkeys(keys, total)
                try:
                    answer = client.post("/orders", json=[order(key, total) for key in keys])
                except httpx.TransportError:
                    time.sleep(0.05)
                    continue
                if answer.status_code == 200:
                    self.acknowledged |= dict.fromkeys(keys, total)
                else:
                    assert answer.status_code in (429, 503), answer.text

    def end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def check(self, found: pa.Table) -> None:
        """Nothing acknowledged is lost, and nothing is there that was never sent."""
        rows = {row["id"]: row["total"] for row in found.to_pylist()}
        assert self.acknowledged
        for key, total in self.acknowledged.items():
            assert total <= rows[key] <= self.sent[key]


@pytest.mark.slow
class TestProcesses:
    def test_killed_and_started_again_it_has_what_it_acknowledged(self, tmp_path: Path) -> None:
        uri = str(tmp_path / "orders.lance")
        port = free_port()
        process = start(uri, port)
        clients = Clients(port)
        try:
            for _ in range(3):
                time.sleep(1.5)
                process.kill()
                process.wait()
                process = start(uri, port)
            time.sleep(1)
        finally:
            clients.end()
        for key, total in clients.acknowledged.items():
            row = httpx.get(f"http://127.0.0.1:{port}/orders/{key}").json()
            assert row["total"] >= total
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) in (0, -signal.SIGTERM)
        table = memwal.open(uri)
        clients.check(table.scan().to_table())
        table.checkpoint()
        clients.check(table.base().dataset.to_table())

    def test_told_to_end_it_answers_and_flushes(self, tmp_path: Path) -> None:
        uri = str(tmp_path / "orders.lance")
        port = free_port()
        process = start(uri, port)
        clients = Clients(port)
        time.sleep(1.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) in (0, -signal.SIGTERM)
        clients.end()
        # Without another claim: everything was flushed.
        clients.check(memwal.open(uri).scan().to_table())

    def test_two_processes_share_the_regions_and_one_is_killed(self, tmp_path: Path) -> None:
        uri = str(tmp_path / "orders.lance")
        port = free_port(2)
        serve = subprocess.Popen(
            [
                *(sys.executable, str(HERE / "serve.py"), "--table", uri),
                *("--processes", "2", "--port", str(port)),
            ]
        )
        try:
            wait_until_ready(port)
            wait_until_ready(port + 1)
            clients = [Clients(port, 2), Clients(port + 1, 2)]
            # Threads of both would write the same keys: these are those of one of them.
            clients[1].end()
            time.sleep(1)
            children = subprocess.run(
                ["pgrep", "-P", str(serve.pid)], capture_output=True, text=True, check=True
            )
            os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
            wait_until_ready(port)
            wait_until_ready(port + 1)
            time.sleep(1)
            clients[0].end()
            for key, total in clients[0].acknowledged.items():
                row = httpx.get(f"http://127.0.0.1:{port + 1}/orders/{key}").json()
                assert row["total"] >= total
        finally:
            serve.send_signal(signal.SIGTERM)
            assert serve.wait(120) == 0
        clients[0].check(memwal.open(uri).scan().to_table())
