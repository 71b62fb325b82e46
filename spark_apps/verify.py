"""Checks the invariants of a MemWAL table, while others read and write it. Exit code 1 if there
are errors; the result lists the findings.

For example::

    spark-submit spark_apps/verify.py --table s3://lake/flights.lance --result verify.json
    spark-submit spark_apps/verify.py --table s3://lake/flights.lance --repair --yes
"""

import sys
from dataclasses import dataclass

from memwal.errors import InvalidInputError
from memwal.jobs.options import VerifyOptions
from memwal.jobs.verify import VerifyReport, repair
from memwal.jobs.verify import verify as check
from memwal.spark.application import Application, JobReport, job_parser, run_application


def main() -> int:
    parser = job_parser("verify", __doc__)
    parser.add_argument(
        "--repair", action="store_true", help="list the repairs that are safe; with --yes, do them"
    )
    parser.add_argument("--yes", action="store_true", help="do the repairs")
    return run_application(
        parser, VerifyOptions, verify, failure_of=describe_errors, in_any_state=True
    )


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """A report, and the repairs."""

    report: VerifyReport
    repairs: list[dict[str, object]]

    def to_dict(self) -> dict[str, object]:
        return {"job": "verify", **self.report.to_dict(), "repairs": self.repairs}


def verify(application: Application[VerifyOptions]) -> JobReport:
    arguments, location = application.arguments, application.table.location
    if arguments.yes and not arguments.repair:
        raise InvalidInputError("--yes only goes with --repair")
    report = check(location, application.options)
    if not arguments.repair:
        return VerifyResult(report, [])
    uri = application.options.quarantine_uri
    actions = repair(location, report, dry_run=not arguments.yes, quarantine_uri=uri)
    if any(action.state == "done" for action in actions):
        report = check(location, application.options)
    return VerifyResult(report, [action.to_dict() for action in actions])


def describe_errors(result: VerifyResult) -> str | None:
    errors = result.report.errors
    return f"{errors} errors were found; the result lists them" if errors else None


if __name__ == "__main__":
    sys.exit(main())
