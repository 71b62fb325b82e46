"""Operator that checks the invariants of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import Context

from memwal.errors import InvalidInputError
from memwal.jobs.arguments import to_arguments
from memwal.jobs.job import Guard, JobResult
from memwal.jobs.options import VerifyOptions
from memwal.util.records import JsonObject
from memwal_airflow.operators.base import MemWalOperator, Target, external_id, region_ids
from memwal_airflow.spark.reattach import EarlierTry
from memwal_airflow.version_compat import AirflowFailException

if TYPE_CHECKING:
    from memwal.fleet import Skipped

FailOn = Literal["error", "warning", "never"]
MAX_WARNINGS = 20
_FAILS_ON: dict[FailOn, tuple[str, ...]] = {
    "error": ("errors",),
    "warning": ("errors", "warnings"),
    "never": (),
}


class MemWalVerifyOperator(MemWalOperator):
    """Checks the invariants of a table that is in use. Changes nothing.

    The report is in the log and, as XCom, the result: ``errors``, ``warnings`` and ``findings``,
    each with ``severity``, ``code``, ``object``, ``text`` and ``advice``. The record of the run
    has the counts and the first findings. ``memwal fleet status`` lists errors until a check finds
    none.

    Parameters
    ----------
    fail_on : {"error", "warning", "never"}, default "error"
        The least severity of a finding that fails the task, without a retry. Other findings are
        logged as warnings.
    quick : bool, default False
        Read names, manifests and schemas only, no rows.
    sample_generations : int, optional
        Read the rows of at most this many generations per region.
    regions : list of str, optional
        UUIDs of the regions to check; default: all.
    **kwargs
        As of :class:`~memwal_airflow.operators.base.MemWalOperator`.

    Raises
    ------
    InvalidInputError
        ``fail_on`` is invalid, or ``quick`` is combined with ``sample_generations``.
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
        self._report: JsonObject = {}

    def run_on(
        self, target: Target, context: Context, earlier: EarlierTry | None
    ) -> JobResult | Skipped:
        """Run the check under a lease of its own."""
        from memwal.fleet import Runtime, run_recorded

        regions = tuple(sorted(region_ids(self.regions or ()))) or None
        rules = target.managed.policy.quality
        uri = rules.quarantine_uri if rules is not None else None
        arguments = to_arguments(replace(self.options, regions=regions, quarantine_uri=uri))

        def execute(guard: Guard) -> JobResult:
            self._report = report = self.submit(
                target, arguments, context=context, check_lease=guard, earlier=earlier
            )
            warnings = tuple(_describe(finding) for finding in _serious(report)[:MAX_WARNINGS])
            return JobResult(
                job=self.job,
                table=report["table"],
                version=report["version"],
                tasks=report["tasks"],
                seconds=report["seconds"],
                metrics={key: report[key] for key in ("regions", "errors", "warnings")},
                warnings=warnings,
            )

        result = run_recorded(
            target.catalog,
            target.name,
            self.job,
            execute,
            wait=self.wait,
            runtime=Runtime(external_id=external_id(context), guard=self.raise_if_killed),
        )
        # After the record of the run, whose success ends an earlier failure.
        if isinstance(result, JobResult) and result.metrics["errors"]:
            target.catalog.backoffs.record_failure(target.name, self.job, result.warnings[0])
        return result

    def handle_result(self, result: JsonObject, context: Context) -> JsonObject:
        """Return the whole report; fail if it has findings of a severity of ``fail_on``."""
        report = self._report
        context["ti"].xcom_push(key="result", value=report)
        count = sum(report[key] for key in _FAILS_ON[self.fail_on])
        if count:
            raise AirflowFailException(
                f"{report['errors']} errors and {report['warnings']} warnings were found in "
                f"{report['table']}; the worst: {_describe(_serious(report)[0])}"
            )
        return report


def _serious(report: JsonObject) -> list[JsonObject]:
    return [item for item in report["findings"] if item["severity"] in ("error", "warning")]


def _describe(finding: JsonObject) -> str:
    return f"{finding['severity']} {finding['code']} at {finding['object']}: {finding['text']}"
