"""Nobody starves, whoever else there is."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.fleet.scheduler import MAX_PASSED_OVER, FairQueue, QueuedJob
from memwal.jobs.due import JOBS, Due

MIB = 1 << 20


def candidate(table: str, job: str = "merge", pressure: float = 1.0, **options: Any) -> QueuedJob:
    critical = options.pop("critical", False)
    due = Due(reason="due", pressure=pressure, critical=critical)
    return QueuedJob(table=table, job=job, due=due, **options)


def names(found: list[Any]) -> list[str]:
    return [choice.due_job.table for choice in found]


def test_what_presses_most_goes_first() -> None:
    queue = FairQueue()
    found = queue.choose(
        [
            candidate("calm", pressure=1.0),
            candidate("late", pressure=1.0, critical=True),
            candidate("full", pressure=5.0),
            candidate("dear", pressure=1.0, priority=90),
        ],
        slots=3,
    )
    assert names(found) == ["late", "dear", "full"]
    assert queue.waited("calm", "merge") == 1
    assert queue.waited("full", "merge") == 0


def test_one_job_of_a_table_at_a_time() -> None:
    found = FairQueue().choose([candidate("a", job) for job in JOBS], slots=5)
    assert [choice.due_job.job for choice in found] == ["recover"]


def test_merges_share_the_bytes() -> None:
    waiting = [
        candidate("a", pressure=3, bytes=70 * MIB),
        candidate("b", pressure=2, bytes=70 * MIB),
        candidate("c", pressure=1, bytes=70 * MIB),
        candidate("d", job="gc", pressure=1),
    ]
    found = FairQueue().choose(waiting, slots=9, remaining_bytes=100 * MIB)
    assert [(choice.due_job.table, choice.run_bytes) for choice in found] == [
        ("a", 100 * MIB),
        ("b", 30 * MIB),
        ("d", None),
    ]
    assert [c.run_bytes for c in FairQueue().choose(waiting, slots=9)] == [None] * 4


PRESSES = st.builds(
    lambda pressure, critical: Due(reason="due", pressure=pressure, critical=critical),
    st.floats(0, 1e6),
    st.booleans(),
)


@settings(max_examples=60)
@given(st.data())
@pytest.mark.parametrize("remaining_bytes", [None, MIB, 50 * MIB])
def test_every_due_job_is_served_within_a_bound(remaining_bytes: int | None, data: Any) -> None:
    """Tables whose pressures change as an adversary likes: nothing waits longer than the bound."""
    count = data.draw(st.integers(1, 6), label="tables")
    jobs = data.draw(st.lists(st.sampled_from(JOBS), min_size=1, unique=True), label="jobs")
    slots = data.draw(st.integers(1, 3), label="slots")
    victim = (data.draw(st.integers(0, count - 1)), data.draw(st.sampled_from(jobs)))
    keys = [(number, job) for number in range(count) for job in jobs]
    priorities = data.draw(
        st.lists(st.integers(1, 100), min_size=count, max_size=count), label="priorities"
    )
    others = data.draw(st.lists(PRESSES, min_size=1, max_size=20), label="pressures")
    sizes = data.draw(st.lists(st.integers(0, 99 * MIB), min_size=1, max_size=7), label="bytes")
    bound = MAX_PASSED_OVER + len(keys)
    queue = FairQueue()
    for turn in range(bound + 1):
        waiting = []
        for place, (number, job) in enumerate(keys):
            mine = (number, job) == victim
            waiting.append(
                QueuedJob(
                    table=f"t{number}",
                    job=job,
                    due=Due(reason="due") if mine else others[(turn + place) % len(others)],
                    priority=1 if mine else priorities[number],
                    bytes=sizes[(turn + place) % len(sizes)] if job == "merge" else 0,
                )
            )
        served = queue.choose(waiting, slots=slots, remaining_bytes=remaining_bytes)
        if (f"t{victim[0]}", victim[1]) in [(c.due_job.table, c.due_job.job) for c in served]:
            return
    raise AssertionError(f"{victim} was not served in {bound} turns")


def test_everybody_is_served_within_the_bound_under_the_hardest_pressure() -> None:
    queue = FairQueue()
    tables = [f"t{number:02}" for number in range(50)]
    last = dict.fromkeys(tables, 0)
    longest = 0
    for turn in range(1, 2_000):
        waiting = [
            candidate(name, pressure=1e9 if name < "t25" else 1.0, critical=name < "t10")
            for name in tables
        ]
        for name in names(queue.choose(waiting, slots=1)):
            longest = max(longest, turn - last[name])
            last[name] = turn
    assert min(last.values()) > 1_800
    assert longest <= MAX_PASSED_OVER + len(tables)
