"""``memwal gc``: collect what nobody needs, or tell what would go, what stays, and why."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from memwal.cli.options import AsJson, OptionPairs, OptionsFile, Uri, open_table
from memwal.cli.output import print_line, print_result, print_table, size
from memwal.durations import duration

if TYPE_CHECKING:
    from memwal.maintenance.garbage import CollectionResult, Decision


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
    from memwal.cli.progress import progress
    from memwal.maintenance.garbage import ages, collect_garbage

    def given(name: str, seconds: float | None, default: timedelta) -> timedelta:
        return default if seconds is None else duration(seconds, f"--{name}-seconds")

    with progress("collecting") as run:
        result = collect_garbage(
            opened.location,
            dry_run=not delete,
            grace=given("grace", grace_seconds, ages.DEFAULT_GRACE),
            retention=given("retention", retention_seconds, ages.DEFAULT_RETENTION),
            orphan_age=given("orphan", orphan_seconds, ages.DEFAULT_ORPHAN_AGE),
            index_age=given("index", index_seconds, ages.DEFAULT_INDEX_AGE),
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
        return decision.region_id is None, decision.region_id or "", decision.goes

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
                "goes" if decision.goes else "stays",
                decision.words,
                decision.until,
            )
            for decision in sorted(result.decisions, key=order)
        ],
    )
