"""``memwal verify`` and ``memwal doctor``: check and repair a table, or check a store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memwal.cli.errors import ExitCode
from memwal.cli.job_options import takes_options_of
from memwal.cli.options import (
    AsJson,
    CatalogUrl,
    OptionPairs,
    OptionsFile,
    Uri,
    managed_table,
    storage_options,
)
from memwal.cli.output import print_json, print_line, print_table
from memwal.errors import InvalidInputError
from memwal.jobs.options import VerifyOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwal.jobs.verify import RepairAction, VerifyReport

# The bar moves once per task; each of them scans the keys of the base table once.
_TASKS = 4


@takes_options_of(VerifyOptions, leave_out=("max_tasks",))
def verify(
    table: Uri,
    changes: dict[str, Any],
    repair: Annotated[
        bool, typer.Option("--repair", help="Tell which repairs are safe; with --yes, do them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "--no-dry-run", help="Do the repairs.")] = False,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Check every invariant of a table, while others read and write it.

    Ends with 1 when there are errors. After repairs the table is checked again, and that counts.
    """
    if yes and not repair:
        raise InvalidInputError("--yes only goes with --repair")
    options = VerifyOptions(max_tasks=_TASKS, **changes)
    from memwal.cli.output import progress
    from memwal.jobs.verify import repair as do_repair
    from memwal.jobs.verify import verify as check
    from memwal.storage.location import TableLocation

    # Not opened as other commands do: a table that does not open has to be looked at, too.
    location = TableLocation(table, storage_options(storage_options_file, storage_option))

    def checked() -> VerifyReport:
        with progress("verifying") as run:
            return check(location, replace(options, run=run))

    report = checked()
    actions: Sequence[RepairAction] = ()
    if repair:
        actions = do_repair(location, report, dry_run=not yes)
        if any(action.state == "done" for action in actions):
            report = checked()
    if as_json:
        print_json({**report.to_dict(), "repairs": [action.to_dict() for action in actions]})
    else:
        _print(report, actions)
    if report.errors:
        raise typer.Exit(ExitCode.FAILED)


def _print(report: VerifyReport, actions: Sequence[RepairAction]) -> None:
    notes = len(report.findings) - report.errors - report.warnings
    print_line(
        f"verify: {report.errors} errors, {report.warnings} warnings, {notes} notes; "
        f"{report.regions} regions in {report.seconds:.1f} s; the table is at version "
        f"{report.version}"
    )
    if report.findings:
        print_table(
            ("severity", "code", "region", "object", "what", "what to do"),
            [
                (
                    finding.severity.value,
                    finding.code,
                    finding.region,
                    finding.object,
                    finding.text,
                    finding.advice,
                )
                for finding in report.findings
            ],
        )
    if actions:
        print_table(
            ("repair", "state", "object", "what"),
            [
                (
                    action.finding.repair.value if action.finding.repair is not None else None,
                    action.state,
                    action.finding.object,
                    action.text,
                )
                for action in actions
            ],
        )
        if any(action.state == "would" for action in actions):
            print_line("a dry run: nothing was repaired; --yes repairs")


def doctor(
    uri: Annotated[
        str,
        typer.Argument(
            metavar="URI",
            help="Address of a table, or of one that is to be; or the name of a managed table.",
        ),
    ],
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Find out whether a store is fit for tables, and what to do where it is not.

    It looks at permissions, put-if-absent under a small race, clocks, latencies, Lance's own
    commits, and at where credentials come from; about four hundred small requests. What it writes
    is deleted again. Ends with 1 when there are errors.
    """
    from memwal.jobs.table.store_check import diagnose
    from memwal.storage.location import TableLocation

    given = storage_options(storage_options_file, storage_option)
    with managed_table(uri, url) as (_, managed):
        if managed is None:
            location = TableLocation(uri, given)
        else:
            from memwal.fleet.tables import managed_location

            location = managed_location(managed, storage_options=given or None)
    found = diagnose(location)
    if as_json:
        print_json(found.to_dict())
    else:
        print_table(
            ("check", "state", "what", "what to do"),
            [(c.name, c.state.value, c.text, c.advice or None) for c in found.checks],
        )
        errors = f"{found.errors} error{'' if found.errors == 1 else 's'}"
        print_line(f"doctor: {errors}; {found.uri}")
    if found.errors:
        raise typer.Exit(ExitCode.FAILED)
