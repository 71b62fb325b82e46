"""A catalog, and what a scrape of it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from memwal.catalog import Catalog
from memwal.exporter.catalog_reader import CatalogReader, utc_now
from memwal.exporter.collector import CatalogCollector
from memwal.jobs.status import IndexLag, RegionBacklog, TableStatus

Labels = tuple[tuple[str, str], ...]


@dataclass
class Scraper:
    """Scrapes a catalog again and again."""

    catalog: Catalog
    cache_seconds: float = 0.0
    patience_seconds: float = 8.0
    clock: Callable[[], datetime] = utc_now
    registry: CollectorRegistry = field(init=False)

    def __post_init__(self) -> None:
        collector = CatalogCollector(
            CatalogReader(self.catalog, clock=self.clock),
            cache_seconds=self.cache_seconds,
            patience_seconds=self.patience_seconds,
        )
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(collector)

    def __call__(self) -> dict[str, dict[Labels, float]]:
        """Value by metric and labels."""
        found: dict[str, dict[Labels, float]] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                key = tuple(sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[key] = sample.value
        return found

    def of(self, name: str, **labels: str) -> float | None:
        """One value; names of labels without ``memwal_``."""
        key = tuple(sorted((f"memwal_{name}", value) for name, value in labels.items()))
        return self().get(name, {}).get(key)


@pytest.fixture
def scrape(catalog: Catalog) -> Scraper:
    return Scraper(catalog)


def region(number: int = 0, **values: Any) -> RegionBacklog:
    """A region with nothing to do but what is said."""
    idle: dict[str, Any] = {
        "region_id": f"00000000-0000-0000-0000-{number:012}",
        "writer_epoch": 1,
        "sealed": False,
        "current_generation": 1,
        "merged_generation": 0,
        "backlog_generations": 0,
        "backlog_rows": 0,
        "backlog_bytes": 0,
        "oldest_backlog_seconds": None,
        "unflushed_wal_entries": 0,
        "retained_generations": 0,
    }
    return RegionBacklog(**{**idle, **values})


def status(*regions: RegionBacklog, lag: int = 0, **values: Any) -> TableStatus:
    """A status of these regions, with one index."""
    index = IndexLag(name="id_idx", generations=lag, regions=min(lag, 1), rows=10 * lag)
    found: dict[str, Any] = {
        "uri": "/lake/flights",
        "version": 3,
        "regions": regions or (region(),),
        "indexes": (index,),
        "snapshot_age_seconds": 1.0,
        "base_rows": 100,
        "base_bytes": 1000,
    }
    return TableStatus(**{**found, **values})


@pytest.fixture
def make_region() -> Callable[..., RegionBacklog]:
    return region


@pytest.fixture
def make_status() -> Callable[..., TableStatus]:
    return status
