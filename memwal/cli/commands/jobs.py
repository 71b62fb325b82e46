"""``memwal merge``, ``compact``, ``snapshot``, ``checkpoint`` and ``gc``, run in this process.

``gc`` only counts unless ``--yes`` is given, and can explain what would be deleted, what stays, and
why.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from memwal.cli.options import (
    AsJson,
    CatalogUrl,
    NameOrUri,
    OptionPairs,
    OptionsFile,
    Regions,
    Uri,
    open_named,
    open_table,
    region_ids,
)
from memwal.cli.output import age, print_json, print_line, print_result, print_table, size
from memwal.util.clock import duration

if TYPE_CHECKING:
    from memwal.jobs.gc import CollectionResult, Decision
    from memwal.jobs.merge.picker import MergePlan
    from memwal.jobs.policy import Policy
    from memwal.jobs.table.checkpoint import CheckpointProgress
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
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Print which generations would be merged, which not, and why; merge nothing.",
        ),
    ] = False,
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
    from memwal.cli.output import progress
    from memwal.fleet.tables import check_regions

    check_regions(opened, [*(region or ()), *(skip_region or ())])
    if explain:
        plan = opened.explain_merge(
            regions=region,
            skip=skip_region or (),
            commit_bytes=commit_bytes or _commit_bytes(policy),
            run_bytes=run_bytes,
        )
        _print_plan(plan, as_json=as_json)
        return
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


def _print_plan(plan: MergePlan, *, as_json: bool) -> None:
    """Print the decision of a merge about every candidate."""
    if as_json:
        print_json(plan.to_dict())
        return
    if not plan.decisions:
        print_line("no generation is pending")
        return
    print_table(
        ["region", "generation", "size", "age", "commit", "why"],
        [
            (
                str(decision.region_id),
                decision.generation,
                size(decision.bytes),
                age(decision.age_seconds),
                decision.commit,
                decision.reason.message,
            )
            for decision in plan.decisions
        ],
    )
    print_line("nothing was merged; the same command without --explain merges")


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
    from memwal.cli.output import progress
    from memwal.jobs.table.compact import DEFAULT_COMMIT_BYTES, DEFAULT_MIN_FRAGMENTS

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
    from memwal.cli.output import progress

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
    from memwal.cli.output import counter

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
    from memwal.jobs.merge.picker import DEFAULT_COMMIT_BYTES

    return DEFAULT_COMMIT_BYTES if policy is None else policy.merge_commit_bytes


def _rules(file: Path | None, policy: Policy | None) -> QualityRules | None:
    """The rules for what enters: those of the command line, else those of the policy."""
    from memwal.quality.rules import read_rules

    if file is not None:
        return read_rules(f"@{file}")
    return None if policy is None else policy.quality


def gc(
    table: Uri,
    delete: Annotated[
        bool, typer.Option("--yes", "--no-dry-run", help="Delete, instead of only counting.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="List what goes and, for what stays, why it stays.")
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
    orphan_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Age of a folder that nothing ever named before it goes; longer than any flush.",
        ),
    ] = None,
    index_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="N",
            help="The same for index files; longer than any index build.",
        ),
    ] = None,
    base_versions: Annotated[
        bool,
        typer.Option(
            "--base-versions",
            help="Also have Lance clean versions of the table up that are older than the "
            "retention; tags and branches keep theirs.",
        ),
    ] = False,
    version_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Age at which these go, when longer than the retention.",
        ),
    ] = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Collect what nobody needs any more. Only counts, unless told --yes."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.cli.output import progress
    from memwal.jobs.gc import collect_garbage, options

    def given(name: str, seconds: float | None, default: timedelta) -> timedelta:
        return default if seconds is None else duration(seconds, f"--{name}-seconds")

    with progress("collecting") as run:
        result = collect_garbage(
            opened.location,
            dry_run=not delete,
            grace=given("grace", grace_seconds, options.DEFAULT_GRACE),
            retention=given("retention", retention_seconds, options.DEFAULT_RETENTION),
            orphan_age=given("orphan", orphan_seconds, options.DEFAULT_ORPHAN_AGE),
            index_age=given("index", index_seconds, options.DEFAULT_INDEX_AGE),
            base_versions=base_versions,
            version_age=None
            if version_seconds is None
            else duration(version_seconds, "--version-seconds"),
            explain=explain,
            run=run,
        )
    if as_json:
        print_result(result, as_json=True)
        return
    note = "" if delete else "a dry run: nothing was deleted; --yes deletes"
    figures = {k: n for k, n in result.figures.items() if not k.startswith("bytes_")}
    print_result(replace(result, figures=figures), as_json=False, note=note)
    if explain:
        _print_decisions(result)


def _print_decisions(result: CollectionResult) -> None:
    """Print what goes and what stays, by region; the table's own files come last."""

    def order(decision: Decision) -> tuple[bool, str, bool]:
        return decision.region_id is None, decision.region_id or "", decision.delete

    if not result.decisions:
        print_line("there is nothing to decide about")
        return
    print_table(
        ["region", "kind", "what", "objects", "size", "", "why", "until"],
        [
            (
                decision.region_id,
                decision.kind.value,
                decision.what,
                decision.objects,
                size(decision.bytes),
                "goes" if decision.delete else "stays",
                decision.message,
                decision.until,
            )
            for decision in sorted(result.decisions, key=order)
        ],
    )
