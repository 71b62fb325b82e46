"""Operators that plan a maintenance run, and announce what it did."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from memwal.catalog.records import STATUS_JOB, ManagedTable
from memwal.util.records import JsonObject
from memwal_airflow.deadlines import LATE
from memwal_airflow.hooks.storage_options import read_options
from memwal_airflow.operators.base import describe_assets
from memwal_airflow.run_params import RunRequest
from memwal_airflow.skips import SkipReason, TaskSkipped

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.fleet.tables import Survey

LAG = "lag"
"""XCom key of :class:`PlanIndexesOperator`: how far the indexes are behind."""


class CatalogTableOperator(BaseOperator):
    """Reads the status of a managed table in the worker itself; ``retries`` defaults to 2."""

    job: ClassVar[str] = STATUS_JOB
    """Name of its failures in the catalog."""

    template_fields: Sequence[str] = ("table",)

    def __init__(self, *, table: str, **kwargs: Any) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(**kwargs)
        self.table = table

    def survey(self, catalog: Catalog, managed: ManagedTable) -> Survey:
        """Read the status of the table, and which jobs are due."""
        from memwal.fleet.tables import survey

        return survey(catalog, managed, storage_options=read_options(managed.storage_options_ref))


class PlanOperator(CatalogTableOperator):
    """Divides the regions of a table among sensors, and records the backlog.

    Returns arguments for ``RegionBacklogSensor.expand_kwargs``: ``regions``, ``wait``, ``force``,
    one for each region, or as many as the policy's ``sensor_groups``, each with a share of them. A
    run with ``force`` or ``dry_run`` does not wait; one with ``regions`` includes no others.
    Skipped when the run does not include merges; fails for a region that does not exist.
    """

    def execute(self, context: Context) -> list[JsonObject]:
        """Plan the merges."""
        from memwal.catalog import Catalog

        request = RunRequest.of(context["params"])
        with closing(Catalog()) as catalog:
            managed = catalog.get(self.table)
            survey = self.survey(catalog, managed)
            # The previous run is over: runs never overlap.
            catalog.backoffs.clear_failure(self.table, LATE)
            catalog.record_backlog(self.table, survey.status)
        for job, due in survey.due.items():
            self.log.info("%s: %s.", job, due.reason or due.postponed or "not due")
        policy = managed.policy
        age = survey.status.oldest_backlog_seconds or 0.0
        if age >= policy.late_seconds:
            self.log.warning(
                "The oldest generation has waited for %.0f s; the table is late from %.0f s on.",
                age,
                policy.late_seconds,
            )
        existing = [region.region_id for region in survey.status.regions]
        regions = list(request.regions or existing)
        unknown = sorted(set(regions) - set(existing))
        if unknown:
            raise AirflowFailException(f"{self.table} has no regions {', '.join(unknown)}.")
        request.skip_unless("merge")
        count = min(
            len(regions),
            policy.sensor_groups,
            conf.getint("core", "max_map_length", fallback=1024),
        )
        wait = not (request.force or request.dry_run)
        # Shares whose sizes differ by one at most.
        return [
            {"regions": regions[start::count], "wait": wait, "force": request.force}
            for start in range(count)
        ]


class PlanIndexesOperator(CatalogTableOperator):
    """Returns the names of the indexes that are behind or stale, to map builds over.

    The XCom ``lag`` holds the ``generations`` and ``rows`` that the index furthest behind does not
    cover. Skipped with the reason when the policy says that no build is due.
    """

    def execute(self, context: Context) -> list[str]:
        """Plan the builds."""
        from memwal.catalog import Catalog

        request = RunRequest.of(context["params"])
        request.skip_unless("index")
        with closing(Catalog()) as catalog:
            survey = self.survey(catalog, catalog.get(self.table))
        due = survey.due["index"]
        behind = [lag for lag in survey.status.indexes if lag.generations or lag.rows or lag.stale]
        if not behind:
            raise TaskSkipped(
                "Every index covers all merged generations and finds its rows.",
                reason=SkipReason.NOTHING_TO_DO,
            )
        if due.reason is None and not request.force:
            raise TaskSkipped(
                f"Not due: {due.postponed or 'no limit is reached'}.",
                reason=SkipReason.NOT_DUE if due.postponed is None else SkipReason.QUIET,
            )
        if request.dry_run:
            raise TaskSkipped(
                f"Dry run: {len(behind)} indexes would be built.", reason=SkipReason.DRY_RUN
            )
        largest = {
            "generations": max(lag.generations for lag in behind),
            "rows": max(lag.rows or 0 for lag in behind),
        }
        context["ti"].xcom_push(key=LAG, value=largest)
        return [lag.name for lag in behind]


class AnnounceIndexedOperator(BaseOperator):
    """Announces once, after mapped builds, that the indexes caught up.

    The event of the asset in ``outlets``, also returned, carries ``version``, and the
    ``generations`` and ``rows`` that the index furthest behind had not covered. Skipped, without
    an event, when no build changed an index.
    """

    def __init__(self, *, plan_task_id: str, index_task_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan_task_id = plan_task_id
        self.index_task_id = index_task_id

    def execute(self, context: Context) -> JsonObject:
        """Describe the builds on the asset."""
        pulled = context["ti"].xcom_pull(task_ids=self.index_task_id)
        results = pulled if isinstance(pulled, list) else [pulled]
        built = [result for result in results if result is not None and result["commits"]]
        if not built:
            raise TaskSkipped("No index was changed.", reason=SkipReason.NOTHING_TO_DO)
        lag = context["ti"].xcom_pull(task_ids=self.plan_task_id, key=LAG)
        extra = {"version": max(result["version"] for result in built), **lag}
        describe_assets(self, context, extra)
        return extra
