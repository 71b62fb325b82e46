"""The maintenance jobs, run in this process: merge, index, snapshot, gc, checkpoint."""

from __future__ import annotations

from datetime import timedelta
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


def index(
    table: Uri,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Catch the maintained indexes up with what was merged."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.cli.progress import progress

    with progress("indexing") as run:
        result = opened.build_indexes(run=run)
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


def gc(
    table: Uri,
    delete: Annotated[
        bool, typer.Option("--yes", "--no-dry-run", help="Delete, instead of only counting.")
    ] = False,
    grace_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="N",
            help="How long a reader may go on with what it planned; well above the longest query.",
        ),
    ] = None,
    retention_seconds: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="N", help="How long old versions of the table keep what they need."
        ),
    ] = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Collect what nobody needs any more. Only counts, unless told --yes."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.cli.progress import progress
    from memwal.maintenance.garbage import DEFAULT_GRACE, DEFAULT_RETENTION

    with progress("collecting") as run:
        result = opened.collect_garbage(
            dry_run=not delete,
            grace=DEFAULT_GRACE if grace_seconds is None else timedelta(seconds=grace_seconds),
            retention=(
                DEFAULT_RETENTION
                if retention_seconds is None
                else timedelta(seconds=retention_seconds)
            ),
            run=run,
        )
    note = "" if delete else "a dry run: nothing was deleted; --yes deletes"
    print_result(result, as_json=as_json, note=note)


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
