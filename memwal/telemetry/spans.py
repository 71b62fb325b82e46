"""Spans around what a job does, through OpenTelemetry's API alone.

Without a ``TracerProvider`` a span costs microseconds and goes nowhere. An error is recorded by its
kind and the first line of its message, without secrets and without values of rows; a stack trace,
which may show either, is not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from memwal.storage.location import TableLocation
from memwal.storage.redaction import secret_values
from memwal.telemetry.attributes import TABLE_URI
from memwal.telemetry.harmless import harmless
from memwal.writer.shown import shown_error

ERROR_TYPE = "error.type"

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
    with harmless():
        started = current = _tracer.start_span(name, attributes={**known, **(attributes or {})})
    with trace.use_span(current, record_exception=False, set_status_on_exception=False):
        try:
            yield current
        except BaseException as error:
            with harmless():
                _record(current, error, location)
            raise
        finally:
            if started is not None:
                with harmless():
                    started.end()


def _record(current: Span, error: BaseException, location: TableLocation | None) -> None:
    if current.is_recording():
        options = {} if location is None else location.storage_options
        text = shown_error(error, secrets=secret_values(options, os.environ))
        current.set_attribute(ERROR_TYPE, type(error).__name__)
        current.set_status(Status(StatusCode.ERROR, text))
