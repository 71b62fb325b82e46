"""A catalog, and what a scrape of it shows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from memwal.catalog import Catalog
from memwal.exporter.catalog_reader import CatalogReader
from memwal.exporter.collector import CatalogCollector

Labels = tuple[tuple[str, str], ...]


@dataclass
class Scraper:
    """Scrapes a catalog again and again."""

    catalog: Catalog
    cache_seconds: float = 0.0
    patience_seconds: float = 8.0
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
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
