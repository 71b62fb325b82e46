"""Tables with flushed generations, for jobs on Spark."""

from collections.abc import Callable

import pytest
from support.data.tables import MakeTable, keys, rows

import memwal

MakeBacklog = Callable[..., tuple[memwal.Table, dict[int, int]]]


@pytest.fixture
def make_backlog(make_table: MakeTable) -> MakeBacklog:
    """Return a function that makes a table of four regions with flushed generations, and tells
    what it holds: every generation rewrites all keys, and deletes one of those that were left."""

    def make(generations: int, *, count: int = 40) -> tuple[memwal.Table, dict[int, int]]:
        table = make_table(buckets=4, maintained_indexes=["id_idx"])
        with table.writer() as writer:
            for n in range(generations):
                writer.upsert(rows(dict.fromkeys(range(n, count), n)))
                writer.delete(keys(n))
                writer.flush()
        return table, dict.fromkeys(range(generations, count), generations - 1)

    return make
