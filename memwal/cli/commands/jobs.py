"""``memwal recover``, ``restore``, ``merge``, ``compact``, ``snapshot``, ``checkpoint`` and ``gc``.

They run in this process. ``gc`` only counts unless ``--yes`` is given, and can list the objects
that would be deleted, and the objects that stay, with the reasons.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from typer import Argument, Option

from memwal.boundary.text import age, plural, size
from memwal.cli.options import (
    AsJson,
    CatalogUrl,
    NameOrUri,
    RegionName,
    open_named,
    with_region_ids,
)
from memwal.cli.output import Output, job_output, print_line, print_records
from memwal.cli.parameters import Changes, Storage, takes_options_of
from memwal.jobs.options import (
    CheckpointOptions,
    CompactOptions,
    GcOptions,
    MergeOptions,
    RecoverOptions,
    SnapshotOptions,
)

if TYPE_CHECKING:
    from memwal.jobs.gc import CollectionResult, Decision
    from memwal.jobs.merge.picker import MergePlan
    from memwal.table import Table


@takes_options_of(MergeOptions, leave_out=("max_tasks",))
def merge(
    table: NameOrUri,
    changes: Changes,
    explain: Annotated[
        bool,
        Option(
            "--explain",
            help="Print which generations would be merged, which not, and why; merge nothing.",
        ),
    ] = False,
    *,
    storage: Storage,
    url: CatalogUrl = None,
) -> Output:
    """Merge flushed generations into the base table, due or not.

    The quality rules in the policy of a managed table apply. memwal jobs run does the same under a
    lease, and records it.
    """
    opened, policy = open_named(table, url, storage)
    changes = with_region_ids(opened.location, changes)
    from memwal.fleet.tables import check_regions
    from memwal.jobs.merge.job import explain_merge, merge

    defaults = MergeOptions() if policy is None else replace(policy.merge_options(), run_bytes=None)
    options = replace(defaults, **changes)
    check_regions(opened, [*(options.regions or ()), *options.skip_regions])
    if explain:
        plan = explain_merge(opened.location, options)
        return Output(plan, partial(_print_plan, plan))
    return job_output(merge(opened.location, replace(options, progress=True)))


def _print_plan(plan: MergePlan) -> None:
    """Print the decision of a merge about every candidate."""
    if not plan.decisions:
        print_line("no generation is pending")
        return
    print_records(
        plan.decisions,
        ("region", "generation", "size", "age", "commit", "why"),
        (
            "region_id",
            "generation",
            lambda decision: size(decision.bytes),
            lambda decision: age(decision.age_seconds),
            "commit",
            "reason.text",
        ),
    )
    count = plural(len(plan.parts), "task")
    print_line(f"{plan.method.value}, {count}: {plan.method.text}")
    print_line("nothing was merged; the same command without --explain merges")


class AfterRestore(StrEnum):
    """Decision after the base table went back behind merged generations."""

    KEEP = "keep"
    DISCARD = "discard"
    MERGE_AGAIN = "merge-again"


@takes_options_of(RecoverOptions, leave_out=("max_tasks",))
def recover(
    table: Table,
    changes: Changes,
    after_restore: Annotated[
        AfterRestore | None,
        Option(
            "--after-restore",
            help="Decide after the base table went back behind merged generations, and do nothing "
            "else: keep its rows; also discard flushed generations that were never merged; or "
            "have generations merged again. Only counts without --yes.",
        ),
    ] = None,
    region_lost: Annotated[
        UUID | None,
        Option(
            "--region-lost",
            metavar="REGION",
            help="Give up the unmerged rows of this region, whose folder is lost for good, and "
            "start it over; do nothing else. Only tells what is given up without --yes.",
            parser=RegionName.parse,
        ),
    ] = None,
    yes: Annotated[
        bool, Option("--yes", help="Carry out what --after-restore or --region-lost decides.")
    ] = False,
) -> Output:
    """Flush acknowledged rows that closed or dead writers left in the log.

    A region with rows that are younger may have a living writer, and is left to it.
    """
    if after_restore is not None:
        return _restore(table, None, after_restore, yes=yes)
    if region_lost is not None:
        result = table.start_region_over(region_lost, dry_run=not yes)
        note = "" if yes else "a dry run: nothing was changed; --yes starts the region over"
        return job_output(result, note)
    from memwal.fleet.tables import check_regions
    from memwal.jobs.table.recover import recover

    options = RecoverOptions(**changes)
    check_regions(table, options.regions or ())
    result = recover(table.location, replace(options, progress=True))
    left = result.metrics.get("unflushed_regions", 0)
    note = (
        f"{plural(left, 'region')} left, whose rows may have a living writer: run it again later, "
        "or with --min-age-seconds 0 if you know that no writer lives"
    )
    return job_output(result, note if left else "")


def restore(
    table: Table,
    version: Annotated[str, Argument(help="Version of the base table, or a tag.")],
    then: Annotated[
        AfterRestore,
        Option(
            "--then",
            help="Keep the rows of the version; also discard flushed generations that were never "
            "merged; or have those merged again that were merged since.",
        ),
    ] = AfterRestore.KEEP,
    yes: Annotated[bool, Option("--yes", help="Restore; otherwise only count.")] = False,
) -> Output:
    """Restore the base table to a version. Without --yes, only counts the losses."""
    number = int(version) if version.isdecimal() else version
    return _restore(table, number, then, yes=yes)


def _restore(table: Table, version: int | str | None, then: AfterRestore, *, yes: bool) -> Output:
    result = table.restore(
        version,
        merge_again=then is AfterRestore.MERGE_AGAIN,
        discard_pending=then is AfterRestore.DISCARD,
        dry_run=not yes,
    )
    note = "" if yes else "a dry run: nothing was changed; --yes carries it out"
    return job_output(result, note)


@takes_options_of(CompactOptions)
def compact(table: Table, changes: Changes) -> Output:
    """Rewrite small fragments of the base table, and those with many deleted rows."""
    from memwal.jobs.table.compact import compact

    return job_output(compact(table.location, CompactOptions(**changes, progress=True)))


@takes_options_of(SnapshotOptions, leave_out=("max_tasks",))
def snapshot(table: Table, changes: Changes) -> Output:
    """Publish the state of all regions for readers."""
    from memwal.jobs.table.snapshot import build_snapshot

    return job_output(build_snapshot(table.location, SnapshotOptions(**changes, progress=True)))


@takes_options_of(CheckpointOptions, leave_out=("max_tasks",))
def checkpoint(
    table: NameOrUri,
    changes: Changes,
    flush: Annotated[
        bool,
        Option(
            "--flush/--no-flush",
            help="Whether to flush the writers of this process first; those of other processes "
            "never are.",
        ),
    ] = True,
    *,
    storage: Storage,
    url: CatalogUrl = None,
) -> Output:
    """Merge and index all generations that are flushed by now.

    The quality rules in the policy of a managed table apply.
    """
    opened, policy = open_named(table, url, storage)
    defaults = CheckpointOptions() if policy is None else policy.checkpoint_options()
    options = replace(defaults, **changes)
    result = opened.checkpoint(
        flush=flush,
        timeout_seconds=options.timeout_seconds,
        commit_bytes=options.commit_bytes,
        quality=options.quality,
        skip_recovery=options.skip_recovery,
        progress=True,
    )
    return job_output(result)


@takes_options_of(GcOptions, leave_out=("dry_run", "max_tasks"))
def gc(
    table: Table,
    changes: Changes,
    delete: Annotated[
        bool, Option("--yes", "--no-dry-run", help="Delete; otherwise only count.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete objects that no reader and no writer needs. Only counts them without --yes."""
    from memwal.jobs.gc import collect_garbage
    from memwal.jobs.gc.decision import summarise

    asked = GcOptions(dry_run=not delete, **changes, progress=True)
    # A person who asks for a dry run is told why the rest stays.
    options = replace(asked, explain=asked.explain or not (delete or as_json))
    result = collect_garbage(table.location, options)
    if as_json:
        job_output(result).print(as_json=True)
        return
    note = "" if delete else "a dry run: nothing was deleted; --yes deletes"
    metrics = {k: n for k, n in result.metrics.items() if not k.startswith("bytes_")}
    job_output(replace(result, metrics=metrics), note).print(as_json=False)
    if asked.explain:
        _print_decisions(result)
        return
    for group in summarise(result.decisions).stays:
        print_line(
            f"stays: {group.count} {group.kind.value}, {size(group.bytes)}: {group.reason.text}"
        )
    if options.version_retention_seconds is None:
        print_line(
            "old versions of the base table stay: --version-retention-seconds sets their age"
        )


def _print_decisions(result: CollectionResult) -> None:
    """Print the decisions by region; those about the table's own files come last."""

    def order(decision: Decision) -> tuple[bool, str, bool]:
        return decision.region_id is None, decision.region_id or "", decision.delete

    if not result.decisions:
        print_line("there is nothing to decide about")
        return
    print_records(
        sorted(result.decisions, key=order),
        ("region", "kind", "what", "objects", "size", "", "why", "until"),
        (
            "region_id",
            "kind",
            "what",
            "objects",
            lambda decision: size(decision.bytes),
            lambda decision: "delete" if decision.delete else "keep",
            "message",
            "until",
        ),
    )
