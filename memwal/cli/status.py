"""``memwal status``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwal.cli.options import AsJson, OptionPairs, OptionsFile, Regions, Uri, open_table
from memwal.cli.output import age, print_json, print_line, print_table, size

if TYPE_CHECKING:
    from memwal.maintenance.status import RegionBacklog, TableStatus

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
    table: Uri,
    region: Regions = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Show the backlog of each region.

    It also tells how far the maintained indexes are behind, and how old the snapshot is.
    Generations, rows and bytes are those that are flushed and not merged; log entries are those
    that no generation covers yet; kept are merged generations that are still stored.
    """
    found = open_table(table, storage_options_file, storage_option).status(regions=region)
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found)


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
            ("maintained index", "generations behind", "in regions"),
            [(index.name, index.generations, index.regions) for index in status.indexes],
        )
    taken = status.snapshot_age_seconds
    print_line("region snapshot: " + (f"{age(taken)} old" if taken is not None else "none"))


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
