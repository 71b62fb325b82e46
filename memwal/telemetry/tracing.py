"""Traces that cross processes: from a task of Airflow to a Spark application, and to its workers.

A program of memwal's own may set OpenTelemetry's SDK up, which the library never does. It takes the
exporter that the environment names, as every program with OpenTelemetry does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from memwal.maintenance.results import TaskRunner
from memwal.storage.location import TableLocation
from memwal.telemetry.attributes import JOB
from memwal.telemetry.spans import span

logger = logging.getLogger(__name__)

EXPORTER = "OTEL_TRACES_EXPORTER"
VARIABLES = ("TRACEPARENT", "TRACESTATE")
"""What a process is told of the span that it belongs to, as W3C has it."""

# A collector that is away must not hold a job up for long; exporters try for about 10 s, whatever
# the flush says.
_FLUSH_SECONDS = 2.0

_propagator = TraceContextTextMapPropagator()


def trace_environment() -> dict[str, str]:
    """Return variables that let a child process go on with the current span.

    Nothing when no span is recorded: the child then need not set anything up.
    """
    return {name.upper(): value for name, value in _carrier().items()}


@contextlib.contextmanager
def application_span(job: str, location: TableLocation) -> Iterator[None]:
    """A span around a program's work, below the one that the environment tells of.

    Without :data:`VARIABLES` and :data:`EXPORTER` in the environment, and in a process that has a
    ``TracerProvider`` of its own, nothing is set up.

    Parameters
    ----------
    job : str
        What it does.
    location : TableLocation
    """
    if any(name in os.environ for name in (*VARIABLES, EXPORTER)):
        start_tracing()
    above = {name.lower(): os.environ[name] for name in VARIABLES if name in os.environ}
    with _below(above), span("memwal.application", location, attributes={JOB: job}):
        yield


def carrying(run: TaskRunner) -> TaskRunner:
    """A runner whose tasks, on other machines, have spans below the current one."""

    def carried(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        carrier = _carrier()
        return run(tasks, partial(_task, carrier, function) if carrier else function)

    return carried


def start_tracing() -> None:
    """Set OpenTelemetry's SDK up as the environment says; once, and not over a provider.

    The exporter is the one that ``OTEL_TRACES_EXPORTER`` names, by default ``otlp``. If it is not
    installed, the log says so and nothing is traced.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    wanted = os.environ.get(EXPORTER) or "otlp"
    if wanted == "none" or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    if wanted == "otlp" and os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "http/protobuf":
        wanted = "otlp_proto_http"
    found = next(iter(entry_points(group="opentelemetry_traces_exporter", name=wanted)), None)
    if found is None:
        logger.warning("nothing is traced: there is no exporter %r (%s)", wanted, EXPORTER)
        return
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(found.load()()))
    except ImportError as error:
        logger.warning("nothing is traced, install memwal[metrics]: %s", error)
        return
    except Exception as error:
        # Of what the environment tells the SDK; it may hold secrets.
        kind = type(error).__name__
        logger.warning("nothing is traced, look at the variables OTEL_...: %s", kind)
        return
    trace.set_tracer_provider(provider)


def _carrier() -> dict[str, str]:
    found: dict[str, str] = {}
    if trace.get_current_span().is_recording():
        _propagator.inject(found)
    return found


def _task(carrier: Mapping[str, str], function: Callable[[Any], Any], task: Any) -> Any:
    """Run a task in a worker, below the span of the driver."""
    start_tracing()
    with _below(carrier), span("memwal.task", getattr(task, "location", None)):
        return function(task)


@contextlib.contextmanager
def _below(carrier: Mapping[str, str]) -> Iterator[None]:
    """The block belongs to a span of another process; what it recorded is sent at its end."""
    token = context.attach(_propagator.extract(dict(carrier)))
    try:
        yield
    finally:
        context.detach(token)
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            sending = threading.Thread(target=flush, name="memwal spans", daemon=True)
            sending.start()
            sending.join(_FLUSH_SECONDS)
