"""``memwal doctor``: is a store fit for tables."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.catalog import CatalogUrl
from memwal.cli.failures import ExitCode
from memwal.cli.named import managed_table
from memwal.cli.options import AsJson, OptionPairs, OptionsFile, storage_options
from memwal.cli.output import print_json, print_line, print_table


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
    from memwal.maintenance.doctor import diagnose
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
