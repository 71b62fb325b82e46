"""The program ``memwal`` and its ``--version`` line.

Commands import the modules that they need when they run, so ``memwal --help`` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from memwal.boundary.exit_codes import EXIT_CODES_HELP
from memwal.cli.commands import (
    catalog,
    checks,
    consumers,
    fleet,
    index,
    inspect,
    jobs,
    quality,
    runs,
    table,
)
from memwal.cli.output import ReportingGroup
from memwal.cli.parameters import CommandGroup
from memwal.lance_log import PROGRAM_FILTER, quieten_lance
from memwal.util.versions import installed_versions
from memwal.version import __version__

quieten_lance(PROGRAM_FILTER)

app = CommandGroup(
    cls=ReportingGroup,
    # Tracebacks with local variables would show storage options.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Exit codes:\n\n\b\n{EXIT_CODES_HELP}",
)


def _print_version(requested: bool) -> None:
    """Print the versions: ``memwal 0.1.0 (Python 3.11.7, pylance 14.0.2, ...)``."""
    if requested:
        versions = ", ".join(" ".join(pair) for pair in installed_versions().items())
        typer.echo(f"memwal {__version__} ({versions})")
        raise typer.Exit


@app.callback()
def memwal(
    debug: Annotated[bool, Option("--debug", help="Print tracebacks of errors.")] = False,
    version: Annotated[
        bool,
        Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Show the versions of memwal and of the packages that it uses.",
        ),
    ] = False,
) -> None:
    """Maintain Lance tables with MemWAL: set up, merge, index, publish, collect, inspect.

    Every command prints text for people, or with --json one JSON document, on stdout.
    """


app.command()(table.create)
app.command()(table.enable)
app.command()(table.add_region_spec)
app.command()(table.retire_region)
app.command()(table.copy)
app.command()(table.abandon)
app.command()(table.writer_defaults)
app.command()(checks.status)
app.command()(table.read)
app.command()(jobs.recover)
app.command()(jobs.restore)
app.command()(jobs.merge)
app.add_typer(index.app, name="index")
app.command()(jobs.compact)
app.command()(jobs.snapshot)
app.command()(jobs.gc)
app.command()(jobs.checkpoint)
app.command()(checks.verify)
app.command()(checks.doctor)
app.command()(table.rights)
app.add_typer(consumers.app, name="consumers")
app.add_typer(inspect.app, name="inspect")
app.add_typer(catalog.app, name="catalog")
app.add_typer(runs.app, name="jobs")
app.add_typer(fleet.app, name="fleet")
app.add_typer(fleet.metrics_app, name="metrics")
app.add_typer(quality.app, name="quality")


def run() -> None:
    """Entry point of the program; ends the process with an exit code."""
    app(prog_name="memwal")


if __name__ == "__main__":
    run()
