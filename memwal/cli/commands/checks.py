"""``memwal status``, ``verify`` and ``doctor``: check a table, or a store.

``status`` shows the backlog of each region, and the due jobs of a managed table. ``verify`` can
repair a table as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

from typer import Argument, Option

from memwal.boundary.text import age, plural, size, timestamp
from memwal.cli.commands.consumers import print_consumers
from memwal.cli.options import (
    TABLE_HELP,
    CatalogUrl,
    NameOrUri,
    RegionNames,
    find_regions,
    locate_named,
    managed_table,
    open_table,
    table_names,
    with_region_ids,
)
from memwal.cli.output import Output, print_line, print_records, print_table
from memwal.cli.parameters import Changes, Storage, takes_options_of
from memwal.errors import InvalidInputError
from memwal.jobs.options import VerifyOptions
from memwal.util.optional_deps import requires_extra
from memwal.util.versions import Feature, installed_versions

if TYPE_CHECKING:
    from memwal.fleet import Survey
    from memwal.jobs.status import TableStatus
    from memwal.jobs.table.store_check import Diagnosis, StoreCheck
    from memwal.jobs.verify import RepairAction, VerifyReport

# The bar moves once per task; each task scans the keys of the base table once.
_TASKS = 4


def status(
    table: NameOrUri,
    region: RegionNames = None,
    old_bytes: Annotated[
        bool | None,
        Option(
            "--old-bytes/--no-old-bytes",
            help="Add up the bytes that only older versions need: lists every file. By default on "
            "a local disk.",
        ),
    ] = None,
    *,
    storage: Storage,
    url: CatalogUrl = None,
) -> Output:
    """Show the size of a table and the gain of each job; of a managed table, the due jobs.

    Also shows the backlog of each region, how far indexes are behind, and how old the snapshot is.
    Generations, rows and bytes are flushed and not merged; log entries have rows that no generation
    covers yet, 0 if all rows are flushed; kept are merged generations that are still stored.
    """
    with managed_table(table, url) as (catalog, managed):
        if catalog is None or managed is None:
            opened = open_table(table, storage)
            regions = find_regions(opened.location, region)
            backlog = opened.status(regions=regions, old_bytes=old_bytes)
            _check_known(backlog, regions)
            return Output(backlog, partial(_print_status, backlog))
        from memwal.fleet import survey
        from memwal.fleet.tables import managed_location

        location = managed_location(managed, storage_options=storage or None)
        regions = find_regions(location, region)
        state = survey(
            catalog,
            managed,
            storage_options=storage or None,
            regions=regions,
            old_bytes=old_bytes,
        )
    _check_known(state.status, regions)
    return Output(state, partial(_print_survey, state))


def _check_known(status: TableStatus, regions: Collection[UUID] | None) -> None:
    """Raise InvalidInputError if a region that was asked for is not in a status."""
    unknown = {*map(str, regions or ())} - {found.region_id for found in status.regions}
    if unknown:
        raise InvalidInputError(
            f"{status.uri} has no region {', '.join(sorted(unknown))}; memwal status without "
            "--region lists those that were claimed"
        )


def _print_survey(state: Survey) -> None:
    _print_status(state.status)
    print_table(
        ("job", "due", "why", "pressure"),
        [
            (
                job,
                "now" if due.reason else "later" if due.postponed else "no",
                due.reason or due.postponed,
                f"{100 * due.pressure:.0f}%",
            )
            for job, due in state.due.items()
        ],
    )
    for record in state.skipped_regions:
        when = f"at {timestamp(record.next_try_at)} UTC" if record.waiting else "now"
        print_line(
            f"region {record.region_id} is skipped from generation {record.generation} after "
            f"{record.attempts} tries, next {when}: {record.reason}"
        )


def _print_status(status: TableStatus) -> None:
    print_line(f"{status.uri} at version {status.version}")
    if status.expired_versions is None:
        print_line("older versions stay until memwal gc or the policy sets a version retention")
    print_line(status.stored)
    if status.mem_wal:
        _print_regions(status)
    else:
        print_line(
            f"MemWAL is not enabled: memwal enable {status.uri}; a table that has no primary key "
            "yet takes --primary-key COLUMN, or --no-primary-key"
        )
    for problem in status.lost_refs:
        print_line(problem)
    if status.lost_progress:
        print_line(status.lost_progress)
    if status.indexes:
        print_records(
            status.indexes,
            ("index", "generations behind", "in regions", "rows behind"),
            ("name", "generations", "regions", "rows"),
        )
    print_consumers(status.consumers)
    bad = ", ".join(index.name for index in status.indexes if index.stale or index.damaged)
    if bad:
        print_line(
            f"indexes that miss rows or files, and are not used until memwal index ran: {bad}"
        )
    for job, gain in status.gains.items():
        print_line(f"a run of {job} would gain: {gain}")
    if not status.mem_wal:
        return
    taken = status.snapshot_age_seconds
    changed = f", {status.changed_regions} regions changed" if status.changed_regions else ""
    print_line("region snapshot: " + ("none" if taken is None else f"{age(taken)} old{changed}"))
    held = status.held_bytes
    protected = f"; held for writers of other clients: {size(held)}" if held else ""
    print_line(
        f"could be collected: {size(status.reclaimable_bytes)}, once no version within the "
        f"retention, tag or branch needs it{protected}"
    )


def _print_regions(status: TableStatus) -> None:
    from memwal.jobs.status import REGION_COLUMNS, region_cells

    oldest = max((region.oldest_backlog_seconds or 0 for region in status.regions), default=0)
    unflushed = sum(region.unflushed_wal_entries for region in status.regions)
    total = (
        "total",
        "",
        "",
        status.backlog_generations,
        status.backlog_rows,
        size(status.backlog_bytes),
        age(oldest if status.backlog_generations else None),
        unflushed,
        "",
        sum(region.retained_generations for region in status.regions),
    )
    print_table(REGION_COLUMNS, [*map(region_cells, status.regions), total])
    if unflushed:
        print_line(
            f"log entries that are not flushed: {unflushed}, the oldest "
            f"{age(status.oldest_unflushed_seconds)} old; only fresh reads see their rows"
        )
    if status.regions_to_recover:
        print_line(
            "regions with rows of writers that are closed or dead, which memwal recover flushes: "
            f"{status.regions_to_recover}"
        )


@takes_options_of(VerifyOptions, leave_out=("max_tasks",))
def verify(
    table: NameOrUri,
    changes: Changes,
    repair: Annotated[bool, Option("--repair", help="List safe repairs; --yes does them.")] = False,
    yes: Annotated[bool, Option("--yes", "--no-dry-run", help="Do the repairs.")] = False,
    *,
    storage: Storage,
    url: CatalogUrl = None,
) -> Output:
    """Check the invariants of a table, while others read and write it.

    Ends with 1 when there are errors. After repairs the table is checked again, and that result
    counts.
    """
    if yes and not repair:
        raise InvalidInputError("--yes only goes with --repair")
    location, policy = locate_named(table, url, storage)
    if policy is not None and policy.quality is not None:
        changes = {"quarantine_uri": policy.quality.quarantine_uri} | changes
    changes = with_region_ids(location, changes)
    options = VerifyOptions(max_tasks=_TASKS, **changes, progress=True)
    from memwal.jobs.verify import repair as do_repair
    from memwal.jobs.verify import verify as check

    report = check(location, options)
    actions: Sequence[RepairAction] = ()
    if repair:
        actions = do_repair(
            location, report, dry_run=not yes, quarantine_uri=options.quarantine_uri
        )
        if any(action.state == "done" for action in actions):
            report = check(location, options)
    value = {**report.to_dict(), "repairs": actions}
    return Output(value, partial(_print_report, report, actions), failed=bool(report.errors))


def _print_report(report: VerifyReport, actions: Sequence[RepairAction]) -> None:
    notes = len(report.findings) - report.errors - report.warnings
    print_line(
        f"verify: {report.errors} errors, {report.warnings} warnings, {notes} notes; "
        f"{report.regions} regions in {report.seconds:.1f} s; the table is at version "
        f"{report.version}"
    )
    if report.findings:
        print_records(
            report.findings,
            ("severity", "code", "region", "object", "what", "what to do"),
            ("severity", "code", "region", "object", "text", "advice"),
        )
    if actions:
        columns = ("finding.repair", "state", "finding.object", "text")
        print_records(actions, ("repair", "state", "object", "what"), columns)
        if any(action.state == "would" for action in actions):
            print_line("a dry run: nothing was repaired; --yes repairs")


def doctor(
    table: Annotated[
        str | None,
        Argument(metavar="TABLE", help=TABLE_HELP, autocompletion=table_names),
    ] = None,
    airflow: Annotated[
        bool,
        Option(
            "--airflow",
            help="Check whether the triggerers of Airflow have the seats that the tables of the "
            "catalog need; on a machine of Airflow.",
        ),
    ] = False,
    versions: Annotated[
        bool,
        Option(
            "--versions",
            help="List the versions of the packages that memwal uses, and what they lack.",
        ),
    ] = False,
    *,
    storage: Storage,
    url: CatalogUrl = None,
) -> Output:
    """Check whether a store is fit for tables, Airflow, or versions; with advice for each problem.

    The table need not exist. Checks permissions, put-if-absent under a small race, clocks,
    latencies, Lance's own commits, and where credentials come from; about four hundred small
    requests. Deletes the objects that it wrote. Ends with 1 when there are errors.
    """
    from memwal.jobs.table.store_check import Diagnosis, diagnose

    if (table is not None) + airflow + versions != 1:
        raise InvalidInputError(
            "name the TABLE whose store is checked, or give --airflow or --versions"
        )
    if airflow:
        diagnosis = Diagnosis("Airflow", _airflow_checks(url))
    elif table is None:
        diagnosis = Diagnosis("versions", tuple(_version_checks()))
    else:
        diagnosis = diagnose(locate_named(table, url, storage)[0])
    return Output(diagnosis, partial(_print_diagnosis, diagnosis), failed=bool(diagnosis.errors))


def _airflow_checks(url: str | None) -> tuple[StoreCheck, ...]:
    """Return the checks of Airflow's seats."""
    from memwal.jobs.table.store_check import CheckState, StoreCheck

    with requires_extra("airflow"):
        if find_spec("airflow") is None:
            raise ModuleNotFoundError("No module named 'airflow'", name="airflow")
    checks = _ask_airflow("memwal_airflow.seats", url)
    return tuple(StoreCheck(**{**check, "state": CheckState(check["state"])}) for check in checks)


def _version_checks() -> Iterator[StoreCheck]:
    """Yield the version of each package, with the features of newer ones that it lacks."""
    from memwal.jobs.table.store_check import CheckState, StoreCheck
    from memwal.spark.version_compat import FEATURES as spark_features

    installed = installed_versions()
    for name, version in installed.items():
        yield StoreCheck(name, CheckState.OK, version)
    lacking = []
    if "pyspark" in installed:
        lacking += [feature for feature in spark_features if not feature.here]
    if "apache-airflow" in installed:
        answer = _ask_airflow("memwal_airflow.version_compat")
        lacking += [Feature(**values) for values in answer]
    for feature in lacking:
        advice = f"{feature.package} {feature.since} has it"
        yield StoreCheck(feature.name, CheckState.WARNING, feature.without, advice)


def _ask_airflow(module: str, url: str | None = None) -> list[dict[str, Any]]:
    """Return the records that a process of Airflow prints, in its last line."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", module],
        env={**os.environ, **({"MEMWAL_CATALOG_URL": url} if url else {})},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise InvalidInputError(
            "Airflow's settings, its database or the catalog cannot be read here, see the error "
            "above; run this on a machine of Airflow, such as that of the scheduler"
        )
    answer: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    print_table(
        ("check", "state", "what", "what to do"),
        [(c.name, c.state.value, c.text, c.advice or None) for c in diagnosis.checks],
    )
    print_line(f"doctor: {plural(diagnosis.errors, 'error')}; {diagnosis.uri}")
