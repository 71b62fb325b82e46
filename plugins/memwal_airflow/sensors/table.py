"""Waiting for a table: for its backlog, for a merge, for its indexes."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue, TaskInstanceState
from airflow.sdk.exceptions import (
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from memwal.errors import InvalidInputError
from memwal_airflow.skips import SkipReason, TaskSkipped
from memwal_airflow.triggers.conditions import BacklogDue, CaughtUp, Condition, Finding, Merged
from memwal_airflow.triggers.table import (
    BacklogTrigger,
    GenerationMergedTrigger,
    IndexCaughtUpTrigger,
    TableTrigger,
)
from memwal_airflow.triggers.table_status import TableSource, look

TRIGGER_GRACE = timedelta(minutes=5)
"""How long after its window a trigger may answer; later, no triggerer is running."""

_STARTED = "waits_for"


class TableSensor(BaseSensorOperator):
    """What all sensors of a table share.

    It looks once in the worker, then waits in the triggerer and needs no worker slot again.

    Parameters
    ----------
    table : str, optional
        Name in the catalog, which tells address, storage options and policy.
    table_uri : str, optional
        Address of a table instead; the catalog is not asked then.
    storage_options_ref : str, optional
        With ``table_uri``: path of a JSON file with storage options, or
        ``airflow:{connection id}``.
    poke_interval : float, default 30
        Seconds between two looks. Sensors of one table that wait in one triggerer share them.
    timeout : float, default 3600
        Length of the window in seconds, counted from the first look.
    soft_fail : bool
        Whether the end of the window skips the task, with the reason in its log and under the
        XCom key ``reason``, or fails it.
    deferrable : bool, default True
        False waits in the worker, as ``mode`` says: ``poke`` or ``reschedule``.
    **kwargs
        As of ``BaseSensorOperator``.

    Raises
    ------
    InvalidInputError
        Neither ``table`` nor ``table_uri`` is given, or both.

    Notes
    -----
    ``retries`` defaults to 2, since a store may be away for a moment. A mapped sensor takes
    ``retries`` from ``partial()`` or from the ``default_args`` of its DAG and knows no defaults of
    this class: give it there.
    """

    template_fields: Sequence[str] = ("table", "table_uri", "storage_options_ref")
    trigger_type: ClassVar[type[TableTrigger]]

    def __init__(
        self,
        *,
        table: str | None = None,
        table_uri: str | None = None,
        storage_options_ref: str | None = None,
        poke_interval: timedelta | float = 30.0,
        timeout: timedelta | float = 3600.0,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(poke_interval=poke_interval, timeout=timeout, **kwargs)
        TableSource(table=table, table_uri=table_uri, storage_options_ref=storage_options_ref)
        self.table = table
        self.table_uri = table_uri
        self.storage_options_ref = storage_options_ref
        self.deferrable = deferrable

    @abstractmethod
    def condition(self) -> Condition:
        """What is waited for."""

    def execute(self, context: Context) -> Any:
        """Look once; succeed, or go on waiting in the triggerer or here."""
        if not self.deferrable:
            return super().execute(context)
        condition, finding = self._look(self.condition())
        if finding.met:
            self.log.info("%s: %s.", self._source, finding.text)
            return finding.value
        raise TaskDeferred(
            trigger=self.trigger_type(
                table=self.table,
                table_uri=self.table_uri,
                storage_options_ref=self.storage_options_ref,
                poke_seconds=self.poke_interval,
                window_ends_at=time.time() + self.timeout,
                soft_fail=self.soft_fail,
                **condition.arguments(),
            ),
            method_name=self.ended_by_trigger.__name__,
            timeout=timedelta(seconds=self.timeout) + TRIGGER_GRACE,
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once, for Airflow's own loop."""
        condition = self.condition()
        ti = context["ti"]
        if condition.is_open:
            begun = ti.xcom_pull(task_ids=self.task_id, key=_STARTED, map_indexes=ti.map_index)
            condition = condition if begun is None else type(condition)(**begun)
        started, finding = self._look(condition)
        if condition.is_open:
            # The next look may be that of another process, and must wait for the same.
            ti.xcom_push(key=_STARTED, value=started.arguments())
        self.log.info("%s: %s.", self._source, finding.text)
        return PokeReturnValue(is_done=finding.met, xcom_value=finding.value)

    def ended_by_trigger(self, context: Context, event: str) -> None:
        """Take the state that the trigger gave the task; only ``dag.test()`` comes here."""
        if event == TaskInstanceState.FAILED:
            raise AirflowSensorTimeout("The window is over.")
        if event != TaskInstanceState.SUCCESS:
            raise AirflowSkipException(f"The trigger ended the task as {event}.")

    @property
    def _source(self) -> TableSource:
        return TableSource(
            table=self.table,
            table_uri=self.table_uri,
            storage_options_ref=self.storage_options_ref,
        )

    def _look(self, condition: Condition) -> tuple[Condition, Finding]:
        found = look(self._source, regions=condition.regions)
        condition = condition.started(found)
        return condition, condition.check(found)


class RegionBacklogSensor(TableSensor):
    """Waits until one of some regions is due for a merge. Map it over regions.

    It goes by the rule that merges go by: every limit of the policy, its quiet hours, and regions
    that are held. When the window ends first, the task is *skipped*, unless ``soft_fail`` is
    False: no backlog is the normal state of a table.

    Parameters
    ----------
    regions : str or list of str
        UUIDs of the regions. One that does not exist yet has no backlog.
    policy : mapping, optional
        Keys of the policy that are to be others than those of the table, for example
        ``{"merge_at_generations": 1}``.
    wait : bool, default True
        False looks once and does not wait.
    force : bool, default False
        Succeed whatever the backlog is, without a look.
    **kwargs
        As of :class:`TableSensor`.

    Returns
    -------
    dict
        ``regions`` that are due, ``due`` (the reason), and ``generations``, ``rows``, ``bytes`` of
        the backlog of all that were looked at.
    """

    template_fields: Sequence[str] = (*TableSensor.template_fields, "regions")
    trigger_type = BacklogTrigger

    def __init__(
        self,
        *,
        regions: str | Sequence[str],
        policy: Mapping[str, Any] | None = None,
        wait: bool = True,
        force: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("soft_fail", True)
        super().__init__(**kwargs)
        self.regions = regions
        self.policy = policy
        self.wait = wait
        self.force = force

    def condition(self) -> BacklogDue:
        """One of the regions is due."""
        regions = [self.regions] if isinstance(self.regions, str) else list(self.regions)
        return BacklogDue(regions, dict(self.policy or {}))

    def execute(self, context: Context) -> Any:
        """Look once; succeed, skip, or go on waiting."""
        if self.force:
            return {"regions": [], "due": "forced by the run's parameters"}
        if self.wait:
            return super().execute(context)
        _, finding = self._look(self.condition())
        if not finding.met:
            raise TaskSkipped(
                f"{self._source}: {finding.text}.", reason=finding.reason or SkipReason.NOT_DUE
            )
        return finding.value


class TableBacklogSensor(TableSensor):
    """Waits until any region of a table is due for a merge, by the rule that merges go by.

    Parameters
    ----------
    policy : mapping, optional
        As of :class:`RegionBacklogSensor`.
    **kwargs
        As of :class:`TableSensor`; ``soft_fail`` is True by default.

    Returns
    -------
    dict
        As of :class:`RegionBacklogSensor`.
    """

    trigger_type = BacklogTrigger

    def __init__(self, *, policy: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("soft_fail", True)
        super().__init__(**kwargs)
        self.policy = policy

    def condition(self) -> BacklogDue:
        """Any region is due."""
        return BacklogDue(None, dict(self.policy or {}))


class GenerationMergedSensor(TableSensor):
    """Waits until flushed data is in the base table.

    Parameters
    ----------
    region : str, optional
        UUID of one region.
    generation : int, optional
        The generation of that region that must be merged. By default all that are flushed when
        the sensor looks first, of that region or of all.
    **kwargs
        As of :class:`TableSensor`; ``soft_fail`` is False.

    Returns
    -------
    dict
        ``version`` of the base table, and the merged ``generations`` by region.

    Raises
    ------
    InvalidInputError
        A generation is given without its region.
    """

    template_fields: Sequence[str] = (*TableSensor.template_fields, "region", "generation")
    trigger_type = GenerationMergedTrigger

    def __init__(
        self, *, region: str | None = None, generation: int | str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if generation is not None and region is None:
            raise InvalidInputError("generations are counted by region; give region= as well")
        self.region = region
        self.generation = generation

    def condition(self) -> Merged:
        """The generations that are meant are merged."""
        if self.region is None:
            return Merged(None)
        if self.generation is None:
            return Merged(None, region_ids=[self.region])
        # A template gives text.
        return Merged({self.region: int(self.generation)})


class IndexCaughtUpSensor(TableSensor):
    """Waits until maintained indexes cover what was merged.

    Parameters
    ----------
    indexes : list of str, optional
        Names of maintained indexes; all of them by default.
    generations : int, default 0
        Each may be this many merged generations behind.
    **kwargs
        As of :class:`TableSensor`; ``soft_fail`` is False.

    Returns
    -------
    dict
        ``version`` of the base table, and by how many generations each index is behind.
    """

    template_fields: Sequence[str] = (*TableSensor.template_fields, "indexes")
    trigger_type = IndexCaughtUpTrigger

    def __init__(
        self, *, indexes: Sequence[str] | None = None, generations: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.indexes = indexes
        self.generations = generations

    def condition(self) -> CaughtUp:
        """The indexes that are meant have caught up."""
        return CaughtUp(None if self.indexes is None else list(self.indexes), self.generations)
