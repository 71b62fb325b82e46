"""A claim, an append and a flush ask the store for what the design note lists."""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from support.data.tables import rows
from support.stores.faulty_store import FaultyStore, FaultyStores

import memwal
from memwal.format.paths import MEM_WAL_DIR, REGION_MARKS_DIR

NOTE = Path(__file__).parents[2] / "docs" / "design" / "0014-requests-of-a-writer.md"

# What needs a request on an object store.
REQUESTS = {"create", "put", "replace", "get", "get_range", "head", "list", "list_folders"}
KINDS = {
    "*/manifest/version_hint.json": "version hint",
    "*/manifest/*": "manifest of the region",
    "*/wal/": "log",
    "*/wal/*": "log entry",
    "*_gen_*/bloom_filter.bin": "Bloom filter",
    "*_gen_*/orphan": "mark of an orphan",
    "*_gen_*/_versions/*": "manifest of the generation",
    "*_gen_*/_transactions/*": "record of its commit",
    "*_gen_*/_pk_index/*": "key index",
    "*_gen_*/data/*": "file of rows",
    "_memwal_regions/*": "marks of the region",
    "_versions/*": "manifest of the table",
}


def listed(title: str) -> Counter[tuple[str, str]]:
    """Return the requests that the note lists below a title, with their numbers."""
    part = NOTE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (\d+) \|", part, re.MULTILINE)
    return Counter({(request, kind): int(times) for request, kind, times in found})


def made(store: FaultyStore) -> Counter[tuple[str, str]]:
    """Return the requests that were made, by kind of object."""
    return Counter(
        (request, next(kind for pattern, kind in KINDS.items() if fnmatchcase(key, pattern)))
        for request, key in store.calls
        if request in REQUESTS
    )


@pytest.fixture
def store(faults: FaultyStores, table: memwal.Table) -> FaultyStore:
    """Return the store of a table whose region was flushed before."""
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
    return faults.of(table.location)


def test_of_a_claim(store: FaultyStore, table: memwal.Table) -> None:
    with table.writer() as writer:
        store.clear()
        writer.claim()
        assert made(store) == listed("A claim")


def test_of_an_append(store: FaultyStore, table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({2: 2}))
        store.clear()
        writer.upsert(rows({3: 3}))
        assert made(store) == listed("An append")


def names_of_regions(store: FaultyStore) -> Counter[tuple[str, str]]:
    """Return the requests for the list of regions, and for the marks of all of them."""
    kinds = {MEM_WAL_DIR: "regions", REGION_MARKS_DIR: "region marks"}
    return Counter((request, kinds[key]) for request, key in store.calls if key in kinds)


def test_of_the_names_of_regions(store: FaultyStore, table: memwal.Table) -> None:
    store.clear()
    with table.writer() as writer:
        writer.claim()
        assert names_of_regions(store) == listed("The names of regions")


def test_of_a_new_region(faults: FaultyStores, table: memwal.Table) -> None:
    store = faults.of(table.location)
    with table.writer() as writer:
        store.clear()
        writer.claim()
        assert names_of_regions(store) == listed("A new region")


def test_of_a_flush(store: FaultyStore, table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({2: 2}))
        store.clear()
        writer.flush()
        assert made(store) == listed("A flush of a region")
