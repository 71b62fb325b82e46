"""The maintenance jobs, run in this process: merge, snapshot, checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.options import AsJson, OptionPairs, OptionsFile, Regions, Uri, open_table
from memwal.cli.output import print_result


def merge(
    table: Uri,
    region: Regions = None,
    commit_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Bytes in memory that go into one commit, which bounds the memory of the job.",
        ),
    ] = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Merge flushed generations into the base table."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.cli.progress import progress
    from memwal.maintenance.merge import DEFAULT_COMMIT_BYTES

    with progress("merging") as run:
        result = opened.merge(
            regions=region, commit_bytes=commit_bytes or DEFAULT_COMMIT_BYTES, run=run
        )
    print_result(result, as_json=as_json)


def snapshot(
    table: Uri,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Publish the state of all regions for readers."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.cli.progress import progress

    with progress("reading regions") as run:
        result = opened.build_snapshot(run=run)
    print_result(result, as_json=as_json)


def checkpoint(
    table: Uri,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Merge and index all that is flushed by now."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.cli.progress import progress

    with progress("merging and indexing") as run:
        result = opened.checkpoint(run=run)
    print_result(result, as_json=as_json)
