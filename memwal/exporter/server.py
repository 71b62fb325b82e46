"""HTTP server of the Prometheus exporter."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self
from wsgiref.simple_server import WSGIServer

from memwal.errors import InvalidInputError
from memwal.exporter.collector import DEFAULT_CACHE_SECONDS
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    from memwal.catalog import Catalog

DEFAULT_PORT = 9464


class MetricsEndpoint:
    """Serves what a catalog knows of its tables under ``/metrics``, until it is closed.

    It reads the catalog alone and never opens a table. It has no passwords: what it tells are
    names, addresses and numbers; whoever may not see these must not reach the port.

    Parameters
    ----------
    catalog : Catalog
    host : str, default "127.0.0.1"
        Address to listen on.
    port : int, default 9464
        0 takes a free one.
    cache_seconds : float, default 5
        How long an answer is repeated before the catalog is read again.

    Raises
    ------
    InvalidInputError
        prometheus-client is not installed, or the address cannot be listened on.

    Examples
    --------
    >>> with MetricsEndpoint(Catalog(), port=9464) as endpoint:
    ...     endpoint.wait()
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
        from memwal.exporter.catalog_reader import Watch
        from memwal.exporter.collector import registry

        try:
            self._server: WSGIServer
            self._thread: threading.Thread
            self._server, self._thread = start_http_server(
                port, host, registry(Watch(catalog), cache_seconds=cache_seconds)
            )
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "that is no name of a machine"
            raise InvalidInputError(
                f"cannot listen on {host}, port {port}: {why}; give another --host or --port"
            ) from error
        self.host = host
        self.port = int(self._server.server_port)

    @property
    def url(self) -> str:
        """Where it is scraped."""
        return f"http://{self.host}:{self.port}/metrics"

    def wait(self) -> None:
        """Serve until the endpoint is closed, or the caller interrupted."""
        self._thread.join()

    def close(self) -> None:
        """Stop listening; safe to call again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
