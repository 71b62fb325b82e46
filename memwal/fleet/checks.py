"""The check of the rows that a managed table has, as often as its policy says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memwal.errors import ConflictError, InvalidInputError
from memwal.fleet.order import Skipped, Why
from memwal.fleet.tables import open_managed
from memwal.maintenance.results import JobResult
from memwal.quality.check import check_quality
from memwal.quality.rules import QualityRules
from memwal.storage.location import TableLocation

if TYPE_CHECKING:
    from memwal.catalog import Catalog

JOB = "quality"
"""Name of the job in the catalog."""

Check = Callable[[TableLocation, QualityRules], JobResult]


def run_check(
    catalog: Catalog,
    table_name: str,
    *,
    force: bool = False,
    whole: bool = False,
    check: Check | None = None,
    storage_options: Mapping[str, str] | None = None,
    external_id: str | None = None,
) -> JobResult | Skipped:
    """Check the base table of a managed table under a lease, and record what was found.

    Parameters
    ----------
    force : bool, default False
        Now, whether ``check_schedule_seconds`` have passed or not.
    whole : bool, default False
        All rows, and not ``check_sample_rows`` of them.
    check : callable, optional
        Does it elsewhere.

    Returns
    -------
    JobResult or Skipped
        What was found, or why it was not looked.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    InvalidInputError
        Its policy has no suite.
    MemWalError
        It failed. That is recorded.
    """
    from memwal.catalog.leases import job_resource

    managed = catalog.get(table_name)
    rules = managed.policy.quality
    if rules is None or not rules.suite:
        raise InvalidInputError(
            f"the policy of {table_name} has no suite; give it one with memwal quality set"
        )
    if not force:
        why = _not_due(rules, catalog.last_runs(table_name).get(JOB))
        if why is not None:
            return Skipped(job=JOB, table=table_name, why=Why.NOT_DUE, reason=why)
    try:
        lease = catalog.leases.acquire(job_resource(table_name, JOB))
    except ConflictError as error:
        return Skipped(job=JOB, table=table_name, why=Why.AT_WORK, reason=str(error))
    with (
        lease,
        catalog.record_run(table_name, JOB, external_id=external_id, lease=lease) as active,
    ):
        location = open_managed(managed, storage_options=storage_options).location
        if check is None:
            sample = None if whole else rules.check_sample_rows
            result = check_quality(location, rules, sample_rows=sample)
        else:
            result = check(location, rules)
        active.finish(result)
    return result


def _not_due(rules: QualityRules, last: datetime | None) -> str | None:
    if rules.check_schedule_seconds is None:
        return "its policy has no check_schedule_seconds"
    if last is None:
        return None
    passed = (datetime.now(UTC) - last).total_seconds()
    if passed >= rules.check_schedule_seconds:
        return None
    return f"it was checked {passed:.0f} s ago, and is every {rules.check_schedule_seconds:.0f} s"
