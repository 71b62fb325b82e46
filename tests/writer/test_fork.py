"""Writers and forks: a child must be told no, at once, whatever its parent was doing."""

import textwrap

from support.data.tables import MakeTable, generations, log, state
from support.processes import run_python

import memwal

# Prints what the child said, and its exit status, behind what the parent says itself.
RUN_CHILD = """
import os, signal, sys, threading, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)

def run_child(call):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            call()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}")
        else:
            print("no error")
        sys.stdout.flush()
        os._exit(0)
    print("status", os.waitpid(child, 0)[1])
"""


def run(code: str, *args: str) -> list[str]:
    """Run a program in an interpreter of its own and return its lines."""
    return run_python(RUN_CHILD + textwrap.dedent(code), *args).stdout.splitlines()


class TestGuard:
    def test_knows_every_descendant(self) -> None:
        """A grandchild may well have the process id of an ancestor that has ended."""
        lines = run(
            """
            from memwal.util.concurrency import ForkGuard
            first = ForkGuard("first")
            def child():
                second = ForkGuard("second")
                print(first.inherited, second.inherited)
                second.check()
                run_child(lambda: print(first.inherited, second.inherited))
            run_child(child)
            print(first.inherited)
            """
        )
        assert lines == [
            "True False",
            "True True",
            "no error",
            "status 0",
            "no error",
            "status 0",
            "False",
        ]


class TestTimerThread:
    def test_of_the_parent_does_not_hold_a_child_up(self) -> None:
        """The child inherits the lock of the timers, held by a thread that it does not have."""
        lines = run(
            """
            import gc
            from memwal.util.timers import TimerThread
            class Owner:
                def call(self): pass
            held, leave = threading.Event(), threading.Event()
            def clock():
                # The thread of the timers holds the lock while it looks at the clock.
                held.set()
                leave.wait()
                return 0.0
            owner, timers = Owner(), TimerThread(clock=clock)
            timers.new_timer(owner.call).schedule(3600.0)
            held.wait()
            def child():
                global timers
                timers.close()
                del timers
                gc.collect()
            run_child(child)
            leave.set()
            """
        )
        assert lines == ["no error", "status 0"]


OPEN = """
import _thread, gc, warnings
warnings.filterwarnings("ignore", message="lance is not fork-safe")
import pyarrow as pa, memwal
table = memwal.open(sys.argv[1])
schema = table.schema
def rows(*ids):
    return pa.table({"id": ids, "n": ids, "text": [f"{i}={i}" for i in ids]}, schema=schema)
LOCKS = (_thread.LockType, _thread.RLock, threading.Condition)
def locks_of(owner):
    # All locks of the library that belong to an object, or to what it is made of.
    found, seen, left = [], set(), [owner]
    while left:
        item = left.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, LOCKS):
            found.append(item)
        elif type(item).__module__.startswith("memwal") or isinstance(item, (dict, list, tuple)):
            left += gc.get_referents(item)
    return found
BUFFERED = memwal.WriterOptions(durable=False, buffer_interval=3600.0)
"""


class TestWriter:
    def test_refuses_every_call_in_a_child_though_its_locks_are_held(
        self, table: memwal.Table
    ) -> None:
        lines = run(
            OPEN
            + """
writer = table.writer()
handle = writer.upsert(rows(1))
held, leave = threading.Event(), threading.Event()
def hold():
    taken = [lock for lock in locks_of(writer) if lock.acquire(blocking=False)]
    print("some locks" if len(taken) > 5 else taken)
    held.set()
    leave.wait()
    for lock in taken:
        lock.release()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
def child():
    for call in (
        lambda: writer.upsert(rows(2)),
        lambda: writer.upsert(rows(2), wait=False),
        lambda: writer.delete(pa.array([1])),
        writer.flush_wal,
        writer.flush,
        writer.claim,
        writer.close,
        writer.stats,
        lambda: writer.scan().to_table(),
        lambda: writer.lookup([1]).to_table(),
    ):
        try:
            call()
        except memwal.MemWalError as error:
            print(type(error).__name__)
        else:
            print("worked")
run_child(child)
leave.set()
holder.join()
writer.upsert(rows(3))
writer.close()
""",
            table.uri,
        )
        assert lines == ["some locks", *["WriterClosedError"] * 10, "no error", "status 0"]
        assert state(table) == {1: 1, 3: 3}

    def test_of_the_parent_goes_on_when_a_child_leaves_its_block(
        self, make_table: MakeTable
    ) -> None:
        """By its end, by leaving the process and by an error."""
        tables = [make_table() for _ in range(3)]
        lines = run(
            OPEN
            + """
def fail():
    raise KeyError("of the child")
child = None
for uri, end in zip(sys.argv[1:], (lambda: None, sys.exit, fail)):
    try:
        with memwal.open(uri).writer(options=BUFFERED) as writer:
            writer.upsert(rows(1), wait=True)
            writer.upsert(rows(2))
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                end()
            else:
                print("status", os.waitpid(child, 0)[1])
                print("entries", writer.stats().totals.entries, writer.stats().buffered_writes)
                writer.upsert(rows(3))
    except BaseException as error:
        if child != 0:
            raise
        print(type(error).__name__)
    if child == 0:
        # It ends as any program does.
        break
    sys.stdout.flush()
""",
            *(table.uri for table in tables),
        )
        ends = ("WriterClosedError", "SystemExit", "KeyError")
        assert lines == [line for end in ends for line in (end, "status 0", "entries 1 1")]
        for table in tables:
            assert generations(table) == [1]
            assert state(table) == {1: 1, 2: 2, 3: 3}

    def test_of_the_parent_goes_on_when_a_child_collects_it(self, table: memwal.Table) -> None:
        """Neither the collector nor the end of the child flushes, fences or deletes anything."""
        lines = run(
            OPEN
            + """
import logging
logging.basicConfig(stream=sys.stdout, level=logging.DEBUG, format="log %(name)s")
writer = table.writer(options=BUFFERED)
writer.upsert(rows(1), wait=True)
writer.upsert(rows(2))
sys.stdout.flush()
if os.fork() == 0:
    signal.alarm(60)
    del writer
    gc.collect()
    sys.exit(0)
print("status", os.wait()[1])
print("entries", writer.stats().totals.entries, writer.stats().buffered_writes)
writer.upsert(rows(3))
writer.flush_wal()
writer.abort()
""",
            table.uri,
        )
        assert lines == ["status 0", "entries 1 1"]
        assert len(log(table)) == 2
        assert generations(table) == []
