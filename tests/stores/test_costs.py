"""How many requests operations make; ``docs/stores.md`` has some, ``-s`` prints them."""

from collections import Counter
from collections.abc import Callable

import pytest
from support.data.tables import collect_now, keys, rows
from support.stores.store_gateway import Gateway

import memwal
from memwal.jobs.table.store_check import diagnose

pytestmark = pytest.mark.slow


def test_what_operations_cost(table: memwal.Table, gateway: Gateway) -> None:
    gateway.taken()

    def cost(what: str, operation: Callable[[], object], *, most: int) -> None:
        operation()
        seen = Counter(gateway.methods())
        print(f"{what:28} {sum(seen.values()):4} {dict(sorted(seen.items()))}")
        assert sum(seen.values()) <= most, (what, seen)

    uri, options = table.uri, table.location.storage_options
    cost("open", lambda: memwal.open(uri, storage_options=options), most=5)
    writer = table.writer()
    cost("claim", writer.claim, most=22)  # one is the trace of the change
    writer.upsert(rows({0: 0}))
    gateway.taken()
    cost("append", lambda: writer.upsert(rows({1: 1})), most=2)
    cost("flush", writer.flush, most=36)
    cost("close, all flushed", writer.close, most=2)
    cost("scan, first", lambda: table.scan().to_table(), most=16)
    cost("scan, again", lambda: table.scan().to_table(), most=9)
    cost("lookup", lambda: table.lookup(keys(1)).to_table(), most=14)
    cost("status", table.status, most=14)
    cost("merge, one region", table.merge, most=34)
    cost("snapshot", table.build_snapshot, most=27)
    cost("scan, merged", lambda: table.scan().to_table(), most=10)
    for name in ("collection, first", "collection, second"):
        cost(
            name,
            lambda: collect_now(table),
            most=36,
        )
    cost("verify", table.verify, most=44)
    cost("doctor", lambda: diagnose(table.location), most=450)
    cost("write without a writer", lambda: table.upsert(rows({2: 2})), most=66)
