"""What all operators have in common: one Spark application, watched, found again, and ended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from memwal.errors import InvalidInputError, MemWalError
from memwal_airflow.hooks.storage_options import options_file
from memwal_airflow.links import (
    SparkUiLink,
    TablePageLink,
    pod_address,
    spark_application,
    table_address,
)
from memwal_airflow.operators.target import Target, open_target
from memwal_airflow.skips import SkipReason, TaskSkipped
from memwal_airflow.spark.application import RESULT_FILE, RunningJob, SparkJob, new_job_folder
from memwal_airflow.spark.reattach import (
    ClusterDriver,
    EarlierTry,
    clear_state,
    find_earlier_try,
    save_state,
)

if TYPE_CHECKING:
    from memwal.fleet import Skipped
    from memwal.jobs.job import JobResult
    from memwal.jobs.policy import Policy
    from memwal_airflow.kubernetes.cluster import TaskDriver
    from memwal_airflow.spark.submit import JobSubmitHook

# Of what the catalog keeps; names in Airflow can be longer.
_LONGEST_ID = 400


class MemWalOperator(BaseOperator):
    """Does one thing to one table, as a Spark application that ``spark-submit`` runs.

    The table is one of the catalog (``table``), or any other (``table_uri``). With the catalog the
    job has a lease, so that nobody else does the same at once, and a record of the run. Without,
    it has neither: two such tasks can do the same work twice, which costs time and harms nothing.

    The master is that of ``spark_conn_id`` or ``master``, whichever is given, else that of
    ``spark_conn_id`` or ``spark_master`` in section ``[memwal]`` of ``airflow.cfg``, else
    ``local[*]``. The driver runs on this machine, or, in cluster mode, in a pod of Kubernetes.
    Ending a task ends its application: the JVM, its driver and its workers. When the task's own
    process is killed, the application goes on, and the retry waits for it instead of starting
    another.

    A run of the DAG with a param ``jobs``, a list, leaves out the jobs that are not in it; with
    ``dry_run`` it changes nothing, and with ``force`` it does not ask whether a job is due.

    Parameters
    ----------
    table : str, optional
        Name of a table of the catalog.
    table_uri : str, optional
        Where a table is that is in no catalog. Give this or ``table``.
    storage_options_ref : str, optional
        Path of a JSON file, or ``airflow:{connection id}``; by default that of the catalog.
        Options themselves never appear on the command line.
    policy : Policy or mapping, optional
        Limits that differ from the defaults, for a ``table_uri``; those of the catalog are for its
        tables.
    force : bool, default False
        Do it though it is not due, in quiet hours, and to regions that are held.
    dry_run : bool, default False
        Change nothing: skipped with what would be done.
    wait : timedelta, default 2 min
        How long to wait while somebody else does the same, before the task is skipped. More than
        the minute after which the lease of a process that died ends.
    master : str, optional
        Spark master URL. Give this or a connection, not both.
    spark_conn_id : str, optional
        Airflow connection of a Spark cluster.
    deploy_mode : {"client", "cluster"}, optional
        Where the driver runs. By default as the connection says, else ``[memwal] deploy_mode``.
    spark_conf : mapping, optional
        Spark properties.
    spark_options : mapping, optional
        Further options of the provider's ``SparkSubmitHook``, such as ``driver_memory``.
    **kwargs
        As of ``BaseOperator``. Two retries by default.

    Returns
    -------
    dict
        ``JobResult.to_dict()``, which is also recorded in the catalog.

    Raises
    ------
    InvalidInputError
        Neither ``table`` nor ``table_uri`` is given, or both; or an argument is wrong.
    """

    job: ClassVar[str]
    template_fields: Sequence[str] = (
        "table",
        "table_uri",
        "storage_options_ref",
        "master",
        "spark_conn_id",
        "spark_conf",
    )
    operator_extra_links = (SparkUiLink(), TablePageLink())

    def __init__(
        self,
        *,
        table: str | None = None,
        table_uri: str | None = None,
        storage_options_ref: str | None = None,
        policy: Policy | Mapping[str, Any] | None = None,
        force: bool = False,
        dry_run: bool = False,
        wait: timedelta = timedelta(minutes=2),
        master: str | None = None,
        spark_conn_id: str | None = None,
        deploy_mode: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        spark_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=30))
        super().__init__(**kwargs)
        if (table is None) == (table_uri is None):
            raise InvalidInputError(
                f"Task {self.task_id!r} is about a table of the catalog, given by its name as "
                "table=, or about one that is in none, given by table_uri=; give one of them."
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
        # Airflow's operators have a method of the name of this argument.
        self.change_nothing = dry_run
        self.wait = wait
        self.master = master
        self.spark_conn_id = spark_conn_id
        self.deploy_mode = deploy_mode
        self.spark_conf = spark_conf
        self.spark_options = spark_options
        self.spark_application_id: str | None = None
        self.spark_job: RunningJob | None = None
        self.earlier_try: EarlierTry | None = None
        self._killed = False

    def run_on(
        self, target: Target, context: Context, earlier: EarlierTry | None
    ) -> JobResult | Skipped:
        """Do the job; ``earlier`` is an application of an earlier try that is to be waited for."""
        raise NotImplementedError

    def take(self, result: dict[str, Any], context: Context) -> Any:
        """Act on a result, for example by raising a skip or describing the asset; return it."""
        return result

    def execute(self, context: Context) -> Any:
        """Run the job, record it, and return its result; skipped with a reason where it is not."""
        from memwal.fleet import Skipped

        wanted = context["params"].get("jobs")
        if wanted and self.job not in wanted:
            raise TaskSkipped(
                f"This run is for {', '.join(wanted)} only.", reason=SkipReason.NOT_REQUESTED
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
                if earlier is not None:
                    earlier.release_leases(target.catalog, target.name)
                found = self.run_on(target, context, earlier)
                if self.table is not None and not isinstance(found, Skipped):
                    self._look(target)
        except InvalidInputError as error:
            raise AirflowFailException(str(error)) from error
        finally:
            if self.spark_job is not None:
                self.spark_job.clean_up()
        if self.spark_job is not None:
            clear_state(context)
        if isinstance(found, Skipped):
            raise TaskSkipped(found.reason, reason=SkipReason(found.reason_code))
        for problem in found.problems:
            self.log.warning("%s: %s", self.job, problem)
        # As JSON has it: XComs and events of assets give lists back, and no tuples.
        result = json.loads(json.dumps(found.to_dict()))
        context["ti"].xcom_push(key="result", value=result)
        return self.take(result, context)

    def _look(self, target: Target) -> None:
        """Keep a sample, or people would see the backlog that is merged by now until the next run.

        A job that is done is not failed for it.
        """
        from memwal.fleet.tables import open_managed

        try:
            table = open_managed(target.managed, storage_options=target.storage_options)
            status = table.status()
            target.catalog.record_backlog(target.name, status)
        except MemWalError as error:
            self.log.warning("No sample of the backlog was kept: %s", error)

    def on_kill(self) -> None:
        """End the application, also that of an earlier try while the lease is waited for."""
        self._killed = True
        earlier = self.earlier_try
        job = self.spark_job or (earlier.job if earlier is not None else None)
        if job is not None:
            job.end()

    def leased(self, target: Target) -> tuple[str, ...]:
        """What nobody else can have the lease of while the job runs, its own resource first.

        None for a table that is in no catalog.
        """
        from memwal.catalog.leases import job_resource

        return () if self.table is None else (job_resource(target.name, self.job),)

    def is_forced(self, context: Context) -> bool:
        """Return whether this task, or this run, is to do its job due or not."""
        return bool(self.force or context["params"].get("force"))

    def is_dry_run(self, context: Context) -> bool:
        """Return whether this task, or this run, is to change nothing."""
        return bool(self.change_nothing or context["params"].get("dry_run"))

    def go_on(self) -> None:
        """Raise when the task is told to end."""
        if self._killed:
            raise AirflowException("The task was told to end; its job is not gone on with.")

    def submit(
        self,
        target: Target,
        arguments: Sequence[str],
        *,
        context: Context,
        look: Callable[[], None],
        earlier: EarlierTry | None = None,
        regions: Sequence[UUID] | None = None,
    ) -> dict[str, Any]:
        """Run ``spark_apps/{job}.py``, or wait for one that runs, and return what it wrote.

        Parameters
        ----------
        target : Target
        arguments : sequence of str
            Options of the application, beside the table and where its result goes.
        context : Context
        look : callable
            Called every few seconds; when it raises, the application is ended.
        earlier : EarlierTry, optional
            The application to wait for.
        regions : sequence of UUID, optional
            What a retry is to know of them.

        Raises
        ------
        AirflowException
            The application left no result.
        """
        if earlier is not None and not earlier.job.exists():
            self.log.info("The earlier try took the result of its application itself.")
            earlier = None
        hook = self.hook()
        if earlier is None:
            job = self._start(hook, target, arguments, context, look)
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
            self.go_on()
            page = pod_address(job.reattach_state)
            if page:
                context["ti"].xcom_push(key=SparkUiLink().xcom_key, value=page)
            # The UI of a driver in a cluster has an address that only the cluster knows.
            shown = not hook.is_cluster_mode
            tail = hook.follow(self._noticed(job.lines(look), context, shown=shown))
        except BaseException:
            # Before the lease is given back, and somebody else may begin.
            job.end()
            raise
        result = job.result()
        if result is None:
            raise AirflowException(f"The Spark application {job.outcome}.{tail}")
        if job.failed:
            self.log.warning("The Spark application %s, and left its result.", job.outcome)
        return result

    def hook(self) -> JobSubmitHook:
        """The provider's hook, for the master and the mode of this task."""
        from memwal_airflow.spark.submit import submit_hook

        return submit_hook(
            master=self.master,
            conn_id=self.spark_conn_id,
            deploy_mode=self.deploy_mode,
            conf=dict(self.spark_conf or {}),
            name=f"memwal-{self.job}-{self.table or 'table'}",
            **(self.spark_options or {}),
        )

    def _start(
        self,
        hook: JobSubmitHook,
        target: Target,
        arguments: Sequence[str],
        context: Context,
        look: Callable[[], None],
    ) -> RunningJob:
        if hook.is_cluster_mode:
            return self._place(hook, context).submit(
                arguments,
                table=self.table,
                table_uri=target.managed.uri,
                storage_options_ref=target.storage_options_ref,
                # A rehearsal has no lease.
                leases=() if self.is_dry_run(context) else self.leased(target),
                check_lease=look,
            )
        folder = new_job_folder(self.job)
        try:
            given = ["--table", target.managed.uri, "--result", str(folder / RESULT_FILE)]
            options = options_file(target.storage_options_ref, folder)
            if options is not None:
                given += ["--storage-options-file", options]
            command, env = hook.command(f"{self.job}.py", [*given, *arguments])
            return SparkJob.start(command, env=env, folder=folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _find_driver(self, context: Context) -> ClusterDriver | None:
        hook = self.hook()
        return self._place(hook, context).find() if hook.is_cluster_mode else None

    def _place(self, hook: JobSubmitHook, context: Context) -> TaskDriver:
        from memwal_airflow.kubernetes.cluster import TaskDriver

        return TaskDriver.of(hook, external_id=external_id(context), job=self.job)

    def _noticed(self, lines: Iterator[str], context: Context, *, shown: bool) -> Iterator[str]:
        """The lines of the log, of which the link to Spark's UI is taken if it can be shown."""
        for line in lines:
            found = None if self.spark_application_id else spark_application(line)
            if found is not None:
                self.spark_application_id, address = found
                if address is not None and shown:
                    context["ti"].xcom_push(key=SparkUiLink().xcom_key, value=address)
            yield line


def external_id(context: Context) -> str:
    """What a run of a job is called in the catalog: the task instance, whatever the try."""
    ti = context["ti"]
    name = f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"
    return name if len(name) <= _LONGEST_ID else sha256(name.encode()).hexdigest()


def describe(operator: BaseOperator, context: Context, extra: Mapping[str, Any]) -> None:
    """Put figures into the events of the operator's assets."""
    for asset in operator.outlets:
        context["outlet_events"][asset].extra.update(extra)
