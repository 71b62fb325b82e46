"""Waiting for the backlog of a region."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, TaskInstanceState
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from memwal_airflow.storage import read_options, region_backlog
from memwal_airflow.triggers import RegionBacklogTrigger, look, not_due

TRIGGER_GRACE = timedelta(minutes=5)
"""How long after its window a trigger may answer; later, no triggerer is running."""


class RegionBacklogSensor(BaseSensorOperator):
    """Waits until one region of a table is due for a merge. Map it over regions.

    It looks once in the worker, then waits in the triggerer and needs no worker slot again. When
    the window ends first, the task is *skipped*, with the reason in its log: no backlog is the
    normal state of a table, and the run ends green.

    Parameters
    ----------
    table_uri : str
        The table.
    region_id : str
        UUID of the region. One that does not exist yet has no backlog.
    min_generations : int, default 4
        Due when so many generations wait.
    max_age_seconds : float, default 300
        Due when the oldest waiting generation is this old.
    storage_options_ref : str, optional
        Path of a JSON file with storage options, or ``airflow:{connection id}``.
    poke_interval : float, default 10
        Seconds between two looks.
    timeout : float, default 60
        Length of the window in seconds, counted from the first look.
    wait : bool, default True
        False looks once and does not wait.
    force : bool, default False
        Succeed whatever the backlog is, without a look.

    Returns
    -------
    dict
        ``region_id``, ``due`` (the reason), ``generations``, ``rows``, ``bytes``.

    Notes
    -----
    ``retries`` defaults to 2, since a store may be away for a moment. A mapped sensor takes
    ``retries`` from ``partial()`` or from the ``default_args`` of its DAG and knows no defaults of
    this class: give it there.
    """

    template_fields: Sequence[str] = ("table_uri", "region_id", "storage_options_ref")

    def __init__(
        self,
        *,
        table_uri: str,
        region_id: str,
        min_generations: int = 4,
        max_age_seconds: float = 300.0,
        storage_options_ref: str | None = None,
        poke_interval: float = 10.0,
        timeout: float = 60.0,
        wait: bool = True,
        force: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(poke_interval=poke_interval, timeout=timeout, **kwargs)
        self.table_uri = table_uri
        self.region_id = region_id
        self.min_generations = min_generations
        self.max_age_seconds = max_age_seconds
        self.storage_options_ref = storage_options_ref
        self.wait = wait
        self.force = force

    def execute(self, context: Context) -> dict[str, Any]:
        """Look once; succeed, skip, or go on waiting in the triggerer."""
        if self.force:
            return {"region_id": self.region_id, "due": "forced by the run's parameters"}
        region = region_backlog(
            self.table_uri, self.region_id, read_options(self.storage_options_ref)
        )
        found = look(
            region,
            self.region_id,
            min_generations=self.min_generations,
            max_age_seconds=self.max_age_seconds,
        )
        if found["due"]:
            self.log.info("Region %s is due: %s.", self.region_id, found["due"])
            return found
        if not self.wait:
            raise AirflowSkipException(not_due(found, self.min_generations))
        raise TaskDeferred(
            trigger=RegionBacklogTrigger(
                table_uri=self.table_uri,
                region_id=self.region_id,
                min_generations=self.min_generations,
                max_age_seconds=self.max_age_seconds,
                storage_options_ref=self.storage_options_ref,
                poke_seconds=self.poke_interval,
                window_ends_at=time.time() + self.timeout,
            ),
            method_name=self.ended_by_trigger.__name__,
            timeout=timedelta(seconds=self.timeout) + TRIGGER_GRACE,
        )

    def ended_by_trigger(self, context: Context, event: str) -> None:
        """Take the state that the trigger gave the task; only ``dag.test()`` comes here."""
        if event != TaskInstanceState.SUCCESS:
            raise AirflowSkipException(f"The trigger ended the task as {event}.")
