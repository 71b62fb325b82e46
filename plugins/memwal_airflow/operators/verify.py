"""An operator that checks the invariants of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from memwal.errors import InvalidInputError
from memwal.jobs.options import VerifyOptions
from memwal_airflow.operators.base import MemWalOperator, external_id
from memwal_airflow.operators.target import Target, region_ids
from memwal_airflow.spark.reattach import EarlierTry

if TYPE_CHECKING:
    from memwal.fleet import Skipped
    from memwal.jobs.job import Guard, JobResult

FailOn = Literal["error", "warning", "never"]
MOST_PROBLEMS = 20
_FAILS_ON: dict[FailOn, tuple[str, ...]] = {
    "error": ("errors",),
    "warning": ("errors", "warnings"),
    "never": (),
}


class MemWalVerifyOperator(MemWalOperator):
    """Checks every invariant of a table, while others read and write it. Changes nothing.

    What it finds is in its log and, as XCom, its result: ``errors``, ``warnings`` and
    ``findings``, each with ``severity``, ``code``, ``object``, ``text`` and ``advice``. The record
    of the run has the counts and the first of them, and errors are among the troubles that
    ``memwal fleet status`` lists, until a check finds none.

    Parameters
    ----------
    fail_on : {"error", "warning", "never"}, default "error"
        What the task fails by, without a retry: errors, warnings as well, or nothing that is
        found. What it does not fail by is a warning in its log.
    quick : bool, default False
        Read no rows: names, manifests and schemas only.
    sample_generations : int, optional
        Read the rows of at most so many generations of a region.
    regions : list of str, optional
        UUIDs of the regions to check; all by default.
    **kwargs
        As of :class:`~memwal_airflow.operators.base.MemWalOperator`.

    Raises
    ------
    InvalidInputError
        ``fail_on`` is none of its values, or a quick check is to read rows.
    """

    job = "verify"
    template_fields = (*MemWalOperator.template_fields, "regions")

    def __init__(
        self,
        *,
        fail_on: FailOn = "error",
        quick: bool = False,
        sample_generations: int | None = None,
        regions: Iterable[str] | Any | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if fail_on not in _FAILS_ON:
            raise InvalidInputError(
                f"fail_on is {fail_on!r}; it must be one of {', '.join(_FAILS_ON)}."
            )
        self.fail_on = fail_on
        self.options = VerifyOptions(quick=quick, sample_generations=sample_generations)
        self.regions = regions
        self._report: dict[str, Any] = {}

    def run_on(
        self, target: Target, context: Context, earlier: EarlierTry | None
    ) -> JobResult | Skipped:
        """Run it under a lease of its own."""
        from memwal.fleet import Runtime, run_recorded
        from memwal.jobs.arguments import to_arguments
        from memwal.jobs.job import JobResult

        options = replace(
            self.options,
            regions=tuple(sorted(region_ids(self.regions or ()))) or None,
        )

        def execute(guard: Guard) -> JobResult:
            self._report = report = self.submit(
                target, to_arguments(options), context=context, look=guard, earlier=earlier
            )
            problems = tuple(_shown(found) for found in _serious(report)[:MOST_PROBLEMS])
            if report["errors"]:
                target.catalog.backoffs.record_failure(target.name, self.job, problems[0])
            else:
                target.catalog.backoffs.clear_failure(target.name, self.job)
            return JobResult(
                job=self.job,
                table=report["table"],
                version=report["version"],
                tasks=report["tasks"],
                seconds=report["seconds"],
                figures={key: report[key] for key in ("regions", "errors", "warnings")},
                problems=problems,
            )

        return run_recorded(
            target.catalog,
            target.name,
            self.job,
            execute,
            wait=self.wait,
            runtime=Runtime(external_id=external_id(context), guard=self.go_on),
        )

    def take(self, result: dict[str, Any], context: Context) -> dict[str, Any]:
        """Give the whole report; fail by what it lists."""
        report = self._report
        context["ti"].xcom_push(key="result", value=report)
        count = sum(report[key] for key in _FAILS_ON[self.fail_on])
        if count:
            raise AirflowFailException(
                f"{report['errors']} errors and {report['warnings']} warnings were found in "
                f"{report['table']}; the worst: {_shown(_serious(report)[0])}"
            )
        return report


def _serious(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [found for found in report["findings"] if found["severity"] in ("error", "warning")]


def _shown(finding: dict[str, Any]) -> str:
    return f"{finding['severity']} {finding['code']} at {finding['object']}: {finding['text']}"
