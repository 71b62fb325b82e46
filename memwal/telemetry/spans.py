"""Spans and attribute names of jobs, over OpenTelemetry's API alone.

Without a ``TracerProvider`` a span costs microseconds and goes nowhere. An error is recorded by its
type and the first line of its message, without secrets and without values of rows; a stack trace,
which may show either, is not recorded. A failure of telemetry is logged and never fails the work
that it describes.
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
from memwal.util.log import safe_error_text
from memwal.util.redaction import secret_values

TABLE = "memwal.table"
"""Name of a managed table."""

TABLE_URI = "memwal.table.uri"
"""Address of a table, which holds no credentials."""

REGION_ID = "memwal.region.id"
"""UUID of a region."""

JOB = "memwal.job"
"""``merge``, ``index``, ``compact``, ``snapshot`` or ``gc``."""

OUTCOME = "memwal.outcome"
"""How a run ended: ``succeeded``, ``failed`` or ``abandoned``."""

INDEX = "memwal.index"
"""Name of a maintained index."""

OWNER = "memwal.owner"
"""Who to ask about a table."""

ROWS = "memwal.rows"
"""Rows that a step works on."""

VERSION = "memwal.version"
"""Version of the base table that a step starts from."""
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
    """A span around the block, below the one that is current.

    Parameters
    ----------
    name : str
        What is done, without anything that varies.
    location : TableLocation, optional
        Of the table: its address is an attribute, and its secrets are blanked out of the error.
    attributes : dict, optional
        More of them.
    """
    known = {} if location is None else {TABLE_URI: location.uri}
    # The one above, so that what lies below stays in its trace when there is none here.
    current = trace.get_current_span()
    started: Span | None = None
    with suppress_telemetry_errors():
        started = current = _tracer.start_span(name, attributes={**known, **(attributes or {})})
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
    """Log what goes wrong in the block, or in the function, and go on behind it.

    Providers, processors and exporters are chosen by whoever runs the process. Only the kind of
    an error is logged: its text may show what it was about.
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
