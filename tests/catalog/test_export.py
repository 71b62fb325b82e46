import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memwal.catalog import Catalog, Policy, read_snapshot
from memwal.errors import InvalidInputError, ObjectNotFoundError, StoreFullError


def test_every_change_of_the_tables_is_in_the_file(url: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "tables.json"
    catalog = Catalog(url, snapshot_path=path)
    catalog.migrate()
    first = catalog.register("b", uri="s3://lake/b.lance", policy=Policy(priority=7))
    assert read_snapshot(path) == [first]
    second = catalog.register("a", uri="s3://lake/a.lance", enabled=False)
    assert read_snapshot(path) == [second, first]
    changed = catalog.update("b", owner="data")
    assert read_snapshot(path) == [second, changed]
    catalog.unregister("a")
    assert read_snapshot(path) == [changed]
    assert [entry.name for entry in path.parent.iterdir() if entry.suffix == ".json"] == [path.name]
    catalog.close()


def test_the_path_comes_from_the_environment(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tables.json"
    monkeypatch.setenv("MEMWAL_CATALOG_SNAPSHOT", str(path))
    catalog = Catalog(url)
    catalog.migrate()
    catalog.register("a", uri="/data/a.lance")
    assert [table.name for table in read_snapshot(path)] == ["a"]
    catalog.close()


def test_without_a_path_no_file_is_written(catalog: Catalog, tmp_path: Path) -> None:
    catalog.register("a", uri="/data/a.lance")
    assert not list(tmp_path.rglob("*.json"))


def test_reading_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"none\.json"):
        read_snapshot(tmp_path / "none.json")
    path = tmp_path / "bad.json"
    path.write_text("{")
    with pytest.raises(InvalidInputError, match=r"bad\.json"):
        read_snapshot(path)
    path.write_text(json.dumps({"format": 1, "tables": []}))
    with pytest.raises(InvalidInputError, match=r"bad\.json"):
        read_snapshot(path)


def test_a_failed_write_leaves_the_old_file_and_no_other(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out" / "tables.json"
    catalog.register("a", uri="/data/a.lance")
    catalog.export_snapshot(path)
    before = path.read_bytes()
    catalog.register("b", uri="/data/b.lance")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFullError):
        catalog.export_snapshot(path)
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        ".tables.json.lock",
        "tables.json",
    ]


def test_of_many_writers_none_takes_a_table_back(url: str, tmp_path: Path) -> None:
    path = tmp_path / "tables.json"
    Catalog(url).migrate()

    def register(number: int) -> None:
        catalog = Catalog(url, snapshot_path=path)
        for index in range(5):
            catalog.register(f"t{number}-{index}", uri="/data/t.lance")
        catalog.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(register, range(6)))
    assert len(read_snapshot(path)) == 30
