"""The sensors of a run of a table's DAG: one for each region, none of which needs a worker."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.sdk import BaseSensorOperator, Context
from airflow.triggers.base import StartTriggerArgs

from memwal.catalog.records import STATUS_JOB
from memwal.util.records import JsonObject
from memwal_airflow.skips import SkipReason, TaskSkipped
from memwal_airflow.triggers.regions import check_share
from memwal_airflow.triggers.table_status import TableSource, read_table_status


class RegionsDueSensor(BaseSensorOperator):
    """Tells whether a region of its share is due for a merge, and what the merge waits for.

    Looks once, in the triggerer: succeeds if a region is due, and is skipped otherwise, with the
    reason in its log and under the XCom key ``reason``. Map it over ``share``. ``DAG.test()``,
    which has no triggerer, runs :meth:`execute`.

    Parameters
    ----------
    table : str
        Name of the managed table.
    shares : int
        Number of sensors that the regions are divided among.
    share : int
        Number of this sensor, from 0.
    start_trigger_args : StartTriggerArgs
        See :func:`memwal_airflow.triggers.regions.start_arguments`.
    **kwargs
        As of ``BaseSensorOperator``.
    """

    job: ClassVar[str] = STATUS_JOB
    """Name of its failures in the catalog."""

    start_from_trigger = True

    def __init__(
        self,
        *,
        table: str,
        shares: int,
        share: int,
        start_trigger_args: StartTriggerArgs,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.shares = shares
        self.share = share
        self.start_trigger_args = start_trigger_args

    def execute(self, context: Context) -> JsonObject:
        """Look once, in this process."""
        reading = read_table_status(TableSource(table=self.table))
        result = check_share(reading, share=self.share, shares=self.shares)
        self.log.info("%s: %s.", self.table, result.message)
        if not result.met:
            raise TaskSkipped(
                f"{self.table}: {result.message}.", reason=result.reason or SkipReason.NOT_DUE
            )
        return result.value
