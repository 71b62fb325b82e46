"""A catalog with its schema, in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memwal.catalog import Catalog


@pytest.fixture(autouse=True)
def _no_catalog_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("MEMWAL_CATALOG_URL", raising=False)
    monkeypatch.delenv("MEMWAL_CATALOG_SNAPSHOT", raising=False)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'catalog.db'}"


@pytest.fixture
def catalog(url: str) -> Iterator[Catalog]:
    catalog = Catalog(url)
    catalog.migrate()
    yield catalog
    catalog.close()
