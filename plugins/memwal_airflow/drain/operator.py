"""The operator that runs the due jobs of many tables in one process.

State that a process leaves behind if it is killed, or paused for long, at any moment:

- Before a job: nothing. The retry, or the run of the next announcement, begins anew with the jobs
  that are due by then.
- In a job: its lease, for a minute, and a run that becomes ``abandoned``. The table counts as
  served for this minute, is due after it, and is announced again. Commits of the job stay; a
  process that wakes up later checks its lease before the next commit.
- Between a job and the end of the task: the updates of the assets. They follow from the runs of
  this task in the catalog, so that the retry makes them.
- After the end of the task: nothing.

Two such tasks may serve one table at once, as when it is announced a second time while it waits
for its turn. Each job has a lease, and is left out under it if it has succeeded since the survey.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import AssetAlias, BaseOperator, Context

import memwal.catalog
from memwal.catalog.records import DAG_JOB, ManagedTable
from memwal.errors import ConflictError, InvalidInputError, MemWalError
from memwal.jobs.due import JOBS
from memwal.jobs.job import Guard, JobResult, RunState, sentence
from memwal.util.records import JsonMapping, JsonObject
from memwal_airflow.assets import indexed_asset, merged_asset
from memwal_airflow.drain.settings import is_here
from memwal_airflow.due_dag import RECENT, still_due
from memwal_airflow.hooks.storage_options import read_options
from memwal_airflow.notifications.events import notify_events
from memwal_airflow.notifications.failures import LATE
from memwal_airflow.operators.base import external_id, merge_extra, region_ids
from memwal_airflow.operators.lineage import job_lineage
from memwal_airflow.operators.maintenance import has_unmet, is_small
from memwal_airflow.provider.settings import DRAIN_JOBS, DRAIN_SECONDS
from memwal_airflow.run_params import includes
from memwal_airflow.skips import TaskSkipped, TaskSkipReason
from memwal_airflow.spark.connected import ConnectServer, connect_server, run_connected
from memwal_airflow.version_compat import (
    XCOM_SKIPMIXIN_FOLLOWED,
    XCOM_SKIPMIXIN_KEY,
    AirflowException,
    AirflowFailException,
)

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from memwal.fleet import Fleet, JobSpec, Outcome

DRAINED_ALIAS: Final = "memwal:drained"
"""Alias of the assets of tables that were merged or indexed."""

DEFAULT_POOL: Final = "default_pool"
"""Airflow's name of the pool of tasks that name none."""

_RUN_BYTES = 1 << 30
_WAIT = timedelta(minutes=2)
_NOTIFY_SECONDS = 5.0
_MAX_RUNS = 10_000
_BY_HAND = ("jobs", "regions", "force", "dry_run")


def pool_of(table: ManagedTable) -> str:
    """Return the name of the pool in Airflow that the jobs of a table take a slot of."""
    return table.policy.pool or DEFAULT_POOL


def wanted_tables(
    catalog: memwal.catalog.Catalog, events: Mapping[Any, Iterable[Any]], params: JsonMapping
) -> list[ManagedTable]:
    """Return the enabled tables that a run of the DAG is for.

    With events, the tables that the events name and that no run has served since; else the tables
    of the parameter ``tables``, or all that start when due. Raises InvalidInputError if a table
    that is asked for by hand is not maintained.
    """
    tables = {table.name: table for table in catalog.list(enabled_only=True)}
    named = [event for updates in events.values() for event in updates]
    if named:
        return [tables[name] for name in still_due(catalog, named) if name in tables]
    asked = params.get("tables") or [t.name for t in tables.values() if t.starts_when_due]
    unknown = sorted(set(asked) - tables.keys())
    if unknown:
        raise InvalidInputError(f"No table named {', '.join(unknown)} is registered and enabled.")
    return [tables[name] for name in asked]


class MemWalDrainOperator(BaseOperator):
    """Runs the due jobs of the tables of one pool, in this process, until nothing is due.

    Each job has its lease and its record in the catalog, and a job that fails stops no other: its
    next try is delayed in the catalog, and the task succeeds. Returns ``tables``, ``jobs`` (how
    often each was done) and ``failed`` (reasons by table and job). Skipped if no table is due.

    With a Spark Connect server, the tasks of the jobs run there if the table stores at least
    ``[memwal] local_below_bytes``, in one session for all tables of the pool.

    Parameters
    ----------
    failed_task_id : str
        Id of the task behind this one that fails if a job failed. It is skipped otherwise.
    **kwargs
        As of ``BaseOperator``; the tables are the ones whose policy names its ``pool``.
    """

    # Lets Airflow ask which of the tasks behind it such a task has chosen, as for a branch.
    inherits_from_skipmixin = True

    def __init__(self, *, failed_task_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.failed_task_id = failed_task_id
        self._fleet: Fleet | None = None
        self._killed = False
        self._report: Report | None = None
        # By reference: the options, or why they cannot be read.
        self._options: dict[str | None, dict[str, str] | Exception | None] = {}
        self._server: ConnectServer | None = None

    def execute(self, context: Context) -> JsonObject:
        """Run the jobs, and return a report of them."""
        params = context["params"]
        with closing(memwal.catalog.Catalog()) as catalog:
            try:
                wanted = wanted_tables(catalog, context["triggering_asset_events"], params)
            except InvalidInputError as error:
                raise AirflowFailException(str(error)) from error
            tables = [table for table in wanted if pool_of(table) == self.pool]
            if not tables:
                raise TaskSkipped(
                    "A run has served each table of the pool since it was announced.",
                    reason=TaskSkipReason.NOTHING_TO_DO,
                )
            self._report = report = Report(tables=len(tables), log=self.log)
            self._prepare(catalog, tables)
            if any(params.get(name) for name in _BY_HAND):
                self._run_by_hand(catalog, tables, context, report)
            else:
                self._run_due(catalog, tables, context, report)
            self.raise_if_killed()
            self._update_assets(catalog, context)
        followed = [self.failed_task_id] if report.failed else []
        context["ti"].xcom_push(key=XCOM_SKIPMIXIN_KEY, value={XCOM_SKIPMIXIN_FOLLOWED: followed})
        if report.failed:
            notify_events(tables=list(report.failed), attempts=1, timeout=_NOTIFY_SECONDS)
        return report.to_dict()

    def get_openlineage_facets_on_complete(
        self, task_instance: Any
    ) -> OperatorLineage[Any, Any] | None:
        """Return the lineage of the jobs that ended; None if no table was due."""
        return None if self._report is None else job_lineage(self._report.results)

    def on_kill(self) -> None:
        """End the running jobs before their next commit."""
        self._killed = True
        if self._fleet is not None:
            self._fleet.stop()

    def raise_if_killed(self) -> None:
        """Raise when Airflow has asked the task to end."""
        if self._killed:
            raise ConflictError("Airflow asked the task to end, so its jobs do not continue.")

    def _prepare(self, catalog: memwal.catalog.Catalog, tables: Collection[ManagedTable]) -> None:
        """Read the settings that only this thread may ask for, and end failures of tables' DAGs.

        These are of the time when the tables had a DAG each.
        """
        self._server = connect_server()
        for ref in {table.storage_options_ref for table in tables}:
            try:
                self._options[ref] = read_options(ref)
            except (AirflowException, MemWalError) as error:
                self._options[ref] = error
        names = {table.name for table in tables}
        for failed in catalog.backoffs.failed_jobs():
            if failed.table in names and failed.job in (LATE, DAG_JOB):
                catalog.backoffs.clear_failure(failed.table, failed.job)

    def _options_of(self, table: ManagedTable) -> dict[str, str] | None:
        options = self._options[table.storage_options_ref]
        if isinstance(options, Exception):
            raise options
        return options

    def _run_due(
        self,
        catalog: memwal.catalog.Catalog,
        tables: Iterable[ManagedTable],
        context: Context,
        report: Report,
    ) -> None:
        from memwal.fleet import Budget, Fleet, Runtime

        self._fleet = fleet = Fleet(
            catalog,
            budget=Budget(jobs=DRAIN_JOBS.read(), bytes=_RUN_BYTES),
            tables=[table.name for table in tables],
            storage_options=self._options_of,
            on_outcome=report.add,
            runtime=Runtime(execute=self._execute_job, external_id=external_id(context)),
        )
        self.raise_if_killed()
        fleet.run_once(seconds=DRAIN_SECONDS.read())

    def _run_by_hand(
        self,
        catalog: memwal.catalog.Catalog,
        tables: Iterable[ManagedTable],
        context: Context,
        report: Report,
    ) -> None:
        """Run the jobs that the parameters ask for, table by table, in the order of a run."""
        from memwal.fleet import JobRequest, Outcome, Runtime, run_job
        from memwal.fleet.polls import FailureTracker

        params = context["params"]
        regions = region_ids(params.get("regions") or ()) or None
        for table, job in ((table, job) for table in tables for job in JOBS):
            rules = table.policy.quality
            has_job = job != "quality" or (rules is not None and rules.suite)
            if not includes(params, job) or not has_job:
                continue
            request = JobRequest(
                table.name,
                job,
                force=bool(params.get("force")),
                dry_run=bool(params.get("dry_run")),
                regions=regions if job == "merge" else None,
                wait=_WAIT,
            )
            self.raise_if_killed()
            try:
                runtime = Runtime(
                    execute=self._execute_job,
                    guard=self.raise_if_killed,
                    storage_options=self._options_of(table),
                    external_id=external_id(context),
                )
                result = run_job(catalog, request, runtime=runtime)
            except (AirflowException, MemWalError) as error:
                self.raise_if_killed()
                outcome = FailureTracker(catalog).record(table.name, job, "", error)
            else:
                outcome = Outcome(table=table.name, job=job, reason="", result=result)
            report.add(outcome)

    def _execute_job(self, spec: JobSpec, guard: Guard) -> JobResult | None:
        """Run the tasks of a job of a large table on the Spark Connect server; None leaves it here.

        The guard raises also when the task is to end.
        """
        options = self._options_of(spec.table)
        if is_small(spec, options):
            return None
        if self._server is None:
            if is_here():
                return None
            raise InvalidInputError(
                f"{spec.table.name} is too large for the process of a task, and its Spark is "
                "neither local nor a Spark Connect server; set [memwal] table_dags to each, or "
                "spark_master to such a server"
            )
        return run_connected(
            self._server,
            spec,
            storage_options=options,
            py_files=None,
            guard=guard,
            raise_if_killed=lambda: None,
            session=f"memwal {self.pool}",
        )

    def _update_assets(self, catalog: memwal.catalog.Catalog, context: Context) -> None:
        """Update the assets of the tables that all tries of this task merged and indexed."""
        own, updates = external_id(context), context["outlet_events"][AssetAlias(DRAINED_ALIAS)]
        since = context["dag_run"].run_after - RECENT
        runs = catalog.runs(state=RunState.SUCCEEDED, since=since, limit=_MAX_RUNS)
        for run in sorted(runs, key=lambda run: run.run_id):
            result = run.result or {}
            if run.external_id != own:
                continue
            if run.job == "merge" and result["metrics"]["generations"]:
                updates.add(merged_asset(run.table), extra=merge_extra(result))
            elif run.job == "index" and result["commits"]:
                updates.add(indexed_asset(run.table), extra={"version": result["version"]})


@dataclass(kw_only=True)
class Report:
    """Counts and failures of a task so far, and its log: a line for each job that ended."""

    tables: int
    log: Any
    jobs: dict[str, int] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    results: list[JsonObject] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        """Count an outcome, and write it to the log of the task."""
        self._seen.add(outcome.table)
        result, why = outcome.result, failure_of(outcome)
        if isinstance(result, JobResult):
            self.jobs[outcome.job] = self.jobs.get(outcome.job, 0) + 1
            self.results.append(result.to_dict())
            text = sentence(result)
        else:
            text = f"{outcome.job}: {result.reason if result is not None else 'ended'}"
        if why is not None:
            self.failed.setdefault(outcome.table, {})[outcome.job] = why
            text = f"{outcome.job} failed: {why}"
        write = self.log.info if why is None else self.log.error
        write("table %d of %d, %s: %s", len(self._seen), self.tables, outcome.table, text)

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        return {"tables": self.tables, "jobs": self.jobs, "failed": self.failed}


def failure_of(outcome: Outcome) -> str | None:
    """Return why an outcome is a failure; None if it is none.

    So is a merge of which all due regions cannot be read, and a critical expectation that is not
    met: the catalog does not have these as failed jobs.
    """
    result = outcome.result
    if outcome.failed:
        return "see above" if outcome.failed_job is None else outcome.failed_job.reason
    if not isinstance(result, JobResult):
        return None
    is_stuck = result.skipped_regions and not result.metrics["generations"]
    is_unmet = result.job == "quality" and has_unmet(result.to_dict())
    return result.warnings[0] if is_stuck or is_unmet else None
