"""``memwal merge``, ``compact``, ``snapshot``, ``checkpoint`` and ``gc``, run in this process.

``gc`` only counts unless ``--yes`` is given, and can explain what would be deleted, what stays, and
why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memwal.cli.job_options import takes_options_of
from memwal.cli.options import (
    AsJson,
    CatalogUrl,
    NameOrUri,
    OptionPairs,
    OptionsFile,
    Uri,
    open_named,
    open_table,
)
from memwal.cli.output import age, print_json, print_line, print_result, print_table, size
from memwal.jobs.options import (
    CheckpointOptions,
    CompactOptions,
    GcOptions,
    MergeOptions,
    SnapshotOptions,
)

if TYPE_CHECKING:
    from memwal.jobs.gc import CollectionResult, Decision
    from memwal.jobs.job import CheckpointProgress
    from memwal.jobs.merge.picker import MergePlan

Changes = dict[str, Any]


@takes_options_of(MergeOptions, leave_out=("max_tasks",))
def merge(
    table: NameOrUri,
    changes: Changes,
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
    from memwal.jobs.merge.job import explain_merge, merge

    defaults = MergeOptions() if policy is None else replace(policy.merge_options(), run_bytes=None)
    options = replace(defaults, **changes)
    check_regions(opened, [*(options.regions or ()), *options.skip_regions])
    if explain:
        _print_plan(explain_merge(opened.location, options), as_json=as_json)
        return
    with progress("merging") as run:
        result = merge(opened.location, replace(options, run=run))
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
                decision.reason.text,
            )
            for decision in plan.decisions
        ],
    )
    print_line("nothing was merged; the same command without --explain merges")


@takes_options_of(CompactOptions)
def compact(
    table: Uri,
    changes: Changes,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite small fragments of the base table, and those with many deleted rows."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.cli.output import progress
    from memwal.jobs.table.compact import compact

    options = CompactOptions(**changes)
    with progress("compacting") as run:
        result = compact(opened.location, replace(options, run=run))
    print_result(result, as_json=as_json)


@takes_options_of(SnapshotOptions, leave_out=("max_tasks",))
def snapshot(
    table: Uri,
    changes: Changes,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Publish the state of all regions for readers."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.cli.output import progress
    from memwal.jobs.table.snapshot import build_snapshot

    options = SnapshotOptions(**changes)
    with progress("reading regions") as run:
        result = build_snapshot(opened.location, replace(options, run=run))
    print_result(result, as_json=as_json)


@takes_options_of(CheckpointOptions, leave_out=("max_tasks",))
def checkpoint(
    table: NameOrUri,
    changes: Changes,
    flush: Annotated[
        bool,
        typer.Option(
            "--flush/--no-flush",
            help="Whether writers of this same process are flushed first; those of others never "
            "are.",
        ),
    ] = True,
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

    defaults = CheckpointOptions() if policy is None else policy.checkpoint_options()
    options = replace(defaults, **changes)
    with counter("merging") as show:

        def tell(progress: CheckpointProgress) -> None:
            doing = "indexing" if progress.indexing else "merging"
            show(doing, progress.merged, progress.generations)

        result = opened.checkpoint(
            flush=flush,
            timeout_seconds=options.timeout_seconds,
            commit_bytes=options.commit_bytes,
            quality=options.quality,
            progress=tell,
        )
    print_result(result, as_json=as_json)


@takes_options_of(GcOptions, leave_out=("dry_run", "max_tasks"))
def gc(
    table: Uri,
    changes: Changes,
    delete: Annotated[
        bool, typer.Option("--yes", "--no-dry-run", help="Delete, instead of only counting.")
    ] = False,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Collect what nobody needs any more. Only counts, unless told --yes."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.cli.output import progress
    from memwal.jobs.gc import collect_garbage

    options = GcOptions(dry_run=not delete, **changes)
    with progress("collecting") as run:
        result = collect_garbage(opened.location, replace(options, run=run))
    if as_json:
        print_result(result, as_json=True)
        return
    note = "" if delete else "a dry run: nothing was deleted; --yes deletes"
    figures = {k: n for k, n in result.figures.items() if not k.startswith("bytes_")}
    print_result(replace(result, figures=figures), as_json=False, note=note)
    if options.explain:
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
