"""Sensors that wait for a table: for its backlog, for a merge, for its indexes."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, ClassVar

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue, TaskInstanceState

from memwal.catalog.records import STATUS_JOB
from memwal.errors import InvalidInputError
from memwal.util.records import JsonMapping
from memwal_airflow.skips import TaskSkipped, TaskSkipReason
from memwal_airflow.triggers.conditions import (
    BacklogDue,
    ConditionResult,
    GenerationsMerged,
    IndexesCaughtUp,
    SensorCondition,
    new_condition,
)
from memwal_airflow.triggers.readings import TableSource, read_table_status
from memwal_airflow.triggers.table import TableTrigger
from memwal_airflow.version_compat import (
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

TRIGGER_GRACE = timedelta(minutes=5)
"""How long after its window a trigger may answer; after that, no triggerer is running."""

_CONDITION_KEY = "waits_for"


class TableSensor(BaseSensorOperator):
    """Base class of the sensors of a table.

    Reads the table once in the worker, then waits in the triggerer without a worker slot.
    ``retries`` defaults to 2, since a store may be unavailable for a moment; a mapped sensor knows
    no defaults of this class, so give it there by ``partial()`` or the DAG's ``default_args``.

    Parameters
    ----------
    table : str, optional
        Name in the catalog, which holds the address, the storage options and the policy.
    table_uri : str, optional
        Address of a table in place of its name; the catalog is not read then.
    storage_options_ref : str, optional
        With ``table_uri``: path of a JSON file with storage options, or
        ``airflow:{connection id}``.
    poke_interval : float, default 30
        Seconds between two reads, which the waiting sensors of a table share in a triggerer.
    timeout : float, default 3600
        Length of the window in seconds, counted from the first read.
    soft_fail : bool
        True if the end of the window skips the task, with the reason in its log and under the
        XCom key ``reason``; otherwise it fails the task.
    deferrable : bool, default True
        False waits in the worker, as ``mode`` says: ``poke`` or ``reschedule``.
    **kwargs
        As of ``BaseSensorOperator``.

    Raises
    ------
    InvalidInputError
        Neither ``table`` nor ``table_uri`` is given, or both.
    """

    template_fields: Sequence[str] = ("table", "table_uri", "storage_options_ref")
    job: ClassVar[str] = STATUS_JOB
    """Name of its failures in the catalog."""

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
    def condition(self) -> SensorCondition:
        """Return the condition to wait for."""

    def execute(self, context: Context) -> object:
        """Read once; succeed, or wait in the triggerer or here."""
        if not self.deferrable:
            return super().execute(context)
        condition, result = self._evaluate(self.condition())
        if result.met:
            self.log.info("%s: %s.", self._source, result.message)
            return result.value
        raise TaskDeferred(
            trigger=TableTrigger(
                **asdict(self._source),
                poke_seconds=self.poke_interval,
                window_ends_at=time.time() + self.timeout,
                soft_fail=self.soft_fail,
                **condition.arguments(),
            ),
            method_name=self.ended_by_trigger.__name__,
            timeout=timedelta(seconds=self.timeout) + TRIGGER_GRACE,
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Read once, for Airflow's own loop."""
        condition = self.condition()
        ti = context["ti"]
        if condition.needs_start:
            begun = ti.xcom_pull(
                task_ids=self.task_id, key=_CONDITION_KEY, map_indexes=ti.map_index
            )
            condition = condition if begun is None else new_condition(**begun)
        started, result = self._evaluate(condition)
        if condition.needs_start:
            # The next read may happen in another process, which must wait for the same condition.
            ti.xcom_push(key=_CONDITION_KEY, value=started.arguments())
        self.log.info("%s: %s.", self._source, result.message)
        return PokeReturnValue(is_done=result.met, xcom_value=result.value)

    def ended_by_trigger(self, context: Context, event: str) -> None:
        """Apply the state that the trigger gave the task; only ``dag.test()`` calls this."""
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

    def _evaluate(self, condition: SensorCondition) -> tuple[SensorCondition, ConditionResult]:
        reading = read_table_status(self._source, regions=condition.regions)
        condition = condition.started_at(reading)
        return condition, condition.check(reading)


class TableBacklogSensor(TableSensor):
    """Waits until a region of a table, or one of some regions, is due for a merge.

    Applies the rule that the merge job uses: every limit of the policy, its quiet hours, and
    skipped regions. The end of the window skips the task, unless ``soft_fail`` is False: no backlog
    is the normal state of a table. Returns ``regions`` that are due, ``due`` (the reason), and
    ``generations``, ``rows``, ``bytes`` of the backlog of all regions that were read.

    Parameters
    ----------
    regions : str or list of str, optional
        UUIDs of the regions, over which the sensor can be mapped; default: all. A region that does
        not exist yet has no backlog.
    policy : mapping, optional
        Keys that replace those of the table's policy, for example ``{"merge_at_generations": 1}``.
    wait : bool, default True
        False reads once and does not wait.
    force : bool, default False
        Succeed with any backlog, without reading it.
    **kwargs
        As of :class:`TableSensor`.
    """

    template_fields: Sequence[str] = (*TableSensor.template_fields, "regions")

    def __init__(
        self,
        *,
        regions: str | Sequence[str] | None = None,
        policy: JsonMapping | None = None,
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
        """Return the condition that one of the regions is due."""
        given = [self.regions] if isinstance(self.regions, str) else self.regions
        return BacklogDue(None if given is None else list(given), dict(self.policy or {}))

    def execute(self, context: Context) -> object:
        """Read once; succeed, skip, or wait."""
        if self.force:
            return {"regions": [], "due": "forced by the run's parameters"}
        if self.wait:
            return super().execute(context)
        _, result = self._evaluate(self.condition())
        if not result.met:
            raise TaskSkipped(
                f"{self._source}: {result.message}.", reason=result.reason or TaskSkipReason.NOT_DUE
            )
        return result.value


class GenerationMergedSensor(TableSensor):
    """Waits until flushed data is in the base table.

    Returns ``version`` of the base table, and the merged ``generations`` by region.

    Parameters
    ----------
    region : str, optional
        UUID of one region.
    generation : int, optional
        The generation of that region that must be merged; default: all that are flushed at the
        first read, of that region or of all. Without ``region``, InvalidInputError is raised.
    **kwargs
        As of :class:`TableSensor`; ``soft_fail`` is False.
    """

    template_fields: Sequence[str] = (*TableSensor.template_fields, "region", "generation")

    def __init__(
        self, *, region: str | None = None, generation: int | str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if generation is not None and region is None:
            raise InvalidInputError("generations are counted by region; give region= as well")
        self.region = region
        self.generation = generation

    def condition(self) -> GenerationsMerged:
        """Return the condition that the generations are merged."""
        if self.region is None:
            return GenerationsMerged(None)
        if self.generation is None:
            return GenerationsMerged(None, region_ids=[self.region])
        # A template gives text.
        return GenerationsMerged({self.region: int(self.generation)})


class IndexCaughtUpSensor(TableSensor):
    """Waits until maintained indexes cover the merged generations.

    Returns ``version`` of the base table, and by how many generations each of the ``indexes`` is
    behind.

    Parameters
    ----------
    indexes : list of str, optional
        Names of maintained indexes; default: all.
    generations : int, default 0
        How many merged generations each index may be behind.
    **kwargs
        As of :class:`TableSensor`; ``soft_fail`` is False.
    """

    template_fields: Sequence[str] = (*TableSensor.template_fields, "indexes")

    def __init__(
        self, *, indexes: Sequence[str] | None = None, generations: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.indexes = indexes
        self.generations = generations

    def condition(self) -> IndexesCaughtUp:
        """Return the condition that the indexes have caught up."""
        return IndexesCaughtUp(
            None if self.indexes is None else list(self.indexes), self.generations
        )
