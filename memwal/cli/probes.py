"""Answers to the probes of Kubernetes, by a fleet in the same process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

from memwal.errors import InvalidInputError

if TYPE_CHECKING:
    from memwal.fleet import Fleet

# A turn of the loop waits for the catalog, which may need minutes to refuse a connection.
LIVE_SECONDS: Final = 600.0


@contextmanager
def answer_probes(fleet: Fleet, address: str | None) -> Iterator[int | None]:
    """Answer probes at ``HOST:PORT`` in the block, and yield the port; nothing without an address.

    ``/livez`` fails when the loop of the fleet made no turn for ten minutes, ``/readyz`` while the
    catalog does not answer. Port 0 takes a free one. Raises ``InvalidInputError`` if the address
    cannot be listened on.
    """
    if address is None:
        yield None
        return
    host, colon, port = address.rpartition(":")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers = {
                "/livez": fleet.seconds_since_turn < LIVE_SECONDS,
                "/readyz": fleet.is_ready,
            }
            well = answers.get(self.path)
            if well is None:
                status = HTTPStatus.NOT_FOUND
            else:
                status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing: probes come every few seconds."""

    try:
        if not colon:
            raise ValueError("it has no colon")
        server = ThreadingHTTPServer((host, int(port)), Handler)
    except (OSError, OverflowError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not of the form HOST:PORT"
        raise InvalidInputError(
            f"cannot answer probes at {address!r}: {why}; give another --probe-address"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="memwal-probes", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
