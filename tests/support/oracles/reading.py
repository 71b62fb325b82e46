"""Every kind of read of a table of :mod:`support.data.searched`, also as a process of its own.

Usage: ``python reading.py URI``. For each line on its input it reads, and answers with the memory
that the process has, in bytes.
"""

import sys
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import memwal
from memwal.search.text.query import PhraseQuery


def read_all_kinds(reads: Any) -> None:
    """Have everything read that is kept in memory, vectors as well."""
    schema = reads.scan(limit=1).to_table().schema
    reads.lookup(pa.array([1, 5, 155, 10_000])).to_table()
    reads.scan(filter="id < 100").to_table()
    reads.scan().to_table()
    for _ in range(4):
        assert len(reads.search(np.full(schema.field("v").type.list_size, 0.1), k=5).to_table())
    assert len(reads.search_text("fox zebra", k=5).to_table())
    # Lance's own index is asked for a phrase.
    reads.search_text(PhraseQuery("quick fox", "t")).to_table()


def main() -> None:
    """Read for each line."""
    table = memwal.open(sys.argv[1])
    for _ in sys.stdin:
        read_all_kinds(table)
        print(psutil.Process().memory_info().rss, flush=True)


if __name__ == "__main__":
    main()
