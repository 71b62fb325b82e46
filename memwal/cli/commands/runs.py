"""``memwal jobs``: run a job of a managed table; show runs, leases and skipped regions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from typer import Argument, Option

from memwal.boundary.text import age, size, timestamp
from memwal.cli.options import Name, RegionNames, TableFilter, find_regions
from memwal.cli.output import Output, job_output, print_fields, print_line, records_output, warn
from memwal.cli.parameters import CommandGroup
from memwal.errors import InvalidInputError
from memwal.jobs.job import RunState
from memwal.util.clock import duration

if TYPE_CHECKING:
    from memwal.catalog import Catalog, JobRun
    from memwal.catalog.backoff import SkippedRegionRecord

app = CommandGroup()


@app.callback()
def jobs() -> None:
    """Run maintenance jobs of managed tables; show their runs, leases, and skipped regions."""


@app.command()
def run(
    name: Name,
    job: Annotated[
        str, Argument(metavar="JOB", help="merge, index, compact, snapshot, gc, quality.")
    ],
    force: Annotated[
        bool,
        Option("--force", help="Now: due or not, in quiet hours, and skipped regions as well."),
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would run.")] = False,
    wait: Annotated[
        float | None,
        Option(
            min=0, metavar="SECONDS", help="How long to wait for a run that is going on already."
        ),
    ] = None,
    region: RegionNames = None,
    *,
    catalog: Catalog,
) -> Output:
    """Run one job of a managed table if it is due, under its lease and its policy's limits."""
    from memwal.fleet import JobRequest, Runtime, run_job
    from memwal.fleet.tables import managed_location

    request = JobRequest(
        name,
        job,
        force=force,
        dry_run=dry_run,
        regions=find_regions(managed_location(catalog.get(name)), region),
        wait=None if wait is None else duration(wait, "--wait"),
    )
    outcome = run_job(catalog, request, runtime=Runtime(progress=True))
    return job_output(outcome)


@app.command()
def skipped(table: TableFilter = None, *, catalog: Catalog) -> Output:
    """List the regions that merges skip since they cannot be read."""

    def next_try(record: SkippedRegionRecord) -> datetime | str:
        return record.next_try_at if record.waiting else "now"

    return records_output(
        catalog.backoffs.skipped_regions(table),
        ("table", "region", "generation", "since", "tries", "next try", "why"),
        ("table", "region_id", "generation", "since", "attempts", next_try, "reason"),
    )


@app.command()
def retry(name: Name, region: RegionNames = None, *, catalog: Catalog) -> Output:
    """Merge the skipped regions of a table now, whenever their next try is due."""
    from memwal.fleet import JobRequest, Runtime, run_job
    from memwal.fleet.tables import managed_location

    location = managed_location(catalog.get(name))
    skipped = {UUID(record.region_id) for record in catalog.backoffs.skipped_regions(name)}
    regions = set(find_regions(location, region) or skipped)
    if regions - skipped:
        raise InvalidInputError(
            f"{name} does not skip region {', '.join(map(str, sorted(regions - skipped)))}; "
            f"memwal jobs skipped --table {name} lists those that it skips"
        )
    if not regions:
        return Output({"skipped_regions": []}, f"no region of {name} is skipped")
    request = JobRequest(name, "merge", force=True, regions=sorted(regions))
    outcome = run_job(catalog, request, runtime=Runtime(progress=True))
    return job_output(outcome)


@app.command(name="list")
def list_runs(
    table: TableFilter = None,
    job: Annotated[
        str | None, Option(metavar="JOB", help="This job only: merge, index, ...")
    ] = None,
    state: Annotated[RunState | None, Option(help="Only in this state.")] = None,
    since_hours: Annotated[
        float | None, Option(min=0, metavar="N", help="In the last N hours.")
    ] = None,
    limit: Annotated[int, Option(min=1, metavar="N", help="Most runs to show.")] = 20,
    *,
    catalog: Catalog,
) -> Output:
    """List runs, the newest first."""
    since = None
    if since_hours is not None:
        since = datetime.now(UTC) - duration(3600 * since_hours, "--since-hours")
    runs = catalog.runs(table=table, job=job, state=state, since=since, limit=limit + 1)
    if len(runs) > limit:
        warn(f"only the newest {limit} runs are shown; --limit shows more")
    return records_output(
        runs[:limit],
        ("run", "table", "job", "state", "started", "took", "progress", "rows", "bytes", "version"),
        (
            "run_id",
            "table",
            "job",
            "state",
            "started_at",
            _duration,
            _progress,
            "rows",
            _size,
            _version,
        ),
    )


@app.command()
def show(
    run: Annotated[int, Argument(metavar="RUN", help="Number of the run.")],
    catalog: Catalog,
) -> Output:
    """Show the record of a run."""
    record = catalog.run(run)
    return Output(record, partial(_print_run, record))


def _print_run(record: JobRun) -> None:
    beat = timestamp(record.heartbeat_at)
    print_fields(
        [
            ("run", record.run_id),
            ("table", record.table),
            ("job", record.job),
            ("state", record.state.value),
            ("started", f"{timestamp(record.started_at)} UTC"),
            ("took", _duration(record)),
            ("last heartbeat", beat and f"{beat} UTC"),
            ("progress", _progress(record)),
            ("rows", record.rows),
            ("bytes", _size(record)),
            ("version", _version(record)),
            ("lease token", record.lease_token),
            ("started by", record.external_id),
            ("error", record.error),
        ]
    )
    if record.result is not None:
        print_line(f"result  {json.dumps(record.result)}")


@app.command()
def leases(
    ended: Annotated[
        bool, Option("--ended", help="Ended leases as well, with their token.")
    ] = False,
    *,
    catalog: Catalog,
) -> Output:
    """List the leases and their holders."""
    return records_output(
        catalog.leases.list(held_only=not ended),
        ("resource", "holder", "token", "since", "until", "held"),
        ("resource", "holder", "token", "acquired_at", "expires_at", "held"),
    )


@app.command()
def release(
    resource: Annotated[str, Argument(metavar="RESOURCE", help="As `leases` shows it.")],
    force: Annotated[
        bool, Option("--force", help="Its holder is dead, or will be stopped.")
    ] = False,
    token: Annotated[int | None, Option(metavar="N", help="Only if it has this token.")] = None,
    *,
    catalog: Catalog,
) -> Output:
    """End a lease by force. Leases of processes that died end by themselves."""
    if not force:
        raise InvalidInputError(
            "a lease that is taken from a running process lets a second one start; when its holder "
            "is dead and you cannot wait, give --force"
        )
    lease = catalog.leases.release(resource, token=token)
    if lease.held:
        warn(
            f"{lease.holder} had {resource} with token {lease.token}; if that process still "
            "runs, it stops at its next check of the lease"
        )
    return Output(lease, f"{resource} is free" + ("" if lease.held else "; it was not held"))


def _progress(run: JobRun) -> str | None:
    if run.done is None or not run.total:
        return None
    return f"{run.done}/{run.total} ({100 * run.done // run.total}%)"


def _version(run: JobRun) -> str | None:
    if run.version_before is None or run.version_before == run.version_after:
        return None if run.version_after is None else str(run.version_after)
    return f"{run.version_before} > {run.version_after or '?'}"


def _duration(run: JobRun) -> str:
    is_running = run.state is RunState.RUNNING
    end = run.finished_at or (datetime.now(UTC) if is_running else run.heartbeat_at)
    return age(max(0.0, (end - run.started_at).total_seconds()) if end else None)


def _size(run: JobRun) -> str | None:
    return None if run.bytes is None else size(run.bytes)
