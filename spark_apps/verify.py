"""Checks every invariant of a MemWAL table, while others read and write it. Ends with 1 when there
are errors; the result lists them all the same.

For example::

    spark-submit spark_apps/verify.py --table s3://lake/flights.lance --result verify.json
    spark-submit spark_apps/verify.py --table s3://lake/flights.lance --repair --yes
"""

import sys

from memwal.errors import InvalidInputError
from memwal.jobs.verify import Depth, Severity, VerifyReport, repair
from memwal.spark.application import (
    Application,
    Result,
    job_parser,
    positive_int,
    regions_option,
    run_application,
)


def main() -> int:
    parser = job_parser("verify", __doc__)
    regions_option(parser, "--region", "check this region only (default: all regions)")
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument(
        "--quick", action="store_true", help="read no rows: names, manifests and schemas only"
    )
    rows.add_argument(
        "--sample",
        type=positive_int,
        metavar="N",
        help="read the rows of at most so many generations of a region",
    )
    parser.add_argument(
        "--repair", action="store_true", help="tell which repairs are safe; with --yes, do them"
    )
    parser.add_argument("--yes", action="store_true", help="do the repairs")
    return run_application(parser, verify, verdict=verdict, in_any_state=True)


class Verified:
    """A report, and what was repaired."""

    def __init__(self, report: VerifyReport, repairs: list[dict[str, object]]) -> None:
        self.report = report
        self.repairs = repairs

    def to_dict(self) -> dict[str, object]:
        return {"job": "verify", **self.report.to_dict(), "repairs": self.repairs}


def verify(application: Application) -> Result:
    options = application.options
    if options.yes and not options.repair:
        raise InvalidInputError("--yes only goes with --repair")

    def check() -> VerifyReport:
        return application.table.verify(
            regions=options.regions,
            depth=Depth.QUICK if options.quick else Depth.FULL,
            sample=options.sample,
            max_tasks=application.parallelism,
            run=application.run,
        )

    report = check()
    if not options.repair:
        return Verified(report, [])
    actions = repair(application.table.location, report, dry_run=not options.yes)
    if any(action.state == "done" for action in actions):
        report = check()
    return Verified(report, [action.to_dict() for action in actions])


def verdict(verified: Verified) -> str | None:
    errors = verified.report.count(Severity.ERROR)
    return f"{errors} errors were found; the result lists them" if errors else None


if __name__ == "__main__":
    sys.exit(main())
