"""Release of memory that tasks leave behind."""

import pytest
from support.processes import run_python

from memwal.util import memory, system
from memwal.util.memory import MemoryLimit

MIB = 1 << 20


@pytest.fixture
def resident(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the system tells next, in MiB, and then for good."""
    found = [100]

    def tell() -> int:
        return (found.pop(0) if len(found) > 1 else found[0]) * MIB

    monkeypatch.setattr(system, "resident_bytes", tell)
    return found


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Every release."""
    calls: list[None] = []
    monkeypatch.setattr(memory, "release_free_memory", lambda: calls.append(None))
    return calls


def run(limit: MemoryLimit, resident: list[int], *values: int) -> None:
    """Run a task; ``values`` are told before it, after it, and after a release."""
    resident[:] = list(values)
    with limit.hold(10 * MIB):
        pass


def test_what_tasks_leave_is_returned_when_it_is_more_than_the_limit(
    resident: list[int], released: list[None]
) -> None:
    limit = MemoryLimit()
    run(limit, resident, 100, 105)
    run(limit, resident, 105, 110)
    assert not released
    run(limit, resident, 110, 111, 102)
    assert len(released) == 1


def test_what_cannot_be_returned_counts_from_there_on(
    resident: list[int], released: list[None]
) -> None:
    limit = MemoryLimit()
    run(limit, resident, 100, 200, 190)
    run(limit, resident, 190, 199)
    assert len(released) == 1
    run(limit, resident, 199, 201, 190)
    assert len(released) == 2
    run(limit, resident, 50, 60)
    run(limit, resident, 60, 61, 50)
    assert len(released) == 3


def test_also_after_a_task_that_fails(resident: list[int], released: list[None]) -> None:
    resident[:] = [100, 150]
    with pytest.raises(ValueError), MemoryLimit().hold(10 * MIB):
        raise ValueError
    assert len(released) == 1


def test_nothing_is_released_where_the_system_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, released: list[None]
) -> None:
    monkeypatch.setattr(system, "_MEMORY", "/does/not/exist")
    assert system.resident_bytes() is None
    with MemoryLimit().hold(0):
        pass
    assert not released


_THREADS_THAT_FREE = """
import threading
import numpy as np
import pyarrow as pa
from memwal.util import system
from memwal.util.memory import bound_free_memory, release_free_memory

def fill():
    block = pa.allocate_buffer(20 << 20, memory_pool=pa.system_memory_pool())
    np.frombuffer(block, np.uint8)[:] = 1
    gate.wait()

bound_free_memory()
before = system.resident_bytes() or 0
for _ in range(3):
    gate = threading.Barrier(8)
    threads = [threading.Thread(target=fill) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
release_free_memory()
print((system.resident_bytes() or 0) - before)
"""


def test_large_blocks_that_threads_freed_are_not_kept() -> None:
    """Each thread has an arena, whose end glibc keeps otherwise: 240 MiB here."""
    assert int(run_python(_THREADS_THAT_FREE).stdout) < 40 * MIB
