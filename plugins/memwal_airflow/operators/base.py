"""Base class of the operators: starts or reattaches to one Spark application, and ends it."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from airflow.sdk import BaseOperator, Context

import memwal.catalog
from memwal.catalog.records import ManagedTable
from memwal.errors import InvalidInputError, MemWalError, NewerFormatError
from memwal.jobs.job import JobResult, summary
from memwal.jobs.policy import Policy
from memwal.util.records import JsonMapping, JsonObject
from memwal_airflow.hooks.storage_options import options_file, read_options
from memwal_airflow.links import (
    SparkUiLink,
    TablePageLink,
    pod_address,
    spark_application,
    table_address,
)
from memwal_airflow.operators.lineage import job_lineage
from memwal_airflow.run_params import includes
from memwal_airflow.skips import TaskSkipped, TaskSkipReason
from memwal_airflow.spark.application import (
    RESULT_FILE,
    RunningJob,
    SparkApplicationError,
    SparkJob,
    error_of_line,
    new_job_folder,
)
from memwal_airflow.spark.reattach import (
    EarlierTry,
    clear_state,
    find_earlier_try,
    save_state,
)
from memwal_airflow.version_compat import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from memwal.fleet import Skipped
    from memwal.jobs.status import TableStatus
    from memwal_airflow.kubernetes.cluster import TaskDriver
    from memwal_airflow.spark.submit import JobSubmitHook


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A table to run a job on."""

    catalog: memwal.catalog.Catalog  # Temporary for a table that is in no catalog.
    managed: ManagedTable
    storage_options_ref: str | None
    storage_options: dict[str, str] | None

    @property
    def name(self) -> str:
        return self.managed.name


@contextmanager
def open_target(
    table: str | None,
    uri: str | None,
    storage_options_ref: str | None,
    policy: Policy | JsonMapping | None,
) -> Iterator[Target]:
    """Find a table in the catalog by name, or register an address in a temporary catalog."""
    if table is not None:
        with closing(memwal.catalog.Catalog()) as catalog:
            managed = catalog.get(table)
            ref = storage_options_ref or managed.storage_options_ref
            yield _target(catalog, managed, ref)
        return
    with (
        tempfile.TemporaryDirectory(prefix="memwal-") as folder,
        # With its own snapshot: Airflow's must not be rewritten with this table alone.
        closing(
            memwal.catalog.Catalog(
                f"sqlite:///{Path(folder, 'catalog.db')}", snapshot_path=Path(folder, "tables.json")
            )
        ) as catalog,
    ):
        # A message about this catalog, which ends with the task, would not help any reader.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        catalog.migrate()
        if not isinstance(policy, Policy):
            policy = Policy.from_dict(policy or {})
        managed = catalog.register("table", uri=uri or "", policy=policy)
        yield _target(catalog, managed, storage_options_ref)


def _target(catalog: memwal.catalog.Catalog, managed: ManagedTable, ref: str | None) -> Target:
    return Target(
        catalog=catalog,
        managed=managed,
        storage_options_ref=ref,
        storage_options=read_options(ref),
    )


def region_ids(regions: Iterable[object]) -> set[UUID]:
    """Parse the regions of an operator or a run; raise InvalidInputError unless all are UUIDs."""
    try:
        return {UUID(str(region)) for region in regions}
    except ValueError:
        raise InvalidInputError(
            f"{list(regions)} is not a list of regions; a region is named by its UUID."
        ) from None


# Maximum length in the catalog; names in Airflow can be longer.
_MAX_ID_LENGTH = 400


class MemWalOperator(BaseOperator):
    """Runs one job on one table, as a Spark application that ``spark-submit`` starts.

    A job on a table of the catalog has a lease, so that no other process does the same at once,
    and a record of the run. A job on a ``table_uri`` has neither: two such tasks can do the same
    work twice, which costs time and harms nothing.

    The driver runs on this machine or, in cluster mode, in a Kubernetes pod. Ending a task ends
    its application: the JVM, its driver and its workers. When the task's own process is killed,
    the application continues, and the retry waits for it instead of starting another.

    Parameters of a DAG run: ``jobs``, a list, skips all other jobs; ``dry_run`` and ``force`` are
    as below. Returns ``JobResult.to_dict()``, which is also recorded in the catalog.

    Parameters
    ----------
    table : str, optional
        Name of a table in the catalog.
    table_uri : str, optional
        Address of a table that is in no catalog, in place of ``table``.
    storage_options_ref : str, optional
        Path of a JSON file, or ``airflow:{connection id}``; default: that of the catalog. The
        options themselves never appear on the command line.
    policy : Policy or mapping, optional
        Limits that differ from the defaults, for a ``table_uri`` only.
    force : bool, default False
        Run although not due, in quiet hours, and on skipped regions.
    dry_run : bool, default False
        Change nothing; the task is skipped, and its log names the work that would be done.
    wait : timedelta, default 2 min
        How long to wait for another process that holds the lease, before the task is skipped. The
        lease of a dead process expires within a minute.
    spark_conn_id : str, optional
        Airflow connection of a Spark cluster, or, of type ``spark_connect``, of a Spark Connect
        server; default: ``spark_conn_id`` or ``spark_master`` in section ``[memwal]`` of
        ``airflow.cfg``, else ``local[*]``.
    spark_options : mapping, optional
        ``master``, a Spark master URL in place of a connection; ``deploy_mode``, ``client`` or
        ``cluster``, by default that of the connection, else ``[memwal] deploy_mode``; ``conf``,
        Spark properties; and other options of the provider's ``SparkSubmitHook``, for example
        ``driver_memory``.
    **kwargs
        As of ``BaseOperator``. Two retries by default.

    Raises
    ------
    InvalidInputError
        Neither ``table`` nor ``table_uri`` is given, or both; or another argument is invalid.
    """

    job: ClassVar[str]
    template_fields: Sequence[str] = (
        "table",
        "table_uri",
        "storage_options_ref",
        "spark_conn_id",
        "spark_options",
    )
    operator_extra_links = (SparkUiLink(), TablePageLink())

    def __init__(
        self,
        *,
        table: str | None = None,
        table_uri: str | None = None,
        storage_options_ref: str | None = None,
        policy: Policy | JsonMapping | None = None,
        force: bool = False,
        dry_run: bool = False,
        wait: timedelta = timedelta(minutes=2),
        spark_conn_id: str | None = None,
        spark_options: JsonMapping | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=30))
        super().__init__(**kwargs)
        if (table is None) == (table_uri is None):
            raise InvalidInputError(
                f"Task {self.task_id!r} needs one table: give table= (a name in the catalog) or "
                "table_uri=, not both."
            )
        if policy is not None and table is not None:
            raise InvalidInputError(
                f"The policy of {table!r} is in the catalog; leave policy= out of task "
                f"{self.task_id!r}, or change it there."
            )
        self.table = table
        self.table_uri = table_uri
        self.storage_options_ref = storage_options_ref
        self.policy = policy
        self.force = force
        # Airflow's operators have a method named dry_run.
        self.change_nothing = dry_run
        self.wait = wait
        self.spark_conn_id = spark_conn_id
        self.spark_options = spark_options
        self.spark_application_id: str | None = None
        # When the application told its id, the error that it reported, and seconds by phase.
        self._running_at: float | None = None
        self._reported_error: Exception | None = None
        self._phases: dict[str, float] = {}
        # For OpenLineage: the result of the job, or the table whose job did not end.
        self._result: JsonObject | None = None
        self._begun: JsonObject | None = None
        self.spark_job: RunningJob | None = None
        self.earlier_try: EarlierTry | None = None
        self._killed = False

    def run_on(
        self, target: Target, context: Context, earlier: EarlierTry | None
    ) -> JobResult | Skipped:
        """Run the job; ``earlier`` is the application of an earlier try to wait for."""
        raise NotImplementedError

    def handle_result(self, result: JsonObject, context: Context) -> JsonObject:
        """Act on a result, for example raise a skip or describe the asset; return it."""
        return result

    def execute(self, context: Context) -> JsonObject:
        """Run the job, record it, and return its result; skip with a reason if it does not run."""
        from memwal.fleet import Skipped

        params = context["params"]
        if not includes(params, self.job):
            raise TaskSkipped(
                f"This run is for {', '.join(params['jobs'])} only.",
                reason=TaskSkipReason.NOT_REQUESTED,
            )
        if self.table is not None:
            context["ti"].xcom_push(key=TablePageLink().xcom_key, value=table_address(self.table))
        try:
            self.earlier_try = earlier = find_earlier_try(
                context, lambda: self._find_driver(context)
            )
            with open_target(
                self.table, self.table_uri, self.storage_options_ref, self.policy
            ) as target:
                self._begun = {"job": self.job, "table": target.managed.uri}
                if earlier is not None:
                    earlier.release_leases(target.catalog, target.name)
                outcome = self.run_on(target, context, earlier)
                backlog = None
                if isinstance(outcome, Skipped):
                    if outcome.reason_code.value == TaskSkipReason.NOT_DUE.value:
                        # Another process did the job that failed here.
                        target.catalog.backoffs.clear_failure(target.name, self.job)
                elif self.table is not None:
                    backlog = self._record_backlog(target)
        except (InvalidInputError, NewerFormatError) as error:
            raise AirflowFailException(str(error)) from error
        finally:
            if self.spark_job is not None:
                self.spark_job.clean_up()
        if self.spark_job is not None:
            clear_state(context)
        if isinstance(outcome, Skipped):
            raise TaskSkipped(outcome.reason, reason=TaskSkipReason(outcome.reason_code))
        for warning in outcome.warnings:
            self.log.warning("%s: %s", self.job, warning)
        self.log.info("%s", summary(outcome, phases=self._phases, backlog=backlog))
        # Converted to JSON's types: XComs and asset events return lists, never tuples.
        self._result = result = json.loads(json.dumps(outcome.to_dict()))
        context["ti"].xcom_push(key="result", value=result)
        return self.handle_result(result, context)

    def _record_backlog(self, target: Target) -> TableStatus | None:
        """Record the status after the job: the page would show the old backlog until the next run.

        Returns it. A failure is logged and does not fail the job, which is done.
        """
        from memwal.fleet.tables import open_managed

        try:
            table = open_managed(target.managed, storage_options=target.storage_options)
            policy = target.managed.policy
            status = table.status(
                collection=policy.gc_options(), compaction=policy.compact_options()
            )
            target.catalog.record_backlog(target.name, status)
        except MemWalError as error:
            self.log.warning("The backlog was not recorded: %s", error)
            return None
        return status

    def get_openlineage_facets_on_complete(
        self, task_instance: Any
    ) -> OperatorLineage[Any, Any] | None:
        """Return the lineage of the job; None if it was skipped."""
        return None if self._result is None else job_lineage([self._result])

    def get_openlineage_facets_on_failure(
        self, task_instance: Any
    ) -> OperatorLineage[Any, Any] | None:
        """Return the lineage of a job that failed; without numbers unless it had ended."""
        told = self._result or self._begun
        return None if told is None else job_lineage([told])

    def on_kill(self) -> None:
        """End the application, also that of an earlier try while this one waits for the lease."""
        self._killed = True
        earlier = self.earlier_try
        job = self.spark_job or (earlier.job if earlier is not None else None)
        if job is not None:
            job.end()

    def leased_resources(self, target: Target) -> tuple[str, ...]:
        """Return the resources leased while the job runs, its own first; none without a catalog."""
        from memwal.catalog.leases import job_resource

        return () if self.table is None else (job_resource(target.name, self.job),)

    def is_dry_run(self, context: Context) -> bool:
        """Return whether this task or this run changes nothing."""
        return bool(self.change_nothing or context["params"].get("dry_run"))

    def raise_if_killed(self) -> None:
        """Raise when Airflow has asked the task to end."""
        if self._killed:
            raise AirflowException("Airflow asked the task to end, so its job does not continue.")

    def submit(
        self,
        target: Target,
        arguments: Sequence[str],
        *,
        context: Context,
        check_lease: Callable[[], None],
        earlier: EarlierTry | None = None,
        regions: Sequence[UUID] | None = None,
    ) -> JsonObject:
        """Run ``spark_apps/{job}.py``, or wait for the ``earlier`` one, and return its result.

        ``arguments`` are those of the application, besides the table and the address of its
        result; ``regions`` are stored for a retry. ``check_lease`` is called every few seconds;
        when it raises, the application is ended. Without a result, raises the error that the
        application reported, else SparkApplicationError.
        """
        if earlier is not None and not earlier.job.exists():
            self.log.info("The earlier try took the result of its application itself.")
            earlier = None
        hook = self.hook()
        started = time.monotonic()
        if earlier is None:
            job = self._start(hook, target, arguments, context, check_lease)
        else:
            self.log.info(
                "An earlier try left its application, %s; this one waits for it. Its log:",
                earlier.job.name,
            )
            job = earlier.job
        self.spark_job = job
        try:
            if earlier is None:
                save_state(context, job, regions=regions)
            self.raise_if_killed()
            page = pod_address(job.reattach_state)
            if page:
                context["ti"].xcom_push(key=SparkUiLink().xcom_key, value=page)
            # The UI of a driver in a cluster has an address that only the cluster knows.
            lines = self._watched_lines(
                job.lines(check_lease), context, link=not hook.is_cluster_mode
            )
            tail = hook.follow(lines)
        except BaseException:
            # Before the lease is released, and another process may begin.
            job.end()
            raise
        ended = time.monotonic()
        result = job.result()
        if result is None:
            raise self._reported_error or SparkApplicationError(
                f"The Spark application {job.outcome}.{tail}"
            )
        # A client of Spark Connect, and a driver in a cluster, do not tell when they run.
        running = self._running_at
        self._phases = {} if running is None else {"start": running - started}
        self._phases["application"] = ended - (running or started)
        if job.failed:
            self.log.warning("The Spark application %s, and left its result.", job.outcome)
        return result

    def hook(self) -> JobSubmitHook:
        """Return the provider's hook, for the master and the mode of this task."""
        from memwal_airflow.spark.submit import submit_hook

        name = f"memwal-{self.job}-{self.table or 'table'}"
        options = {"name": name, **(self.spark_options or {})}
        return submit_hook(conn_id=self.spark_conn_id, **options)

    def _start(
        self,
        hook: JobSubmitHook,
        target: Target,
        arguments: Sequence[str],
        context: Context,
        check_lease: Callable[[], None],
    ) -> RunningJob:
        roots = target.managed.policy.allow_external
        arguments = [*arguments, *(f"--allow-external={root}" for root in roots)]
        if hook.is_cluster_mode:
            return self._task_driver(hook, context).submit(
                arguments,
                table=self.table,
                table_uri=target.managed.uri,
                storage_options_ref=target.storage_options_ref,
                # A dry run has no lease.
                leases=() if self.is_dry_run(context) else self.leased_resources(target),
                check_lease=check_lease,
            )
        with new_job_folder(self.job) as folder:
            common = ["--table", target.managed.uri, "--result", str(folder / RESULT_FILE)]
            options = options_file(target.storage_options_ref, folder)
            if options is not None:
                common += ["--storage-options-file", options]
            session = target.managed.policy.spark_session
            if session is not None:
                common += ["--session", session]
            command, env = hook.command(f"{self.job}.py", [*common, *arguments])
            return SparkJob.start(command, env=env, folder=folder)

    def _find_driver(self, context: Context) -> EarlierTry | None:
        hook = self.hook()
        return self._task_driver(hook, context).find() if hook.is_cluster_mode else None

    def _task_driver(self, hook: JobSubmitHook, context: Context) -> TaskDriver:
        from memwal_airflow.kubernetes.cluster import TaskDriver

        return TaskDriver.of(hook, external_id=external_id(context), job=self.job)

    def _watched_lines(
        self, lines: Iterator[str], context: Context, *, link: bool
    ) -> Iterator[str]:
        """Yield the lines of the log, and note when Spark runs and the error that is reported.

        Stores the address of Spark's UI if ``link`` is true.
        """
        for line in lines:
            self._reported_error = error_of_line(line) or self._reported_error
            application = None if self.spark_application_id else spark_application(line)
            if application is not None:
                self.spark_application_id, address = application
                self._running_at = time.monotonic()
                if address is not None and link:
                    context["ti"].xcom_push(key=SparkUiLink().xcom_key, value=address)
            yield line


def external_id(context: Context) -> str:
    """Return the name of a job run in the catalog: the task instance, the same for all tries."""
    ti = context["ti"]
    name = f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"
    return name if len(name) <= _MAX_ID_LENGTH else sha256(name.encode()).hexdigest()


def describe_assets(operator: BaseOperator, context: Context, extra: JsonMapping) -> None:
    """Add metrics to the events of the operator's assets."""
    for asset in operator.outlets:
        context["outlet_events"][asset].extra.update(extra)


def merge_extra(result: JsonMapping) -> JsonObject:
    """Return the version, rows and generations of a merge."""
    metrics = result["metrics"]
    rows = metrics.get("rows_upserted", 0) + metrics.get("rows_deleted", 0)
    generations = metrics.get("generations", 0)
    return {"version": result["version"], "rows": rows, "generations": generations}
