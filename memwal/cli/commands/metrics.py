"""``memwal metrics``: a Prometheus endpoint, alert rules and a dashboard."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from memwal.cli.options import AsJson, CatalogUrl, open_catalog
from memwal.cli.output import print_json, print_line

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def metrics() -> None:
    """Tell Prometheus what the catalog knows, and print rules and a dashboard for it."""


@app.command()
def serve(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Listen here.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="0 takes a free one.")
    ] = 9464,
    cache: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Read the catalog at most so often."),
    ] = 5.0,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Serve the metrics of all managed tables until Ctrl-C or SIGTERM; opens no table."""
    from memwal.exporter.server import MetricsEndpoint

    with (
        open_catalog(url) as catalog,
        MetricsEndpoint(catalog, host=host, port=port, cache_seconds=cache) as endpoint,
    ):
        shown = catalog.database.shown_url
        if as_json:
            print_json({"url": endpoint.url, "catalog": shown})
        else:
            print_line(f"metrics of {shown} at {endpoint.url}")
        sys.stdout.flush()
        with _sigterm_interrupts(), contextlib.suppress(KeyboardInterrupt):
            endpoint.wait()


@app.command()
def rules(
    runbook_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the runbooks are read: gives each alert the annotation runbook_url. In it, "
            "{alert} stands for the name of the alert.",
        ),
    ] = None,
) -> None:
    """Print alert rules for Prometheus (YAML)."""
    from memwal.exporter import RULES, linked_rules, shipped

    text = shipped(RULES) if runbook_url is None else linked_rules(runbook_url)
    print_line(text.rstrip("\n"))


@app.command()
def dashboard() -> None:
    """Print a dashboard for Grafana (JSON)."""
    from memwal.exporter import DASHBOARD, shipped

    print_line(shipped(DASHBOARD).rstrip("\n"))


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Within the block SIGTERM ends what is waited for as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
