"""``memwal fleet``: maintain the tables of a catalog, and show their health and events."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memwal.cli.options import AsJson, CatalogUrl, open_catalog, table_names
from memwal.cli.output import age, print_json, print_line, print_table, size, warn
from memwal.errors import InvalidInputError
from memwal.util.clock import duration

if TYPE_CHECKING:
    from memwal.fleet import Fleet, Outcome, TableOverview

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_EVERY_SECONDS = 10.0
_LEASE_SECONDS = 60.0


@app.callback()
def fleet() -> None:
    """Maintain the tables of the catalog on one budget, as their policies say."""


@app.command()
def run(
    once: Annotated[
        bool, typer.Option("--once", help="Look at every table, do once what is due, and end.")
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Go on until told to end, and look at the catalog so often (default: 10). Each "
            "table is looked at as its policy's schedule says.",
        ),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="NAME",
            help="Only this table; can be given again.",
            autocompletion=table_names,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Jobs that run at once.")] = 2,
    max_bytes: Annotated[
        int,
        typer.Option(
            "--bytes",
            min=1,
            metavar="N",
            help="Bytes that the merges at work take in together; they need about three times as "
            "much memory.",
        ),
    ] = 4 << 30,
    lease_seconds: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="N",
            help="How long others wait for a job whose process died.",
        ),
    ] = _LEASE_SECONDS,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Do what is due, table by table. Any number of these can share a catalog.

    It ends on SIGTERM and SIGINT: jobs finish the commit that they are at, and a later run goes
    on from there. With --json, --once prints one document, else every outcome is one.
    """
    if once and every is not None:
        raise InvalidInputError("--once and --every exclude each other; give one")
    from memwal.fleet import Budget, Fleet

    def tell(outcome: Outcome) -> None:
        if as_json and not once:
            print_json(outcome.to_dict())
        elif not as_json:
            _print_outcome(outcome)
        for text in _warnings(outcome):
            warn(text)

    with open_catalog(url) as catalog:
        for name in table or ():
            catalog.get(name)
        found = Fleet(
            catalog,
            budget=Budget(jobs=jobs, bytes=max_bytes),
            tables=table,
            lease_ttl=duration(lease_seconds, "--lease-seconds"),
            on_outcome=tell,
        )
        with _ending(found):
            if once:
                outcomes = found.run_once()
                if as_json:
                    print_json({"outcomes": [outcome.to_dict() for outcome in outcomes]})
                elif not outcomes:
                    print_line("nothing is due")
            else:
                found.run_forever(every=every or _EVERY_SECONDS)


@app.command()
def status(url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Show how each table is, as the catalog knows it. No table is opened."""
    from memwal.fleet import overview

    with open_catalog(url) as catalog:
        found = overview(catalog)
    if as_json:
        print_json([table.to_dict() for table in found])
        return
    now = datetime.now(UTC)
    print_table(
        (
            "table",
            "maintained",
            "generations",
            "bytes",
            "looked at",
            "at work",
            "merged",
            "indexed",
            "collected",
            "held",
            "failing",
        ),
        [_row(table, now) for table in found],
    )
    for table in found:
        for trouble in table.failed_jobs:
            print_line(
                f"{trouble.job} of {table.table} failed {trouble.attempts} times since "
                f"{trouble.since:%Y-%m-%d %H:%M:%S} UTC, next try at "
                f"{trouble.next_try_at:%H:%M:%S}: {trouble.reason}"
            )


@app.command()
def events(
    webhook_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Send what is new to the webhook whose address, a secret, this file holds. "
            "Without it, what is wrong now is shown, and nothing is remembered.",
        ),
    ] = None,
    channel: Annotated[
        str,
        typer.Option(metavar="NAME", help="Who is told; each of them is told everything once."),
    ] = "webhook",
    pause_seconds: Annotated[
        float, typer.Option(min=0, metavar="N", help="Least time between two messages.")
    ] = 60,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="NAME",
            help="Only this table; can be given again.",
            autocompletion=table_names,
        ),
    ] = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what is wrong with the tables, or send what is new of it to a webhook."""
    from memwal.fleet.alerts import Webhook, notify_channel
    from memwal.fleet.health import conditions

    webhook = None if webhook_file is None else Webhook.from_file(webhook_file)
    with open_catalog(url) as catalog:
        for name in table or ():
            catalog.get(name)
        if webhook is None:
            wrong = conditions(catalog, tables=table)
            found = [one.to_dict() for one in wrong]
            rows = [(one.table, one.kind.value, one.since, one.owner, one.text) for one in wrong]
        else:
            told = notify_channel(
                catalog,
                channel,
                webhook.send,
                tables=table,
                pause=duration(pause_seconds, "--pause-seconds"),
            )
            found = [one.to_dict() for one in told]
            rows = [(one.table, one.kind.value, one.since, one.owner, one.text) for one in told]
    if as_json:
        print_json({"events": found})
    elif rows:
        print_table(
            ("table", "what", "since", "owner", "why"),
            [(*row[:2], f"{row[2]:%Y-%m-%d %H:%M:%S}", *row[3:]) for row in rows],
        )
    else:
        print_line("nothing is wrong" if webhook is None else "there is nothing new to tell")


def _row(table: TableOverview, now: datetime) -> tuple[object, ...]:
    def ago(at: datetime | None) -> str:
        return age(None if at is None else max(0.0, (now - at).total_seconds()))

    sample = table.backlog
    return (
        table.table,
        table.enabled,
        None if sample is None else sample.generations,
        None if sample is None else size(sample.bytes),
        ago(None if sample is None else sample.at),
        ", ".join(run.job for run in table.running) or None,
        *(ago(table.last_runs.get(job)) for job in ("merge", "index", "gc")),
        table.held,
        ", ".join(trouble.job for trouble in table.failed_jobs) or None,
    )


def _print_outcome(outcome: Outcome) -> None:
    from memwal.fleet import Skipped

    match outcome.result:
        case None if outcome.failed_job is None:
            print_line(f"{outcome.table}: {outcome.job}: told to end")
        case None:
            pass
        case Skipped() as skipped:
            print_line(str(skipped))
        case result:
            figures = ", ".join(
                f"{number} {name.replace('_', ' ')}"
                for name, number in result.figures.items()
                if number and not name.startswith("bytes")
            )
            print_line(
                f"{outcome.table}: {outcome.job}: {figures or 'nothing to do'} in "
                f"{result.seconds:.1f} s ({outcome.reason})"
            )


def _warnings(outcome: Outcome) -> Iterator[str]:
    trouble = outcome.failed_job
    if trouble is not None:
        yield (
            f"{outcome.table}: {outcome.job} failed, try {trouble.attempts}, next at "
            f"{trouble.next_try_at:%H:%M:%S} UTC: {' '.join(trouble.reason.split())}"
        )
    for problem in getattr(outcome.result, "problems", ()):
        yield f"{outcome.table}: {' '.join(problem.split())}"


@contextmanager
def _ending(found: Fleet) -> Iterator[None]:
    """End cleanly on a signal, and at once on a second one."""
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        for one, handler in before.items():
            signal.signal(one, handler)
        found.stop()

    for chosen in (signal.SIGTERM, signal.SIGINT):
        before[chosen] = signal.signal(chosen, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
