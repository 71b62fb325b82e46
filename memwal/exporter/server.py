"""HTTP server of the Prometheus exporter."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self
from wsgiref.simple_server import WSGIServer

from memwal.errors import InvalidInputError
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    from memwal.catalog import Catalog

DEFAULT_PORT = 9464
DEFAULT_CACHE_SECONDS = 5.0

_TURN_SECONDS = 0.5


class MetricsEndpoint:
    """HTTP server of a catalog's metrics under ``/metrics``, until it is closed.

    It reads only the catalog and never opens a table. It has no authentication: it serves names,
    addresses and numbers, and a client that may not see these must not reach the port. Port 0
    takes a free one. Raises InvalidInputError if prometheus-client is not installed, or the address
    cannot be listened on.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        cache_seconds: float = DEFAULT_CACHE_SECONDS,
    ) -> None:
        with requires_extra("metrics"):
            from prometheus_client import start_http_server
        from memwal.exporter.catalog_reader import CatalogReader
        from memwal.exporter.collector import registry

        metrics = registry(CatalogReader(catalog), cache_seconds=cache_seconds)
        try:
            self._server: WSGIServer
            self._thread: threading.Thread
            self._server, self._thread = start_http_server(port, host, metrics)
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "the host name is invalid"
            raise InvalidInputError(
                f"cannot listen on {host}, port {port}: {why}; give another --host or --port"
            ) from error
        self.host = host
        self.port = int(self._server.server_port)

    @property
    def url(self) -> str:
        """URL to scrape."""
        return f"http://{self.host}:{self.port}/metrics"

    def wait(self) -> None:
        """Block until the endpoint is closed, or the caller is interrupted."""
        # In turns: a signal that the system gives to another thread ends no wait of the main
        # thread, which alone can run its handler.
        while self._thread.is_alive():
            self._thread.join(_TURN_SECONDS)

    def close(self) -> None:
        """Stop listening; safe to call again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
