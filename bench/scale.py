"""What maintaining one table costs at 100, 10,000 and 1,000,000 regions: a model, as Markdown.

Usage: ``python bench/scale.py [--latency MILLISECONDS] [--indexes N]``. Requests are those that
``bench/maintenance.py --only regions`` counts; all that is taken for granted stands below.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

REGIONS = (100, 10_000, 1_000_000)

# S3 Standard, us-east-1, dollars for one request: the list prices of January 2026 as the author
# knows them, not looked up on the day. Deletes of many objects are POSTs and counted like PUTs,
# although single DELETEs are free.
PRICES = {
    "GET": 0.0004e-3,
    "HEAD": 0.0004e-3,
    "LIST": 0.005e-3,
    "PUT": 0.005e-3,
    "POST": 0.005e-3,
}
# Of a general-purpose machine on demand, there and then.
DOLLARS_PER_CORE_HOUR = 0.05

MONTH = 30 * 86_400
# Of the merge progress in every version of the table, and as much again for each index.
DETAILS_BYTES_PER_REGION = 25
SNAPSHOT_BYTES_PER_REGION = 135
# What the first request of a page of a listing tells of.
LISTED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of a job over all regions.

    Attributes
    ----------
    name : str
    policy : str
        Key of the policy that says how often.
    each : mapping of str to int
        Requests for each region, by kind, sent one after another.
    at_once : int
        Regions that a process reads at once.
    default : float
        Seconds from one run to the next, as the policy has it by itself.
    intervals : tuple of float
        The same as it should be set for each size.
    """

    name: str
    policy: str
    each: dict[str, int]
    at_once: int
    default: float
    intervals: tuple[float, float, float]

    def requests(self, regions: int) -> dict[str, float]:
        """Requests of a run; listing the regions among them."""
        found = {kind: float(number * regions) for kind, number in self.each.items()}
        found["LIST"] = found.get("LIST", 0.0) + max(regions / LISTED_AT_ONCE, 1)
        return found

    def dollars(self, regions: int) -> float:
        """What the requests of a run cost."""
        return sum(PRICES[kind] * number for kind, number in self.requests(regions).items())

    def seconds(self, regions: int, *, latency: float) -> float:
        """How long one process waits for its requests."""
        one = sum(self.each.values()) * latency
        return one * -(-regions // self.at_once) + max(regions / LISTED_AT_ONCE, 1) * latency


PASSES = (
    Pass("look at the backlog", "schedule", {"GET": 2, "HEAD": 3}, 64, 60, (60, 600, 3_600)),
    Pass("snapshot", "snapshot_at_age_seconds", {"GET": 2, "HEAD": 2}, 64, 300, (300, 600, 3_600)),
    Pass(
        "collection, nothing to do",
        "gc_interval_seconds",
        {"GET": 3, "LIST": 3},
        16,
        3_600,
        (3_600, 21_600, 86_400),
    ),
)
# One generation with one entry of its log in a region of its own, from flush to collection.
LIFE = {
    "flushing it": {"PUT": 8, "HEAD": 3, "GET": 3, "LIST": 2},
    "merging it": {"GET": 2, "LIST": 1},
    "dropping it from the manifest": {"GET": 4, "HEAD": 2, "PUT": 2},
    "deleting it, its log and an old manifest": {"GET": 1, "LIST": 2, "POST": 4},
}


def main() -> None:
    """Print the tables."""
    arguments = _arguments()
    for line in lines(arguments.latency / 1e3, arguments.indexes):
        print(line)


def lines(latency: float = 0.02, indexes: int = 2) -> Iterator[str]:
    """Return the tables; ``latency`` is that of a request, in seconds."""
    yield "| regions | job | requests of a run | $ of a run | minutes | every | $ a month |"
    yield "|---|---|---|---|---|---|---|"
    totals = []
    for number, regions in enumerate(REGIONS):
        total = hours = by_default = 0.0
        for job in PASSES:
            seconds = job.seconds(regions, latency=latency)
            runs = MONTH / max(job.intervals[number], seconds)
            total += runs * job.dollars(regions)
            hours += runs * seconds / 3_600
            by_default += MONTH / job.default * job.dollars(regions)
            kinds = ", ".join(f"{n:,.0f} {kind}" for kind, n in job.requests(regions).items())
            yield (
                f"| {regions:,} | {job.name} | {kinds} | {job.dollars(regions):.2g} "
                f"| {seconds / 60:,.2g} | {job.intervals[number]:,.0f} s "
                f"| {runs * job.dollars(regions):,.2f} |"
            )
        totals.append((regions, total, by_default, hours))
    yield ""
    yield (
        "| regions | $ a month, set like that | for each region | by default, were a run not "
        "longer than its interval | core hours | $ of these | bytes of progress in every version "
        "| snapshot |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for regions, total, by_default, hours in totals:
        progress = DETAILS_BYTES_PER_REGION * (1 + indexes) * regions
        yield (
            f"| {regions:,} | {total:,.2f} | {total / regions:.2g} | {by_default:,.2f} "
            f"| {hours:,.0f} | {hours * DOLLARS_PER_CORE_HOUR:,.2f} | {progress / 1e6:,.2g} MB "
            f"| {SNAPSHOT_BYTES_PER_REGION * regions / 1e6:,.2g} MB |"
        )
    yield ""
    yield "| a generation | requests | $ of a million |"
    yield "|---|---|---|"
    for name, each in LIFE.items():
        kinds = ", ".join(f"{n} {kind}" for kind, n in each.items())
        million = 1e6 * sum(PRICES[kind] * n for kind, n in each.items())
        yield f"| {name} | {kinds} | {million:.2f} |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=20, help="of a request, in milliseconds")
    parser.add_argument("--indexes", type=int, default=2, help="maintained indexes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
