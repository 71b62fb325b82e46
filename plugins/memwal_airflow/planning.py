"""What a maintenance run looks at, and what it decides to merge."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from memwal.maintenance.policy import merge_reason
from memwal_airflow.recording import Recorder
from memwal_airflow.storage import table_at


class ListRegionsOperator(BaseOperator):
    """Lists the regions of a table, for a sensor to be mapped over, and records its backlog.

    Parameters
    ----------
    table, table_uri, storage_options_ref
        As of :class:`memwal_airflow.operators.TableJobOperator`.

    Returns
    -------
    list of dict
        ``region_id``, ``wait``, ``force``: arguments for ``RegionBacklogSensor.expand_kwargs``.
        A run with ``force`` or ``dry_run`` does not wait, one with ``regions`` looks at no others.
    """

    template_fields: Sequence[str] = ("table_uri", "storage_options_ref")

    def __init__(
        self, *, table: str, table_uri: str, storage_options_ref: str | None = None, **kwargs: Any
    ) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(**kwargs)
        self.table = table
        self.table_uri = table_uri
        self.storage_options_ref = storage_options_ref

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """List the regions.

        Raises
        ------
        AirflowFailException
            A region that was asked for does not exist, or there are more regions than Airflow can
            map tasks over.
        """
        table = table_at(self.table_uri, self.storage_options_ref)
        Recorder(self.table).backlog(table.status())
        params = context["params"]
        known = [str(region) for region in table.region_ids()]
        asked = list(params.get("regions") or known)
        unknown = sorted(set(asked) - set(known))
        if unknown:
            raise AirflowFailException(f"{self.table} has no regions {', '.join(unknown)}.")
        most = conf.getint("core", "max_map_length", fallback=1024)
        if len(asked) > most:
            raise AirflowFailException(
                f"{self.table} has {len(asked)} regions, and Airflow maps a task over at most "
                f"{most}; raise [core] max_map_length in airflow.cfg."
            )
        force = bool(params.get("force"))
        wait = not (force or params.get("dry_run"))
        return [{"region_id": region, "wait": wait, "force": force} for region in asked]


class DecideMergeOperator(BaseOperator):
    """Picks the regions to merge now, by one look at all of them; skipped when none is due.

    Parameters
    ----------
    table_uri, storage_options_ref
        As of :class:`memwal_airflow.operators.TableJobOperator`.
    at_generations, at_age_seconds
        As of :func:`memwal.maintenance.policy.merge_reason`.

    Returns
    -------
    list of str
        UUIDs of the regions that are due.
    """

    template_fields: Sequence[str] = ("table_uri", "storage_options_ref")

    def __init__(
        self,
        *,
        table_uri: str,
        at_generations: int,
        at_age_seconds: float,
        storage_options_ref: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(**kwargs)
        self.table_uri = table_uri
        self.storage_options_ref = storage_options_ref
        self.at_generations = at_generations
        self.at_age_seconds = at_age_seconds

    def execute(self, context: Context) -> list[str]:
        """Decide; the reasons are in the log, and under the XCom key ``reasons``."""
        params = context["params"]
        # A forced run takes every backlog there is: one generation of any age.
        force = bool(params.get("force"))
        at_generations = 1 if force else self.at_generations
        asked = set(params.get("regions") or ())
        reasons: dict[str, str] = {}
        for region in table_at(self.table_uri, self.storage_options_ref).status().regions:
            reason = merge_reason(
                region, at_generations=at_generations, at_age_seconds=self.at_age_seconds
            )
            if reason is not None and (not asked or region.region_id in asked):
                reasons[region.region_id] = reason
                self.log.info("Region %s is due: %s.", region.region_id, reason)
        context["ti"].xcom_push(key="reasons", value=reasons)
        if not reasons:
            raise AirflowSkipException("No region is due for a merge.")
        if params.get("dry_run"):
            raise AirflowSkipException(f"Dry run: {len(reasons)} regions would be merged.")
        return list(reasons)
