"""Requests of a claim, an append and a flush, each with its reason.

``docs/design/0014-requests-of-a-writer.md`` says which requests are left out, and why that is safe.
Lance itself writes the rows and the files of the key index. If it builds indexes, it also commits
them.
"""

from collections import Counter
from fnmatch import fnmatchcase

import pytest
from support.data.tables import rows
from support.stores.faulty_store import FaultyStore, FaultyStores

import memwal
from memwal.format.paths import MEM_WAL_DIR, REGION_MARKS_DIR

Requests = Counter[tuple[str, str]]
"""Numbers of requests by method and kind of object."""

# A writer that opens: whether a region has an id that the spec does not derive. The manifest of
# such a region is read once per process if it takes no more rows, otherwise each time.
NAMES_OF_REGIONS: Requests = Counter({("list_folders", "regions"): 1})

# Beside a claim, once in the life of a region.
NEW_REGION: Requests = Counter(
    {
        # Whether a region with a name of its own is missing, whose rows the new one would get, and
        # whether there are regions at all, none of which is found.
        ("list", "region marks"): 2,
        # The same. After the claim and before the first row: whether another client made a region
        # for the same rows at the same time.
        ("list_folders", "regions"): 2,
    }
)

# Of a region that exists and whose generations are flushed.
CLAIM: Requests = Counter(
    {
        # Columns and region spec, for the routing.
        ("get", "manifest of the table"): 1,
        # Whether the region must exist, and from which generation on. The first claim also creates
        # its mark.
        ("list", "marks of the region"): 1,
        # Where the search for the newest manifest begins. Before each of the two commits, so that
        # a paused process does not set it back.
        ("get", "version hint"): 3,
        # Whether there is a successor. Whether the predecessor of each commit is still stored.
        ("head", "manifest of the region"): 3,
        # The newest one. The one of the claim, to which the tip is added.
        ("get", "manifest of the region"): 2,
        # Entries to replay, gaps, and the tip.
        ("list", "log"): 1,
        # Whether the listing left out an entry at the tip: before the claim, before the sentinel.
        ("head", "log entry"): 2,
        # The claim, and the tip of the log; the hint after each of them.
        ("create", "manifest of the region"): 2,
        ("replace", "version hint"): 2,
        # The sentinel, which fences the previous writer. The replay reads it.
        ("create", "log entry"): 1,
        ("get", "log entry"): 1,
    }
)

# Beside a claim, of a region whose last writer left an entry to replay.
REPLAY: Requests = Counter(
    {
        # The columns of the table, which another writer may have used since this one opened.
        ("get", "manifest of the table"): 1,
        # The sentinel of the claim before, and the entry. The last one is also read before the new
        # sentinel, which must not follow that of a newer claim.
        ("get", "log entry"): 3,
    }
)

# Of a writer whose last append was less than 2 seconds ago, and whose claim was verified in the
# last 10 seconds. Both requests run at the same time. After a longer pause, the versions of the
# table are listed as well.
APPEND: Requests = Counter(
    {
        ("create", "log entry"): 1,
        # Whether there is a next version, which may have no MemWAL or another region spec.
        ("head", "manifest of the table"): 1,
    }
)

# Of one region. Above 20,000 keys, one put more: the sized Bloom filter.
FLUSH: Requests = Counter(
    {
        # Its columns. Once for all flushes that begin together.
        ("get", "manifest of the table"): 1,
        # The rows as a data set.
        ("put", "manifest of the generation"): 1,
        # The last file of a generation.
        ("put", "Bloom filter"): 1,
        # Whether each file has its size.
        ("list", "generation"): 1,
        # The manifest that is changed.
        ("get", "manifest of the region"): 1,
        # Whether a collection took the folder for an orphan, and has deleted it since.
        ("head", "mark of an orphan"): 1,
        ("head", "Bloom filter"): 1,
        # Names the generation.
        ("create", "manifest of the region"): 1,
        # So that a paused process does not set the hint back.
        ("get", "version hint"): 1,
        # Whether the predecessor is still stored.
        ("head", "manifest of the region"): 1,
        # Where the next search begins.
        ("replace", "version hint"): 1,
    }
)

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
    "*_gen_*": "generation",
    "_memwal_regions/*": "marks of the region",
    "_versions/*": "manifest of the table",
}


def made(store: FaultyStore) -> Requests:
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
        assert made(store) == CLAIM


def test_of_a_claim_with_rows_in_the_log(store: FaultyStore, table: memwal.Table) -> None:
    left = table.writer()
    left.upsert(rows({2: 2}))
    left.abort()
    with table.writer() as writer:
        store.clear()
        writer.claim()
        assert made(store) == CLAIM + REPLAY


def test_of_an_append(store: FaultyStore, table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({2: 2}))
        store.clear()
        writer.upsert(rows({3: 3}))
        assert made(store) == APPEND


def names_of_regions(store: FaultyStore) -> Requests:
    """Return the requests for the list of regions, and for the marks of all of them."""
    kinds = {MEM_WAL_DIR: "regions", REGION_MARKS_DIR: "region marks"}
    return Counter((request, kinds[key]) for request, key in store.calls if key in kinds)


def test_of_the_names_of_regions(store: FaultyStore, table: memwal.Table) -> None:
    store.clear()
    with table.writer() as writer:
        writer.claim()
        assert names_of_regions(store) == NAMES_OF_REGIONS


def test_of_a_new_region(faults: FaultyStores, table: memwal.Table) -> None:
    store = faults.of(table.location)
    with table.writer() as writer:
        store.clear()
        writer.claim()
        assert names_of_regions(store) == NEW_REGION


def test_of_a_flush(store: FaultyStore, table: memwal.Table) -> None:
    store.is_local = False
    with table.writer() as writer:
        writer.upsert(rows({2: 2}))
        store.clear()
        writer.flush()
        assert made(store) == FLUSH
