"""The program ``memwal`` and its ``--version`` line.

Commands import what they need when they run, so ``memwal --help`` answers at once.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from memwal.cli.commands import (
    catalog,
    fleet,
    index,
    inspect,
    jobs,
    metrics,
    quality,
    runs,
    status,
    table,
    verify,
)
from memwal.cli.errors import EXIT_CODES_HELP, ReportingGroup
from memwal.version import __version__

SHOWN = ("pylance", "pyarrow", "lancedb", "pyspark", "apache-airflow")
"""Packages whose versions are told, as far as they are installed."""


def version_line() -> str:
    """``memwal 0.1.0 (Python 3.11.7, pylance 14.0.2, ...)``."""
    found = [f"Python {platform.python_version()}"]
    for name in SHOWN:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"memwal {__version__} ({', '.join(found)})"


# Lance complains of an index that has no columns, which the MemWAL index rightly has not.
os.environ.setdefault("LANCE_LOG", "error,lance::index=off")

app = typer.Typer(
    cls=ReportingGroup,
    no_args_is_help=True,
    # Tracebacks with local variables would show storage options.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES_HELP,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def memwal(
    debug: Annotated[bool, typer.Option("--debug", help="Tell where an error comes from.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Show the versions of memwal and what it stands on.",
        ),
    ] = False,
) -> None:
    """Look after Lance tables with MemWAL: set up, merge, index, publish, collect, inspect.

    Every command prints text for people, or with --json one JSON document, on stdout.
    """


app.command()(table.create)
app.command()(table.enable)
app.command()(table.add_region_spec)
app.command()(table.copy)
app.command()(status.status)
app.command()(jobs.merge)
app.add_typer(index.app, name="index")
app.command()(jobs.compact)
app.command()(jobs.snapshot)
app.command()(jobs.gc)
app.command()(jobs.checkpoint)
app.command()(verify.verify)
app.command()(verify.doctor)
app.command()(table.rights)
app.add_typer(inspect.app, name="inspect")
app.add_typer(catalog.app, name="catalog")
app.add_typer(runs.app, name="jobs")
app.add_typer(fleet.app, name="fleet")
app.add_typer(metrics.app, name="metrics")
app.add_typer(quality.app, name="quality")


def run() -> None:
    """Entry point of the program; ends the process with an exit code."""
    app(prog_name="memwal")


if __name__ == "__main__":
    run()
