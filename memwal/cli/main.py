"""The program ``memwal``.

Commands import what they need when they run, so that ``memwal --help`` answers at once.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from memwal.cli import (
    catalog,
    doctor,
    fleet,
    gc,
    index,
    inspection,
    jobs,
    metrics,
    quality,
    rights,
    runs,
    setup,
    status,
    verify,
)
from memwal.cli.failures import EXIT_CODES_HELP, ReportingGroup
from memwal.cli.versions import version_line

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


app.command()(setup.create)
app.command()(setup.enable)
app.command()(setup.add_region_spec)
app.command()(setup.copy)
app.command()(status.status)
app.command()(jobs.merge)
app.add_typer(index.app, name="index")
app.command()(jobs.compact)
app.command()(jobs.snapshot)
app.command()(gc.gc)
app.command()(jobs.checkpoint)
app.command()(verify.verify)
app.command()(doctor.doctor)
app.command()(rights.rights)
app.add_typer(inspection.app, name="inspect")
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
