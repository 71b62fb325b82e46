"""Answers of the page's API, made up but of one piece, always the same for one moment."""

import math
import random
import uuid
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from memwal.fleet.health import Health
from memwal.jobs.due import jobs_of
from memwal.jobs.policy import Policy
from memwal.jobs.status import ConsumerStatus, IndexLag

LATE = 3600.0
CRITICAL = 43_200.0
WIDE_REGIONS = 10_000
NAMES = ("flights", "orders", "clicks", "sessions", "embeddings", "payments", "devices", "reviews")
PLACES = ("eu", "us", "apac", "lab", "mobile", "web", "edge")
OWNERS = ("data-platform", "search", "payments", "ml-infra")
AIRFLOW_STATES = ("run_failed", "no_heartbeat", "not_started", "run_queued", "sensor_timeout")
ERROR = "ObjectStoreError: PUT s3://lake/orders.lance/_versions/71.manifest: 503 SlowDown"


class Canned:
    """All answers, as of ``now``.

    Parameters
    ----------
    now : datetime
        Aware.
    tables : int, default 500
        Rows of the fleet. The first is ``flights``, of 16 regions; the second ``clicks-wide``,
        of 10,000.

    Attributes
    ----------
    rows : list of dict
    plain : set of str
        Tables without MemWAL.
    """

    def __init__(self, now: datetime, *, tables: int = 500) -> None:
        self.now = now
        self.plain: set[str] = set()
        self.rows = [self._row(index) for index in range(tables)]
        for row in self.rows[:2]:
            self._agree(row)

    def ago(self, seconds: float) -> str:
        """A moment that long before now."""
        return (self.now - timedelta(seconds=seconds)).isoformat()

    def fleet(self) -> dict[str, Any]:
        """Answer of ``api/fleet``."""
        return {"at": self.ago(2), "tables": self.rows}

    def _row(self, index: int) -> dict[str, Any]:
        pick = random.Random(index)
        wide = index == 1
        name = f"{pick.choice(NAMES)}-{pick.choice(PLACES)}-{index:03d}"
        name = {0: "flights", 1: "clicks-wide"}.get(index, name)
        chance = pick.random()
        age: float | None = pick.uniform(5, 900)
        health, reasons, errors, skipped = "ok", [], [], 0
        if index == 0:
            skipped, health, age = 1, "failing", 214.0
            errors = [self._region_error(self.ago(214.0))]
        elif chance < 0.015:
            health, age = "critical", pick.uniform(CRITICAL, 1.6 * CRITICAL)
        elif chance < 0.05 or wide:
            health, age = "late", pick.uniform(LATE, 5 * LATE)
        elif chance < 0.075:
            health, skipped = "failing", pick.randint(0, 2)
            errors = [self._error(self.ago(pick.uniform(60, 4000)))]
        elif chance < 0.09:
            health, age = "unwatched", None
        elif chance < 0.11:
            health = "off"
        elif chance < 0.16:
            health = pick.choice(AIRFLOW_STATES)
        elif chance < 0.2:
            health = "due"
        elif chance > 0.85:
            age = None
        if health not in ("ok", "off"):
            reasons = [self._reason(health, errors, age, self.ago(pick.uniform(20, 900)))]
        waiting = 0 if age is None else pick.randint(1, 40) * (200 if wide else 1)
        rows = waiting * pick.randint(2_000, 90_000)
        lag = pick.choice((0, 0, 0, 1, 3)) if health != "unwatched" else None
        known = health != "unwatched"
        running = [
            {
                "run_id": 100 + index,
                "job": "merge",
                "started_at": self.ago(40),
                "done": 3,
                "total": 8,
            }
        ]
        return {
            "table": name,
            "uri": f"s3://lake/{name}.lance",
            "owner": pick.choice(OWNERS),
            "enabled": health != "off",
            "tags": pick.sample(("gold", "pii", "vectors", "hourly"), pick.randint(0, 2)),
            "dag_id": f"memwal_{name}",
            "health": health,
            "reasons": reasons,
            "sampled_at": self.ago(8) if known else None,
            "backlog": {
                "generations": waiting,
                "rows": rows,
                "bytes": rows * 640,
                "wal_entries": pick.randint(0, 900),
                "oldest_seconds": age,
            }
            if known
            else None,
            "late_seconds": LATE,
            "critical_seconds": CRITICAL,
            "rows_in_per_second": pick.uniform(0, 40_000) if known and health != "off" else None,
            "rows_merged_per_second": pick.uniform(0, 40_000) if known else None,
            "lag_generations": lag,
            "lag_rows": None if lag is None else lag * pick.randint(10_000, 900_000),
            "reclaimable_bytes": pick.randint(0, 60) << 30 if known else None,
            "regions": (WIDE_REGIONS if wide else 16) if known else None,
            "base_rows": pick.randint(10**6, 10**9) if known else None,
            "version": pick.randint(40, 9_000) if known else None,
            "running": running if index % 23 == 4 or index == 0 else [],
            "last_runs": {
                "merge": self.ago(pick.uniform(20, 2_000)),
                "index": self.ago(pick.uniform(200, 5_000)),
                "snapshot": self.ago(pick.uniform(20, 400)),
                "gc": self.ago(pick.uniform(200, 4_000)),
            }
            if known
            else {},
            "skipped_regions": skipped,
            "unindexable_rows": 0,
            "errors": errors,
        }

    def _reason(
        self, health: str, errors: list[dict[str, Any]], age: float | None, since: str
    ) -> dict[str, Any]:
        """A state of a table, with the words that it has of the server."""
        text = {
            "failing": errors[0]["reason"] if errors else "",
            "unwatched": "its status has not been read yet",
            "run_failed": "the run asset__71 of memwal__orders failed",
            "no_heartbeat": "the scheduler of Airflow is without a heartbeat",
            "not_started": "merge is due (5 pending generations) and not started for 700 s",
            "run_queued": "no executor takes the task merge of memwal__orders",
            "sensor_timeout": "no triggerer answered the task gate of memwal__orders in time",
            "due": "merge is due (5 pending generations) and not started for 12 s",
        }.get(health, f"the oldest generation waits for {age or 0:.0f} s")
        return {
            "health": health,
            "text": text,
            "since": since,
            "runbook": errors[0]["runbook"] if errors else Health(health).runbook,
            "runbook_link": None,
        }

    def _error(self, at: str) -> dict[str, Any]:
        return {
            "job": "merge",
            "reason": ERROR,
            "at": at,
            "since": at,
            "attempts": 3,
            "next_try_at": self.ago(-95),
            "run_id": 41,
            "action": "bring back what the message names: the store, the catalog, the Spark "
            "server or the table's disk",
            "runbook": "docs/runbooks/MemwalJobFailing.md#the-store-does-not-answer",
            "runbook_link": None,
        }

    def _region_error(self, at: str) -> dict[str, Any]:
        return {
            "job": "region",
            "reason": f"1 region is skipped: {uuid.UUID(int=3)} from generation 41: not found",
            "at": at,
            "since": at,
            "attempts": 5,
            "next_try_at": self.ago(-960),
            "run_id": None,
            "action": "repair what the reason names, and then run memwal jobs retry",
            "runbook": "docs/runbooks/MemwalRegionSkipped.md#what-to-do",
            "runbook_link": None,
        }

    def _agree(self, row: dict[str, Any]) -> None:
        """Make the sums of a row those of its regions."""
        regions = self.regions(row)

        def total(name: str) -> int:
            return sum(region[name] for region in regions)

        ages = [region["oldest_backlog_seconds"] or 0.0 for region in regions]
        row["backlog"] = {
            "generations": total("backlog_generations"),
            "rows": total("backlog_rows"),
            "bytes": total("backlog_bytes"),
            "wal_entries": total("unflushed_wal_entries"),
            "oldest_seconds": max(ages),
        }
        row["reclaimable_bytes"] = total("reclaimable_bytes")
        row["lag_generations"], row["lag_rows"] = 7, row["base_rows"] // 9

    def table(self, name: str) -> dict[str, Any] | None:
        """Answer of ``api/tables/{name}``; None when there is no such table."""
        row = next((one for one in self.rows if one["table"] == name), None)
        if row is None:
            return None
        regions = self.regions(row)
        skipped = [
            {
                "table": name,
                "region_id": region["region_id"],
                "generation": region["merged_generation"] + 1,
                "reason": "generation 41 cannot be read: data/3f2a.lance is missing; restore it "
                "from a backup, or drop the generation with memwal verify --repair",
                "since": self.ago(5_000),
                "attempts": 5,
                "next_try_at": (self.now + timedelta(seconds=960)).isoformat(),
                "waiting": True,
            }
            for region in regions[3 : 3 + row["skipped_regions"]]
        ]
        known = row["backlog"] is not None
        return {
            **row,
            "policy": asdict(Policy(tags=tuple(row["tags"]))),
            "status": self._status(row) if known else None,
            "due": self._due(name) if known else {},
            "skipped_regions": skipped,
            "failed_jobs": [{**error, "next_try_at": self.ago(-95)} for error in row["errors"]],
            "quality": self._quality() if name == "flights" else None,
        }

    def _quality(self) -> dict[str, Any]:
        met = {"severity": "critical", "success": True, "failed": 0, "examples": [], "error": None}
        return {
            "mode": "quarantine",
            "success": False,
            "rows": 412_310,
            "failed_rows": 37,
            "quarantined_rows": 37,
            "skipped_regions": [],
            "at": self.ago(230),
            "expectations": [
                {**met, "type": "expect_column_values_to_not_be_null", "column": "id"},
                {
                    **met,
                    "type": "expect_column_values_to_be_between",
                    "column": "delay",
                    "success": False,
                    "failed": 37,
                    "examples": [{"id": 8_120_441}, {"id": 8_120_902}],
                },
                {**met, "type": "expect_vector_norm_to_be_between", "column": "embedding"},
            ],
        }

    def regions(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Regions of a table, of the backlog of its row."""
        pick = random.Random(row["table"])
        total = row["regions"] or 0
        oldest = (row["backlog"] or {}).get("oldest_seconds") or 0.0
        found = []
        for index in range(total):
            heat = pick.random() ** 4
            waiting = 0 if heat < 0.02 else 1 + int(heat * 14)
            merged = pick.randint(20, 60)
            retained = pick.randint(0, 6)
            found.append(
                {
                    "region_id": str(uuid.UUID(int=pick.getrandbits(128), version=4)),
                    "writer_epoch": pick.randint(1, 9),
                    "sealed": index % 29 == 11,
                    "current_generation": merged + waiting + 1,
                    "merged_generation": merged,
                    "backlog_generations": waiting,
                    "backlog_rows": waiting * pick.randint(5_000, 40_000),
                    "backlog_bytes": waiting * pick.randint(4 << 20, 40 << 20),
                    "oldest_backlog_seconds": oldest * max(heat, 0.01) if waiting else None,
                    "unflushed_wal_entries": int(heat * 60),
                    "retained_generations": retained,
                    "reclaimable_generations": retained // 2,
                    "reclaimable_bytes": retained // 2 * (20 << 20),
                    "held_generations": retained % 2,
                    "held_bytes": retained % 2 * (20 << 20),
                    "missing_wal_entry": None,
                    "merged_before": None,
                }
            )
        return found

    def _status(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "uri": row["uri"],
            "version": row["version"],
            "mem_wal": row["table"] not in self.plain,
            "unwritten_regions": 0,
            "indexes": [
                asdict(lag)
                for lag in (
                    IndexLag(name="id_idx", generations=0, regions=0, rows=0),
                    IndexLag(
                        name="vector_idx",
                        generations=7,
                        regions=5,
                        rows=max(1, row["base_rows"] // 90),
                    ),
                    IndexLag(name="text_idx", generations=3, regions=3, rows=row["base_rows"] // 9),
                    IndexLag(name="city_idx", generations=0, regions=0, rows=0, stale=True),
                )
            ],
            "consumers": [
                asdict(consumer)
                for consumer in (
                    ConsumerStatus(
                        name="embeddings",
                        epoch=3,
                        owner="gpu-1:7",
                        version=max(1, row["version"] - 2),
                        idle_seconds=340.0,
                        held_bytes=180 << 20,
                    ),
                    ConsumerStatus(
                        name="search-cache",
                        epoch=1,
                        owner="web-4:1",
                        version=1,
                        idle_seconds=691_200.0,
                        held_bytes=0,
                        expired="it committed nothing for 8 d, the limit is 7 d",
                    ),
                )
            ],
            "snapshot_age_seconds": 74.0,
            "small_fragments": 21,
            "deleted_percent": 4.0,
            "base_rows": row["base_rows"],
        }

    def _due(self, name: str) -> dict[str, Any]:
        rest = {"postponed": None, "critical": False}
        due = {
            "merge": {
                **rest,
                "reason": "9 pending generations (limit 4)",
                "pressure": 2.25,
            },
            "index": {
                **rest,
                "reason": "7 merged generations not indexed (limit 1)",
                "pressure": 7.0,
            },
            "compact": {**rest, "reason": None, "pressure": 0.33},
            "snapshot": {**rest, "reason": None, "pressure": 0.25},
            "gc": {
                **rest,
                "reason": None,
                "postponed": "quiet hours (22:00-06:00 Europe/Berlin); last garbage collection "
                "4102 s ago (limit 3600 s)",
                "pressure": 1.14,
            },
        }
        jobs = jobs_of(mem_wal=name not in self.plain)
        return {job: decision for job, decision in due.items() if job in jobs}

    def history(self, hours: float) -> dict[str, Any]:
        """Answer of ``api/tables/{name}/history``."""
        points = 288
        samples = []
        noise = random.Random(7)
        for index in range(points):
            turn = index / points * 2 * math.pi
            wave = math.sin(turn - 1.4) ** 2
            saw = (index % 18) / 18
            rows = int(220_000 + 900_000 * wave * saw)
            burst = 1.6 if 180 < index < 200 else 1.0
            samples.append(
                {
                    "at": self.ago((points - index) * hours * 3600 / points),
                    "generations": 4 + int(30 * wave * saw),
                    "rows": int(rows * burst),
                    "bytes": int(rows * 640 * burst),
                    "wal_entries": int(40 + 200 * wave),
                    "oldest_seconds": 60 + (700 + 1_700 * (burst > 1)) * wave * saw * burst,
                    "lag_generations": int(9 * saw),
                    "lag_rows": int(480_000 * (1 - saw) * wave),
                    "reclaimable_bytes": int((1 + 24 * ((index % 96) / 96)) * 2**30),
                    "base_rows": 48_000_000 + index * 31_000,
                    "rows_in_per_second": 4_000 + 9_000 * wave + noise.uniform(-250, 250),
                    "rows_merged_per_second": (2_600 + 9_000 * wave) * (1.0 if saw else 2.1),
                }
            )
        return {"samples": samples}

    def runs(self) -> dict[str, Any]:
        """Answer of ``api/tables/{name}/runs``."""
        return {"runs": [self._run(index) for index in range(50)]}

    def _run(self, index: int) -> dict[str, Any]:
        pick = random.Random(1_000 + index)
        job = ("merge", "index", "merge", "snapshot", "merge", "gc")[index % 6]
        state = "running" if index == 0 else "failed" if index in (4, 17) else "succeeded"
        metrics = {
            "merge": {
                "generations": pick.randint(4, 30),
                "rows_upserted": 412_000,
                "rows_deleted": 310,
            },
            "index": {"indexes": 2, "segments": 5, "rows": 388_000},
            "snapshot": {"regions": 16},
            "gc": {"generations": 21, "log_entries": 190, "bytes": 3 << 30},
        }[job]
        started = 40 + index * 190
        seconds = None if state == "running" else pick.uniform(1.5, 90)
        return {
            "run_id": 900 - index,
            "job": job,
            "state": state,
            "started_at": self.ago(started),
            "finished_at": None if seconds is None else self.ago(started - seconds),
            "seconds": seconds,
            "done": 3 if state == "running" else 8,
            "total": 8,
            "rows": pick.randint(20_000, 900_000) if job in ("merge", "index") else None,
            "bytes": pick.randint(1 << 20, 900 << 20) if job in ("merge", "gc") else None,
            "version_before": 4_310 - index,
            "version_after": None if state != "succeeded" else 4_311 - index,
            "metrics": metrics if state == "succeeded" else None,
            "warnings": ["region 3f2a is skipped from generation 41, which cannot be read"]
            if index == 2
            else [],
            "error": ERROR if state == "failed" else None,
            "quality": None,
            "link": f"/dags/memwal_flights/runs/manual__{900 - index}",
        }

    def collection(self) -> dict[str, Any]:
        """Answer of ``api/tables/{name}/collection``."""
        return {
            "at": self.ago(0),
            "would_delete": [
                {"kind": "generation", "count": 21, "bytes": 3 << 30},
                {"kind": "log entries", "count": 1_930, "bytes": 410 << 20},
            ],
            "stays": [
                {
                    "kind": "generation",
                    "count": 9,
                    "bytes": 1 << 30,
                    "why": "an index does not cover it yet",
                },
                {
                    "kind": "generation",
                    "count": 12,
                    "bytes": 2 << 30,
                    "why": "a version that is kept needs it",
                },
                {
                    "kind": "base versions",
                    "count": 1,
                    "bytes": None,
                    "why": "a tagged version needs it",
                },
            ],
            "examples": [
                "generation 40 of region 3f2a stays: vector_idx does not cover it yet",
            ],
        }


def canned(*, tables: int = 500) -> Canned:
    """Answers as of now."""
    return Canned(datetime.now(UTC), tables=tables)
