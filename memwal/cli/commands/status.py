"""``memwal status``: backlog of each region, and due jobs of a managed table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from memwal.cli.options import (
    AsJson,
    CatalogUrl,
    OptionPairs,
    OptionsFile,
    Regions,
    managed_table,
    open_table,
    storage_options,
    table_names,
)
from memwal.cli.output import age, print_json, print_line, print_table, size

if TYPE_CHECKING:
    from memwal.fleet import Survey
    from memwal.jobs.status import RegionBacklog, TableStatus

_COLUMNS = (
    "region",
    "epoch",
    "state",
    "generations",
    "rows",
    "bytes",
    "oldest",
    "log entries",
    "merged to",
    "kept",
)


def status(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="[TABLE]",
            help="Name of a managed table, or an address: a path, s3://, ...",
            autocompletion=table_names,
        ),
    ] = None,
    named: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="NAME|URI",
            help="The same, as an option.",
            autocompletion=table_names,
        ),
    ] = None,
    region: Regions = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the backlog of each region, and of a managed table which job is due and why.

    It also tells how far the maintained indexes are behind, and how old the snapshot is.
    Generations, rows and bytes are those that are flushed and not merged; log entries are those
    that no generation covers yet; kept are merged generations that are still stored.

    A name that the catalog knows is that table; ./NAME is a folder.
    """
    wanted = table if table is not None else named
    if wanted is None or (table is not None and named is not None):
        raise typer.BadParameter("give one table: its name in the catalog, or its address")
    with managed_table(wanted, url) as (catalog, managed):
        if catalog is None or managed is None:
            opened = open_table(wanted, storage_options_file, storage_option)
            found = opened.status(regions=region)
            if as_json:
                print_json(found.to_dict())
            else:
                _show(found)
            return
        from memwal.fleet import survey

        given = storage_options(storage_options_file, storage_option) or None
        looked = survey(catalog, managed, storage_options=given, regions=region)
    if as_json:
        print_json(looked.to_dict())
        return
    _show(looked.status)
    _show_due(looked)


def _show_due(looked: Survey) -> None:
    print_table(
        ("job", "due", "why", "pressure"),
        [
            (
                job,
                "now" if one.reason else "later" if one.held_back else "no",
                one.reason or one.held_back,
                f"{100 * one.pressure:.0f}%",
            )
            for job, one in looked.due.items()
        ],
    )
    for record in looked.held:
        when = f"at {record.next_try_at:%Y-%m-%d %H:%M:%S} UTC" if record.waiting else "now"
        print_line(
            f"region {record.region_id} is held at generation {record.generation} after "
            f"{record.attempts} tries, next {when}: {record.reason}"
        )


def _show(status: TableStatus) -> None:
    print_line(f"{status.uri} at version {status.version}")
    total = (
        "total",
        "",
        "",
        status.backlog_generations,
        status.backlog_rows,
        size(status.backlog_bytes),
        age(max((r.oldest_backlog_seconds or 0 for r in status.regions), default=0))
        if status.backlog_generations
        else "-",
        sum(region.unflushed_wal_entries for region in status.regions),
        "",
        sum(region.retained_generations for region in status.regions),
    )
    print_table(_COLUMNS, [*(_row(region) for region in status.regions), total])
    if status.indexes:
        print_table(
            ("maintained index", "generations behind", "in regions", "rows behind"),
            [
                (index.name, index.generations, index.regions, index.rows)
                for index in status.indexes
            ],
        )
    taken = status.snapshot_age_seconds
    changed = f", {status.changed_regions} regions changed" if status.changed_regions else ""
    print_line("region snapshot: " + ("none" if taken is None else f"{age(taken)} old{changed}"))
    print_line(
        f"could be collected: {size(status.reclaimable_bytes)}; small fragments: "
        f"{status.small_fragments or 0}"
    )


def _row(region: RegionBacklog) -> tuple[object, ...]:
    return (
        region.region_id,
        region.writer_epoch,
        "sealed" if region.sealed else "active",
        region.backlog_generations,
        region.backlog_rows,
        size(region.backlog_bytes),
        age(region.oldest_backlog_seconds),
        region.unflushed_wal_entries,
        region.merged_generation,
        region.retained_generations,
    )
