"""``memwal jobs``: run a job of a managed table; show runs, leases and skipped regions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from memwal.cli.options import AsJson, CatalogUrl, Name, Regions, open_catalog, table_names
from memwal.cli.output import (
    age,
    print_fields,
    print_json,
    print_line,
    print_result,
    print_table,
    size,
    warn,
)
from memwal.errors import InvalidInputError
from memwal.jobs.job import RunState
from memwal.util.clock import duration

if TYPE_CHECKING:
    from memwal.catalog import JobRun
    from memwal.fleet import Skipped
    from memwal.jobs.job import JobResult


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
        found = catalog.backoffs.skipped_regions(table)
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
    from memwal.cli.output import progress
    from memwal.fleet import JobRequest, Runtime, run_job

    with open_catalog(url) as catalog, progress(f"{job} of {name}") as runner:
        found = run_job(
            catalog,
            JobRequest(
                name,
                job,
                force=force,
                dry_run=dry_run,
                regions=region,
                wait=None if wait is None else duration(wait, "--wait"),
            ),
            runtime=Runtime(run=runner),
        )
    _print(found, as_json=as_json)


def retry(
    name: Name,
    region: Regions = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Merge the held regions of a table now, whenever their next try is due."""
    from memwal.cli.output import progress
    from memwal.fleet import JobRequest, Runtime, run_job

    with open_catalog(url) as catalog:
        catalog.get(name)
        known = {UUID(record.region_id) for record in catalog.backoffs.skipped_regions(name)}
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
            request = JobRequest(name, "merge", force=True, regions=sorted(wanted))
            found = run_job(catalog, request, runtime=Runtime(run=runner))
    _print(found, as_json=as_json)


def _print(found: JobResult | Skipped, *, as_json: bool) -> None:
    from memwal.fleet import Skipped

    if not isinstance(found, Skipped):
        print_result(found, as_json=as_json)
    elif as_json:
        print_json(found.to_dict())
    else:
        print_line(str(found))


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command()(run)
app.command()(held)
app.command()(retry)


@app.callback()
def jobs() -> None:
    """Run maintenance jobs of managed tables; show their runs, leases, and what they hold."""


@app.command(name="list")
def list_runs(
    table: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only of this managed table.",
            autocompletion=table_names,
        ),
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="JOB", help="Only of this job: merge, index, ...")
    ] = None,
    state: Annotated[RunState | None, typer.Option(help="Only in this state.")] = None,
    since_hours: Annotated[
        float | None, typer.Option(min=0, metavar="N", help="Only started so recently.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Most runs to show.")] = 20,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    now = datetime.now(UTC)
    with open_catalog(url) as catalog:
        found = catalog.runs(
            table=table,
            job=job,
            state=state,
            since=None
            if since_hours is None
            else now - duration(3600 * since_hours, "--since-hours"),
            limit=limit,
        )
    if as_json:
        print_json([run.to_dict() for run in found])
        return
    print_table(
        ("run", "table", "job", "state", "started", "took", "progress", "rows", "bytes", "version"),
        [
            (
                run.run_id,
                run.table,
                run.job,
                run.state.value,
                f"{run.started_at:%Y-%m-%d %H:%M:%S}",
                _took(run, now),
                _progress(run),
                run.rows,
                None if run.bytes is None else size(run.bytes),
                _versions(run),
            )
            for run in found
        ],
    )


@app.command()
def show(
    run: Annotated[int, typer.Argument(metavar="RUN", help="Number of the run.")],
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show all that is known of a run."""
    with open_catalog(url) as catalog:
        found = catalog.run(run)
    if as_json:
        print_json(found.to_dict())
        return
    beat = found.heartbeat_at
    print_fields(
        [
            ("run", found.run_id),
            ("table", found.table),
            ("job", found.job),
            ("state", found.state.value),
            ("started", f"{found.started_at:%Y-%m-%d %H:%M:%S} UTC"),
            ("took", _took(found, datetime.now(UTC))),
            ("last sign of life", f"{beat:%Y-%m-%d %H:%M:%S} UTC" if beat else None),
            ("progress", _progress(found)),
            ("rows", found.rows),
            ("bytes", None if found.bytes is None else size(found.bytes)),
            ("version", _versions(found)),
            ("lease token", found.lease_token),
            ("started by", found.external_id),
            ("error", found.error),
        ]
    )
    if found.result is not None:
        print_line(f"result  {json.dumps(found.result)}")


@app.command()
def leases(
    ended: Annotated[
        bool, typer.Option("--ended", help="Also those that are over, with their last token.")
    ] = False,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """List who is at work on what."""
    with open_catalog(url) as catalog:
        found = catalog.leases.list(held_only=not ended)
    if as_json:
        print_json([lease.to_dict() for lease in found])
        return
    print_table(
        ("resource", "holder", "token", "since", "until", "held"),
        [
            (
                lease.resource,
                lease.holder,
                lease.token,
                f"{lease.acquired_at:%Y-%m-%d %H:%M:%S}",
                f"{lease.expires_at:%Y-%m-%d %H:%M:%S}" if lease.expires_at else None,
                lease.held,
            )
            for lease in found
        ],
    )


@app.command()
def release(
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help="As `leases` shows it.")],
    force: Annotated[
        bool, typer.Option("--force", help="Yes: its holder is dead, or will be stopped.")
    ] = False,
    token: Annotated[
        int | None,
        typer.Option(metavar="N", help="Only while this is its token."),
    ] = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """End a lease by force. Leases of processes that died end by themselves."""
    from memwal.errors import InvalidInputError

    if not force:
        raise InvalidInputError(
            "a lease that is taken from a process at work lets a second one start; when it is "
            "dead and waiting is no choice, give --force"
        )
    with open_catalog(url) as catalog:
        ended = catalog.leases.release(resource, token=token)
    if ended.held:
        warn(
            f"{ended.holder} had {resource} with token {ended.token}; if it lives, it stops at its "
            "next look at the lease"
        )
    if as_json:
        print_json(ended.to_dict())
    else:
        print_line(f"{resource} is free" + ("" if ended.held else "; nobody had it"))


def _progress(run: JobRun) -> str | None:
    if run.done is None or not run.total:
        return None
    return f"{run.done}/{run.total} ({100 * run.done // run.total}%)"


def _versions(run: JobRun) -> str | None:
    if run.version_before is None or run.version_before == run.version_after:
        return None if run.version_after is None else str(run.version_after)
    return f"{run.version_before} > {run.version_after or '?'}"


def _took(run: JobRun, now: datetime) -> str:
    end = run.finished_at or (now if run.state is RunState.RUNNING else run.heartbeat_at)
    return age(max(0.0, (end - run.started_at).total_seconds()) if end else None)
