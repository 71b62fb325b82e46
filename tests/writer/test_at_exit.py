"""Writes in an ``atexit`` handler, when Python has shut all thread pools down."""

from pathlib import Path

from support.processes import run_python

import memwal

PROGRAM = """
import atexit, sys
import pyarrow as pa
import memwal

def rows(first):
    return pa.table({"id": list(range(first, first + 100))})

def buffered(**options):
    return memwal.WriterOptions(durable=False, buffer_interval=60, **options)

spec = memwal.RegionSpec.bucket("id", 4)
table = memwal.create(sys.argv[1], rows(0).schema, primary_key=["id"], region_spec=spec)
# Accepted before the end, and in the log only if the close below brings them there.
early = table.writer(options=buffered())
early.upsert(rows(0))

@atexit.register
def late():
    early.close()
    # Regions are claimed here, one of them with a log that is replayed.
    durable = table.writer()
    durable.upsert(rows(100))
    # Lost unless they go to the log at once: no thread and no timer comes after this.
    kept = table.writer(options=buffered(max_memtable_age=1))
    kept.upsert(rows(200))
    kept.upsert(rows(300), partial=True)
    print(kept.scan().count_rows(), kept.lookup(pa.array([0, 399, 400])).count_rows())
"""


def test_nothing_is_lost(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    ended = run_python(PROGRAM, uri)
    assert "Traceback" not in ended.stderr, ended.stderr
    assert ended.stdout.split() == ["400", "2"]
    with memwal.open(uri).writer() as writer:
        writer.claim()
        assert writer.scan().count_rows() == 400
