"""``memwal fleet``: maintain the tables of a catalog, and show their health and events.

``memwal metrics``: a Prometheus endpoint, alert rules and a dashboard for these tables.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

from typer import Exit, Option

from memwal.boundary.exit_codes import ExitCode
from memwal.boundary.text import age, plural, size, timestamp
from memwal.cli.options import AsJson, CatalogUrl, TableFilters, open_catalog
from memwal.cli.output import Output, print_json, print_line, print_records, print_table, warn
from memwal.cli.parameters import CommandGroup
from memwal.errors import InvalidInputError
from memwal.jobs.job import TaskRunner, run_in_process
from memwal.util.clock import duration
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.records import ManagedTable
    from memwal.fleet import Fleet, Outcome, TableOverview
    from memwal.fleet.conditions import Condition

app = CommandGroup()
metrics_app = CommandGroup()

_EVERY_SECONDS = 10.0


@app.callback()
def fleet() -> None:
    """Maintain the tables of the catalog on one budget, as their policies say."""


@app.command()
def run(
    once: Annotated[bool, Option("--once", help="Run each due job once, and end.")] = False,
    every: Annotated[
        float | None,
        Option(
            min=0.1,
            metavar="SECONDS",
            help="Run until a signal, and read the catalog at this interval (default: 10). Each "
            "table is checked at the schedule of its policy.",
        ),
    ] = None,
    table: TableFilters = None,
    jobs: Annotated[int, Option(min=1, metavar="N", help="Jobs that run at once.")] = 2,
    max_bytes: Annotated[
        int,
        Option(
            "--bytes",
            min=1,
            metavar="N",
            help="Bytes that the running merges take in together; they need about three times as "
            "much memory.",
        ),
    ] = 4 << 30,
    lease_seconds: Annotated[
        float, Option(min=1, metavar="N", help="How long others wait for a job whose process died.")
    ] = 60.0,
    fail: Annotated[
        bool, Option("--fail", help="With --once: exit code 1 if a table or a job of one failed.")
    ] = False,
    probe_address: Annotated[
        str | None,
        Option(
            metavar="HOST:PORT",
            help="Answer probes of Kubernetes here: /livez while the loop goes on, /readyz while "
            "the catalog answers.",
        ),
    ] = None,
    spark_remote: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="Spark Connect server, sc://host:port, on which the tasks of the jobs run, in a "
            "session for each table, or for each spark_session of the policies. A token is read "
            "from SPARK_CONNECT_AUTHENTICATE_TOKEN.",
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        Option(
            min=1,
            metavar="N",
            help="Tasks that a job is divided into at most (default: as many as the server of "
            "--spark-remote runs at once, else 1). Without it they run one after another.",
        ),
    ] = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run the due jobs, table by table. Any number of these can share a catalog.

    It ends on SIGTERM and SIGINT: running jobs finish their current commit, and a later run goes
    on from there. With --json, --once prints one document, else every outcome is one.
    """
    if once and every is not None:
        raise InvalidInputError("--once and --every exclude each other; give one")
    if fail and not once:
        raise InvalidInputError("--fail only goes with --once")
    from memwal.fleet import Budget, Fleet

    with open_catalog(url) as catalog:
        _check_names(catalog, table)
        fleet = Fleet(
            catalog,
            budget=Budget(jobs=jobs, bytes=max_bytes),
            tables=table,
            runner=_runners(spark_remote),
            max_tasks=tasks,
            lease_ttl=duration(lease_seconds, "--lease-seconds"),
            on_outcome=lambda outcome: _print_outcome(outcome, once=once, as_json=as_json),
        )
        with answer_probes(fleet, probe_address), _stopped_by_signals(fleet.stop):
            if not once:
                fleet.run_forever(every=every or _EVERY_SECONDS)
                return
            outcomes = fleet.run_once()
    if as_json:
        print_json({"outcomes": outcomes})
    elif not outcomes:
        print_line("nothing is due")
    if fail and any(outcome.failed for outcome in outcomes):
        raise Exit(ExitCode.FAILED)


@app.command()
def status(catalog: Catalog) -> Output:
    """Show the state of each table as the catalog has it. No table is opened."""
    from memwal.fleet import overview

    tables = overview(catalog)
    return Output(tables, partial(_print_overviews, tables))


def _print_overviews(tables: Sequence[TableOverview]) -> None:
    now = datetime.now(UTC)
    header = (
        "table,health,generations,bytes,oldest,looked at,at work,merged,indexed,collected,"
        "skipped,failing"
    )
    print_table(header.split(","), [_row(table, now) for table in tables])
    for table in tables:
        for error in table.errors:
            times = f", {plural(error.attempts, 'time')}" if error.attempts else ""
            print_line(
                f"{table.table}: {error.job} fails since {timestamp(error.since)} UTC{times}: "
                f"{' '.join(error.reason.split())}"
            )
            print_line(f"  what to do: {error.action}; {error.runbook}")
        told = {error.summary for error in table.errors}
        for reason in table.reasons:
            if reason.runbook and reason.text not in told:
                since = "" if reason.since is None else f" since {timestamp(reason.since)} UTC"
                print_line(f"{table.table}: {reason.health}{since}: {reason.text}")
                print_line(f"  what to do: {reason.runbook}")


@app.command()
def events(
    webhook_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Send the new events to the webhook whose address, a secret, is in this file. "
            "Without it, the present problems are shown, and nothing is recorded.",
        ),
    ] = None,
    channel: Annotated[
        str, Option(metavar="NAME", help="Name of the recipient; each gets every event once.")
    ] = "webhook",
    pause_seconds: Annotated[
        float, Option(min=0, metavar="N", help="Least time between two messages.")
    ] = 60,
    table: TableFilters = None,
    url: CatalogUrl = None,
) -> Output:
    """Show the problems of the tables, or send the new ones to a webhook."""
    from memwal.fleet.alerts import Webhook, notify_channel
    from memwal.fleet.conditions import conditions

    webhook = None if webhook_file is None else Webhook.from_file(webhook_file)
    pause = duration(pause_seconds, "--pause-seconds")
    shown: list[Condition] = []
    with open_catalog(url) as catalog:
        _check_names(catalog, table)
        if webhook is None:
            shown += conditions(catalog, tables=table)
        else:
            shown += notify_channel(catalog, channel, webhook.send, tables=table, pause=pause)
    if not shown:
        nothing = "nothing is wrong" if webhook is None else "there is no new event"
        return Output({"events": []}, nothing)
    attributes = ("table", "kind", "since", "owner", "text")
    columns = ("table", "what", "since", "owner", "why")
    return Output({"events": shown}, partial(print_records, shown, columns, attributes))


def _runners(remote: str | None) -> Callable[[ManagedTable], TaskRunner]:
    """Return the factory of task runners: in this process, or on a Spark Connect server."""
    if remote is None:
        return lambda table: run_in_process
    from memwal.spark.connect import divide_url
    from memwal.spark.runner import connect_runner

    with requires_extra("spark"):
        import_module("pyspark")
    divide_url(remote)
    return lambda table: connect_runner(remote, name=table.policy.spark_session or table.uri)


def _check_names(catalog: Catalog, tables: list[str] | None) -> None:
    for name in tables or ():
        catalog.get(name, allow_problem=True)


def _row(table: TableOverview, now: datetime) -> tuple[object, ...]:
    def ago(at: datetime | None) -> str:
        return age(None if at is None else max(0.0, (now - at).total_seconds()))

    sample = table.backlog
    return (
        table.table,
        table.health.value,
        sample and sample.generations,
        sample and size(sample.bytes),
        age(table.oldest_seconds),
        ago(None if sample is None else sample.known_at),
        ", ".join(run.job for run in table.running) or None,
        *(ago(table.last_runs.get(job)) for job in ("merge", "index", "gc")),
        table.skipped_regions or None,
        ", ".join(error.job for error in table.errors) or None,
    )


def _print_outcome(outcome: Outcome, *, once: bool, as_json: bool) -> None:
    """Print an outcome, unless it is printed with the others at the end, and its warnings."""
    if not as_json:
        _print_outcome_line(outcome)
    elif not once:
        print_json(outcome)
    failed = outcome.failed_job
    if failed is not None:
        warn(
            f"{outcome.table}: {outcome.job} failed, try {failed.attempts}, next at "
            f"{failed.next_try_at:%H:%M:%S} UTC: {' '.join(failed.reason.split())}"
        )
    for warning in getattr(outcome.result, "warnings", ()):
        warn(f"{outcome.table}: {' '.join(warning.split())}")


def _print_outcome_line(outcome: Outcome) -> None:
    from memwal.fleet import Skipped

    match outcome.result:
        case None if outcome.failed_job is None:
            print_line(f"{outcome.table}: {outcome.job}: ended by a shutdown")
        case None:
            pass
        case Skipped() as skipped:
            print_line(str(skipped))
        case result:
            metrics = ", ".join(
                f"{number} {name.replace('_', ' ')}"
                for name, number in result.metrics.items()
                if number and not name.startswith("bytes")
            )
            print_line(
                f"{outcome.table}: {outcome.job}: {metrics or 'nothing to do'} in "
                f"{result.seconds:.1f} s ({outcome.reason})"
            )


@contextlib.contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGTERM or SIGINT; a second signal has its usual effect."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        restore()
        stop()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


@metrics_app.callback()
def metrics() -> None:
    """Serve metrics of the catalog to Prometheus, and print rules and a dashboard for them."""


@metrics_app.command()
def serve(
    host: Annotated[str, Option(metavar="ADDRESS", help="Listen here.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, metavar="N", help="0 takes a free one.")] = 9464,
    cache: Annotated[
        float, Option(min=0, metavar="SECONDS", help="Least time between catalog reads.")
    ] = 5.0,
    *,
    catalog: Catalog,
    as_json: AsJson = False,
) -> None:
    """Serve the metrics of all managed tables until Ctrl-C or SIGTERM; opens no table."""
    from memwal.exporter.server import MetricsEndpoint

    shown_url = catalog.database.shown_url
    with MetricsEndpoint(catalog, host=host, port=port, cache_seconds=cache) as endpoint:
        value = {"url": endpoint.url, "catalog": shown_url}
        Output(value, f"metrics of {shown_url} at {endpoint.url}").print(as_json=as_json)
        sys.stdout.flush()
        with _stopped_by_signals(endpoint.close):
            endpoint.wait()


@metrics_app.command()
def rules(
    runbook_url: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="Address of the runbooks: gives each alert the annotation runbook_url. {alert} in "
            "it stands for the name of the alert.",
        ),
    ] = None,
) -> None:
    """Print alert rules for Prometheus (YAML)."""
    from memwal.exporter import RULES, linked_rules, shipped

    text = shipped(RULES) if runbook_url is None else linked_rules(runbook_url)
    print_line(text.rstrip("\n"))


@metrics_app.command()
def dashboard() -> None:
    """Print a dashboard for Grafana (JSON)."""
    from memwal.exporter import DASHBOARD, shipped

    print_line(shipped(DASHBOARD).rstrip("\n"))


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
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
