"""Run the tasks of a maintenance job as Spark tasks, with traces that cross processes.

Spark may run a task twice: after a worker died, speculatively, or because the whole application was
started again. The tasks of every job are made for that.

A trace goes from a task of Airflow to a Spark application, and to its workers. A program of memwal
may set OpenTelemetry's SDK up, which the library never does. It uses the exporter that the
environment names, as every program with OpenTelemetry does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from memwal.errors import InvalidInputError, MemWalError, OutcomeUnknownError
from memwal.jobs.job import ParallelRunner, TaskRunner, wrap_runner
from memwal.spark.connect import connect_session, run_connected
from memwal.spark.parallelism import check_running, context_of, parallelism
from memwal.spark.version_compat import error_of_task
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import JOB, span
from memwal.util.optional_deps import how_to_install

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_JOB_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


def spark_runner(
    spark: SparkSession,
    *,
    max_parallelism: int | None = None,
    description: str | None = None,
    check: Callable[[], None] | None = None,
) -> TaskRunner:
    """Return a runner that runs every task as a Spark task.

    Lance runs in the Python workers, which need memwal installed. Storage options travel inside
    the tasks: they appear neither in Spark's configuration nor in its UI or event log. They do
    cross the cluster's network, which Spark encrypts with ``spark.network.crypto.enabled``.

    A job that is interrupted in the driver (by an exception of a signal handler, or Ctrl-C) takes
    its Spark tasks with it.

    Parameters
    ----------
    spark : SparkSession
        A session with a driver in this process, or one of Spark Connect: see
        :func:`memwal.spark.connect.connect_session`.
    max_parallelism : int, optional
        How many tasks run at once at most; more of them wait for one another. By default as many
        as the cluster has cores for, asked whenever a job plans tasks:
        :func:`memwal.spark.parallelism.parallelism`.
    description : str, optional
        Name of the job in Spark's UI, before the name of the step (``rewrite``, ``match``); by
        default ``memwal`` and the table. Of a job of Spark Connect both are the start of its tag,
        and the name of its step in the plan.
    check : callable, optional
        Called twice a second while tasks run in a session of Spark Connect: an error that it raises
        ends them, and is raised by the runner. Of no effect in another session.

    Returns
    -------
    TaskRunner
        Results come in the order of the tasks. An error of memwal in a task is raised again in
        the driver, with its type; when several tasks failed, the first of them, and the others
        are logged. OutcomeUnknownError when Spark lost a task for good.

    Raises
    ------
    InvalidInputError
        ``max_parallelism`` is not positive. Raised by the runner: the session was stopped.
    """
    if max_parallelism is not None and max_parallelism < 1:
        raise InvalidInputError(f"max_parallelism must be at least 1, not {max_parallelism}")
    context = context_of(spark)

    def run(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        if not tasks:
            return []
        slices = min(len(tasks), max_parallelism or len(tasks))
        # All tasks of a job are about one table.
        job = description or f"memwal {getattr(tasks[0], 'location', '')}".rstrip()
        name = f"{job}: {_step_of(function)}"
        attempt = partial(_attempt, function)
        if context is not None:
            return _results(_run_in_context(context, tasks, attempt, slices, name))
        return _results(
            run_connected(
                spark,
                tasks,
                attempt,
                slices=slices,
                description=name,
                reason=spark_reason,
                check=check,
            )
        )

    return ParallelRunner(run, lambda: max_parallelism or parallelism(spark))


def _run_in_context(
    context: SparkContext,
    tasks: Sequence[Any],
    attempt: Callable[[Any], Any],
    slices: int,
    description: str,
) -> list[Any]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    check_running(context)
    with _job_group(context, description):
        try:
            answers: list[Any] = context.parallelize(tasks, slices).map(attempt).collect()
            return answers
        except Py4JError as error:
            if (raised := error_of_task(error)) is not None:
                raise raised from None
            raise OutcomeUnknownError(
                f"Spark did not finish its tasks: {spark_reason(error)}; look at its log and run "
                "the job again, what is done by then is not done twice"
            ) from error


def connect_runner(url: str, *, name: str) -> TaskRunner:
    """Return a runner that runs every task in a session of a Spark Connect server.

    The session is found anew at each call: a server that was started again, or that closed the
    session while nothing ran, is no failure of the next job. Any thread may call the runner.

    Parameters
    ----------
    url : str
        Address of the server, ``sc://host:port``; see
        :func:`memwal.spark.connect.connect_session`.
    name : str
        Of the session: processes that give the same one share its warm workers.

    Returns
    -------
    TaskRunner
        As of :func:`spark_runner`, and SparkUnavailableError when the server does not answer.
    """

    @contextmanager
    def session() -> Iterator[SparkSession]:
        spark = connect_session(url, name=name)
        try:
            yield spark
        finally:
            spark.stop()

    def run(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        if not tasks:
            return []
        with session() as spark:
            return spark_runner(spark)(tasks, function)

    def count_parallel() -> int:
        with session() as spark:
            return parallelism(spark)

    return ParallelRunner(run, count_parallel)


def spark_reason(error: Exception) -> str:
    """Return the message of a PySpark or Py4J exception in one line, without a stack trace."""
    java = getattr(error, "java_exception", None)
    if java is None:
        # The last line of a worker's traceback, or the only line there is.
        return str(error).strip().rpartition("\n")[2] or type(error).__name__
    lines = str(java.toString()).splitlines()
    return next((line.strip() for line in lines if line.strip()), type(error).__name__)


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error on its way to the driver. Raised, it would arrive there as Spark's, as text."""

    error: MemWalError


def _attempt(function: Callable[[Any], Any], task: Any) -> Any:
    """Run one task in a worker. Any error but memwal's is a fault that Spark may retry."""
    try:
        return function(task)
    except MemWalError as error:
        # Causes are left behind: they may be of types that cannot travel.
        stack = "".join(traceback.format_tb(error.__traceback__))
        error.add_note(f"Traceback of the Spark worker:\n{stack}")
        return _Failure(error)


def _results(answers: list[Any]) -> list[Any]:
    failures = [answer.error for answer in answers if isinstance(answer, _Failure)]
    for error in failures[1:]:
        logger.error("another task failed too: %s", error)
    if failures:
        raise failures[0]
    return answers


def _step_of(function: Callable[[Any], Any]) -> str:
    """Return the name of a step of tasks: ``rewrite`` of ``run_rewrite_task``."""
    while isinstance(function, partial):
        # A wrapper is given the function that it calls.
        function = next(filter(callable, function.args), function.func)
    return getattr(function, "__name__", "task").removeprefix("run_").removesuffix("_task")


@contextmanager
def _job_group(context: SparkContext, description: str) -> Iterator[None]:
    """Name the jobs of this thread in the UI, and cancel them when they are abandoned."""
    from py4j.protocol import Py4JError

    before = {name: context.getLocalProperty(name) for name in _JOB_PROPERTIES}
    group = f"memwal-{uuid4().hex}"
    context.setJobGroup(group, description, interruptOnCancel=True)
    try:
        yield
    except BaseException:
        # With its JVM gone, there is nothing left to cancel.
        with suppress(Py4JError):
            context.cancelJobGroup(group)
        raise
    finally:
        with suppress(Py4JError):
            for name, value in before.items():
                context.setLocalProperty(name, value)


EXPORTER = "OTEL_TRACES_EXPORTER"
VARIABLES = ("TRACEPARENT", "TRACESTATE")
"""Environment variables with the span that a process belongs to, as W3C defines them."""

# A collector that is away must not hold a job up for long; exporters try for about 10 s, even if
# the flush has a shorter limit.
_FLUSH_SECONDS = 2.0

_propagator = TraceContextTextMapPropagator()


def trace_environment() -> dict[str, str]:
    """Return variables that let a child process go on with the span that is recorded, if any."""
    return {name.upper(): value for name, value in _carrier().items()}


@contextlib.contextmanager
def application_span(job: str, location: TableLocation) -> Iterator[None]:
    """A span around a program's work, as a child of the trace context in the environment.

    Without :data:`VARIABLES` and :data:`EXPORTER` in the environment, and in a process that has a
    ``TracerProvider`` of its own, nothing is set up.
    """
    if any(name in os.environ for name in (*VARIABLES, EXPORTER)):
        start_tracing()
    above = {name.lower(): os.environ[name] for name in VARIABLES if name in os.environ}
    with _below(above), span("memwal.application", location, attributes={JOB: job}):
        yield


def with_trace_context(run: TaskRunner) -> TaskRunner:
    """Return a runner whose tasks, on other machines, have spans below the current one."""

    def run_traced(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        carrier = _carrier()
        return run(tasks, partial(_task, carrier, function) if carrier else function)

    return wrap_runner(run, run_traced)


def start_tracing() -> None:
    """Set OpenTelemetry's SDK up as the environment says; once, and not over a provider.

    The exporter is the one that ``OTEL_TRACES_EXPORTER`` names, by default ``otlp``. If it is not
    installed, the log says so and nothing is traced.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    name = os.environ.get(EXPORTER) or "otlp"
    if name == "none" or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    if name == "otlp" and os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "http/protobuf":
        name = "otlp_proto_http"
    exporter = next(iter(entry_points(group="opentelemetry_traces_exporter", name=name)), None)
    if exporter is None:
        logger.warning("nothing is traced: there is no exporter %r (%s)", name, EXPORTER)
        return
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(exporter.load()()))
    except ImportError as error:
        logger.warning("nothing is traced (%s); %s", error, how_to_install("metrics"))
        return
    except Exception as error:
        # Its message may quote the environment's settings of the SDK, which may hold secrets.
        kind = type(error).__name__
        logger.warning("nothing is traced, look at the variables OTEL_...: %s", kind)
        return
    trace.set_tracer_provider(provider)


def _carrier() -> dict[str, str]:
    carrier: dict[str, str] = {}
    if trace.get_current_span().is_recording():
        _propagator.inject(carrier)
    return carrier


def _task(carrier: Mapping[str, str], function: Callable[[Any], Any], task: Any) -> Any:
    """Run a task in a worker, below the span of the driver."""
    start_tracing()
    with _below(carrier), span("memwal.task", getattr(task, "location", None)):
        return function(task)


@contextlib.contextmanager
def _below(carrier: Mapping[str, str]) -> Iterator[None]:
    """Run the block below a span of another process, and send its spans at the end."""
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
