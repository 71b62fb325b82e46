"""``memwal jobs run``, ``held`` and ``retry``: jobs under their lease, and what they leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from memwal.cli.catalog import CatalogUrl, Name, open_catalog
from memwal.cli.completion import table_names
from memwal.cli.options import AsJson, Regions
from memwal.cli.output import print_json, print_line, print_result, print_table
from memwal.durations import duration
from memwal.errors import InvalidInputError

if TYPE_CHECKING:
    from memwal.fleet import Skipped
    from memwal.maintenance.results import JobResult


def held(
    table: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only of this managed table.",
            autocompletion=table_names,
        ),
    ] = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the regions that merges leave out since they cannot be read."""
    with open_catalog(url) as catalog:
        found = catalog.setbacks.held(table)
    if as_json:
        print_json([record.to_dict() for record in found])
        return
    print_table(
        ("table", "region", "generation", "since", "tries", "next try", "why"),
        [
            (
                record.table,
                record.region_id,
                record.generation,
                f"{record.since:%Y-%m-%d %H:%M:%S}",
                record.attempts,
                f"{record.next_try_at:%Y-%m-%d %H:%M:%S}" if record.waiting else "now",
                record.reason,
            )
            for record in found
        ],
    )


def run(
    name: Name,
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="merge, index, compact, snapshot, gc or quality.")
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Now: due or not, in quiet hours, and regions that are held too."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be done.")] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="Wait so long for a run that is going on already."
        ),
    ] = None,
    region: Regions = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run one job of a managed table if it is due, under its lease and its policy's limits."""
    from memwal.cli.progress import progress
    from memwal.fleet import run_job

    with open_catalog(url) as catalog, progress(f"{job} of {name}") as runner:
        found = run_job(
            catalog,
            name,
            job,
            run=runner,
            force=force,
            dry_run=dry_run,
            regions=region,
            wait=None if wait is None else duration(wait, "--wait"),
        )
    _print(found, as_json=as_json)


def retry(
    name: Name,
    region: Regions = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Merge the held regions of a table now, whenever their next try is due."""
    from memwal.cli.progress import progress
    from memwal.fleet import run_job

    with open_catalog(url) as catalog:
        catalog.get(name)
        known = {UUID(record.region_id) for record in catalog.setbacks.held(name)}
        wanted = known if region is None else set(region)
        if wanted - known:
            raise InvalidInputError(
                f"{name} does not hold region {', '.join(map(str, sorted(wanted - known)))}; "
                f"memwal jobs held --table {name} lists those that it holds"
            )
        if not wanted:
            if as_json:
                print_json({"held": []})
            else:
                print_line(f"no region of {name} is held")
            return
        with progress(f"merge of {name}") as runner:
            found = run_job(catalog, name, "merge", run=runner, force=True, regions=sorted(wanted))
    _print(found, as_json=as_json)


def _print(found: JobResult | Skipped, *, as_json: bool) -> None:
    from memwal.fleet import Skipped

    if not isinstance(found, Skipped):
        print_result(found, as_json=as_json)
    elif as_json:
        print_json(found.to_dict())
    else:
        print_line(str(found))
