"""The maintenance jobs, run in this process: merge, compact, snapshot, checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from memwal.cli.catalog import CatalogUrl
from memwal.cli.completion import region_ids
from memwal.cli.named import NameOrUri, open_named
from memwal.cli.options import AsJson, OptionPairs, OptionsFile, Regions, Uri, open_table
from memwal.cli.output import print_result
from memwal.durations import duration

if TYPE_CHECKING:
    from memwal.maintenance.checkpoint import CheckpointProgress
    from memwal.maintenance.policy import Policy
    from memwal.quality.rules import QualityRules


CommitBytes = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Bytes in memory that go into one commit, which bounds the memory of the job.",
    ),
]
Quality = Annotated[
    Path | None,
    typer.Option(
        "--quality",
        metavar="FILE",
        help="Rules for the rows that enter, as memwal quality rules NAME --json prints them; by "
        "default those of the policy of a managed table.",
    ),
]


def merge(
    table: NameOrUri,
    region: Regions = None,
    skip_region: Annotated[
        list[UUID] | None,
        typer.Option(
            metavar="UUID",
            help="Not this region; can be given again.",
            autocompletion=region_ids,
        ),
    ] = None,
    commit_bytes: CommitBytes = None,
    run_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Bytes in memory to merge at most, the oldest first; at least one generation.",
        ),
    ] = None,
    quality: Quality = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Merge flushed generations into the base table, due or not.

    A name that the catalog knows is that table, with the gate of its policy; ./NAME is a folder.
    memwal jobs run does the same under a lease, and records it.
    """
    opened, policy = open_named(table, url, storage_options_file, storage_option)
    from memwal.cli.progress import progress
    from memwal.fleet.tables import check_regions

    check_regions(opened, [*(region or ()), *(skip_region or ())])
    with progress("merging") as run:
        result = opened.merge(
            regions=region,
            skip=skip_region or (),
            commit_bytes=commit_bytes or _commit_bytes(policy),
            run_bytes=run_bytes,
            quality=_rules(quality, policy),
            run=run,
        )
    print_result(result, as_json=as_json)


def compact(
    table: Uri,
    min_fragments: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Do nothing until so many fragments are worth it (default: 8)."
        ),
    ] = None,
    commit_bytes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Bytes on storage that one commit replaces at most."),
    ] = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite small fragments of the base table, and those with many deleted rows."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.cli.progress import progress
    from memwal.maintenance.compaction import DEFAULT_COMMIT_BYTES, DEFAULT_MIN_FRAGMENTS

    with progress("compacting") as run:
        result = opened.compact(
            min_fragments=min_fragments or DEFAULT_MIN_FRAGMENTS,
            commit_bytes=commit_bytes or DEFAULT_COMMIT_BYTES,
            run=run,
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
    table: NameOrUri,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Give up after so long; what is merged by then stays, and another call goes on.",
        ),
    ] = None,
    flush: Annotated[
        bool,
        typer.Option(
            "--flush/--no-flush",
            help="Whether writers of this same process are flushed first; those of others never "
            "are.",
        ),
    ] = True,
    quality: Quality = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Merge and index all that is flushed by now.

    A name that the catalog knows is that table, with the gate of its policy; ./NAME is a folder.
    """
    opened, policy = open_named(table, url, storage_options_file, storage_option)
    from memwal.cli.progress import counter

    with counter("merging") as show:

        def tell(progress: CheckpointProgress) -> None:
            doing = "indexing" if progress.indexing else "merging"
            show(doing, progress.merged, progress.generations)

        result = opened.checkpoint(
            flush=flush,
            timeout=None if timeout is None else duration(timeout, "--timeout"),
            commit_bytes=_commit_bytes(policy),
            quality=_rules(quality, policy),
            progress=tell,
        )
    print_result(result, as_json=as_json)


def _commit_bytes(policy: Policy | None) -> int:
    from memwal.maintenance.merge import DEFAULT_COMMIT_BYTES

    return DEFAULT_COMMIT_BYTES if policy is None else policy.merge_commit_bytes


def _rules(file: Path | None, policy: Policy | None) -> QualityRules | None:
    """The rules for what enters: those of the command line, else those of the policy."""
    from memwal.quality.rules import read_rules

    if file is not None:
        return read_rules(f"@{file}")
    return None if policy is None else policy.quality
