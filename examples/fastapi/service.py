"""Orders over HTTP, with the writer inside: a write answered with 200 is in the table's log.

    uvicorn --factory service:create_app --port 8000     # one process
    python serve.py --processes 2                        # several, each with its own regions

``ORDERS_TABLE`` is the table's URI; see serve.py for the other settings.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pyarrow as pa
from bodies import ARROW, BodyTooLargeError, read_rows, to_arrow
from fastapi import FastAPI, Path, Request, Response
from fastapi.responses import JSONResponse
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from orders import KEYS, SCHEMA, Ownership, open_or_create
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

import memwal
import memwal.aio
from memwal.errors import (
    BackPressureError,
    InvalidInputError,
    MemWalError,
    PartialWriteError,
    ReadTimeoutError,
    RegionFencedError,
    StoreError,
)

OPTIONS = memwal.WriterOptions(
    max_memtable_age=10.0,  # other readers see a row after at most ten seconds
    backpressure_timeout=2.0,  # after that, the client gets 429 and waits
)
POSITION_SECONDS = 2.0
"""How long a read waits for the write whose position it was given."""
MAX_WRITES = 256
"""Requests that may write at the same time; more are told to come back."""

logger = logging.getLogger(__name__)

Key = Annotated[int, Path(ge=-(2**63), lt=2**63)]

FORWARDED = {"x-forwarded-by-owner": "1"}
POSITION = "x-write-position"
"""Header of the answer to a write; a read that sends it back sees that write, in any process."""


class OwnerError(Exception):
    """Answer of the process that owns a region, to be passed on."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Orders:
    """The process's writer, and the connections to the other processes."""

    def __init__(
        self, writer: memwal.aio.AsyncWriter, ownership: Ownership, peers: httpx.AsyncClient
    ) -> None:
        self.writer = writer
        self.ownership = ownership
        self.peers = peers
        self.writes = 0
        self.lost: MemWalError | None = None

    async def write(self, rows: pa.Table, path: str, *, forwarded: bool) -> str:
        """Upsert rows, or delete keys, here and in the processes that own other regions.

        Returns the position of the write.
        """
        own = self.writer.upsert if path == "/orders" else self.writer.delete
        parts = self.ownership.split(rows)
        if forwarded and set(parts) - {self.ownership.number}:
            raise OwnerError(503, "the processes do not agree on who owns which region")
        if self.writes >= MAX_WRITES:
            raise BackPressureError(f"{MAX_WRITES} requests are being written")
        self.writes += 1
        try:
            calls: list[Awaitable[str]] = []
            for owner, part in parts.items():
                if owner == self.ownership.number:
                    calls.append(_position(own(part)))
                else:
                    calls.append(self._forward(owner, path, to_arrow(part)))
            # Wait for all of them before answering; then report one that failed.
            answers = await asyncio.gather(*calls, return_exceptions=True)
            positions = []
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
                positions.append(answer)
        finally:
            self.writes -= 1
        return ",".join(positions) or str(memwal.WritePosition(()))

    async def find(self, key: int, position: str | None) -> dict[str, Any] | None:
        """Return the current row, whichever process acknowledged it: the logs are read.

        With the position of a write, the answer has this write. The owner need not live.
        """
        keys = pa.table({"id": [key]}, schema=KEYS)
        reader = self.writer.fresh(at_least=position, timeout=POSITION_SECONDS)
        found = await reader.lookup(keys)
        return next(iter(found.to_pylist()), None)

    async def _forward(self, owner: int, path: str, body: bytes) -> str:
        """Send rows to the process that owns their regions; return the position of the write."""
        url = self.ownership.peers[owner] + path
        headers = {"content-type": ARROW, **FORWARDED}
        try:
            answer = await self.peers.post(url, content=body, headers=headers)
        except httpx.TransportError as error:
            raise OwnerError(503, f"process {owner} does not answer; try again") from error
        if answer.status_code != 200:
            is_ours = answer.headers.get("content-type") == "application/json"
            raise OwnerError(answer.status_code, answer.json()["error"] if is_ours else answer.text)
        return answer.headers[POSITION]


async def _position(write: Awaitable[memwal.aio.AsyncHandle]) -> str:
    """Wait for a write of this process, and return its position."""
    return str(await (await write).position())


def create_app() -> FastAPI:
    """Create the service, for uvicorn's ``--factory``."""
    if multiprocessing.parent_process() is not None:
        raise RuntimeError(
            "uvicorn --workers gives every worker all regions, which they would claim from each "
            "other for ever; start serve.py --processes N instead"
        )
    table = os.environ.get("ORDERS_TABLE", "orders.lance")
    ownership = Ownership.of(os.environ)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        metrics.set_meter_provider(MeterProvider(metric_readers=[PrometheusMetricReader()]))
        opened = await asyncio.to_thread(open_or_create, table)
        try:
            # At the end of the block the writer is closed, which flushes its rows.
            async with (
                httpx.AsyncClient(timeout=30) as peers,
                memwal.aio.open_writer(
                    opened, options=OPTIONS, region_ids=ownership.own_regions
                ) as writer,
            ):
                app.state.orders = Orders(writer, ownership, peers)
                yield
        except RegionFencedError as error:
            # The process that has the region now has replayed what this one acknowledged.
            logger.info("nothing left to flush: %s", error)

    app = FastAPI(title="Orders", lifespan=life)

    def orders() -> Orders:
        return app.state.orders

    def is_forwarded(request: Request) -> bool:
        return all(request.headers.get(name) == value for name, value in FORWARDED.items())

    @app.post("/orders")
    async def upsert(request: Request, response: Response) -> dict[str, int]:
        rows = await read_rows(request, SCHEMA)
        position = await orders().write(rows, "/orders", forwarded=is_forwarded(request))
        response.headers[POSITION] = position
        return {"rows": rows.num_rows}

    @app.post("/orders/delete")
    async def delete_many(request: Request, response: Response) -> dict[str, int]:
        keys = await read_rows(request, KEYS)
        position = await orders().write(keys, "/orders/delete", forwarded=is_forwarded(request))
        response.headers[POSITION] = position
        return {"rows": keys.num_rows}

    @app.delete("/orders/{key}")
    async def delete(key: Key, response: Response) -> dict[str, int]:
        keys = pa.table({"id": [key]}, schema=KEYS)
        response.headers[POSITION] = await orders().write(keys, "/orders/delete", forwarded=False)
        return {"rows": 1}

    @app.get("/orders/{key}")
    async def get(key: Key, request: Request) -> Response:
        row = await orders().find(key, request.headers.get(POSITION))
        return JSONResponse(row) if row is not None else _problem(404, f"no order {key}")

    @app.get("/healthz")
    async def health() -> Response:
        """Liveness: after a write with unknown outcome, only a new process can find it out."""
        lost = orders().lost
        return JSONResponse({}) if _is_fine(lost) else _problem(503, str(lost))

    @app.get("/readyz")
    async def ready() -> Response:
        """Readiness: not ready if another process has claimed its regions."""
        lost = orders().lost
        return JSONResponse({}) if lost is None else _problem(503, str(lost))

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @app.exception_handler(MemWalError)
    async def tell(_: Request, error: MemWalError) -> Response:
        # Fenced, closed, outcome unknown: this writer does not recover. Claiming the regions back
        # would take them from the process that should have them.
        is_partial = isinstance(error, PartialWriteError)
        for one in [part.error for part in error.failures] if is_partial else [error]:
            if not isinstance(one, _PASSING):
                orders().lost = one
        return _answer_to(error)

    @app.exception_handler(OwnerError)
    async def pass_on(_: Request, error: OwnerError) -> Response:
        return _problem(error.status, str(error), retry_after=1)

    @app.exception_handler(BodyTooLargeError)
    async def refuse(_: Request, error: BodyTooLargeError) -> Response:
        return _problem(413, str(error))

    return app


_PASSING = (InvalidInputError, BackPressureError, ReadTimeoutError, StoreError)


def _is_fine(lost: MemWalError | None) -> bool:
    return lost is None or isinstance(lost, RegionFencedError)


def _answer_to(error: MemWalError) -> Response:
    """Choose what the client should do: correct the rows, slow down, or send them again."""
    if isinstance(error, InvalidInputError):
        return _problem(422, str(error))
    if isinstance(error, BackPressureError):
        return _problem(429, str(error), retry_after=1)
    return _problem(503, str(error), retry_after=5)


def _problem(status: int, message: str, *, retry_after: int | None = None) -> Response:
    headers = {} if retry_after is None or status < 429 else {"retry-after": str(retry_after)}
    return JSONResponse({"error": message}, status_code=status, headers=headers)
