"""Spans and attribute names of jobs, over OpenTelemetry's API alone.

Without a ``TracerProvider`` a span costs microseconds and is dropped. Of an error, a span records
the type and the first line of the message, without secrets and row values. It does not record the
stack trace, which can show both. A failure of telemetry is logged and never fails the work that it
describes.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from memwal.storage.location import TableLocation
from memwal.util.log import safe_error_text, secret_values

# Name of a managed table.
TABLE = "memwal.table"
# Address of a table, without credentials.
TABLE_URI = "memwal.table.uri"
# UUID of a region.
REGION_ID = "memwal.region.id"
# ``merge``, ``index``, ``compact``, ``snapshot`` or ``gc``.
JOB = "memwal.job"
# Outcome of a run: ``succeeded``, ``failed`` or ``abandoned``.
OUTCOME = "memwal.outcome"
# Health of a table: ``ok``, ``unknown``, ``late``, ``failing``, ``critical`` or ``off``.
HEALTH = "memwal.health"
# Name of a maintained index.
INDEX = "memwal.index"
# Owner of a table.
OWNER = "memwal.owner"
# Number of rows that a step processes.
ROWS = "memwal.rows"
# Version of the base table that a step starts from.
VERSION = "memwal.version"
ERROR_TYPE = "error.type"
logger = logging.getLogger(__name__)
_tracer = trace.get_tracer("memwal")


@contextlib.contextmanager
def span(
    name: str,
    location: TableLocation | None = None,
    *,
    attributes: dict[str, AttributeValue] | None = None,
) -> Iterator[Span]:
    """Start a span around the block, as a child of the current span.

    ``name`` is that of the step, without variable parts. The address of the table at ``location``
    becomes an attribute, and its secrets are removed from errors.
    """
    table = {} if location is None else {TABLE_URI: location.uri}
    # If the span cannot be started, spans inside the block become children of the parent span.
    current = trace.get_current_span()
    started: Span | None = None
    with suppress_telemetry_errors():
        started = current = _tracer.start_span(name, attributes={**table, **(attributes or {})})
    with trace.use_span(current, record_exception=False, set_status_on_exception=False):
        try:
            yield current
        except BaseException as error:
            with suppress_telemetry_errors():
                _record(current, error, location)
            raise
        finally:
            if started is not None:
                with suppress_telemetry_errors():
                    started.end()


@contextlib.contextmanager
def suppress_telemetry_errors() -> Iterator[None]:
    """Log an error of the block, or of the decorated function, instead of raising it.

    The user chooses the providers, processors and exporters, which can raise anything. Only the
    type of an error is logged, since its text may show data.
    """
    try:
        yield
    except Exception as error:
        logger.warning("metrics or traces are incomplete: %s", type(error).__name__)


def _record(current: Span, error: BaseException, location: TableLocation | None) -> None:
    if current.is_recording():
        options = {} if location is None else location.storage_options
        text = safe_error_text(error, secrets=secret_values(options, os.environ))
        current.set_attribute(ERROR_TYPE, type(error).__name__)
        current.set_status(Status(StatusCode.ERROR, text))
