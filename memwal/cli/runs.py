"""``memwal jobs``: jobs of the managed tables: to run one, what was done, who is at work."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from memwal.catalog.records import RunState
from memwal.cli import held as held_regions
from memwal.cli.catalog import CatalogUrl, open_catalog
from memwal.cli.completion import table_names
from memwal.cli.options import AsJson
from memwal.cli.output import age, print_fields, print_json, print_line, print_table, size, warn
from memwal.durations import duration

if TYPE_CHECKING:
    from memwal.catalog import JobRun

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command()(held_regions.run)
app.command()(held_regions.held)
app.command()(held_regions.retry)


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
