"""The memory of a process that reads on and on."""

import tracemalloc
from pathlib import Path

import pytest
from support.data.searched import Searched, sources_of
from support.oracles import reading
from support.processes import running_python

from memwal.reader.sources.cache import LruCache
from memwal.search.text import column
from memwal.search.text.column import TextColumn, column_weight, open_column

CYCLES = 16
FLUSHES = 4


def test_the_texts_of_many_small_generations_weigh_what_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each flush makes a new column of all of them, whose arrays are the least of it."""
    searched = Searched(tmp_path)
    with searched.table.writer() as writer:
        for start in range(0, 40, 4):
            writer.upsert(searched.rows(range(start, start + 4)))
            writer.flush()
    sources, newest = sources_of(searched.table)
    open_column(sources, newest, "t")
    columns: list[TextColumn] = []
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            monkeypatch.setattr(column, "_column_cache", LruCache[TextColumn](1))
            columns.append(open_column(sources, newest, "t"))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 * taken < sum(map(column_weight, columns)) < 2 * taken


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_does_not_grow_with_what_was_merged_and_collected(tmp_path: Path) -> None:
    """The second half of its life costs a reader a fraction of what all generations together take.

    64 generations come and go in each half, and one that is read takes about a megabyte.
    """
    searched = Searched(tmp_path)
    table = searched.table
    taken: list[int] = []
    with running_python(Path(reading.__file__), table.uri) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None

        def read() -> int:
            print(file=reader.stdin, flush=True)
            return int(reader.stdout.readline())

        for _ in range(CYCLES):
            with table.writer() as writer:
                for start in range(0, 50 * FLUSHES, 50):
                    writer.upsert(searched.rows(range(start, start + 50)))
                    writer.flush()
                    read()
            table.merge()
            read()
            table.checkpoint()
            table.collect_garbage(
                dry_run=False,
                grace_seconds=0,
                retention_seconds=0,
            )
            taken.append(read())
        reader.stdin.close()
    assert taken[-1] - taken[CYCLES // 2 - 1] < 16 << 20
