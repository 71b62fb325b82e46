"""What a maintenance run looks at, before and after its jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from memwal_airflow.deadlines import LATE
from memwal_airflow.hooks.storage_options import read_options
from memwal_airflow.run_params import RunRequest
from memwal_airflow.skips import SkipReason, TaskSkipped

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable
    from memwal.fleet.tables import Survey

LAG = "lag"
"""XCom key of :class:`PlanIndexesOperator`: how far the indexes are behind."""


class CatalogTableOperator(BaseOperator):
    """A quick look at a managed table, in the worker itself.

    Parameters
    ----------
    table : str
        Name in the catalog.
    **kwargs
        As of ``BaseOperator``; ``retries`` defaults to 2.
    """

    template_fields: Sequence[str] = ("table",)

    def __init__(self, *, table: str, **kwargs: Any) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(**kwargs)
        self.table = table

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        """The catalog of ``$MEMWAL_CATALOG_URL``."""
        from memwal.catalog import Catalog

        catalog = Catalog()
        try:
            yield catalog
        finally:
            catalog.close()

    def survey(self, catalog: Catalog, managed: ManagedTable) -> Survey:
        """What the table looks like, and what it is due for."""
        from memwal.fleet.tables import survey

        return survey(catalog, managed, storage_options=read_options(managed.storage_options_ref))


class PlanOperator(CatalogTableOperator):
    """Divides the regions of a table among sensors, and records the backlog.

    Skipped when the run is not about merges.

    Parameters
    ----------
    table
        As of :class:`CatalogTableOperator`.

    Returns
    -------
    list of dict
        ``regions``, ``wait``, ``force``: arguments for ``RegionBacklogSensor.expand_kwargs``. One
        for each region, or as many as the policy's ``sensor_groups``, each with a share of them. A
        run with ``force`` or ``dry_run`` does not wait, one with ``regions`` looks at no others.
    """

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Look at the table.

        Raises
        ------
        AirflowFailException
            A region that was asked for does not exist.
        """
        request = RunRequest.of(context["params"])
        with self.catalog() as catalog:
            managed = catalog.get(self.table)
            found = self.survey(catalog, managed)
            # The run before this one is over: they never overlap.
            catalog.backoffs.clear_failure(self.table, LATE)
            catalog.record_backlog(self.table, found.status)
        for job, one in found.due.items():
            self.log.info("%s: %s.", job, one.reason or one.held_back or "not due")
        policy = managed.policy
        age = found.status.oldest_backlog_seconds or 0.0
        if age >= policy.late_seconds:
            self.log.warning(
                "The oldest generation waits for %.0f s; the table is late from %.0f s on.",
                age,
                policy.late_seconds,
            )
        known = [region.region_id for region in found.status.regions]
        asked = list(request.regions or known)
        unknown = sorted(set(asked) - set(known))
        if unknown:
            raise AirflowFailException(f"{self.table} has no regions {', '.join(unknown)}.")
        reason = request.leaves_out("merge")
        if reason is not None:
            raise TaskSkipped(reason, reason=SkipReason.NOT_REQUESTED)
        most = min(policy.sensor_groups, conf.getint("core", "max_map_length", fallback=1024))
        wait = not (request.force or request.dry_run)
        return [
            {"regions": share, "wait": wait, "force": request.force}
            for share in _shares(asked, most)
        ]


class PlanIndexesOperator(CatalogTableOperator):
    """Lists the maintained indexes that are behind, for builds to be mapped over.

    Skipped with the reason when the policy says that they are not due.

    Parameters
    ----------
    table
        As of :class:`CatalogTableOperator`.

    Returns
    -------
    list of str
        Names of the indexes. Under the XCom key ``lag``: ``generations`` and ``rows`` that the one
        furthest behind does not cover.
    """

    def execute(self, context: Context) -> list[str]:
        """Look at the table."""
        request = RunRequest.of(context["params"])
        reason = request.leaves_out("index")
        if reason is not None:
            raise TaskSkipped(reason, reason=SkipReason.NOT_REQUESTED)
        with self.catalog() as catalog:
            found = self.survey(catalog, catalog.get(self.table))
        due = found.due["index"]
        behind = [lag for lag in found.status.indexes if lag.generations or lag.rows]
        if not behind:
            raise TaskSkipped(
                "Every maintained index covers what was merged.", reason=SkipReason.NOTHING_TO_DO
            )
        if due.reason is None and not request.force:
            raise TaskSkipped(
                f"Not due: {due.held_back or 'no limit is reached'}.",
                reason=SkipReason.NOT_DUE if due.held_back is None else SkipReason.QUIET,
            )
        if request.dry_run:
            raise TaskSkipped(
                f"Dry run: {len(behind)} indexes would be built.", reason=SkipReason.DRY_RUN
            )
        lag = {
            "generations": max(one.generations for one in behind),
            "rows": max(one.rows or 0 for one in behind),
        }
        context["ti"].xcom_push(key=LAG, value=lag)
        return [one.name for one in behind]


class AnnounceIndexedOperator(BaseOperator):
    """Announces once that the indexes caught up, after builds that were mapped.

    Skipped, without an asset event, when none of them changed an index.

    Parameters
    ----------
    plan_task_id, index_task_id : str
        The :class:`PlanIndexesOperator`, and the builds.
    **kwargs
        As of ``BaseOperator``, with the asset in ``outlets``.

    Returns
    -------
    dict
        The extra of the asset's event: ``version``, and ``generations`` and ``rows`` that an index
        had been behind.
    """

    def __init__(self, *, plan_task_id: str, index_task_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan_task_id = plan_task_id
        self.index_task_id = index_task_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Describe the event."""
        pulled = context["ti"].xcom_pull(task_ids=self.index_task_id)
        results = pulled if isinstance(pulled, list) else [pulled]
        built = [result for result in results if result is not None and result["commits"]]
        if not built:
            raise TaskSkipped("No index was changed.", reason=SkipReason.NOTHING_TO_DO)
        lag = context["ti"].xcom_pull(task_ids=self.plan_task_id, key=LAG)
        extra = {"version": max(result["version"] for result in built), **lag}
        for asset in self.outlets:
            context["outlet_events"][asset].extra.update(extra)
        return extra


def _shares(regions: Sequence[str], most: int) -> list[list[str]]:
    """Regions divided into at most so many shares, of sizes that differ by one at most."""
    count = min(len(regions), most)
    return [list(regions[start::count]) for start in range(count)]
