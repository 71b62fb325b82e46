"""Names, units and meanings of the exported metrics of tables: the source of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memwal.exporter.catalog_reader import TableFigures
from memwal.fleet.schedule import interval_seconds
from memwal.jobs.status import IndexLag, TableStatus
from memwal.telemetry import MetricDefinition


@dataclass(frozen=True, slots=True)
class TableGauge(MetricDefinition):
    """Gauge with one number per table; ``of`` returns None to omit a table."""

    of: Callable[[TableFigures], float | None]


@dataclass(frozen=True, slots=True)
class IndexGauge(MetricDefinition):
    """Gauge with one number for each maintained index of a table."""

    of: Callable[[IndexLag], float | None]


def _status(
    of: Callable[[TableStatus], float | None],
) -> Callable[[TableFigures], float | None]:
    """Apply a function to the latest status of a table; None without a status."""
    return lambda reading: None if reading.state is None else of(reading.state.status)


TABLE_GAUGES = (
    TableGauge(
        "memwal.table.enabled",
        "",
        "1 if the table is maintained, 0 if that is switched off.",
        lambda t: float(t.table.enabled),
    ),
    TableGauge(
        "memwal.table.late",
        "s",
        "Age of the oldest unmerged generation from which the table is late, by its policy.",
        lambda t: t.table.policy.late_seconds,
    ),
    TableGauge(
        "memwal.table.critical",
        "s",
        "Age of the oldest unmerged generation from which the table is critical, by its policy.",
        lambda t: t.table.policy.critical_seconds,
    ),
    TableGauge(
        "memwal.table.interval",
        "s",
        "Longest pause between two recorded looks, by the schedule; none without one.",
        # Without a number the alert is not evaluated.
        lambda t: interval_seconds(t.table.policy.schedule),
    ),
    TableGauge(
        "memwal.table.collection.interval",
        "s",
        "Pause between two collections, by its policy.",
        lambda t: t.table.policy.gc_interval_seconds,
    ),
    TableGauge(
        "memwal.table.catchup.interval",
        "s",
        "Time after which an index that is behind is built, by the policy.",
        lambda t: t.table.policy.index_at_age_seconds,
    ),
    TableGauge(
        "memwal.table.status.age",
        "s",
        "Time since the table was looked at, or since it was registered.",
        lambda t: t.status_age,
    ),
    TableGauge(
        "memwal.table.backlog.age",
        "s",
        "Age of the oldest generation that was unmerged in the latest status; 0 without a backlog.",
        lambda t: t.backlog_age,
    ),
    TableGauge(
        "memwal.table.backlog.generations",
        "{generation}",
        "Flushed generations that are not merged.",
        _status(lambda s: s.backlog_generations),
    ),
    TableGauge(
        "memwal.table.backlog.deepest",
        "{generation}",
        "Maximum number of unmerged generations in one region.",
        _status(lambda s: max((r.backlog_generations for r in s.regions), default=0)),
    ),
    TableGauge(
        "memwal.table.backlog.rows",
        "{row}",
        "Rows of the unmerged generations.",
        _status(lambda s: s.backlog_rows),
    ),
    TableGauge(
        "memwal.table.backlog.bytes",
        "By",
        "Memory of the unmerged generations.",
        _status(lambda s: s.backlog_bytes),
    ),
    TableGauge(
        "memwal.table.wal.entries",
        "{entry}",
        "Log entries that no generation covers; 0 where all rows are flushed.",
        _status(lambda s: s.unflushed_wal_entries),
    ),
    TableGauge(
        "memwal.table.regions_to_recover",
        "{region}",
        "Regions with unflushed rows of writers that are closed or dead.",
        _status(lambda s: s.regions_to_recover),
    ),
    TableGauge(
        "memwal.table.consumer.age",
        "s",
        "Longest time for which a consumer that is not expired committed nothing new.",
        _status(lambda s: max((c.idle_seconds for c in s.consumers if not c.expired), default=0.0)),
    ),
    TableGauge(
        "memwal.table.expired_consumers",
        "{consumer}",
        "Consumers of changes that have to begin again.",
        _status(lambda s: s.expired_consumers),
    ),
    TableGauge(
        "memwal.table.regions",
        "{region}",
        "Regions, also those that nothing was written to yet.",
        _status(lambda s: s.region_count),
    ),
    TableGauge(
        "memwal.table.skipped_regions",
        "{region}",
        "Regions that merges skip since they cannot be read.",
        lambda t: t.overview.skipped_regions,
    ),
    TableGauge(
        "memwal.table.unindexable_rows",
        "{row}",
        "Rows that an index cannot hold, as of the last index build.",
        lambda t: t.overview.unindexable_rows,
    ),
    TableGauge(
        "memwal.table.base.rows",
        "{row}",
        "Rows of the base table.",
        _status(lambda s: s.base_rows),
    ),
    TableGauge(
        "memwal.table.base.size",
        "By",
        "Data files of the base table's newest version.",
        _status(lambda s: s.base_bytes),
    ),
    TableGauge(
        "memwal.table.reclaimable.size",
        "By",
        "Memory of merged generations that every index covers and that are still stored.",
        _status(lambda s: s.reclaimable_bytes),
    ),
    TableGauge(
        "memwal.table.catchup.age",
        "s",
        "How long an index has been behind without a successful build, since the endpoint started; "
        "0 if none is.",
        lambda t: t.counters.behind,
    ),
    TableGauge(
        "memwal.region.claims.most",
        "{claim}",
        "Maximum claims of one region within 15 minutes.",
        lambda t: t.counters.most_claims,
    ),
)

INDEX_GAUGES = (
    IndexGauge(
        "memwal.table.catchup.generations",
        "{generation}",
        "Merged generations that the index does not cover.",
        lambda index: index.generations,
    ),
    IndexGauge(
        "memwal.table.catchup.rows",
        "{row}",
        "Rows of the base table that the index does not cover.",
        lambda index: index.rows,
    ),
)

TABLE_HEALTH = MetricDefinition(
    "memwal.table.health",
    "",
    "1 for each state that the table is in, 0 for the others; the same names as on the page.",
)
TABLE_INFO = MetricDefinition(
    "memwal.table.info", "", "1; its labels are name, address and owner of a table."
)
REGION_CLAIMS = MetricDefinition(
    "memwal.region.claims", "{claim}", "Claims of regions by writers since the endpoint started."
)
JOB_RUNNING = MetricDefinition(
    "memwal.job.running", "{run}", "1 while the lease of the job is held."
)
JOB_SUCCESS_AGE = MetricDefinition(
    "memwal.job.success.age",
    "s",
    "Time since the job last succeeded, or since the table was registered.",
)
JOB_ATTEMPTS = MetricDefinition(
    "memwal.job.attempts",
    "{attempt}",
    "Failures in a row of a failed job, at least 1; also of the jobs status, log, progress, dag, "
    "not_started, sensor_timeout and policy.",
)
JOB_FAILING = MetricDefinition("memwal.job.failing", "s", "How long a failed job has been failing.")
CATALOG_UP = MetricDefinition("memwal.catalog.up", "", "1 if the catalog answered, else 0.")
CATALOG_READ = MetricDefinition(
    "memwal.catalog.read.duration", "s", "Duration of the last reading of the catalog."
)
