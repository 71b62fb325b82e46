"""A disk that is full: a clear error, and the writer goes on when there is space again."""

from support.data.tables import MakeTable, log
from support.processes import run_python

# The limit is the process's own, so that it cannot be set in the one that runs the tests.
LIMITED = """
import resource, sys
import memwal
from memwal.errors import StoreFullError
from support.data.tables import rows, state

table = memwal.open(sys.argv[1])
writer = table.writer()
writer.upsert(rows({1: 1}))
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, unlimited[1]))
for _ in range(2):
    try:
        writer.upsert(rows({n: n for n in range(1000, 5000)}))
    except StoreFullError:
        print("full")
writer.upsert(rows({2: 2}))
assert state(writer) == {1: 1, 2: 2}
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
writer.upsert(rows({3: 3}))
writer.close()
assert state(table) == {1: 1, 2: 2, 3: 3}
print("done")
"""

FLUSH_LIMITED = """
import resource, sys
import memwal
from memwal.errors import MemWalError
from support.data.tables import rows, state

table = memwal.open(sys.argv[1])
writer = table.writer(options=memwal.WriterOptions(flush_attempts=1))
for part in range(8):
    writer.upsert(rows({n: n for n in range(part * 100, part * 100 + 100)}))
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, unlimited[1]))
try:
    writer.flush()
except MemWalError as error:
    print("refused", type(error).__name__)
writer.upsert(rows({-1: -1}))
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
writer.close()
assert state(table) == {n: n for n in range(-1, 800)}
print("done")
"""


def test_an_append_beyond_the_limit_is_refused_and_the_writer_goes_on(
    make_table: MakeTable,
) -> None:
    table = make_table()

    assert run_python(LIMITED, table.uri).stdout.split() == ["full", "full", "done"]

    assert [entry.writer_epoch for entry in log(table).values()] == [1, 1, 1]


def test_a_flush_beyond_the_limit_is_refused_and_made_later(make_table: MakeTable) -> None:
    table = make_table()

    refused, done = run_python(FLUSH_LIMITED, table.uri).stdout.splitlines()

    assert refused == "refused StoreFullError"
    assert done == "done"
